// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package tradl divides a node's CPU by two-tier targets, as TRADL does (thesis on
// TRADL and DQoES, §4.1 and §5.1, Algorithm 1): a training that has reached its
// acceptable value yields, one that has reached its objective ends.
//
//	training ──► acceptable ──► objective
//	    └───────────────────────────▲
//
// There is no way back. n tasks use Σ RU of the pool, a = Params.Full:
//
//	Σ RU < a                     no limits: the pool is not full
//	all are acceptable           no limits: free competition
//	otherwise, of each task:
//	  objective                  stop it
//	  acceptable, RU > 1/n       L = 1/(2n)
//	  acceptable, RU ≤ 1/n       L = 1/(n+1)
//	  training                   no limit
//
// Where the thesis leaves something open, the choice is documented beside the rule.
package tradl

import "github.com/ebbtide/ebbtide/driver/policy"

// The rules that a Decision can name.
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

// rounding is the relative error that comparisons of use forgive, so that the order
// of a sum decides nothing.
const rounding = 1e-9

// Decide runs Algorithm 1 on a valid snapshot.
//
// States. A task's state is the harder one of what it had reached and what its value
// reaches now; with policy.Task.Tracked only the former counts. The pseudo-code compares
// with ≤ and calls it a loss: a loss reaches a target by falling to it, an accuracy by
// rising to it. A task without a target, a service too, is in training for ever, and
// never in AS.
//
// AS, the acceptable ones, are counted after the states of this run, where the
// pseudo-code has those of the run before: else a node whose last task becomes
// acceptable would be limited for one more interval for nobody. A task that has
// reached its objective is in AS as well, whether it has an acceptable value or not:
// it is about to leave, so it is nobody for whom others should make room. It counts
// in n until it has left.
//
// An objective ends the task in the early branches too, whatever the load. There
// its limit goes with all others; otherwise it stays as it is while the task saves
// its model.
//
// The pool is full from Σ RU = a on; RU = φ is not more than the fair share. Both
// forgive a relative rounding error of 1e-9. What tasks used that have left since is a
// part of Σ RU (policy.Snapshot.Gone): else each leave would set the acceptable ones free for an
// interval.
//
// The two limits of an acceptable task make one step down and one up again: a task
// that used more than its fair share gets φ/2, uses that, and gets φ·n/(n+1), the fair
// share of one more task, from the next run on. As published; no limit is below φ/2.
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

// node is the state of one run.
type node struct {
	tasks      policy.Share
	equal      bool           // all fair shares are 1/n
	fair       []policy.Share // φ
	state      []policy.TargetState
	reached    int          // |AS|
	used, full policy.Share // Σ RU, and from which sum on the pool is full
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
