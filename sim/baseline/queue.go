// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package baseline

import (
	"math"

	"github.com/ebbtide/ebbtide/shim/queue"
)

// Fifo is the order "fifo" of a batch_queue, as documented for a coming Nomad: the first job that
// finds no place blocks the others, and none is interrupted.
func Fifo(in queue.Input) queue.Output {
	return give(in, func(j queue.Job) float64 { return j.SubmittedS }, queue.Rules{Head: true})
}

// Dynamic is the order "dynamic" of a batch_queue: a priority that grows with a job's age and falls
// with its size, in equal parts. (The part of the owner's use is the same for jobs of one owner.)
func Dynamic(in queue.Input) queue.Output {
	oldest, largest := 0.0, 0.0
	size := func(j queue.Job) float64 {
		sum := 0.0
		for _, x := range j.Needs {
			sum += x
		}
		return sum
	}
	for _, j := range in.Jobs {
		oldest, largest = max(oldest, in.NowS-j.SubmittedS), max(largest, size(j))
	}
	return give(in, func(j queue.Job) float64 {
		return size(j)/largest - (in.NowS-j.SubmittedS)/max(oldest, 1)
	}, queue.Rules{Head: true})
}

// EASY is first come, first served with backfilling (Lifka 1995).
func EASY(in queue.Input) queue.Output {
	return give(in, func(j queue.Job) float64 { return j.SubmittedS }, queue.Rules{Reserve: all})
}

// quantum is Tiresias' first threshold, as a time of one place, in seconds; each further one is
// twice as long.
const quantum = 600

// LeastAttained is least attained service in discretised queues (Tiresias, Gu et al., NSDI 2019), a
// queue's jobs in order of submission.
func LeastAttained(in queue.Input) queue.Output {
	return give(in, func(j queue.Job) float64 {
		return math.Floor(math.Log2(max(j.ServedS/quantum, 0.5)))*queue.MaxS + j.SubmittedS
	}, queue.Rules{Interrupt: true})
}

// SRTF serves the job with the shortest remaining time.
func SRTF(in queue.Input) queue.Output {
	return give(in, func(j queue.Job) float64 {
		if j.Node != "" {
			return *j.RemainingS - 2*in.Params.CostS
		}
		return *j.RemainingS
	}, queue.Rules{Interrupt: true})
}

func all(queue.Job) bool { return true }

func give(in queue.Input, by func(queue.Job) float64, rules queue.Rules) queue.Output {
	order := in.Order(func(i int) float64 { return by(in.Jobs[i]) })
	var out queue.Output
	plan := queue.Place(in, order, rules)
	for _, i := range order {
		out.Jobs = append(out.Jobs, queue.Decision{ID: in.Jobs[i].ID, Node: plan[i].Node, Rule: plan[i].Rule})
	}
	return out
}
