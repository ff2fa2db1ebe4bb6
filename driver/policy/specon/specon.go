// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package specon categorises a node's training tasks by their gain and selects those
// that request a move to another node, as SpeCon does (Algorithm 1).
//
// With g, the gain of an interval on the normalised evaluation function, g′, that of
// the interval before, and a threshold α:
//
//	g < α and g < g′   PC 	 WC, WC 	 CC, CC stays
//	g < α and g ≥ g′   stays: the gain bounces
//	g ≥ α              	 PC
//
// A task that stays in CC while |PC| + |WC| > 1 requests a move. Lines 10 to 12 of the
// pseudo-code move PC to WC a second time; this package follows the prose, which has WC
// → CC.
package specon

import "fmt"

const (
	// RuleProgressing: the gain reaches the threshold.
	RuleProgressing = "specon.alg1.progressing"
	// RuleSlowing: the gain is below the threshold and falls: one category down.
	RuleSlowing = "specon.alg1.slowing"
	// RuleConverged: the same in CC, the last category.
	RuleConverged = "specon.alg1.converged"
	// RuleRequest: a converged task requests a move.
	RuleRequest = "specon.alg1.request"
	// RuleBouncing: the gain is below the threshold, but does not fall.
	RuleBouncing = "specon.alg1.bouncing"
	// RuleUnmeasured: no gain, or none before it.
	RuleUnmeasured = "specon.alg1.unmeasured"
)

// Decision is the decision for one task.
type Decision struct {
	ID string `json:"id"`
	// Category is the task's new category; never New.
	Category Category `json:"category"`
	// RequestMove requests a move to another node.
	RequestMove bool `json:"request_move"`
	// Rule is the stable name of the rule applied.
	Rule string `json:"rule"`
	// Why explains the decision in a sentence.
	Why string `json:"why"`
}

type Output struct {
	// Tasks has one decision per task of the input, in its order.
	Tasks []Decision `json:"tasks"`
}

// Decide runs Algorithm 1 on a valid input.
//
// |PC| and |WC| are those after this run, for all tasks: the published loop counts during the run,
// which makes the result depend on the order of tasks.
//
// A moved task is still categorised, which keeps node scores correct, but requests no further move;
// the published loop omits it.
//
// A gain below the threshold without a previous one changes nothing.
func Decide(in Input) Output {
	alpha := in.Params.Alpha
	if !(alpha > 0) {
		alpha = DefaultAlpha
	}
	out := Output{Tasks: make([]Decision, len(in.Tasks))}
	others := 0 // |PC| + |WC|
	for i, t := range in.Tasks {
		out.Tasks[i] = t.categorise(alpha)
		if out.Tasks[i].Category != CC {
			others++
		}
	}
	for i := range out.Tasks {
		out.Tasks[i].request(in.Tasks[i].Migrated, others)
	}
	return out
}

// categorise is Algorithm 1, lines 6 to 22, for one task.
func (t Task) categorise(alpha float64) Decision {
	d := Decision{ID: t.ID, Category: t.Category}
	if d.Category == New {
		d.Category = PC
	}
	was := d.Category
	switch {
	case t.Gain == nil:
		d.Rule, d.Why = RuleUnmeasured, "no gain was measured"
	case *t.Gain >= alpha:
		d.Rule, d.Category = RuleProgressing, PC
		d.Why = fmt.Sprintf("gain %.4g reaches the threshold %.4g", *t.Gain, alpha)
	case t.PreviousGain == nil:
		d.Rule = RuleUnmeasured
		d.Why = fmt.Sprintf("gain %.4g is below the threshold %.4g, but there is none before it", *t.Gain, alpha)
	case *t.Gain >= *t.PreviousGain:
		d.Rule = RuleBouncing
		d.Why = fmt.Sprintf("gain %.4g is below the threshold %.4g, but does not fall, it was %.4g", *t.Gain, alpha, *t.PreviousGain)
	default:
		d.Rule, d.Category = RuleSlowing, was.down()
		if was == CC {
			d.Rule = RuleConverged
		}
		d.Why = fmt.Sprintf("gain %.4g is below the threshold %.4g and falls, it was %.4g", *t.Gain, alpha, *t.PreviousGain)
	}
	if d.Category == was {
		d.Why += fmt.Sprintf(": stays in %s", was)
	} else {
		d.Why += fmt.Sprintf(": %s → %s", was, d.Category)
	}
	return d
}

func (c Category) down() Category {
	if c == PC {
		return WC
	}
	return CC
}

// request is Algorithm 1, lines 13 to 16.
func (d *Decision) request(migrated bool, others int) {
	switch {
	case d.Rule != RuleConverged:
	case migrated:
		d.Why += "; already moved"
	case others > 1:
		d.Rule, d.RequestMove = RuleRequest, true
		d.Why += fmt.Sprintf(" and requests a move: %d tasks on this node are still learning", others)
	default:
		d.Why += fmt.Sprintf("; at most one task on this node is still learning (%d)", others)
	}
}
