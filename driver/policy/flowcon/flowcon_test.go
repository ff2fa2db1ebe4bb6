// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package flowcon

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/fields"
)

func num(x float64) *float64 { return &x }

func task(id string, c policy.Category, g float64, limit policy.Share) policy.Task {
	return policy.Task{ID: id, Entitlement: 1, Category: c, Growth: &g, Progress: num(g / 2), Limit: limit, Use: 0.5}
}

func unmeasured(id string, c policy.Category, limit policy.Share) policy.Task {
	return policy.Task{ID: id, Entitlement: 1, Category: c, Limit: limit}
}

type input struct {
	policy.Snapshot
	Params Params
}

func (in input) check() error {
	var errs fields.Errors
	for _, err := range []error{in.Validate(), Check(in.Snapshot, in.Params), CheckParams(in.Params)} {
		var more fields.Errors
		errors.As(err, &more)
		errs.Merge(more)
	}
	return errs.Err()
}

func (in input) decide() policy.Outcome { return Decide(in.Snapshot, in.Params) }

func fixed(alpha float64, tasks ...policy.Task) input {
	return input{
		policy.Snapshot{Tasks: tasks, IntervalS: 40, InitialIntervalS: 20},
		Params{Alpha: FixedAlpha(alpha), Beta: 2},
	}
}

func adaptive(tasks ...policy.Task) input {
	in := fixed(0, tasks...)
	in.Params = DefaultParams()
	return in
}

// The project's test vector: growths 0.6, 0.3, 0.1, categories NL, WL, CL after the transition, β =
// 2, limit of the task in WL 0.4.
func TestDecide_vector(t *testing.T) {
	out := fixed(0.35,
		task("a", policy.NL, 0.6, 1),
		task("b", policy.NL, 0.3, 0.4),
		task("c", policy.WL, 0.1, 0.4),
	).decide()
	must.Eq(t, []policy.Category{policy.NL, policy.WL, policy.CL}, categories(out))
	for i, want := range []float64{0.6, 0.4, 1.0 / 6} {
		must.InDelta(t, want, float64(out.Tasks[i].Bound()), 1e-12)
	}
	must.Eq(t, []string{RuleNL, RuleWL, RuleCL}, rules(out))
	must.Eq(t, 0.35, *out.Alpha)
	must.Eq(t, 40.0, out.IntervalS)
	must.Eq(t, "G = 0.1 < α = 0.35: converged, gets its part of the growth, G/ΣG = 0.1/1, "+
		"raised to the floor 1/(β·n) = 0.1667; category WL → CL, limit 0.4 → 0.1667, use 0.5, G 0.1, P 0.05",
		out.Tasks[2].Why)
}

// FlowCon, TCC 2022, §6.3: MNIST joins VAE, which grows slowly: 25 % for VAE, no limit for MNIST.
func TestDecide_twoJobs(t *testing.T) {
	in := fixed(0.1, task("vae", policy.CL, 0.01, 1), unmeasured("mnist", policy.New, 0))
	in.Event = policy.EventJoin
	out := in.decide()
	must.Eq(t, 1, out.Tasks[1].Bound())
	must.Eq(t, policy.NL, out.Tasks[1].Category)

	in.Tasks[1] = task("mnist", policy.NL, 0.5, 1)
	out = in.decide()
	must.Eq(t, 0.25, out.Tasks[0].Bound())
	must.Between(t, 0.75, out.Tasks[1].Bound(), 1)
}

