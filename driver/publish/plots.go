// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package publish

import (
	"context"
	"sync"
	"time"
)

// Limits on drawing. A picture takes tens of milliseconds of CPU, which the tasks could use.
const (
	pictureEvery = time.Minute            // minimum time between two pictures of a task
	pictureShare = 0.002                  // of a core, on average
	pictureBurst = 500 * time.Millisecond // of saved time: about twenty pictures
	pictureDebt  = 25 * time.Millisecond
)

type drawer interface{ Picture() error }

type urgency int

const (
	whenDue urgency = iota // at most once a minute
	soon                   // a milestone: before others
	last                   // the final picture: immediately
)

// Plots draws the tasks' pictures sequentially in the background, with about two thousandths of a
// core. Saved time is for milestones, which may come in bursts; otherwise a task gets at most one
// picture a minute. Final pictures are exempt.
type Plots struct {
	mu    sync.Mutex
	queue []drawer
	how   map[drawer]urgency
	drawn map[drawer]time.Time
	wake  chan struct{}
}

// NewPlots returns an empty queue; call Run to draw.
func NewPlots() *Plots {
	return &Plots{how: make(map[drawer]urgency), drawn: make(map[drawer]time.Time), wake: make(chan struct{}, 1)}
}

func (p *Plots) request(d drawer, u urgency) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if have, queued := p.how[d]; !queued {
		p.queue = append(p.queue, d)
		p.how[d] = u
	} else {
		p.how[d] = max(have, u)
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// next returns the picture that is due, or the time until one is. saved is the
// available time, negative after an expensive picture.
func (p *Plots) next(now time.Time, saved time.Duration) (d drawer, u urgency, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait = time.Hour
	best := -1
	for i, q := range p.queue {
		how := p.how[q]
		if left := p.due(q, how, now, saved); left > 0 {
			wait = min(wait, left)
		} else if best < 0 || how > p.how[p.queue[best]] {
			best = i
		}
	}
	if best < 0 {
		return nil, whenDue, wait
	}
	d = p.queue[best]
	u = p.how[d]
	p.queue = append(p.queue[:best], p.queue[best+1:]...)
	p.drawn[d] = now
	if u == last {
		delete(p.drawn, d)
	}
	delete(p.how, d)
	return d, u, 0
}

func (p *Plots) due(d drawer, u urgency, now time.Time, saved time.Duration) time.Duration {
	need := func(cpu time.Duration) time.Duration {
		return time.Duration(float64(cpu-saved) / pictureShare)
	}
	switch u {
	case last:
		return 0
	case soon:
		return need(0)
	}
	return max(p.drawn[d].Add(pictureEvery).Sub(now), need(pictureBurst/2))
}

// Run draws until ctx is done.
func (p *Plots) Run(ctx context.Context) {
	saved, since := pictureBurst, time.Now()
	for {
		now := time.Now()
		saved = min(saved+time.Duration(pictureShare*float64(now.Sub(since))), pictureBurst)
		since = now
		d, u, wait := p.next(now, saved)
		if d != nil {
			_ = d.Picture() // the control loop reports unwritable directories
			if u != last {
				saved = max(saved-time.Since(now), -pictureDebt)
			}
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-p.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}
