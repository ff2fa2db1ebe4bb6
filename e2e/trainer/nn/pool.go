// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package nn

import (
	"sync"
	"sync/atomic"
)

// Pool runs numbered pieces of work on a fixed number of workers. Which worker takes which piece is left to
// chance; results stay repeatable as long as each piece writes only to what its own number names.
type Pool struct {
	threads int
	work    chan func(worker int)
	done    sync.WaitGroup // the pieces of the Do in progress
	workers sync.WaitGroup
}

// NewPool starts a pool of threads workers, one of which is the caller of Do. Close it to end the others.
func NewPool(threads int) *Pool {
	p := &Pool{threads: max(1, threads), work: make(chan func(int))}
	for worker := 1; worker < p.threads; worker++ {
		p.workers.Go(func() {
			for f := range p.work {
				f(worker)
				p.done.Done()
			}
		})
	}
	return p
}

// Threads is the number of workers.
func (p *Pool) Threads() int { return p.threads }

// Do calls f for every piece in [0, pieces) and returns when all have ended. It must not be called from two
// goroutines at once.
func (p *Pool) Do(pieces int, f func(worker, piece int)) {
	var next atomic.Int64
	take := func(worker int) {
		for {
			piece := int(next.Add(1)) - 1
			if piece >= pieces {
				return
			}
			f(worker, piece)
		}
	}
	helpers := min(p.threads, pieces) - 1
	p.done.Add(max(0, helpers))
	for range helpers {
		p.work <- take
	}
	take(0)
	p.done.Wait()
}

// Close ends the workers and waits for them.
func (p *Pool) Close() {
	close(p.work)
	p.workers.Wait()
}
