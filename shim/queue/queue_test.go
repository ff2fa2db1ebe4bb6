// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package queue

import (
	"fmt"
	"math"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/internal/policytest"
)

func s(x float64) *float64 { return &x }

// job is one that needs one of four slots.
func job(id string, left *float64, more func(*Job)) Job {
	j := Job{ID: id, Needs: Resources{"slot": 1}, RemainingS: left, Suspendable: true}
	if more != nil {
		more(&j)
	}
	return j
}

func on(node string, served float64) func(*Job) {
	return func(j *Job) { j.Node, j.ServedS, j.FairS = node, served, served/2 }
}

// local returns a change to a job with a checkpoint on node a or, while it runs, on its own.
func local(node string) func(*Job) {
	return func(j *Job) {
		on(node, 4000)(j)
		if j.Local = true; node == "" {
			j.Feasible = []string{"a"}
		}
	}
}

func needs(slots float64) func(*Job) {
	return func(j *Job) { j.Needs = Resources{"slot": slots} }
}

func TestDecide(t *testing.T) {
	const now = 10_000
	two := []Node{{ID: "a", Capacity: Resources{"slot": 1}}, {ID: "b", Capacity: Resources{"slot": 1}}}
	four := []Node{{ID: "a", Capacity: Resources{"slot": 4}}}
	for _, tc := range []struct {
		name  string
		nodes []Node
		jobs  []Job
		want  map[string]string // rule and node
	}{
		{"room for all", two, []Job{job("x", s(100), nil), job("y", nil, nil)}, map[string]string{"x": "start a", "y": "start b"}},
		{"the shorter twin first", two, []Job{job("long", s(9000), nil), job("mid", s(600), nil), job("short", s(300), nil)},
			map[string]string{"short": "start a", "mid": "start b", "long": "wait "}},
		{"a late job before one that needs less", two[:1], []Job{
			job("short", s(300), func(j *Job) { j.ServedS, j.FairS = 100, 100 }), job("late", s(800), func(j *Job) { j.ServedS, j.FairS = 1000, 1800 }),
		},
			map[string]string{"late": "start a", "short": "wait "}},
		{"but not before all", two[:1], []Job{job("short", s(300), nil), job("late", s(5000), func(j *Job) { j.ServedS, j.FairS = 1000, 6000 })},
			map[string]string{"short": "start a", "late": "reserve "}},
		{"of late ones that which needs least", two[:1], []Job{
			job("later", s(5000), func(j *Job) { j.FairS = 5000 }), job("near", s(400), func(j *Job) { j.FairS = 400 }),
		}, map[string]string{"near": "start a", "later": "reserve "}},
		{"a job's beginning before another's end", two[:1], []Job{
			job("short", s(600), func(j *Job) { j.ServedS, j.FairS = 300, 300 }), job("begun", s(850), func(j *Job) { j.ServedS, j.FairS = 90, 90 }),
		}, map[string]string{"begun": "start a", "short": "wait "}},
		{"but no more than its beginning", two[:1], []Job{
			job("short", s(600), func(j *Job) { j.ServedS, j.FairS = 300, 300 }), job("begun", s(850), func(j *Job) { j.ServedS, j.FairS = 100, 100 }),
		}, map[string]string{"short": "start a", "begun": "wait "}},
		{"nor if it would run to its end", two[:1], []Job{
			job("short", s(600), func(j *Job) { j.ServedS, j.FairS = 300, 300 }), job("new", s(850), func(j *Job) { j.Suspendable = false }),
		}, map[string]string{"short": "start a", "new": "wait "}},
		{"an unknown size shows in the first quantum", two[:1], []Job{job("known", s(300), nil), job("unknown", nil, nil)},
			map[string]string{"unknown": "start a", "known": "wait "}},
		{"and then it has its fair share", two[:1], []Job{
			job("known", s(3000), nil), job("unknown", nil, func(j *Job) { j.ServedS, j.FairS = 200, 400 }), job("ahead", nil, func(j *Job) { j.ServedS, j.FairS = 400, 200 }),
		}, map[string]string{"unknown": "start a", "known": "wait ", "ahead": "wait "}},
		{"a long job yields to a short one", two[:1], []Job{job("long", s(9000), on("a", 4000)), job("short", s(600), nil)},
			map[string]string{"short": "take a", "long": "yield "}},
		{"not if it ends soon", two[:1], []Job{job("long", s(110), on("a", 4000)), job("short", s(10), nil)},
			map[string]string{"short": "wait ", "long": "runs a"}},
		{"not if it cannot be suspended", two[:1], []Job{job("long", s(9000), func(j *Job) { on("a", 4000)(j); j.Suspendable = false }), job("short", s(600), nil)},
			map[string]string{"short": "wait ", "long": "runs a"}},
		{"not if it has just begun", two[:1], []Job{job("long", s(9000), func(j *Job) { on("a", 100)(j); j.SinceS = now - 100 }), job("short", s(600), nil)},
			map[string]string{"short": "wait ", "long": "runs a"}},
		{"a late job has a node kept free, but for jobs that end before", four, []Job{
			job("x", s(500), func(j *Job) { on("a", 100)(j); j.Suspendable = false; needs(3)(j) }),
			job("large", s(400), func(j *Job) { needs(4)(j); j.FairS = 400 }), job("short", s(450), nil), job("long", s(8000), nil),
		}, map[string]string{"x": "runs a", "large": "reserve ", "short": "start a", "long": "wait "}},
		{"also if it is late by many quanta", four, []Job{
			job("x", s(500), func(j *Job) { on("a", 100)(j); j.Suspendable = false; needs(3)(j) }),
			job("large", nil, func(j *Job) { needs(4)(j); j.FairS = 12_000 }), job("long", s(8000), nil),
		}, map[string]string{"x": "runs a", "large": "reserve ", "long": "wait "}},
		{"not if it is not late", four, []Job{
			job("x", s(500), func(j *Job) { on("a", 100)(j); j.Suspendable = false; needs(3)(j) }), job("large", s(400), needs(4)), job("long", s(8000), nil),
		}, map[string]string{"x": "runs a", "large": "wait ", "long": "start a"}},
		{"two small ones yield to a large one", four, []Job{
			job("x", s(9000), func(j *Job) { on("a", 4000)(j); needs(2)(j) }), job("y", s(9000), func(j *Job) { on("a", 4000)(j); needs(2)(j) }), job("large", s(400), needs(4)),
		}, map[string]string{"x": "yield ", "y": "yield ", "large": "take a"}},
		{"no more than are needed", four, []Job{
			job("x", s(9000), func(j *Job) { on("a", 4000)(j); needs(3)(j) }), job("y", s(9900), on("a", 4000)), job("mid", s(400), needs(3)),
		}, map[string]string{"x": "yield ", "y": "runs a", "mid": "take a"}},
		{"what a suspension leaves free is given at once", four, []Job{
			job("x", s(9000), func(j *Job) { on("a", 4000)(j); needs(4)(j) }), job("first", s(300), needs(2)), job("second", s(900), needs(2)),
		}, map[string]string{"x": "yield ", "first": "take a", "second": "take a"}},
		{"not what was free before", four, []Job{
			job("x", s(9000), func(j *Job) { on("a", 4000)(j); needs(3)(j) }), job("large", s(400), needs(2)), job("small", s(500), nil), job("last", s(600), nil),
		}, map[string]string{"x": "yield ", "large": "take a", "small": "start a", "last": "take a"}},
		{"the last in the order yields, whatever that costs", two, []Job{
			job("x", s(5000), on("a", 4000)), job("y", s(9000), func(j *Job) { on("b", 4000)(j); j.CostS = 90 }), job("short", s(600), nil),
		}, map[string]string{"short": "take b", "x": "runs a", "y": "yield "}},
		{"unless it gains too little", two, []Job{
			job("x", s(5000), on("a", 4000)), job("y", s(9000), func(j *Job) { on("b", 40_000)(j); j.CostS = 3000 }), job("short", s(600), nil),
		}, map[string]string{"short": "take a", "x": "yield ", "y": "runs b"}},
		{"one that can go on there only waits for the other's end", two[:1], []Job{job("long", s(1000), local("a")), job("short", s(800), nil)},
			map[string]string{"short": "take a", "long": "yield "}},
		{"so it does not yield if that takes as long", two[:1], []Job{job("long", s(1000), local("a")), job("short", s(900), nil)},
			map[string]string{"short": "wait ", "long": "runs a"}},
		{"but if it can go on anywhere", two[:1], []Job{job("long", s(1000), on("a", 4000)), job("short", s(900), nil)},
			map[string]string{"short": "take a", "long": "yield "}},
		{"a free place for which no suspended job waits", two, []Job{job("suspended", s(9000), local("")), job("short", s(800), nil)},
			map[string]string{"short": "start b", "suspended": "start a"}},
		{"or another that is taken", two, []Job{job("x", s(9000), local("a")), job("y", s(9000), local("b")), job("suspended", s(9900), local("")), job("short", s(800), nil)},
			map[string]string{"short": "take b", "x": "runs a", "y": "yield ", "suspended": "wait "}},
		{"what another leaves is enough", two, []Job{
			job("x", s(5000), func(j *Job) { on("a", 4000)(j); j.Leaving = true }), job("y", s(9000), on("b", 4000)), job("short", s(600), nil),
		}, map[string]string{"short": "take a", "x": "leave ", "y": "runs b"}},
		{"never", two, []Job{job("x", s(100), needs(2)), job("y", s(100), nil)}, map[string]string{"x": "never ", "y": "start a"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := Input{NowS: now, Nodes: tc.nodes, Jobs: tc.jobs, Params: DefaultParams()}
			must.NoError(t, in.Validate())
			out := policytest.Decide(t, Decide, in)
			for _, d := range out.Jobs {
				must.Eq(t, "queue."+tc.want[d.ID], d.Rule+" "+d.Node, must.Sprintf("%s: %s", d.ID, d.Why))
				must.NotEq(t, "", d.Why)
			}
			must.Len(t, len(tc.want), out.Jobs)
		})
	}
}