// The categories of a policy without any: those of training tasks that run, by an adaptive α.
func TestCategorise(t *testing.T) {
	service := policy.Task{ID: "service", Kind: policy.Service, Entitlement: 1}
	ended := task("ended", policy.NL, 0.6, 1)
	ended.Ended = true
	in := policy.Snapshot{Tasks: []policy.Task{service, ended, task("fast", policy.NL, 0.6, 1), task("slow", policy.WL, 0.01, 1), unmeasured("new", policy.New, 0)}}
	decide := func(ids ...string) policy.Outcome {
		var out policy.Outcome
		for _, id := range ids {
			out.Tasks = append(out.Tasks, policy.Decision{ID: id})
		}
		Categorise(in, &out)
		return out
	}
	for _, ids := range [][]string{{"service", "ended", "fast", "slow", "new"}, {"service", "fast", "slow", "new"}} {
		got := make(map[string]policy.Category)
		out := decide(ids...)
		for _, d := range out.Tasks {
			got[d.ID] = d.Category
		}
		must.Eq(t, policy.NL, got["fast"])
		must.Eq(t, policy.CL, got["slow"])
		must.Eq(t, policy.NL, got["new"])
		must.Eq(t, policy.New, got["service"])
		must.Eq(t, policy.New, got["ended"])
		must.InDelta(t, 0.305, *out.Alpha, 1e-9)
	}
	has := policy.Outcome{Tasks: []policy.Decision{{ID: "fast", Category: policy.WL}}, Alpha: num(1)}
	Categorise(in, &has)
	must.Eq(t, policy.WL, has.Tasks[0].Category)
}

// Algorithm 1, lines 2–13, on the first of two tasks; the second prevents the case that all are in
// CL.
func TestDecide_categories(t *testing.T) {
	for _, tc := range []struct {
		name  string
		from  policy.Category
		g     float64
		alpha float64
		want  policy.Category
	}{
		{"NL grows", policy.NL, 0.2, 0.1, policy.NL},
		{"NL slows", policy.NL, 0.05, 0.1, policy.WL},
		{"WL grows again", policy.WL, 0.2, 0.1, policy.NL},
		{"WL slows", policy.WL, 0.05, 0.1, policy.CL},
		{"CL grows again", policy.CL, 0.2, 0.1, policy.NL},
		{"CL stays", policy.CL, 0.05, 0.1, policy.CL},
		{"exactly α is growth", policy.WL, 0.1, 0.1, policy.NL},
		{"α less a rounding error is growth", policy.WL, 0.1 * (1 - 1e-12), 0.1, policy.NL},
		{"just below α is not", policy.WL, 0.0999, 0.1, policy.CL},
		{"no growth is never ≥ α", policy.CL, 0, 0, policy.CL},
		{"no growth leaves NL", policy.NL, 0, 0, policy.WL},
		{"any growth is ≥ 0", policy.CL, math.SmallestNonzeroFloat64, 0, policy.NL},
		{"a new task is not measured yet", policy.New, 0.05, 0.1, policy.NL},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out := fixed(tc.alpha, task("x", tc.from, tc.g, 1), task("y", policy.NL, 1, 1)).decide()
			must.Eq(t, tc.want, out.Tasks[0].Category)
		})
	}
}

