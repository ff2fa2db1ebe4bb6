// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"context"
	"sync"
	"time"
)

// Limits on drawing. A picture costs some tens of milliseconds of CPU, and it is
// the tasks that the CPU is for.
const (
	pictureEvery  = time.Minute // least time between two pictures of a task
	pictureBudget = 1000        // a pause of so many times what drawing took
)

// drawer draws one task's picture (status.Writer).
type drawer interface{ Picture() error }

// urgency says how soon a picture is wanted.
type urgency int

const (
	whenDue urgency = iota // at most once a minute
	soon                   // at once: the first one, or something has happened
	last                   // at once, and there will be no more
)

// artist draws the tasks' pictures, one after the other, beside the loop. Each
// task has a new one at most once a minute, and all together take about a
// thousandth of a core; only milestones come at once.
type artist struct {
	mu    sync.Mutex
	queue []drawer
	how   map[drawer]urgency
	drawn map[drawer]time.Time
	wake  chan struct{}
}

func newArtist() *artist {
	return &artist{how: make(map[drawer]urgency), drawn: make(map[drawer]time.Time), wake: make(chan struct{}, 1)}
}

// want asks for a picture.
func (a *artist) want(d drawer, u urgency) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if have, queued := a.how[d]; !queued {
		a.queue = append(a.queue, d)
		a.how[d] = u
	} else {
		a.how[d] = max(have, u)
	}
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// next takes the picture that is due, if one is. Otherwise it returns how long
// nothing will be due. free is when the budget allows the next one.
func (a *artist) next(now, free time.Time) (d drawer, wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	wait = time.Hour
	for i, q := range a.queue {
		due := a.drawn[q].Add(pictureEvery)
		if due.Before(free) {
			due = free
		}
		u := a.how[q]
		if left := due.Sub(now); left > 0 && u == whenDue {
			wait = min(wait, left)
			continue
		}
		a.queue = append(a.queue[:i], a.queue[i+1:]...)
		delete(a.how, q)
		a.drawn[q] = now
		if u == last {
			delete(a.drawn, q)
		}
		return q, 0
	}
	return nil, wait
}

// run draws until ctx is done.
func (a *artist) run(ctx context.Context) {
	var free time.Time
	for {
		d, wait := a.next(time.Now(), free)
		if d != nil {
			begun := time.Now()
			_ = d.Picture() // the loop notices a directory that cannot be written
			free = time.Now().Add(pictureBudget * time.Since(begun))
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-a.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}
