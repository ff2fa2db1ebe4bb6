// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package flowcon

import (
	"strconv"

	"github.com/ebbtide/ebbtide/driver/policy"
)

// why explains a decision in one sentence: what was measured, which rule fired and
// what it did to category and limit. It is written without fmt, which would take
// most of the time of a run.
func (n *node) why(t Task, d policy.Decision, before policy.Category, raised bool) string {
	s := &n.words
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
		n.reason(s, t)
		s.text(": watched, limit unchanged")
	case RuleCL:
		n.reason(s, t)
		s.text(": converged, gets its part of the growth, G/ΣG = ")
		n.ratio(s, t)
	default:
		n.reason(s, t)
		s.text(": growing, gets its part of the growth, G/ΣG = ")
		n.ratio(s, t)
	}
	if raised {
		s.text(", raised to the floor 1/(β·n) = ")
		s.number(n.floor)
	}

	s.text("; category ")
	if t.Category == policy.New {
		s.text("new")
	} else {
		s.text(string(before))
	}
	s.text(" → ")
	s.text(string(d.Category))
	s.text(", limit ")
	if t.Limit == 0 {
		s.text("none")
	} else {
		s.number(t.Limit)
	}
	s.text(" → ")
	s.number(d.Limit)
	s.text(", use ")
	s.number(t.Use)
	s.known(", G ", t.Growth)
	s.known(", P ", t.Progress)
	return string(s.buf)
}

// reason says how the task's growth compares with α.
func (n *node) reason(s *sentence, t Task) {
	g := *t.Growth
	switch {
	case n.alpha == Off:
		s.text("no threshold, for no growing task has been measured")
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

// ratio writes G/ΣG.
func (n *node) ratio(s *sentence, t Task) {
	s.number(*t.Growth)
	s.text("/")
	s.number(n.growth.value())
}

// sentence is text in the making.
type sentence struct{ buf []byte }

func (s *sentence) text(t string) { s.buf = append(s.buf, t...) }

// number writes four significant digits: enough for people.
func (s *sentence) number(x float64) { s.buf = strconv.AppendFloat(s.buf, x, 'g', 4, 64) }

// known writes a label and a number when there is one.
func (s *sentence) known(label string, x *float64) {
	if x != nil {
		s.text(label)
		s.number(*x)
	}
}