// An owner's many jobs do not delay another's: its twin has half the cluster.
func TestDecide_owners(t *testing.T) {
	in := Input{Nodes: []Node{{ID: "a", Capacity: Resources{"slot": 1}}}, Params: DefaultParams()}
	for range 8 {
		in.Jobs = append(in.Jobs, job(string(rune('a'+len(in.Jobs))), s(1000), func(j *Job) { j.Owner = "many" }))
	}
	in.Jobs = append(in.Jobs, job("other", s(3000), func(j *Job) { j.Owner = "one" }))
	out := Decide(in).Jobs
	must.Eq(t, 1, out[8].Rank)
	must.Eq(t, RuleStart, out[8].Rule)
	must.Eq(t, 6000, *out[8].FairEndS)
	in.Owners = []Owner{{"many", 9}}
	must.Eq(t, 9, Decide(in).Jobs[8].Rank)
}

// What owners have and are due: shares by weight, but no more than an owner's twins want.
func TestDecide_ownerShares(t *testing.T) {
	nodes := []Node{{ID: "a", Capacity: Resources{"slot": 4, "gpu": 8}}, {ID: "b", Capacity: Resources{"slot": 4}}}
	of := func(owner string, more func(*Job)) func(*Job) {
		return func(j *Job) {
			if j.Owner = owner; more != nil {
				more(j)
			}
		}
	}
	ended := func(j *Job) { j.ServedS, j.Ended, j.RemainingS = 600, true, nil }
	both := func(j *Job) { j.Needs = Resources{"slot": 1, "gpu": 4} }
	owner := func(name string, weight, use, share float64, running, waiting int) OwnerShare {
		return OwnerShare{Owner{name, weight}, use, share, running, waiting}
	}
	for _, tc := range []struct {
		name string
		jobs []Job
		want []OwnerShare
	}{
		{"none", nil, []OwnerShare{}},
		{"what it wants, in an idle cluster", []Job{job("x", s(600), of("a", nil)), job("y", nil, of("a", on("a", 100)))}, []OwnerShare{owner("a", 1, 0.125, 0.25, 1, 1)}},
		{"by weight, the largest first", []Job{
			job("x", s(600), of("a", needs(4))), job("y", s(600), of("heavy", needs(4))), job("z", s(600), of("heavy", needs(4))), job("w", s(600), of("a", needs(4))),
		}, []OwnerShare{owner("heavy", 2, 0, 2./3, 0, 2), owner("a", 1, 0, 1./3, 0, 2)}},
		{"equal ones by name", []Job{job("x", s(600), of("b", needs(4))), job("y", s(600), of("a", needs(4)))}, []OwnerShare{owner("a", 1, 0, 0.5, 0, 1), owner("b", 1, 0, 0.5, 0, 1)}},
		{"the largest part counts", []Job{job("x", s(600), of("a", func(j *Job) { on("a", 100)(j); both(j) })), job("y", s(600), of("a", nil))}, []OwnerShare{owner("a", 1, 0.5, 0.625, 1, 1)}},
		{"a late job's twin has ended", []Job{job("x", s(600), of("a", func(j *Job) { on("b", 0)(j); j.FairS = 600 }))}, []OwnerShare{owner("a", 1, 0.125, 0, 1, 0)}},
		{"that of an ended job may go on", []Job{job("x", nil, of("a", ended))}, []OwnerShare{owner("a", 1, 0, 0.125, 0, 0)}},
		{"nothing to jobs that cannot start", []Job{
			job("x", s(600), of("a", needs(5))), job("y", s(600), of("a", func(j *Job) { j.Hold = "by ada" })), job("z", s(600), of("b", func(j *Job) { j.Needs = Resources{"tpu": 1} })),
		}, []OwnerShare{owner("a", 1, 0, 0, 0, 2), owner("b", 1, 0, 0, 0, 1)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := Input{Nodes: nodes, Jobs: tc.jobs, Params: DefaultParams(), Owners: []Owner{{"heavy", 2}, {"absent", 7}}}
			must.NoError(t, in.Validate())
			out := policytest.Decide(t, Decide, in).Owners
			must.Len(t, len(tc.want), out)
			for i, want := range tc.want {
				must.InDelta(t, want.Share, out[i].Share, 1e-12)
				want.Share = out[i].Share
				must.Eq(t, want, out[i])
			}
		})
	}
}

