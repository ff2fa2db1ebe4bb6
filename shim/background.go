// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

// background runs functions off the loop, which owns all state. Each returns a function for the
// loop to call afterwards, or nil.
type background struct {
	results chan func()
	running int
}

func newBackground() *background { return &background{results: make(chan func())} }

func (e *background) run(do func() (then func())) {
	e.running++
	go func() { e.results <- do() }()
}

// complete calls a function's result on the loop.
func (e *background) complete(then func()) {
	if then != nil {
		then()
	}
	e.running--
}

// drain waits for all functions and completes them.
func (e *background) drain() {
	for e.running > 0 {
		e.complete(<-e.results)
	}
}
