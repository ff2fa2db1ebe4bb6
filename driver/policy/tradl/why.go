// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tradl

import (
	"fmt"
	"strings"

	"github.com/ebbtide/ebbtide/driver/policy"
)

func (n *node) why(i int, t policy.Task, d policy.Decision) string {
	var s strings.Builder
	switch d.State {
	case policy.Objective:
		whyReached(&s, t, "objective", t.Objective)
		s.WriteString(": has succeeded and stops")
	case policy.Acceptable:
		whyReached(&s, t, "acceptable", t.Acceptable)
	default:
		whyTraining(&s, t)
	}
	fair, half, even := "1/n", "1/(2n)", "1/(n+1)"
	if !n.equal {
		fair, half, even = "φ", "φ/2", "φ·n/(n+1)"
	}
	switch d.Rule {
	case RuleNotFull:
		fmt.Fprintf(&s, "; the pool is not full, %.4g used: no limits", n.used)
	case RuleAllAcceptable:
		fmt.Fprintf(&s, "; all %v tasks are acceptable: no limits, free competition", n.tasks)
	case RuleHalf:
		fmt.Fprintf(&s, ": yields; its use is above the fair share %s = %.4g, so it gets %s", fair, n.fair[i], half)
	case RuleEven:
		fmt.Fprintf(&s, ": yields; its use is within the fair share %s = %.4g, so it gets %s", fair, n.fair[i], even)
	case RuleTraining, RuleUnmeasured:
		s.WriteString(": no limit")
	}
	fmt.Fprintf(&s, "; limit %s → %s, use %.4g", limit(t.Bound()), limit(d.Bound()), t.Use)
	return s.String()
}

func whyReached(s *strings.Builder, t policy.Task, name string, target *float64) {
	switch {
	case target == nil: // reached in an earlier run with other targets
		fmt.Fprintf(s, "reached its %s earlier", name)
	case t.Value != nil && t.Goal.Reached(*t.Value, *target):
		fmt.Fprintf(s, "value %.4g reaches %s %.4g", *t.Value, name, *target)
	case t.Value != nil:
		fmt.Fprintf(s, "reached %s %.4g earlier, value %.4g does not revoke it", name, *target, *t.Value)
	default:
		fmt.Fprintf(s, "reached %s %.4g earlier", name, *target)
	}
	if name == "acceptable" {
		whyNext(s, t)
	}
}

func whyNext(s *strings.Builder, t policy.Task) {
	if t.Objective != nil {
		fmt.Fprintf(s, ", objective %.4g not yet", *t.Objective)
	}
}

func whyTraining(s *strings.Builder, t policy.Task) {
	if t.Value == nil {
		s.WriteString("has not reported yet")
	} else {
		fmt.Fprintf(s, "value %.4g", *t.Value)
	}
	next, name := t.Acceptable, "acceptable"
	if next == nil {
		next, name = t.Objective, "objective"
	}
	switch {
	case next == nil:
		s.WriteString(", has no target")
	case t.Value != nil && t.Goal.Reached(*t.Value, *next): // tracked
		fmt.Fprintf(s, " reaches %s %.4g, but not often enough in a row", name, *next)
	default:
		fmt.Fprintf(s, ", has not reached %s %.4g", name, *next)
	}
}

func limit(l policy.Share) string {
	if l >= 1 {
		return "none"
	}
	return fmt.Sprintf("%.4g", l)
}