// Algorithm 1, lines 14–26.
func TestDecide_limits(t *testing.T) {
	const floor2 = 1.0 / 4 // of two tasks with β = 2
	for _, tc := range []struct {
		name  string
		in    input
		want  []float64
		rules []string
	}{
		{
			"only NL: the parts of the growth, which sum to 1",
			fixed(0.1, task("a", policy.NL, 0.3, 1), task("b", policy.NL, 0.2, 1), task("c", policy.CL, 0.5, 1)),
			[]float64{0.3, 0.2, 0.5},
			[]string{RuleNL, RuleNL, RuleNL},
		}, {
			"NL with a far faster one: not below the floor",
			fixed(0.1, task("a", policy.NL, 1000, 1), task("b", policy.NL, 1, 1)),
			[]float64{1000.0 / 1001, floor2},
			[]string{RuleNL, RuleNL},
		}, {
			"CL: the part of the growth where it is above the floor",
			fixed(10, task("a", policy.NL, 4, 0.9), task("b", policy.CL, 6, 0.9)),
			[]float64{0.9, 0.6},
			[]string{RuleWL, RuleCL},
		}, {
			"CL: the floor",
			fixed(1, task("a", policy.NL, 9, 0.9), task("b", policy.CL, 0, 0.9)),
			[]float64{1, floor2},
			[]string{RuleNL, RuleCL},
		}, {
			"WL: unchanged",
			fixed(1, task("a", policy.NL, 9, 0.9), task("b", policy.NL, 0.5, 0.33)),
			[]float64{9 / 9.5, 0.33},
			[]string{RuleNL, RuleWL},
		}, {
			"WL: unchanged, but a limit from a fuller node is raised to the floor",
			fixed(1, task("a", policy.NL, 9, 0.9), task("b", policy.NL, 0.5, 0.05)),
			[]float64{9 / 9.5, floor2},
			[]string{RuleNL, RuleWL},
		}, {
			"all in CL: free competition",
			fixed(1, task("a", policy.CL, 0.2, 0.4), task("b", policy.WL, 0.5, 0.05), unmeasured("c", policy.CL, 0.1)),
			[]float64{1, 1, 1},
			[]string{RuleAllCL, RuleAllCL, RuleAllCL},
		}, {
			"no growth anywhere: the parts of nothing are nothing",
			fixed(1, task("a", policy.NL, 0, 0.7), task("b", policy.WL, 0, 0.7)),
			[]float64{0.7, floor2},
			[]string{RuleWL, RuleCL},
		}, {
			"unmeasured: no limit, and not in the sum",
			fixed(0.1, unmeasured("a", policy.NL, 0.3), task("b", policy.NL, 0.5, 0.5), task("c", policy.NL, 1.5, 0.5)),
			[]float64{1, 0.25, 0.75},
			[]string{RuleUnmeasured, RuleNL, RuleNL},
		}, {
			"idle: category and limit stay",
			fixed(0.1, unmeasured("a", policy.WL, 0.3), unmeasured("b", policy.CL, 0.45), task("c", policy.NL, 1, 0.5)),
			[]float64{0.3, 0.45, 1},
			[]string{RuleUndefined, RuleUndefined, RuleNL},
		}, {
			"idle: a limit from a fuller node is raised to the floor",
			fixed(0.1, unmeasured("a", policy.CL, 0.01), task("b", policy.NL, 1, 0.5)),
			[]float64{floor2, 1},
			[]string{RuleUndefined, RuleNL},
		}, {
			"new: no limit, a growth known already counts in the sum",
			fixed(0.1, task("a", policy.New, 3, 0), unmeasured("b", policy.New, 0), task("c", policy.NL, 1, 0.5)),
			[]float64{1, 1, 0.25},
			[]string{RuleJoin, RuleJoin, RuleNL},
		}, {
			"growths whose sum overflows",
			fixed(0.1, task("a", policy.NL, math.MaxFloat64, 1), task("b", policy.NL, math.MaxFloat64, 1)),
			[]float64{0.5, 0.5},
			[]string{RuleNL, RuleNL},
		}, {
			"growths that hardly exist",
			fixed(0, task("a", policy.NL, math.SmallestNonzeroFloat64, 1), task("b", policy.NL, math.SmallestNonzeroFloat64, 1)),
			[]float64{0.5, 0.5},
			[]string{RuleNL, RuleNL},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.NoError(t, tc.in.check())
			out := tc.in.decide()
			must.Eq(t, tc.rules, rules(out))
			for i := range tc.want {
				must.InDelta(t, tc.want[i], float64(out.Tasks[i].Bound()), 1e-12, must.Sprint(out.Tasks[i].ID))
			}
		})
	}
}

func TestDecide_beta(t *testing.T) {
	in := fixed(1, task("a", policy.NL, 9, 0.9), task("b", policy.CL, 0, 0.9))
	in.Params.Beta = 1 // TCC 2022
	must.Eq(t, 0.5, in.decide().Tasks[1].Bound())
	in.Params.Beta = 8
	must.Eq(t, 1.0/16, in.decide().Tasks[1].Bound())
	in.Params.Beta = math.MaxFloat64
	must.NoError(t, in.check())
	must.Positive(t, in.decide().Tasks[1].Bound())
}

