// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package publish

import (
	"context"
	"sync"
	"time"
)

// Limits on drawing. A picture costs some tens of milliseconds of CPU, and it is
// the tasks that the CPU is for.
const (
	pictureEvery = time.Minute            // least time between two pictures of a task
	pictureShare = 0.002                  // of a core, that drawing may take in the long run
	pictureBurst = 500 * time.Millisecond // of time, that may be saved up: some twenty pictures
	pictureDebt  = 25 * time.Millisecond  // that a picture may cost the next one: 12.5 s
)

// drawer draws one task's picture (status.Writer).
type drawer interface{ Picture() error }

// urgency says how soon a picture is wanted.
type urgency int

const (
	whenDue urgency = iota // at most once a minute
	soon                   // the first one, or something has happened: before the others
	last                   // at once: there will be no more
)

// Plots draws the tasks' pictures, one after the other, beside the loop. All
// together they take about two thousandths of a core. What was saved up of it is for
// milestones, of which there may be many at once; without any, a task has a new
// picture at most once a minute. The last picture of a task is beside all that.
type Plots struct {
	mu    sync.Mutex
	queue []drawer
	how   map[drawer]urgency
	drawn map[drawer]time.Time
	wake  chan struct{}
}

// NewPlots returns an empty queue. Run must be called for anything to be drawn.
func NewPlots() *Plots {
	return &Plots{how: make(map[drawer]urgency), drawn: make(map[drawer]time.Time), wake: make(chan struct{}, 1)}
}

// request asks for a picture.
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

// next takes the picture that is due, if one is. Otherwise it returns how long
// nothing will be due. saved is the time that may be spent; it is less than 0 after a
// picture that took more. u says how the picture was wanted.
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

// due returns how long a picture has to wait yet.
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
			_ = d.Picture() // the loop notices a directory that cannot be written
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
