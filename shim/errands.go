// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

// background runs functions off the loop, which owns all state. Each returns what the loop has
// to do afterwards, or nil.
type errands struct {
	back chan func()
	out  int
}

func newErrands() *errands { return &errands{back: make(chan func())} }

func (e *errands) send(do func() (then func())) {
	e.out++
	go func() { e.back <- do() }()
}

// complete is called by the loop with a function's result.
func (e *errands) took(then func()) {
	if then != nil {
		then()
	}
	e.out--
}

// drain waits for all functions and completes them.
func (e *errands) drain() {
	for e.out > 0 {
		e.took(<-e.back)
	}
}