func TestDecide_lone(t *testing.T) {
	for _, tc := range []struct {
		name string
		task policy.Task
		want policy.Category
		rule string
	}{
		{"new", unmeasured("a", policy.New, 0), policy.NL, RuleJoin},
		{"new, growth known", task("a", policy.New, 0, 0), policy.NL, RuleJoin},
		{"unmeasured", unmeasured("a", policy.NL, 0.5), policy.NL, RuleUnmeasured},
		{"NL growing", task("a", policy.NL, 0.3, 0.5), policy.NL, RuleLone},
		{"NL standing still, nothing new", stale(task("a", policy.NL, 0, 0.5)), policy.NL, RuleLone},
		{"NL standing still", task("a", policy.NL, 0, 0.5), policy.WL, RuleLone},
		{"WL growing", task("a", policy.WL, 0.3, 0.5), policy.NL, RuleLone},
		{"WL standing still", task("a", policy.WL, 0, 0.5), policy.CL, RuleAllCL},
		{"WL idle", unmeasured("a", policy.WL, 0.5), policy.WL, RuleLone},
		{"CL growing", task("a", policy.CL, 0.3, 0.5), policy.CL, RuleAllCL},
		{"CL idle", unmeasured("a", policy.CL, 0.5), policy.CL, RuleAllCL},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out := adaptive(tc.task).decide()
			must.Eq(t, tc.want, out.Tasks[0].Category)
			must.Eq(t, tc.rule, out.Tasks[0].Rule)
			must.Eq(t, 1.0, float64(out.Tasks[0].Bound()))
		})
	}
	// With a fixed α, a lone task in NL can slow down.
	out := fixed(0.5, task("a", policy.NL, 0.3, 0.5)).decide()
	must.Eq(t, []string{RuleLone}, rules(out))
	must.Eq(t, 1.0, float64(out.Tasks[0].Bound()))
}

// Algorithm 2: the interval, and the tasks that enter NL.
func TestDecide_events(t *testing.T) {
	for _, tc := range []struct {
		name  string
		event policy.Event
		tasks []policy.Task
		want  float64
	}{
		{"nothing happened", policy.EventNone, []policy.Task{task("a", policy.NL, 1, 1)}, 40},
		{"all in CL: doubles", policy.EventNone, []policy.Task{task("a", policy.CL, 1, 1)}, 80},
		{"a new task without the event", policy.EventNone, []policy.Task{unmeasured("a", policy.New, 1)}, 40},
		{"join", policy.EventJoin, []policy.Task{unmeasured("a", policy.New, 1), task("b", policy.NL, 1, 1)}, 20},
		{"join of one that converged elsewhere", policy.EventJoin, []policy.Task{task("a", policy.CL, 1, 1)}, 40},
		{"leave", policy.EventLeave, []policy.Task{task("a", policy.NL, 1, 1)}, 20},
		{"leave, the others are in CL", policy.EventLeave, []policy.Task{task("a", policy.CL, 1, 1), task("b", policy.CL, 1, 1)}, 40},
		{"leave of the last", policy.EventLeave, nil, 40},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := adaptive(tc.tasks...)
			in.Event = tc.event
			must.NoError(t, in.check())
			must.Eq(t, tc.want, in.decide().IntervalS)
		})
	}
	in := adaptive(task("a", policy.CL, 1, 1))
	in.IntervalS = math.MaxFloat64
	must.Eq(t, math.MaxFloat64, in.decide().IntervalS)
}

func TestDecide_leave(t *testing.T) {
	a, b := task("a", policy.NL, 0.6, 0.2), task("b", policy.NL, 0.2, 0.1)
	in := fixed(0.1, a, b)
	in.Event = policy.EventLeave
	out := in.decide()
	must.InDelta(t, 0.75, float64(out.Tasks[0].Bound()), 1e-12)
	must.InDelta(t, 0.25, float64(out.Tasks[1].Bound()), 1e-12)
}

func TestDecide_noTasks(t *testing.T) {
	out := adaptive().decide()
	must.NotNil(t, out.Tasks) // "[]" in JSON, not "null"
	must.Len(t, 0, out.Tasks)
	must.Eq(t, -1.0, *out.Alpha)
}

