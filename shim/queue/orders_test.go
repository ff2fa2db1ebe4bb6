// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package queue

import (
	"math"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/internal/policytest"
)

func TestDecide_orders(t *testing.T) {
	owned := func(owner string, priority int) func(*Job) {
		return func(j *Job) { j.Owner, j.Priority = owner, priority }
	}
	top := func(at float64) func(*Job) { return func(j *Job) { j.TopS = at } }
	hold := func(j *Job) { j.Hold = "since noon by ada" }
	one := []Node{{ID: "a", Capacity: Resources{"slot": 1}}}
	for _, tc := range []struct {
		name string
		jobs []Job
		want []string // by rank
	}{
		{"an owner's jobs by priority", []Job{job("low", s(100), owned("x", -1)), job("mid", s(200), owned("x", 0)), job("high", s(900), owned("x", 100))},
			[]string{"high start", "mid wait", "low wait"}},
		{"equal ones by fair finish", []Job{job("b", s(900), owned("x", 7)), job("a", s(100), owned("x", 7))}, []string{"a start", "b wait"}},
		{"a long job does not take a short one's turn from another owner", []Job{job("low", s(10), owned("x", 0)), job("high", s(9000), owned("x", 1)), job("other", s(600), owned("y", 0))},
			[]string{"other start", "high wait", "low wait"}},
		{"nor does the others' priority count", []Job{job("x", s(100), owned("x", 0)), job("y", s(200), owned("y", 100))}, []string{"x start", "y wait"}},
		{"one that fits nowhere delays none", []Job{job("high", s(100), func(j *Job) { owned("x", 1)(j); needs(2)(j) }), job("low", s(900), owned("x", 0)), job("other", s(1000), owned("y", 0))},
			[]string{"low start", "other wait", "high never"}},
		{"nor does one on hold", []Job{job("high", s(100), func(j *Job) { owned("x", 1)(j); hold(j) }), job("low", s(900), owned("x", 0)), job("other", s(1000), owned("y", 0))},
			[]string{"low start", "other wait", "high hold"}},
		{"a job before those that run", []Job{job("runs", s(9000), func(j *Job) { on("a", 4000)(j); owned("x", 0)(j) }), job("high", s(9000), owned("x", 1))},
			[]string{"high take", "runs yield"}},
		{"the latest at the top", []Job{job("short", s(10), nil), job("first", s(800), top(7)), job("second", s(900), top(8))},
			[]string{"second start", "first reserve", "short wait"}},
		{"also before its owner's", []Job{job("high", s(10), owned("x", 100)), job("low", s(900), top(7))}, []string{"low start", "high wait"}},
		{"on hold", []Job{job("short", s(10), hold), job("long", s(900), nil)}, []string{"long start", "short hold"}},
		{"and at the top", []Job{job("short", s(10), func(j *Job) { hold(j); top(7)(j) }), job("long", s(900), nil)}, []string{"long start", "short hold"}},
		{"not while it runs", []Job{job("runs", s(500), func(j *Job) { on("a", 100)(j); hold(j) }), job("other", s(10_000), nil)}, []string{"runs runs", "other wait"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := Input{NowS: 10_000, Nodes: one, Jobs: tc.jobs, Params: DefaultParams()}
			must.NoError(t, in.Validate())
			got := make([]string, len(tc.jobs))
			for _, d := range policytest.Decide(t, Decide, in).Jobs {
				got[d.Rank-1] = d.ID + " " + d.Rule[len("queue."):]
			}
			must.Eq(t, tc.want, got)
		})
	}
}

// The twin of a job on hold gets nothing, and the others what it leaves.
func TestDecide_hold(t *testing.T) {
	in := Input{Nodes: []Node{{ID: "a", Capacity: Resources{"slot": 1}}}, Params: DefaultParams()}
	in.Jobs = []Job{job("held", s(100), func(j *Job) { j.Hold = "since noon by ada" }), job("other", s(900), nil)}
	out := Decide(in).Jobs
	must.Eq(t, "on hold since noon by ada", out[0].Why)
	must.Nil(t, out[0].FairEndS)
	must.Eq(t, 900, *out[1].FairEndS)
	in.Advance(50)
	must.Eq(t, []float64{0, 50}, []float64{in.Jobs[0].FairS, in.Jobs[1].FairS})
	in.Jobs[0].Hold = ""
	in.Advance(50)
	must.Eq(t, []float64{25, 75}, []float64{in.Jobs[0].FairS, in.Jobs[1].FairS})
}

// Whatever an owner's priorities: its jobs are in their order, equal ones in that of the policy, and
// no other owner's job comes later, or in another order.
func TestByPriority_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := someInput(t, 12)
		c := newCluster(in)
		ends := c.ends(c.twins())
		before, held := in.obey(in.byFairFinish(ends), ends)
		must.SliceEmpty(t, held)
		owner := rapid.SampledFrom([]string{"", "big", "small"}).Draw(t, "whose")
		for i := range in.Jobs {
			if in.Jobs[i].Owner == owner {
				in.Jobs[i].Priority = rapid.IntRange(-2, 2).Draw(t, "priority")
			}
		}
		after := in.byPriority(before, ends)
		must.SliceContainsAll(t, before, after)
		var own, others, othersBefore []int
		for _, i := range before {
			if in.Jobs[i].Owner != owner {
				othersBefore = append(othersBefore, i)
			}
		}
		for k, i := range after {
			switch {
			case in.Jobs[i].Owner != owner:
				must.LessEq(t, slices.Index(before, i), k)
				others = append(others, i)
			case !math.IsInf(ends[i], 1):
				own = append(own, i)
			}
		}
		must.Eq(t, othersBefore, others)
		for k := 1; k < len(own); k++ {
			a, b := own[k-1], own[k]
			must.GreaterEq(t, in.Jobs[b].Priority, in.Jobs[a].Priority)
			must.True(t, in.Jobs[a].Priority > in.Jobs[b].Priority || slices.Index(before, a) < slices.Index(before, b))
		}
	})
}
