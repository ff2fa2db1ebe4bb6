// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package nn

import (
	"sync"
	"sync/atomic"
)

// Pool runs pieces of work on a fixed number of workers, in any assignment. Results are
// reproducible if each piece writes only its own data.
type Pool struct {
	threads int
	work    chan func(worker int)
	done    sync.WaitGroup // of the current Do
	workers sync.WaitGroup
}

// NewPool starts a pool of threads workers, including Do's caller. Close it.
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

func (p *Pool) Threads() int { return p.threads }

// Do calls f for each piece in [0, pieces) and waits. It is not safe for concurrent use.
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

func (p *Pool) Close() {
	close(p.work)
	p.workers.Wait()
}