// Algorithm 3, on G and the categories before the transition.
func TestDecide_adaptiveAlpha(t *testing.T) {
	for _, tc := range []struct {
		name  string
		tasks []policy.Task
		want  float64
	}{
		{"all in CL", []policy.Task{task("a", policy.CL, 1, 1), task("b", policy.CL, 2, 1)}, Off},
		{"one task", []policy.Task{task("a", policy.NL, 0.6, 1)}, 0.3},
		{"one task, in WL", []policy.Task{task("a", policy.WL, 0.6, 1)}, 0.3},
		{"one task, unmeasured", []policy.Task{unmeasured("a", policy.NL, 1)}, Off},
		{
			"both categories: the mean of the means, CL has no part in it",
			[]policy.Task{task("a", policy.NL, 0.8, 1), task("b", policy.NL, 0.4, 1), task("c", policy.WL, 0.2, 1), task("d", policy.CL, 9, 1)},
			0.4,
		}, {
			"only NL: half its mean",
			[]policy.Task{task("a", policy.NL, 0.8, 1), task("b", policy.NL, 0.4, 1)},
			0.3,
		}, {
			"only WL: half its mean",
			[]policy.Task{task("a", policy.WL, 0.8, 1), task("b", policy.CL, 0.4, 1)},
			0.4,
		}, {
			"unmeasured tasks are not in the mean",
			[]policy.Task{task("a", policy.NL, 0.8, 1), unmeasured("b", policy.NL, 1), unmeasured("c", policy.New, 1), task("d", policy.WL, 0.2, 1)},
			0.5,
		}, {
			"a new task with a growth is in the mean of NL",
			[]policy.Task{task("a", policy.NL, 0.8, 1), task("b", policy.New, 0.4, 1)},
			0.3,
		}, {
			"nothing to set a threshold by",
			[]policy.Task{task("a", policy.CL, 0.8, 1), unmeasured("b", policy.NL, 1)},
			Off,
		}, {
			"none grows",
			[]policy.Task{task("a", policy.NL, 0, 1), task("b", policy.WL, 0, 1)},
			0,
		}, {
			"means that would overflow",
			[]policy.Task{task("a", policy.NL, math.MaxFloat64, 1), task("b", policy.NL, math.MaxFloat64, 1), task("c", policy.WL, math.MaxFloat64, 1)},
			math.MaxFloat64,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.InDelta(t, tc.want, *adaptive(tc.tasks...).decide().Alpha, 1e-12)
		})
	}
}

// An unmeasured newcomer, which makes α 0, must not turn a converged task into a growing one.
func TestDecide_joinLeavesConverged(t *testing.T) {
	in := adaptive(task("old", policy.CL, 0.01, 1), task("older", policy.CL, 0.03, 1), unmeasured("young", policy.New, 1))
	in.Event = policy.EventJoin
	out := in.decide()
	must.Eq(t, []policy.Category{policy.CL, policy.CL, policy.NL}, categories(out))
	must.Eq(t, []string{RuleCL, RuleCL, RuleJoin}, rules(out))
	must.InDelta(t, 0.25, float64(out.Tasks[0].Bound()), 1e-12)
	must.StrContains(t, out.Tasks[0].Why, "no threshold, as no growing task is measured: converged")
}

func TestDecide_why(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   input
		want string
	}{
		{
			"join", adaptive(unmeasured("a", policy.New, 0)),
			"new: enters NL without a limit; category new → NL, limit none → 1, use 0",
		}, {
			"unmeasured", adaptive(unmeasured("a", policy.NL, 1)),
			"growth is not known yet: stays in NL without a limit; category NL → NL, limit 1 → 1, use 0",
		}, {
			"all converged", adaptive(task("a", policy.CL, 0.25, 0.5)),
			"all tasks have converged: no limits, free competition; category CL → CL, limit 0.5 → 1, use 0.5, G 0.25, P 0.125",
		}, {
			"lone", adaptive(unmeasured("a", policy.WL, 0.5)),
			"the only task: no limit; category WL → WL, limit 0.5 → 1, use 0",
		}, {
			"undefined", adaptive(unmeasured("a", policy.WL, 0.5), task("b", policy.NL, 1, 1)),
			"used no CPU or reported nothing, so growth is undefined: keeps category and limit; category WL → WL, limit 0.5 → 0.5, use 0",
		}, {
			"watched", fixed(0.5, task("a", policy.NL, 0.25, 0.5), task("b", policy.NL, 1, 1)),
			"G = 0.25 < α = 0.5: watched, limit unchanged; category NL → WL, limit 0.5 → 0.5, use 0.5, G 0.25, P 0.125",
		}, {
			"no growth", fixed(0.5, task("a", policy.NL, 0, 0.5), task("b", policy.NL, 1, 1)),
			"no growth, G = 0: watched, limit unchanged; category NL → WL, limit 0.5 → 0.5, use 0.5, G 0, P 0",
		}, {
			"growing", fixed(0.5, task("a", policy.WL, 0.5, 0.25), task("b", policy.NL, 0.5, 1)),
			"G = 0.5 ≥ α = 0.5: growing, gets its part of the growth, G/ΣG = 0.5/1; category WL → NL, limit 0.25 → 0.5, use 0.5, G 0.5, P 0.25",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.Eq(t, tc.want, tc.in.decide().Tasks[0].Why)
		})
	}
}