// Of one resource, shares sum to at most 1, and to 1 if more is wanted; owners that get less than they
// want have it by weight.
func TestDecide_ownerSharesByWeight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := Input{Nodes: []Node{{ID: "a", Capacity: Resources{"slot": 8}}}, Params: DefaultParams()}
		wants := make(map[string]float64)
		all := 0.0
		for _, name := range []string{"a", "b", "c"} {
			in.Owners = append(in.Owners, Owner{name, rapid.SampledFrom([]float64{1, 1, 2, 0.3}).Draw(t, "weight")})
			for range rapid.IntRange(0, 6).Draw(t, "jobs") {
				slots := rapid.SampledFrom([]float64{1, 2, 8}).Draw(t, "slots")
				in.Jobs = append(in.Jobs, job(fmt.Sprint("job", len(in.Jobs)), s(600), func(j *Job) { j.Owner, j.Needs["slot"] = name, slots }))
				wants[name] += slots / 8
				all += slots / 8
			}
		}
		sum, level := 0.0, 0.0
		out := Decide(in).Owners
		must.Len(t, len(wants), out)
		for _, o := range out {
			sum += o.Share
			level = max(level, o.Share/o.Weight)
		}
		must.InDelta(t, min(all, 1), sum, 1e-9)
		for _, o := range out {
			must.InDelta(t, min(wants[o.Name], level*o.Weight), o.Share, 1e-9)
		}
	})
}

