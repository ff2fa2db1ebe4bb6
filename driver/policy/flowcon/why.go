// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package flowcon

import (
	"strconv"

	"github.com/ebbtide/ebbtide/driver/policy"
)

// why avoids fmt, which would take most of a run's time.
func (n *node) why(i int, d policy.Decision, raised bool) string {
	t, s := n.tasks[i], &n.words
	s.buf = s.buf[:0]

	switch d.Rule {
	case RuleJoin:
		s.text("new: enters NL without a limit")
	case RuleAllCL:
		s.text("all tasks have converged: no limits, free competition")
	case RuleUnmeasured:
		s.text("growth is not known yet: stays in NL without a limit")
	case RuleUndefined:
		s.text("used no CPU or reported nothing, so growth is undefined: keeps category and limit")
	case RuleLone:
		s.text("the only task: no limit")
	case RuleWL:
		n.reason(s, i)
		s.text(": watched, limit unchanged")
	case RuleCL:
		n.reason(s, i)
		s.text(": converged, gets its part of the growth, ")
		n.ratio(s, i)
	default:
		n.reason(s, i)
		s.text(": growing, gets its part of the growth, ")
		n.ratio(s, i)
	}
	if raised {
		if n.equal {
			s.text(", raised to the floor 1/(β·n) = ")
		} else {
			s.text(", raised to the floor φ/β = ")
		}
		s.number(float64(n.floor[i]))
	}

	s.text("; category ")
	if t.Category == policy.New {
		s.text("new")
	} else {
		s.text(string(n.before[i]))
	}
	s.text(" → ")
	s.text(string(d.Category))
	s.text(", limit ")
	if t.Limit == 0 {
		s.text("none")
	} else {
		s.number(float64(t.Limit))
	}
	s.text(" → ")
	s.number(float64(*d.Limit))
	s.text(", use ")
	s.number(float64(t.Use))
	s.known(", G ", t.Growth)
	s.known(", P ", t.Progress)
	return string(s.buf)
}

func (n *node) reason(s *sentence, i int) {
	g := *n.growth[i]
	switch {
	case !n.tasks[i].Fresh():
		s.text("nothing new was measured, so the category stays")
		return
	case n.alpha == Off:
		s.text("no threshold, as no growing task is measured")
		return
	case g == 0:
		s.text("no growth, G = 0")
		return
	}
	s.text("G = ")
	s.number(g)
	if n.grows(g) {
		s.text(" ≥ α = ")
	} else {
		s.text(" < α = ")
	}
	s.number(n.alpha)
}

func (n *node) ratio(s *sentence, i int) {
	if n.equal {
		s.text("G/ΣG = ")
	} else {
		s.text("φG/ΣφG = ")
	}
	s.number(*n.growth[i] * n.weight[i])
	s.text("/")
	s.number(n.sum.value())
}

type sentence struct{ buf []byte }

func (s *sentence) text(t string) { s.buf = append(s.buf, t...) }

func (s *sentence) number(x float64) { s.buf = strconv.AppendFloat(s.buf, x, 'g', 4, 64) }

func (s *sentence) known(label string, x *float64) {
	if x != nil {
		s.text(label)
		s.number(*x)
	}
}
