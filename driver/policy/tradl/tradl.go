// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package tradl divides a node's CPU by two-tier targets, as TRADL does (thesis on
// TRADL and DQoES, §4.1 and §5.1, Algorithm 1): a task yields at its acceptable value
// and ends at its objective.
//
//	training ──► acceptable ──► objective
//	    └───────────────────────────▲
//
// States never revert. n tasks use Σ RU of the pool, a = Params.Full:
//
//	Σ RU < a                     no limits: the pool is not full
//	all are acceptable           no limits: free competition
//	otherwise, for each task:
//	  objective                  stop it
//	  acceptable, RU > 1/n       L = 1/(2n)
//	  acceptable, RU ≤ 1/n       L = 1/(n+1)
//	  training                   no limit
//
// Where the thesis is ambiguous, the choice is documented at the rule.
package tradl

import "github.com/ebbtide/ebbtide/driver/policy"

const (
	// RuleNotFull: the pool is not full: no limits.
	RuleNotFull = "tradl.not-full"
	// RuleAllAcceptable: all are acceptable: no limits.
	RuleAllAcceptable = "tradl.all-acceptable"
	// RuleObjective: at its objective: stops.
	RuleObjective = "tradl.objective"
	// RuleHalf: acceptable, used more than its fair share: half of it.
	RuleHalf = "tradl.acceptable.half"
	// RuleEven: acceptable, used no more than its fair share: n/(n+1) of it.
	RuleEven = "tradl.acceptable.even"
	// RuleTraining: no target reached: no limit.
	RuleTraining = "tradl.training"
	// RuleUnmeasured: nothing reported: no limit.
	RuleUnmeasured = "tradl.unmeasured"
)

// rounding is the relative tolerance of comparisons of use: the order of a sum must not
// matter.
const rounding = 1e-9

// Decide runs Algorithm 1 on a valid snapshot.
//
// States. A task's state is the further one of its previous state and what its value
// reaches now; with policy.Task.Tracked only the former counts. The pseudo-code
// compares a loss with ≤; an accuracy reaches a target from below. A task without
// targets, such as a service, is in training forever.
//
// AS, the acceptable tasks, is counted after this run's states; the pseudo-code uses
// the last run's, which would limit a node for one more interval when its last task
// becomes acceptable. A task at its objective is in AS too: it is about to leave, so
// others need not make room. It counts in n until it has left.
//
// An objective ends the task in the early branches too, whatever the load. There its
// limit is lifted with the others'; otherwise it stays while the task saves its model.
//
// The pool is full from Σ RU = a on; RU = φ is within the fair share. Both tolerate a
// relative error of 1e-9. Σ RU includes tasks that left (policy.Snapshot.Gone):
// otherwise each leave would lift the limits for an interval.
//
// The two limits of an acceptable task alternate, as published: above its fair share it
// gets φ/2, uses that, and then gets φ·n/(n+1), the fair share of one more task. No
// limit is below φ/2.
func Decide(s policy.Snapshot, p Params) policy.Outcome {
	n := newNode(s, p)
	out := policy.Outcome{Tasks: make([]policy.Decision, len(s.Tasks)), Floor: 0.5}
	for i, t := range s.Tasks {
		d := policy.Decision{ID: t.ID, State: n.state[i], Stop: n.state[i] == policy.Objective}
		free := n.used < n.full || n.reached == len(s.Tasks)
		half, even := n.fair[i]/2, n.fair[i]*n.tasks/(n.tasks+1)
		switch {
		case d.Stop:
			d.Rule = RuleObjective
			if limit := max(t.Bound(), half); !free && limit < 1 {
				d.Limit = &limit
			}
		case n.used < n.full:
			d.Rule = RuleNotFull
		case free:
			d.Rule = RuleAllAcceptable
		case d.State == policy.Acceptable && t.Use > n.fair[i]*(1+rounding):
			d.Rule, d.Limit = RuleHalf, &half
		case d.State == policy.Acceptable:
			d.Rule, d.Limit = RuleEven, &even
		case t.Value == nil:
			d.Rule = RuleUnmeasured
		default:
			d.Rule = RuleTraining
		}
		d.Why = n.why(i, t, d)
		out.Tasks[i] = d
	}
	return out
}

type node struct {
	tasks      policy.Share
	equal      bool           // all fair shares are 1/n
	fair       []policy.Share // φ
	state      []policy.TargetState
	reached    int          // |AS|
	used, full policy.Share // Σ RU, and the sum at which the pool is full
}

func newNode(s policy.Snapshot, p Params) node {
	n := node{
		tasks: policy.Share(len(s.Tasks)), equal: true, fair: s.FairShares(),
		state: make([]policy.TargetState, len(s.Tasks)),
		used:  s.Gone, full: policy.Share(p.Full * (1 - rounding)),
	}
	for i, t := range s.Tasks {
		n.equal = n.equal && n.fair[i] == n.fair[0]
		if n.state[i] = t.Reached(); n.state[i] != policy.InTraining {
			n.reached++
		}
		n.used += t.Use
	}
	return n
}