// A cluster without nodes, or without what a job needs: all wait, and no twin runs.
func TestDecide_noNodes(t *testing.T) {
	in := Input{Params: DefaultParams(), Jobs: []Job{job("x", s(100), nil), job("y", nil, nil), job("ended", nil, func(j *Job) { j.ServedS, j.Ended = 100, true })}}
	must.NoError(t, in.Validate())
	for _, nodes := range [][]Node{nil, {{ID: "a", Capacity: Resources{"slot": 0, "gpu": 4}}}} {
		in.Nodes = nodes
		must.True(t, math.IsInf(in.Advance(1000)[0], 1))
		must.Eq(t, 0, in.Jobs[0].FairS)
		for _, d := range Decide(in).Jobs {
			must.Eq(t, RuleNever, d.Rule)
		}
	}
}

// Whatever the input, places are not given twice, no job is suspended that may not be, what starts
// may run there, and no job is suspended for a later one.
func TestDecide_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := someInput(t, 12)
		out := policytest.Decide(t, Decide, in)
		free := make(map[string]Resources)
		for _, n := range in.Nodes {
			free[n.ID] = Resources{"gpu": n.Capacity["gpu"], "cores": n.Capacity["cores"]}
		}
		k := 0
		started := math.MaxInt
		for _, d := range out.Jobs {
			if d.Rule == RuleTake {
				started = min(started, d.Rank)
			}
		}
		for _, j := range in.Jobs {
			if j.Ended {
				continue
			}
			d := out.Jobs[k]
			k++
			must.Eq(t, j.ID, d.ID)
			if d.Node != "" {
				for name, x := range j.Needs {
					free[d.Node][name] -= x
					must.GreaterEq(t, -1e-9, free[d.Node][name])
				}
			}
			switch {
			case j.Node != "" && d.Node == "":
				must.Eq(t, RuleYield, d.Rule)
				must.True(t, j.Suspendable && (in.NowS-j.SinceS)*in.Params.Lost >= in.Params.cost(&j))
				must.Less(t, d.Rank, started)
			case j.Node != "":
				must.Eq(t, j.Node, d.Node)
			case d.Node != "":
				must.True(t, j.Feasible == nil || j.Feasible[0] == d.Node)
			}
		}
		must.Len(t, k, out.Jobs)
		jobs := 0
		for _, o := range out.Owners {
			jobs += o.Running + o.Waiting
			must.Between(t, 0, o.Use, 2) // of two resources
			must.Between(t, 0, o.Share, 2+1e-9)
		}
		must.Eq(t, k, jobs)
	})
}