func categories(out policy.Outcome) []policy.Category {
	var cs []policy.Category
	for _, d := range out.Tasks {
		cs = append(cs, d.Category)
	}
	return cs
}

func rules(out policy.Outcome) []string {
	var rs []string
	for _, d := range out.Tasks {
		rs = append(rs, d.Rule)
	}
	return rs
}

// A category changes only on new evidence: a slow interval and a join after it are one measurement.
func TestDecide_fresh(t *testing.T) {
	slow := task("slow", policy.NL, 0.1, 0.5)
	slow.Epoch, slow.CategoryEpoch = 7, 6
	in := fixed(0.5, slow, task("fast", policy.NL, 1, 1))
	out := in.decide()
	must.Eq(t, policy.WL, out.Tasks[0].Category)

	in.Tasks[0].Category, in.Tasks[0].CategoryEpoch = policy.WL, 7
	in.Tasks = append(in.Tasks, unmeasured("new", policy.New, 0))
	in.Event = policy.EventJoin
	out = in.decide()
	must.Eq(t, policy.WL, out.Tasks[0].Category, must.Sprint("the same measurement"))
	must.Eq(t, "nothing new was measured, so the category stays: watched, limit unchanged; category WL → WL, limit 0.5 → 0.5, use 0.5, G 0.1, P 0.05",
		out.Tasks[0].Why)
	must.InDelta(t, 1/1.1, float64(out.Tasks[1].Bound()), 1e-12, must.Sprint("it counts in ΣG all the same"))

	in.Event, in.Tasks[0].Epoch = policy.EventNone, 8
	must.Eq(t, policy.CL, in.decide().Tasks[0].Category)
}

func TestDecide_idle(t *testing.T) {
	idle := task("idle", policy.WL, 1, 0.25)
	idle.Use = 0
	in := fixed(0.5, idle, task("fast", policy.NL, 1, 1))
	d := in.decide().Tasks[0]
	must.Eq(t, []string{"WL", RuleUndefined, "0.25"}, []string{string(d.Category), d.Rule, fmt.Sprint(d.Bound())})
	must.False(t, d.Unknown)
	in.Event = policy.EventJoin // no interval has ended
	must.Eq(t, policy.NL, in.decide().Tasks[0].Category)
}

func TestDecide_entitlement(t *testing.T) {
	big, small, slow := task("big", policy.NL, 1, 1), task("small", policy.NL, 1, 1), task("slow", policy.CL, 0, 1)
	big.Entitlement, small.Entitlement, slow.Entitlement = 8000, 500, 1500
	out := fixed(0.5, big, small, slow).decide()
	for i, want := range []float64{8000.0 / 8500, 500.0 / 8500, 0.15 / 2} {
		must.InDelta(t, want, float64(out.Tasks[i].Bound()), 1e-12)
	}
	must.StrContains(t, out.Tasks[1].Why, "gets its part of the growth, φG/ΣφG = 0.0625/1.062;")
	must.StrContains(t, out.Tasks[2].Why, "raised to the floor φ/β = 0.075;")
}

func TestDecide_unknown(t *testing.T) {
	service := unmeasured("service", policy.New, 0)
	service.Kind, service.ObjectiveS = policy.Service, num(1)
	in := fixed(0.5, unmeasured("a", policy.NL, 1), unmeasured("b", policy.WL, 1), task("c", policy.New, 1, 1), service)
	var unknown []bool
	for _, d := range in.decide().Tasks {
		unknown = append(unknown, d.Unknown)
	}
	must.Eq(t, []bool{true, false, false, true}, unknown)
	must.Eq(t, 0.5, in.decide().Floor)
}

// stale returns a task without new measurements since its last categorisation.
func stale(t policy.Task) policy.Task {
	t.Epoch, t.CategoryEpoch = 7, 7
	return t
}
