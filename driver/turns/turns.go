// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package turns decides which tasks on a card yield because others come first there. It is fair finish
// (package fsp) on a pool of one card: a task's amounts are seconds in which it keeps the card busy, its
// cap is its utilisation of the card when nothing else runs there. A card cannot be given in parts, and
// what runs on it shares its time; so tasks are let in, in the order of fair finish, until they fill it.
//
// It is pure: no clock, no I/O.
package turns

import (
	"cmp"
	"slices"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/fsp"
	"github.com/ebbtide/ebbtide/internal/waterfill"
)

const (
	// full is the part of what tasks would get of a card if all ran, at which those let in fill it.
	full = 0.95
	// leastFloor stands for no floor, which fair finish does not allow: a task that yields gets nothing.
	leastFloor = 1e-9
)

// Task is a task on a card.
type Task struct {
	policy.Task
	// Runs: it never yields, as others may depend on it. Nor does one of unknown size, or a service.
	Runs bool
}

// Decide returns which of a card's tasks yield, in their order. prefer is the order in which slack is
// spent; the decision is for a number of seconds.
func Decide(seconds float64, prefer fsp.Prefer, tasks []Task) (yields []bool) {
	s := policy.Snapshot{PoolCores: 1, IntervalS: seconds}
	for _, t := range tasks {
		t.Entitlement = 1
		s.Tasks = append(s.Tasks, t.Task)
	}
	decided := fsp.Decide(s, fsp.Params{Prefer: prefer, Floor: leastFloor}).Tasks
	yields = make([]bool, len(tasks))
	claims := make([]waterfill.Claim, len(tasks))
	var order []int // those of known size that may yield or are late, by how far fair finish serves them
	for i, t := range tasks {
		if t.Ended {
			continue
		}
		claims[i] = waterfill.Claim{Weight: 1, Max: 1}
		if t.CapCores > 0 {
			claims[i].Max = min(float64(t.CapCores), 1)
		}
		if !t.Runs && !t.Service() && t.RemainingCPUS != nil {
			order = append(order, i)
		}
	}
	// Of what they can use: one that comes first may use little.
	served := func(i int) float64 { return float64(decided[i].Bound()) / claims[i].Max }
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(served(b), served(a)) })
	enough := full * together(claims, order)
	for n, i := range order {
		// One that is late is not held: its size may be wrong, and it must not stop others that are late.
		if rest := order[n:]; n > 0 && !decided[i].Late && together(without(claims, rest), order[:n]) >= enough {
			for _, i := range rest {
				yields[i] = true
			}
			break
		}
	}
	return yields
}

func without(claims []waterfill.Claim, gone []int) []waterfill.Claim {
	left := slices.Clone(claims)
	for _, i := range gone {
		left[i] = waterfill.Claim{}
	}
	return left
}

// together returns what some tasks get of a card if all with a claim share its time.
func together(claims []waterfill.Claim, of []int) (sum float64) {
	part := waterfill.Divide(1, claims)
	for _, i := range of {
		sum += part[i]
	}
	return sum
}
