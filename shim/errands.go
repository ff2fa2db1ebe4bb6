// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

// errands are what takes time and is done beside the loop, which owns all else. Each comes
// back with what the loop has to do then, or nil.
type errands struct {
	back chan func()
	out  int
}

func newErrands() *errands { return &errands{back: make(chan func())} }

// send has something done beside the loop.
func (e *errands) send(do func() (then func())) {
	e.out++
	go func() { e.back <- do() }()
}

// took is called by the loop with what came back.
func (e *errands) took(then func()) {
	if then != nil {
		then()
	}
	e.out--
}

// drain waits until all are back.
func (e *errands) drain() {
	for e.out > 0 {
		e.took(<-e.back)
	}
}
