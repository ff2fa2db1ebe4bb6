// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package auto

import (
	"fmt"
	"strings"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
	"github.com/ebbtide/ebbtide/driver/policy/tradl"
)

// cause is what a policy's sentence says before it comes to its own figures: they are
// parts of R, or bounded here once more.
func cause(why string) string {
	for _, figures := range []string{"; category ", "; limit "} {
		why, _, _ = strings.Cut(why, figures)
	}
	return why
}

// sentence explains a decision: the reason of the policy behind it, what became of
// it here, and the figures.
func (n *node) sentence(i int) string {
	t, d := n.Tasks[i], n.out[i]
	var s strings.Builder
	switch {
	case d.Stop:
		s.WriteString(n.why[i])
	case d.Kind == policy.Service:
		n.whyService(&s, i)
	default:
		n.whyTraining(&s, i)
	}
	if d.Kind == policy.Training {
		was := string(t.Category)
		if t.Category == policy.New {
			was = "new"
		}
		fmt.Fprintf(&s, "; category %s → %s", was, d.Category)
	}
	fmt.Fprintf(&s, "; limit %s → %s, use %.4g", limit(t.Limit), limit(n.limit[i]), t.Use)
	if t.Growth != nil {
		fmt.Fprintf(&s, ", G %.4g", *t.Growth)
	}
	if t.Progress != nil {
		fmt.Fprintf(&s, ", P %.4g", *t.Progress)
	}
	return s.String()
}

func (n *node) whyService(s *strings.Builder, i int) {
	t, d, reason := n.Tasks[i], n.out[i], n.why[i]
	if d.Rule == RuleKeep {
		// What DQoES says of its need is not what becomes of it here.
		reason, _, _ = strings.Cut(reason, ", needs ")
	}
	s.WriteString(reason)
	if base := n.base(i); base > n.share[i] {
		fmt.Fprintf(s, "; it uses more than its share %.4g and needs %.4g of it, which counts as its own", n.share[i], base)
	}
	switch {
	case d.Rule == RuleKeep:
		fmt.Fprintf(s, "; keeps p/((1+α/2)·o) = %.4g of %.4g, so that it answers in %.4g s at most",
			n.faster(i, +1), max(n.share[i], t.Use), (1+n.params.Dqoes.Alpha/2)**t.ObjectiveS)
	case d.Rule == RuleBound:
		fmt.Fprintf(s, "; all services ask for %.4g of the pool and may have %.4g, so the largest are cut", n.asked, n.bound)
	case len(n.learning) == 0:
		s.WriteString("; no training task is there, so services divide the whole pool")
	}
}

func (n *node) whyTraining(s *strings.Builder, i int) {
	d := n.out[i]
	reason := n.why[i]
	if n.free {
		s.WriteString(reason)
		s.WriteString("; nobody is limited")
		return
	}
	// What the policies say of their limits is not what becomes of them here.
	for _, said := range []string{
		", limit unchanged", ": keeps category and limit",
		": no limits, free competition", ": no limits", ": no limit",
	} {
		reason = strings.TrimSuffix(reason, said)
	}
	reason = strings.Replace(reason, "the pool is not full", "R is not full", 1)
	tasks := len(n.learning)
	switch d.Rule {
	case RuleUnknown:
		fmt.Fprintf(s, "nothing is known about its growth: gets the fair share of R = %.4g among %d training tasks", n.rest, tasks)
	case RuleAcceptable:
		fmt.Fprintf(s, "%s: need not yield, gets the fair share of R = %.4g among %d training tasks", reason, n.rest, tasks)
	case tradl.RuleHalf, tradl.RuleEven:
		fmt.Fprintf(s, "%s of R = %.4g", reason, n.rest)
	case RuleWanting:
		fmt.Fprintf(s, "%s, but it has a target that it has not reached: not less than the fair share of R = %.4g among %d training tasks",
			reason, n.rest, tasks)
	case flowcon.RuleWL, flowcon.RuleUndefined:
		fmt.Fprintf(s, "%s, keeps its part of R = %.4g", reason, n.rest)
	case flowcon.RuleAllCL:
		fmt.Fprintf(s, "%s: divide what others leave of R = %.4g equally", reason, n.rest)
	case flowcon.RuleLone:
		fmt.Fprintf(s, "%s: gets what services leave, R = %.4g", reason, n.rest)
	default:
		fmt.Fprintf(s, "%s, of what others leave of R = %.4g", reason, n.rest)
	}
	if floor := n.floor(i); n.limit[i] <= floor*(1+rounding) {
		name := "1/(2n)"
		if !n.equal {
			name = "φ/2"
		}
		fmt.Fprintf(s, ", not below the floor %s = %.4g", name, floor)
	}
}

// limit writes a limit.
func limit(l policy.Share) string {
	if l == 0 || l == 1 {
		return "none"
	}
	return fmt.Sprintf("%.4g", l)
}
