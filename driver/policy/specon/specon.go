// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package specon sorts the training tasks of a node into categories by their gain, as
// SpeCon does (Algorithm 1), and says which of them ask to be moved to another node.
//
// With g, the gain of an interval on the normalised evaluation function, g′, that of
// the one before, and a threshold α:
//
//	g < α and g < g′   PC → WC, WC → CC, CC stays
//	g < α and g ≥ g′   stays: the gain bounces
//	g ≥ α              → PC
//
// A task that stays in CC while |PC| + |WC| > 1 asks to be moved. Lines 10 to 12 of the
// pseudo-code move PC to WC a second time; the prose has WC → CC, and so have we.
package specon

import "fmt"

// The rules that a Decision can name.
const (
	// RuleProgressing: the gain reaches the threshold.
	RuleProgressing = "specon.alg1.progressing"
	// RuleSlowing: the gain is below the threshold and falls: one category down.
	RuleSlowing = "specon.alg1.slowing"
	// RuleConverged: the same in CC, which is the last one.
	RuleConverged = "specon.alg1.converged"
	// RuleRequest: a converged task asks to be moved.
	RuleRequest = "specon.alg1.request"
	// RuleBouncing: the gain is below the threshold, but does not fall.
	RuleBouncing = "specon.alg1.bouncing"
	// RuleUnmeasured: there is no gain, or none to compare it with.
	RuleUnmeasured = "specon.alg1.unmeasured"
)

// Decision is what Decide decides for one task.
type Decision struct {
	// ID is the task's, as the input gave it.
	ID string `json:"id"`
	// Category is the task's from now on; never New.
	Category Category `json:"category"`
	// RequestMove says that the task asks to be moved to another node.
	RequestMove bool `json:"request_move"`
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

// Decide runs Algorithm 1 on a valid input. It does not change the input.
//
// |PC| and |WC| are those after the categories of this run, for all tasks: the
// published loop counts while it goes, so that the order of tasks would decide.
//
// A task that has been moved once is sorted on, so that scores of nodes stay true, but
// asks no more; the published loop leaves it out.
//
// A gain without one before it is compared with nothing: below the threshold the task
// stays where it is.
func Decide(in Input) Output {
	alpha := in.Params.Alpha
	if !(alpha > 0) {
		alpha = DefaultAlpha // Params{} is meant to be usable
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

// down is the next category of a task that slows down.
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
		d.Why += "; it has been moved already"
	case others > 1:
		d.Rule, d.RequestMove = RuleRequest, true
		d.Why += fmt.Sprintf(" and asks to be moved: %d tasks on this node learn on", others)
	default:
		d.Why += fmt.Sprintf("; no more than one task on this node learns on (%d)", others)
	}
}
