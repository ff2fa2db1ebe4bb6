// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/driver/policy/specon"
)

// A task that converges next to two learning ones requests a move, until only one of them learns.
func TestSpeCon(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		flat, one, two, quiet := n.task("flat"), n.task("one"), n.task("two"), n.task("quiet")
		quiet.Limited = false
		flat.Movable = true
		do := behaviour{
			flat: learner(0.05, 1, 0), one: learner(0.005, 1, 0), two: learner(0.005, 1, 0),
			quiet: func() (float64, string) { return 0.1, "" },
		}
		for _, f := range []*fake{flat, one, two, quiet} {
			n.start(f)
		}
		s := n.c.find(flat.ID)
		seen := map[specon.Category]bool{}
		for range 300 {
			n.second(do)
			seen[s.specon.category] = true
		}
		must.Eq(t, map[specon.Category]bool{specon.New: true, specon.PC: true, specon.WC: true, specon.CC: true}, seen)
		st := n.c.status(s, time.Now())
		must.Eq(t, "CC", st.SpeCon.Category)
		must.True(t, st.SpeCon.RequestMove, must.Sprint(st.SpeCon.Why))
		must.Between(t, 0, float64(st.SpeCon.Gain), 0.01)
		must.Less(t, float64(st.SpeCon.PreviousGain), float64(st.SpeCon.Gain))
		must.Eq(t, map[string]int{"CC": 1, "PC": 2}, st.Node.SpeCon)
		must.StrContains(t, n.event("move").Message, "requests a move to another node: gain ")
		must.Eq(t, specon.PC, n.c.find(one.ID).specon.category)
		must.Eq(t, specon.New, n.c.find(quiet.ID).specon.category)

		n.remove(two)
		delete(do, two)
		n.seconds(60, do)
		must.Eq(t, specon.CC, s.specon.category)
		must.False(t, s.specon.request, must.Sprint(s.specon.why))
	})(t)
}

// A task that could not use its card all the time is not judged by its gain.
func TestSpeCon_yielding(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		f := n.task("flat")
		report := handoff.Report{State: handoff.Yielding, Since: time.Now()}
		f.GPU = func() (handoff.Report, error) { return report, nil }
		n.start(f)
		do := behaviour{f: learner(0.05, 1, 0)}
		n.seconds(100, do)
		must.Eq(t, specon.New, n.c.find(f.ID).specon.category)
		report.State, report.Since = handoff.Running, time.Now()
		n.seconds(25, do)
		must.Eq(t, specon.New, n.c.find(f.ID).specon.category)
		n.seconds(150, do)
		must.Eq(t, specon.CC, n.c.find(f.ID).specon.category)
	})(t)
}
