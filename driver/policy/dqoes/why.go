// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package dqoes

import (
	"fmt"
	"strings"

	"github.com/ebbtide/ebbtide/driver/policy"
)

func (n *node) why(i int, d policy.Decision) string {
	t := n.Tasks[i]
	var s strings.Builder
	switch {
	case d.Rule == RuleNoService:
		return "the task has no ebbtide_qoe_target: policy dqoes does not limit it"
	case d.Class == policy.Unmeasured:
		fmt.Fprintf(&s, "no batch ended in the interval, objective %.4g s: keeps its limit", *t.ObjectiveS)
	case d.Rule == RuleEvent:
		s.WriteString("a task joined or left: keeps its limit until it is measured again")
	default:
		n.compare(&s, i)
		if n.params.Step == StepProportional {
			n.whyProportional(&s, i, d)
		} else {
			n.whyPublished(&s, i, d)
		}
	}
	if floor := n.floor(i); *d.Limit == floor && (t.Bound() < floor || d.Rule == RuleGood) {
		name := "1/(2n)"
		if !n.equal {
			name = "φ/2"
		}
		fmt.Fprintf(&s, ", bounded by the floor %s = %.4g", name, floor)
	}
	fmt.Fprintf(&s, "; limit %.4g → %.4g, use %.4g", t.Bound(), *d.Limit, t.Use)
	return s.String()
}

func (n *node) compare(s *strings.Builder, i int) {
	t, percent := n.Tasks[i], 100*n.params.Alpha
	fmt.Fprintf(s, "response %.4g s ", *t.ResponseS)
	switch n.class[i] {
	case policy.Good:
		fmt.Fprintf(s, "is below the objective %.4g s by more than %.4g %%", *t.ObjectiveS, percent)
	case policy.Bad:
		fmt.Fprintf(s, "is above the objective %.4g s by more than %.4g %%", *t.ObjectiveS, percent)
	default:
		fmt.Fprintf(s, "is within %.4g %% of the objective %.4g s", percent, *t.ObjectiveS)
	}
}

func (n *node) whyPublished(s *strings.Builder, i int, d policy.Decision) {
	p := n.params
	switch d.Rule {
	case RuleSatisfied:
		s.WriteString(": satisfied, limit stays")
	case RuleBadFull:
		s.WriteString(": worse than its target, but no CPU is reclaimable, limit stays")
	case RuleGood:
		fmt.Fprintf(s, ": better than its target, releases q/Q_G·R_G·β = %.4g/%.4g·%.4g·%.4g of its limit",
			n.q[i], n.sum.QGood, n.reclaimable, p.Beta)
	default:
		fmt.Fprintf(s, ": worse than its target, gets q/Q_B·R_G·β = %.4g/%.4g·%.4g·%.4g of its limit more",
			n.q[i], n.sum.QBad, n.reclaimable, p.Beta)
		if *d.Limit == 1 {
			s.WriteString(", bounded by the pool")
		}
	}
}

func (n *node) whyProportional(s *strings.Builder, i int, d policy.Decision) {
	t, aim := n.Tasks[i], 1-n.params.Alpha/2
	if n.overcommitted {
		aim = n.shortAim()
	}
	need := n.need(i, aim)
	switch {
	case d.Class == policy.Satisfied && *d.Limit == t.Bound():
		s.WriteString(": satisfied, limit stays")
		return
	case d.Class == policy.Satisfied:
		s.WriteString(": satisfied, and the pool is short")
	case d.Class == policy.Good:
		s.WriteString(": better than its target")
	default:
		s.WriteString(": worse than its target")
	}
	if need == 0 {
		s.WriteString(", but it used no CPU, so its need is unknown: limit stays")
		return
	}
	fmt.Fprintf(s, ", needs %.4g for %.4g s", need, aim*(*t.ObjectiveS))
	if need > 4*t.Bound() || need < t.Bound()/4 {
		s.WriteString(", moves by a factor of 2")
	} else {
		s.WriteString(", moves halfway")
	}
	if n.cut(i) {
		s.WriteString(", but the pool is short and the largest are cut to one level")
	}
}
