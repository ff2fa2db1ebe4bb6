// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

// background runs functions off the steps, which own all state. Each returns a function for a step to
// call afterwards, or nil.
type background struct {
	results chan result
	running int
}

// result is what a step calls: then, unless it is nil. ended means that a function has returned it.
type result struct {
	then  func()
	ended bool
}

func newBackground() *background { return &background{results: make(chan result)} }

func (b *background) run(do func() (then func())) {
	b.running++
	go func() { b.results <- result{do(), true} }()
}

// tell has a step call then while the function that tells it goes on.
func (b *background) tell(then func()) { b.results <- result{then, false} }

// complete calls a result in a step.
func (b *background) complete(r result) {
	if r.then != nil {
		r.then()
	}
	if r.ended {
		b.running--
	}
}

// drain waits for all functions and completes them.
func (b *background) drain() {
	for b.running > 0 {
		b.complete(<-b.results)
	}
}
