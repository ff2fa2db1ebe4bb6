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

// The rules that a Decision can name.
const (
	// RuleNotFull: the pool is not full, so nobody is limited.
	RuleNotFull = "tradl.not-full"
	// RuleAllAcceptable: all tasks have reached acceptable and compete freely.
	RuleAllAcceptable = "tradl.all-acceptable"
	// RuleObjective: the task has reached its objective and stops.
	RuleObjective = "tradl.objective"
	// RuleHalf: an acceptable task that used more than its fair share gets half of it.
	RuleHalf = "tradl.acceptable.half"
	// RuleEven: an acceptable task that used no more than that gets 1/(n+1).
	RuleEven = "tradl.acceptable.even"
	// RuleTraining: a task that has reached no target is not limited.
	RuleTraining = "tradl.training"
	// RuleUnmeasured: a task that has not reported is not limited.
	RuleUnmeasured = "tradl.unmeasured"
)

// Decision is what Decide decides for one task.
type Decision struct {
	// ID is the task's, as the input gave it.
	ID string `json:"id"`
	// State is what the task has reached by now; never "".
	State State `json:"state"`
	// Limit is the upper bound of the task's CPU as a fraction of the pool, in
	// [1/(2n), 1); nil means no limit.
	Limit *float64 `json:"limit"`
	// Stop says that the task has succeeded and is to be stopped gracefully.
	Stop bool `json:"stop"`
	// Rule is the stable name of the rule that fired.
	Rule string `json:"rule"`
	// Why is a sentence for people that says how it came about.
	Why string `json:"why"`
}

// Output is what Decide decides.
type Output struct {
	// Tasks has one decision for each task of the input, in the input's order.
	Tasks []Decision `json:"tasks"`
}

// rounding is the relative error that comparisons of use forgive, so that the order
// of a sum decides nothing.
const rounding = 1e-9

// Decide runs Algorithm 1 on a valid input. It does not change the input.
//
// States. A task's state is the harder one of what it had reached and what its value
// reaches now; with Task.Tracked only the former counts. The pseudo-code compares
// with ≤ and calls it a loss: a loss reaches a target by falling to it, an accuracy by
// rising to it. A task without a target is in training for ever, and never in AS.
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
// The pool is full from Σ RU = a on; RU = 1/n is not more than the fair share. Both
// forgive a relative rounding error of 1e-9. What tasks used that have left since is a
// part of Σ RU (Input.Gone): else each leave would set the acceptable ones free for an
// interval.
//
// The two limits of an acceptable task make one step down and one up again: a task
// that used more than its fair share gets 1/(2n), uses that, and gets 1/(n+1), the
// fair share of one more task, from the next run on. As published; no limit is below
// 1/(2n).
func Decide(in Input) Output {
	n := newNode(in)
	out := Output{Tasks: make([]Decision, len(in.Tasks))}
	for i, t := range in.Tasks {
		d := Decision{ID: t.ID, State: n.state[i], Stop: n.state[i] == StateObjective}
		free := n.used < n.full || n.reached == len(in.Tasks)
		switch {
		case d.Stop:
			d.Rule = RuleObjective
			if limit := max(t.Limit, n.half); !free && limit < 1 {
				d.Limit = &limit
			}
		case n.used < n.full:
			d.Rule = RuleNotFull
		case free:
			d.Rule = RuleAllAcceptable
		case d.State == StateAcceptable && t.Use > n.fair*(1+rounding):
			limit := n.half
			d.Rule, d.Limit = RuleHalf, &limit
		case d.State == StateAcceptable:
			limit := n.even
			d.Rule, d.Limit = RuleEven, &limit
		case t.Value == nil:
			d.Rule = RuleUnmeasured
		default:
			d.Rule = RuleTraining
		}
		d.Why = n.why(t, d)
		out.Tasks[i] = d
	}
	return out
}

// node is the state of one run.
type node struct {
	tasks            int
	state            []State
	reached          int     // |AS|
	used, full       float64 // Σ RU, and from which sum on the pool is full
	fair, half, even float64 // 1/n, 1/(2n), 1/(n+1)
}

func newNode(in Input) node {
	n := node{tasks: len(in.Tasks), state: make([]State, len(in.Tasks)), used: in.Gone, full: in.Params.Full}
	if !(n.full > 0) {
		n.full = DefaultFull // Params{} is meant to be usable
	}
	n.full *= 1 - rounding
	tasks := float64(len(in.Tasks))
	n.fair, n.half, n.even = 1/tasks, 1/(2*tasks), 1/(tasks+1)
	for i, t := range in.Tasks {
		n.state[i] = t.now()
		if n.state[i] != StateTraining {
			n.reached++
		}
		n.used += t.Use
	}
	return n
}

// now returns what the task has reached by now.
func (t Task) now() State {
	state := t.State
	if state == "" {
		state = StateTraining
	}
	if t.Tracked || t.Value == nil {
		return state
	}
	reaches := func(target *float64, s State) {
		if target != nil && t.Goal.Reached(*t.Value, *target) && s.Rank() > state.Rank() {
			state = s
		}
	}
	reaches(t.Acceptable, StateAcceptable)
	reaches(t.Objective, StateObjective)
	return state
}