func TestValidate(t *testing.T) {
	must.NoError(t, Example().Validate())
	in := Input{
		NowS: math.NaN(), Nodes: []Node{{ID: "a", Capacity: Resources{"gpu": -1}}, {ID: "a"}}, Owners: []Owner{{"x", 0}, {"x", 1}},
		Jobs: []Job{
			{ID: "j", Node: "c", ServedS: -1, FairS: -1, RemainingS: s(math.Inf(1)), CostS: -1, Feasible: []string{"b"}, Priority: 101, TopS: -1},
			{ID: "j", Node: "a", Ended: true, Needs: Resources{"gpu": math.NaN()}},
		},
		Params: Params{ProbeS: -1, CostS: -1, Margin: -1, Lost: -1},
	}
	err := in.Validate()
	for _, field := range []string{
		"now_s", "nodes[0].capacity.gpu", "nodes[1].id", "owners[0].weight", "owners[1].name", "jobs[0].needs", "jobs[0].node", "jobs[0].served_s",
		"jobs[0].fair_s", "jobs[0].remaining_s", "jobs[0].cost_s", "jobs[0].feasible[0]", "jobs[0].priority", "jobs[0].top_s", "jobs[1].id", "jobs[1].node",
		"jobs[1].needs.gpu", "params.probe_s", "params.cost_s", "params.margin", "params.lost",
	} {
		must.ErrorContains(t, err, field)
	}
}
