// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package twin simulates the node's training tasks under plain Nomad, which shares CPU
// by entitlement. A task's twin has the task's size (CPU used plus remaining) and ends
// when it has received that much (policy.Task.FairCPUS). A task that ended before its
// twin stays as a ghost (policy.Task.Ended), since under plain Nomad it would still use
// its share. Package fsp uses the result.
//
// It is pure arithmetic: no clock, no files. CPU is fluid, and a task that cannot use
// its share (policy.Task.CapCores) leaves the rest to the others.
package twin

import (
	"math"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/waterfill"
)

// rounding is the relative rounding error of sums.
const rounding = 1e-9

// Left returns the remaining work of a task's twin: 0 if it has ended, +Inf if the
// task's size is unknown.
func Left(t policy.Task) policy.CPUSeconds {
	size := t.CPUS
	switch {
	case t.Ended:
	case t.RemainingCPUS == nil:
		return policy.CPUSeconds(math.Inf(1))
	default:
		size += *t.RemainingCPUS
	}
	if left := size - t.FairCPUS; left > size*rounding {
		return left
	}
	return 0
}

// Advance runs the twins on cores for a time in seconds and adds what each gets to its
// FairCPUS. A twin that ends leaves its share to the others at once.
func Advance(tasks []policy.Task, cores policy.Cores, seconds float64) {
	r := newRun(tasks)
	for seconds > 0 {
		step, some := r.next(cores)
		if !some {
			return
		}
		step = min(step, seconds)
		r.advance(step)
		seconds -= step
	}
}

// Due returns the seconds until the twin of task i ends if no task joins; +Inf if
// unknown.
func Due(tasks []policy.Task, i int, cores policy.Cores) float64 {
	r := newRun(append([]policy.Task(nil), tasks...))
	for now := 0.0; ; {
		if r.left[i] == 0 {
			return now
		}
		step, some := r.next(cores)
		if !some || math.IsInf(step, 1) {
			return math.Inf(1)
		}
		r.advance(step)
		now += step
	}
}

type run struct {
	tasks []policy.Task
	left  []float64
	rate  []float64
}

func newRun(tasks []policy.Task) run {
	r := run{tasks: tasks, left: make([]float64, len(tasks))}
	for i, t := range tasks {
		if !t.Service() {
			r.left[i] = float64(Left(t))
		}
	}
	return r
}

// next sets the rates of the twins and returns the seconds until the next one ends;
// false if none runs.
func (r *run) next(cores policy.Cores) (ends float64, some bool) {
	claims := make([]waterfill.Claim, len(r.tasks))
	for i, t := range r.tasks {
		if r.left[i] == 0 {
			continue
		}
		most := float64(cores)
		if t.CapCores > 0 {
			most = min(most, float64(t.CapCores))
		}
		claims[i] = waterfill.Claim{Weight: t.Entitlement, Max: most}
		some = true
	}
	r.rate = waterfill.Divide(float64(cores), claims)
	ends = math.Inf(1)
	for i, rate := range r.rate {
		if rate > 0 {
			ends = min(ends, r.left[i]/rate)
		}
	}
	return ends, some && cores > 0
}

func (r *run) advance(seconds float64) {
	for i, rate := range r.rate {
		got := rate * seconds
		if rest := r.left[i] - got; math.IsInf(rest, 1) || rest > r.left[i]*rounding {
			r.left[i] = rest
		} else {
			got, r.left[i] = r.left[i], 0
		}
		r.tasks[i].FairCPUS += policy.CPUSeconds(got)
	}
}
