// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package auto

import (
	"math"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
	"github.com/ebbtide/ebbtide/driver/policy/tradl"
)

// svc is a service that was measured; its objective is 10 s.
func svc(id string, response, use, limit float64) Task {
	return Task{ID: id, Kind: KindService, ObjectiveS: 10, ResponseS: &response, Use: use, Limit: limit}
}

// mute is a service that was not measured.
func mute(id string, limit float64) Task {
	return Task{ID: id, Kind: KindService, ObjectiveS: 10, Limit: limit}
}

// grows is a training task that was measured, and uses all that it may.
func grows(id string, c policy.Category, g, limit float64) Task {
	return Task{ID: id, Kind: KindTraining, Category: c, Growth: &g, Use: limit, Limit: limit}
}

// blind is a training task of which nothing is known.
func blind(id string, c policy.Category, limit float64) Task {
	return Task{ID: id, Kind: KindTraining, Category: c, Use: limit, Limit: limit}
}

// is adds what a task has reached.
func (t Task) is(s tradl.State) Task {
	t.State, t.Tracked = s, true
	return t
}

// node builds a valid input. α is 0.5.
func input(tasks ...Task) Input {
	in := Input{Tasks: tasks, IntervalS: 40, InitialIntervalS: 20, MaxIntervalS: 160, Params: DefaultParams()}
	in.Params.Flowcon.Alpha = flowcon.FixedAlpha(0.5)
	return in
}

func (in Input) with(change func(*Input)) Input {
	change(&in)
	return in
}

func (in Input) on(event flowcon.Event) Input {
	in.Event = event
	return in
}

const (
	halfOf4 = 1.0 / 8
	halfOf3 = 1.0 / 6
	halfOf5 = 1.0 / 10
)

func TestDecide_rules(t *testing.T) {
	published := func(in *Input) { in.Params.Dqoes.Step = dqoes.StepPublished }
	for _, tc := range []struct {
		name  string
		in    Input
		want  []float64
		rules []string
	}{
		// Rule 1.
		{
			"1: a floor for a task far slower than the others",
			input(grows("a", policy.NL, 1000, 0.5), grows("b", policy.NL, 1, 0.5)),
			[]float64{0.75, 0.25},
			[]string{flowcon.RuleNL, flowcon.RuleNL},
		}, {
			"1: whatever β is",
			input(grows("a", policy.NL, 1000, 0.5), grows("b", policy.NL, 1, 0.5)).
				with(func(in *Input) { in.Params.Flowcon.Beta = 100 }),
			[]float64{0.75, 0.25},
			[]string{flowcon.RuleNL, flowcon.RuleNL},
		},
		// Rule 2.
		{
			"2: a stopping task keeps its share, the others divide the rest",
			input(grows("a", policy.NL, 1, 0.2).is(tradl.StateObjective), grows("b", policy.NL, 3, 0.4), grows("c", policy.NL, 1, 0.4)),
			[]float64{0.2, 0.6, 0.2},
			[]string{tradl.RuleObjective, flowcon.RuleNL, flowcon.RuleNL},
		}, {
			"2: up to the fair share",
			input(grows("a", policy.NL, 1, 0.6).is(tradl.StateObjective), grows("b", policy.NL, 1, 0.2), grows("c", policy.NL, 1, 0.2)),
			[]float64{1.0 / 3, 1.0 / 3, 1.0 / 3},
			[]string{tradl.RuleObjective, flowcon.RuleNL, flowcon.RuleNL},
		}, {
			"2: the fair share if it had none",
			input(grows("a", policy.NL, 1, 1).is(tradl.StateObjective), mute("s", 1), blind("c", policy.NL, 1)),
			[]float64{1.0 / 3, 1.0 / 3, 1.0 / 3},
			[]string{tradl.RuleObjective, RuleShare, RuleUnknown},
		}, {
			"2: a stopping task is nobody for whom others are limited",
			input(grows("a", policy.NL, 1, 0.5).is(tradl.StateObjective), grows("b", policy.NL, 1, 0.5)),
			[]float64{1, 1},
			[]string{tradl.RuleObjective, RuleFree},
		}, {
			"2: all stop",
			input(grows("a", policy.NL, 1, 0.5).is(tradl.StateObjective)),
			[]float64{1},
			[]string{tradl.RuleObjective},
		},
		// Rule 3.
		{
			"3: a lone task",
			input(grows("a", policy.WL, 0.1, 0.5)),
			[]float64{1},
			[]string{RuleFree},
		}, {
			"3: nothing is known about anybody",
			input(blind("a", policy.NL, 1), blind("b", policy.New, 0)),
			[]float64{1, 1},
			[]string{RuleFree, RuleFree},
		}, {
			"3: all converged or acceptable",
			input(grows("a", policy.CL, 0.1, 0.3), grows("b", policy.NL, 1, 0.3).is(tradl.StateAcceptable),
				Task{ID: "c", Kind: KindTraining, Category: policy.CL, Limit: 0.4}),
			[]float64{1, 1, 1},
			[]string{RuleFree, RuleFree, RuleFree},
		}, {
			"3: a lone service",
			input(svc("s", 2, 1, 0.3)),
			[]float64{1},
			[]string{dqoes.RuleGood},
		},
		// Rule 4.
		{
			"4: who was free does not claim the pool of those who join him",
			input(svc("s", 10, 0.1, 1), blind("a", policy.New, 0)).on(flowcon.EventJoin),
			[]float64{0.5, 0.5},
			[]string{RuleEvent, RuleUnknown},
		}, {
			"4: a new service begins with the fair share",
			input(mute("s", 0), blind("a", policy.NL, 1), blind("b", policy.NL, 1)),
			[]float64{1.0 / 3, 1.0 / 3, 1.0 / 3},
			[]string{RuleShare, RuleUnknown, RuleUnknown},
		}, {
			"4: an idle service keeps its limit",
			input(mute("s", 0.4), blind("a", policy.NL, 0.6)),
			[]float64{0.4, 0.6},
			[]string{dqoes.RuleUnmeasured, RuleUnknown},
		},
		// Rule 5: 8 s with 0.5 of the pool would be 9.5 s with 0.421.
		{
			"5: what a service needs of borrowed CPU is its own",
			input(svc("s", 8, 0.5, 0.3), blind("a", policy.NL, 0.7)).with(published).on(flowcon.EventJoin),
			[]float64{0.5 * 8 / 9.5, 1 - 0.5*8/9.5},
			[]string{RuleEvent, RuleUnknown},
		}, {
			"5: a satisfied one needs all that it uses",
			input(svc("s", 10, 0.5, 0.3), blind("a", policy.NL, 0.7)).with(published),
			[]float64{0.5, 0.5},
			[]string{dqoes.RuleSatisfied, RuleUnknown},
		},
		// Rule 6.
		{
			"6: DQoES takes from training tasks what they use above what is theirs",
			// Of 0.8 training tasks use they keep at least 1 − 2/3: R_G is 0.8 − 1/3.
			input(svc("s", 15, 0.2, 0.2), blind("a", policy.NL, 0.4), blind("b", policy.NL, 0.4)).with(published),
			[]float64{0.2 * (1 + 0.1*(0.8-1.0/3)), 0.5 - 0.1*(1+0.1*(0.8-1.0/3)), 0.5 - 0.1*(1+0.1*(0.8-1.0/3))},
			[]string{dqoes.RuleBad, RuleUnknown, RuleUnknown},
		}, {
			"6: the proportional step",
			input(svc("s", 15, 0.2, 0.2), blind("a", policy.NL, 0.4), blind("b", policy.NL, 0.4)),
			[]float64{0.2 * math.Sqrt(15/9.5), 0.5 - 0.1*math.Sqrt(15/9.5), 0.5 - 0.1*math.Sqrt(15/9.5)},
			[]string{dqoes.RuleBad, RuleUnknown, RuleUnknown},
		}, {
			"6: not on an event",
			input(svc("s", 15, 0.2, 0.2), blind("a", policy.NL, 0.4), blind("b", policy.NL, 0.4)).on(flowcon.EventLeave),
			[]float64{0.2, 0.4, 0.4},
			[]string{RuleEvent, RuleUnknown, RuleUnknown},
		},
		// Rule 7.
		{
			"7: little use is not little need",
			input(svc("s", 8.4, 0.1, 0.5), blind("a", policy.NL, 0.5)),
			[]float64{0.5 * 8.4 / 10.5, 1 - 0.5*8.4/10.5},
			[]string{RuleKeep, RuleUnknown},
		},
		// Rule 8.
		{
			"8: without training tasks services have the pool",
			input(svc("s", 10, 0.3, 0.3), svc("t", 10, 0.5, 0.5)),
			[]float64{0.375, 0.625},
			[]string{dqoes.RuleSatisfied, dqoes.RuleSatisfied},
		}, {
			"8: training tasks keep their floors",
			input(svc("s", 10, 0.7, 0.7), blind("a", policy.NL, 0.1), blind("b", policy.NL, 0.1), blind("c", policy.NL, 0.1)),
			[]float64{1 - 3*halfOf4, halfOf4, halfOf4, halfOf4},
			[]string{RuleBound, RuleUnknown, RuleUnknown, RuleUnknown},
		}, {
			"8: the share of services",
			input(svc("s", 10, 0.7, 0.7), blind("a", policy.NL, 0.3)).
				with(func(in *Input) { in.Params.ServiceShare = 0.6 }),
			[]float64{0.6, 0.4},
			[]string{RuleBound, RuleUnknown},
		}, {
			"8: but not less than their floors",
			input(svc("s", 30, 0.4, 0.4), svc("t", 30, 0.4, 0.4), blind("a", policy.NL, 0.2)).
				with(func(in *Input) { in.Params.ServiceShare = 0.01 }),
			[]float64{halfOf3, halfOf3, 2.0 / 3},
			[]string{RuleBound, RuleBound, RuleUnknown},
		}, {
			"8: satisfied services are cut last",
			input(svc("s", 10, 0.4, 0.4), svc("t", 100, 0.3, 0.3), svc("u", 10, 0.15, 0.15), blind("a", policy.NL, 0.15)),
			[]float64{0.4 / 1.05, 0.8 - 0.4/1.05 - 0.15, 0.15, 0.2},
			[]string{RuleKeep, RuleBound, dqoes.RuleSatisfied, RuleUnknown},
		}, {
			"8: but they are, the largest first, if that is not enough",
			input(svc("s", 10, 0.7, 0.7), mute("t", 0), svc("u", 10, 0.1, 0.1), blind("a", policy.NL, 0.1), blind("b", policy.NL, 0.1)).
				on(flowcon.EventJoin),
			[]float64{0.5, 0.2, 0.1, 0.1, 0.1},
			[]string{RuleBound, RuleShare, RuleEvent, RuleUnknown, RuleUnknown},
		},
		// Rule 10, with 0.8 for training tasks.
		{
			"10: an acceptable task yields half",
			input(svc("s", 10, 0.2, 0.2), grows("a", policy.NL, 1, 0.5).is(tradl.StateAcceptable), grows("b", policy.NL, 1, 0.3)),
			[]float64{0.2, 0.8 / 4, 0.6},
			[]string{dqoes.RuleSatisfied, tradl.RuleHalf, flowcon.RuleNL},
		}, {
			"10: or to 1/(n+1)",
			input(svc("s", 10, 0.2, 0.2), grows("a", policy.CL, 1, 0.3).is(tradl.StateAcceptable), grows("b", policy.NL, 1, 0.5)),
			[]float64{0.2, 0.8 / 3, 1.6 / 3},
			[]string{dqoes.RuleSatisfied, tradl.RuleEven, flowcon.RuleNL},
		}, {
			"10: not below the floor",
			input(svc("s", 10, 0.5, 0.5), grows("a", policy.NL, 1, 0.3).is(tradl.StateAcceptable), grows("b", policy.NL, 1, 0.2)),
			[]float64{0.5, halfOf3, 0.5 - halfOf3},
			[]string{dqoes.RuleSatisfied, tradl.RuleHalf, flowcon.RuleNL},
		}, {
			"10: R is not full",
			input(svc("s", 10, 0.2, 0.2), grows("a", policy.NL, 1, 0.4).is(tradl.StateAcceptable), grows("b", policy.NL, 1, 0.4)).
				with(func(in *Input) { in.Tasks[2].Use = 0.1 }),
			[]float64{0.2, 0.4, 0.4},
			[]string{dqoes.RuleSatisfied, RuleAcceptable, flowcon.RuleNL},
		}, {
			"10: all acceptable",
			input(svc("s", 10, 0.2, 0.2), grows("a", policy.NL, 1, 0.5).is(tradl.StateAcceptable),
				grows("b", policy.NL, 1, 0.3).is(tradl.StateAcceptable)),
			[]float64{0.2, 0.4, 0.4},
			[]string{dqoes.RuleSatisfied, RuleAcceptable, RuleAcceptable},
		},
		// Rule 11.
		{
			"11: the fair share of R",
			input(blind("a", policy.NL, 0.4), grows("b", policy.NL, 3, 0.3), grows("c", policy.NL, 1, 0.3)),
			[]float64{1.0 / 3, 0.5, halfOf3},
			[]string{RuleUnknown, flowcon.RuleNL, flowcon.RuleNL},
		}, {
			"11: a new task, even if its growth is known",
			// It counts in ΣG: 3/13 and, raised to FlowCon's floor, 1/6.
			input(grows("a", policy.New, 9, 0), grows("b", policy.NL, 3, 0.5), grows("c", policy.NL, 1, 0.5)).on(flowcon.EventJoin),
			[]float64{1.0 / 3, 2.0 / 3 * (3.0 / 13) / (3.0/13 + halfOf3), 2.0 / 3 * halfOf3 / (3.0/13 + halfOf3)},
			[]string{RuleUnknown, flowcon.RuleNL, flowcon.RuleNL},
		}, {
			"11: more if nobody else takes it",
			input(blind("a", policy.NL, 0.3), grows("b", policy.NL, 1, 0.7).is(tradl.StateAcceptable)),
			[]float64{0.75, 0.25},
			[]string{RuleUnknown, tradl.RuleHalf},
		},
		// Rule 12.
		{
			"12: what is left in proportion to FlowCon's limits",
			input(svc("s", 10, 0.5, 0.5), grows("a", policy.NL, 3, 0.3), grows("b", policy.NL, 2, 0.2)),
			[]float64{0.5, 0.3, 0.2},
			[]string{dqoes.RuleSatisfied, flowcon.RuleNL, flowcon.RuleNL},
		}, {
			"12: a watched task keeps its part",
			input(svc("s", 10, 0.4, 0.4), grows("a", policy.NL, 3, 0.36), grows("b", policy.NL, 0.1, 0.24)),
			[]float64{0.4, 0.36, 0.24},
			[]string{dqoes.RuleSatisfied, flowcon.RuleNL, flowcon.RuleWL},
		}, {
			"12: so does one that is idle, of more and of less",
			// The service needs 0.4·5/9.5, and goes half of the way.
			input(svc("s", 5, 0.4, 0.4), grows("a", policy.NL, 3, 0.36),
				Task{ID: "b", Kind: KindTraining, Category: policy.WL, Limit: 0.24}),
			[]float64{0.4 * math.Sqrt(5/9.5), 0.6 * (1 - 0.4*math.Sqrt(5/9.5)), 0.4 * (1 - 0.4*math.Sqrt(5/9.5))},
			[]string{dqoes.RuleGood, flowcon.RuleNL, flowcon.RuleUndefined},
		}, {
			"12: unless the floors of others need it",
			input(grows("a", policy.NL, 3, 0.05), grows("b", policy.NL, 0.1, 0.95)),
			[]float64{0.25, 0.75},
			[]string{flowcon.RuleNL, flowcon.RuleWL},
		}, {
			"12: only tasks that keep their part divide everything",
			input(grows("a", policy.NL, 0.1, 0.2), Task{ID: "b", Kind: KindTraining, Category: policy.WL, Limit: 0.3}, blind("c", policy.NL, 0.5)),
			[]float64{2.0 / 3 * 0.4, 2.0 / 3 * 0.6, 1.0 / 3},
			[]string{flowcon.RuleWL, flowcon.RuleUndefined, RuleUnknown},
		}, {
			"12: all converged beside a service",
			input(svc("s", 10, 0.5, 0.5), grows("a", policy.CL, 0.2, 0.4), grows("b", policy.CL, 0.1, 0.1)),
			[]float64{0.5, 0.25, 0.25},
			[]string{dqoes.RuleSatisfied, flowcon.RuleAllCL, flowcon.RuleAllCL},
		}, {
			"12: the only training task beside a service",
			input(svc("s", 10, 0.5, 0.5), grows("a", policy.NL, 0.2, 0.5)),
			[]float64{0.5, 0.5},
			[]string{dqoes.RuleSatisfied, flowcon.RuleLone},
		}, {
			"12: acceptable tasks count as converged",
			input(svc("s", 10, 0.5, 0.5), grows("a", policy.CL, 9, 0.2).is(tradl.StateAcceptable), grows("b", policy.WL, 0.2, 0.2),
				blind("c", policy.NL, 0.1), blind("d", policy.NL, 0.1)),
			[]float64{0.5, halfOf5, 0.15, 0.125, 0.125},
			[]string{dqoes.RuleSatisfied, tradl.RuleHalf, flowcon.RuleCL, RuleUnknown, RuleUnknown},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.NoError(t, tc.in.Validate())
			out := Decide(tc.in)
			check(t, tc.in, out)
			var rules []string
			var have []float64
			for _, d := range out.Tasks {
				rules = append(rules, d.Rule)
				have = append(have, d.Limit)
			}
			must.Eq(t, tc.rules, rules)
			for i, want := range tc.want {
				must.InDelta(t, want, have[i], 1e-9, must.Sprint(out.Tasks[i].Why))
			}
		})
	}
}

// What Output says besides limits.
// A job that has said when it is good enough is not held below the fair share before.
func TestDecide_wanting(t *testing.T) {
	target := func(k Task) Task {
		goal := 0.1
		k.Goal, k.Acceptable = tradl.GoalMin, &goal
		return k.is(tradl.StateTraining)
	}
	for _, tc := range []struct {
		name  string
		in    Input
		want  []float64
		rules []string
	}{
		{
			"converged",
			input(grows("a", policy.NL, 9, 0.5), target(grows("b", policy.CL, 0.1, 0.5))),
			[]float64{0.5, 0.5},
			[]string{flowcon.RuleNL, RuleWanting},
		}, {
			"beside a converged one without a target",
			input(grows("a", policy.NL, 9, 0.4), target(grows("b", policy.CL, 0.1, 0.3)), grows("c", policy.CL, 0.1, 0.3)),
			[]float64{1 - 1.0/3 - halfOf3, 1.0 / 3, halfOf3},
			[]string{flowcon.RuleNL, RuleWanting, flowcon.RuleCL},
		}, {
			"watched",
			input(grows("a", policy.NL, 9, 0.8), target(grows("b", policy.NL, 0.1, 0.2))),
			[]float64{0.5, 0.5},
			[]string{flowcon.RuleNL, RuleWanting},
		}, {
			"growing fast it has more",
			input(target(grows("a", policy.NL, 9, 0.5)), grows("b", policy.NL, 3, 0.5)),
			[]float64{0.75, 0.25},
			[]string{flowcon.RuleNL, flowcon.RuleNL},
		}, {
			"of what a service leaves",
			input(svc("s", 10, 0.4, 0.4), grows("a", policy.NL, 9, 0.3), target(grows("b", policy.CL, 0.1, 0.3))),
			[]float64{0.4, 0.3, 0.3},
			[]string{dqoes.RuleSatisfied, flowcon.RuleNL, RuleWanting},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.NoError(t, tc.in.Validate())
			out := Decide(tc.in)
			for i, want := range tc.want {
				must.InDelta(t, want, out.Tasks[i].Limit, 1e-9, must.Sprint(out.Tasks[i]))
				must.Eq(t, tc.rules[i], out.Tasks[i].Rule, must.Sprint(out.Tasks[i]))
			}
		})
	}
	why := Decide(input(grows("a", policy.NL, 9, 0.5), target(grows("b", policy.CL, 0.1, 0.5)))).Tasks[1].Why
	must.StrContains(t, why, "but it has a target that it has not reached: not less than the fair share of R = 1 among 2 training tasks")
}

func TestDecide_output(t *testing.T) {
	t.Run("no tasks", func(t *testing.T) {
		out := Decide(input())
		must.NotNil(t, out.Tasks) // "[]" in JSON, not "null"
		must.Len(t, 0, out.Tasks)
	})
	t.Run("uses that overflow", func(t *testing.T) {
		in := input(svc("s", 30, 1e308, 0.2), blind("a", policy.NL, 0.4), blind("b", policy.NL, 0.4))
		in.Tasks[1].Use, in.Tasks[2].Use = 1.7e308, 1.7e308
		must.NoError(t, in.Validate())
		check(t, in, Decide(in))
	})
	t.Run("params may be left out in Go", func(t *testing.T) {
		in := Example()
		in.Params = Params{}
		want := Example()
		want.Params.Dqoes = dqoes.Params{}
		must.Eq(t, Decide(want), Decide(in))
	})
	t.Run("categories, states, classes", func(t *testing.T) {
		out := Decide(input(svc("s", 30, 0.2, 0.2), mute("t", 0), grows("a", policy.CL, 1, 0.2).is(tradl.StateAcceptable),
			blind("b", policy.New, 0), grows("c", policy.New, 1, 0).is(tradl.StateObjective)))
		must.Eq(t, []dqoes.Class{dqoes.Bad, dqoes.Unmeasured, "", "", ""}, each(out, func(d Decision) dqoes.Class { return d.Class }))
		must.Eq(t, []policy.Category{"", "", policy.CL, policy.NL, policy.NL}, each(out, func(d Decision) policy.Category { return d.Category }))
		must.Eq(t, []tradl.State{"", "", tradl.StateAcceptable, tradl.StateTraining, tradl.StateObjective},
			each(out, func(d Decision) tradl.State { return d.State }))
		must.Eq(t, []bool{false, false, false, false, true}, each(out, func(d Decision) bool { return d.Stop }))
	})
	t.Run("a value that reaches a target", func(t *testing.T) {
		a := grows("a", policy.NL, 1, 0.5)
		a.Goal, a.Value, a.Objective = tradl.GoalMax, num(0.95), num(0.93)
		must.True(t, Decide(input(a, grows("b", policy.NL, 1, 0.5))).Tasks[0].Stop)
		a.Tracked = true
		must.False(t, Decide(input(a, grows("b", policy.NL, 1, 0.5))).Tasks[0].Stop)
	})
	t.Run("unmeasured", func(t *testing.T) {
		unmeasured := func(d Decision) bool { return d.Unmeasured }
		// Free, and with the fair share of the pool.
		must.Eq(t, []bool{true, false}, each(Decide(input(blind("a", policy.NL, 1), grows("b", policy.NL, 1, 1))), unmeasured))
		must.Eq(t, []bool{true, false, false}, each(Decide(input(blind("a", policy.NL, 1), grows("b", policy.NL, 3, 1),
			grows("c", policy.NL, 1, 1))), unmeasured))
		// It has more than that; a service must not compete with a task without a ceiling.
		must.Eq(t, []bool{false, false}, each(Decide(input(blind("a", policy.NL, 0.3),
			grows("b", policy.NL, 1, 0.7).is(tradl.StateAcceptable))), unmeasured))
		must.Eq(t, []bool{false, false}, each(Decide(input(blind("a", policy.NL, 0.5), mute("s", 0))), unmeasured))
	})
}

func each[T any](out Output, of func(Decision) T) (all []T) {
	for _, d := range out.Tasks {
		all = append(all, of(d))
	}
	return all
}

// Rule 13.
func TestDecide_interval(t *testing.T) {
	trend := dqoes.State{QGood: 20, QBad: -20, Trend: 2}
	for _, tc := range []struct {
		name string
		in   Input
		want float64
	}{
		{"no tasks: as FlowCon", input(), 80},
		{"training goes on", input(grows("a", policy.NL, 1, 1)), 40},
		{"all converged", input(grows("a", policy.CL, 0.1, 1)), 80},
		{"all converged, up to the maximum", input(grows("a", policy.CL, 0.1, 1)).with(func(in *Input) { in.MaxIntervalS = 50 }), 50},
		{"an event", input(grows("a", policy.NL, 1, 1)).on(flowcon.EventJoin), 20},
		{"services are satisfied", input(svc("s", 10, 0.5, 0.5), svc("t", 10, 0.5, 0.5)), 40},
		{"services come nearer", input(svc("s", 15, 0.5, 0.5), svc("t", 5, 0.5, 0.5)).with(func(in *Input) { in.Services = trend }), 80},
		{"services come nearer, but training goes on", input(svc("s", 15, 0.3, 0.3), svc("t", 5, 0.3, 0.3), grows("a", policy.NL, 1, 0.4)).
			with(func(in *Input) { in.Services = trend }), 40},
		{"all converged, but services are watched", input(svc("s", 10, 0.5, 0.5), grows("a", policy.CL, 0.1, 0.5)), 40},
		{"a service has lost its target", input(svc("s", 15, 0.5, 0.5), grows("a", policy.CL, 0.1, 0.5)).
			with(func(in *Input) { in.Services.Satisfied = 1 }), 20},
		{"an event, all converged, with services", input(svc("s", 10, 0.5, 0.5), grows("a", policy.CL, 0.1, 0.5)).on(flowcon.EventLeave), 20},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.NoError(t, tc.in.Validate())
			must.Eq(t, tc.want, Decide(tc.in).IntervalS)
		})
	}
	// On an event nothing was measured, so the listener has nothing to compare.
	in := input(svc("s", 30, 0.5, 0.5)).with(func(in *Input) { in.Services = trend }).on(flowcon.EventJoin)
	must.Eq(t, trend, Decide(in).Services)
	must.Eq(t, dqoes.State{QBad: -20}, Decide(in.on(flowcon.EventNone)).Services)
	// Nor is there anything to remember without services.
	must.Eq(t, dqoes.State{}, Decide(input(grows("a", policy.NL, 1, 1)).with(func(in *Input) { in.Services = trend })).Services)
}

// The sentences, whole: figures included.
func TestDecide_why(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   Input
		want string // of the first task
	}{
		{
			"free", input(blind("a", policy.New, 0)),
			"new: enters NL without a limit; nobody is limited; category new → NL; limit none → none, use 0",
		}, {
			"stop", input(grows("a", policy.NL, 1, 0.25).is(tradl.StateObjective), mute("s", 0)),
			"has reached its objective before: has succeeded and stops; category NL → NL; limit 0.25 → 0.25, use 0.25, G 1",
		}, {
			"new service", input(mute("s", 0), blind("a", policy.NL, 1)),
			"no response time yet and no limit so far: begins with the fair share; limit none → 0.5, use 0",
		}, {
			"event", input(svc("s", 10, 0.2, 0.25), blind("a", policy.NL, 0.75)).on(flowcon.EventJoin),
			"a task has joined or left: keeps its share until it is measured again; limit 0.25 → 0.25, use 0.2",
		}, {
			"borrowed", input(svc("s", 10, 0.5, 0.25), blind("a", policy.NL, 0.75)).on(flowcon.EventJoin),
			"a task has joined or left: keeps its share until it is measured again; it uses more than its share 0.25 " +
				"and needs 0.5 of it, which counts as its own; limit 0.25 → 0.5, use 0.5",
		}, {
			"alone", input(svc("s", 10, 0.25, 0.25), svc("t", 10, 0.25, 0.25)),
			"response 10 s is within 10 % of the objective 10 s: satisfied, limit stays; " +
				"no training task is there, so services divide the whole pool; limit 0.25 → 0.5, use 0.25",
		}, {
			"bound", input(svc("s", 10, 0.75, 0.75), mute("t", 0.125), blind("a", policy.NL, 0.125)).on(flowcon.EventJoin),
			"a task has joined or left: keeps its share until it is measured again; " +
				"all services ask for 0.9167 of the pool and may have 0.8, so the largest are cut; limit 0.75 → 0.6333, use 0.75",
		}, {
			"bound by floors", input(svc("s", 30, 0.4, 0.4), svc("t", 30, 0.4, 0.4), blind("a", policy.NL, 0.2)).
				with(func(in *Input) { in.Params.ServiceShare = 0.01 }).on(flowcon.EventLeave),
			"a task has joined or left: keeps its share until it is measured again; " +
				"all services ask for 0.8 of the pool and may have 0.3333, so the largest are cut; limit 0.4 → 0.1667, use 0.4",
		}, {
			"keep", input(svc("s", 8.4, 0.1, 0.5), blind("a", policy.NL, 0.5)),
			"response 8.4 s is below the objective 10 s by more than 10 %: better than asked; " +
				"keeps p/((1+α/2)·o) = 0.8 of 0.5, so that it answers in 10.5 s at most; limit 0.5 → 0.4, use 0.1",
		}, {
			"growing", input(grows("a", policy.NL, 3, 0.25), svc("s", 10, 0.5, 0.5), grows("b", policy.NL, 1, 0.25)),
			"G = 3 ≥ α = 0.5: growing, gets its part of the growth, G/ΣG = 3/4, of what others leave of R = 0.5; " +
				"category NL → NL; limit 0.25 → 0.3333, use 0.25, G 3",
		}, {
			"watched", input(grows("a", policy.NL, 0.25, 0.25), svc("s", 10, 0.5, 0.5), grows("b", policy.NL, 1, 0.25)),
			"G = 0.25 < α = 0.5: watched, keeps its part of R = 0.5; category NL → WL; limit 0.25 → 0.25, use 0.25, G 0.25",
		}, {
			"idle", input(Task{ID: "a", Kind: KindTraining, Category: policy.CL, Limit: 0.25}, grows("b", policy.NL, 1, 0.25), svc("s", 10, 0.5, 0.5)),
			"used no CPU or reported nothing, so growth is undefined, keeps its part of R = 0.5; category CL → CL; limit 0.25 → 0.25, use 0",
		}, {
			"all converged", input(grows("a", policy.CL, 0.25, 0.25), grows("b", policy.CL, 0.1, 0.25), svc("s", 10, 0.5, 0.5)),
			"all tasks have converged: divide what others leave of R = 0.5 equally; category CL → CL; limit 0.25 → 0.25, use 0.25, G 0.25",
		}, {
			"lone", input(grows("a", policy.NL, 0.25, 0.5), svc("s", 10, 0.5, 0.5)),
			"the only task: gets what services leave, R = 0.5; category NL → WL; limit 0.5 → 0.5, use 0.5, G 0.25",
		}, {
			"floor", input(grows("a", policy.NL, 1, 0.5), grows("b", policy.NL, 99, 0.5)),
			"G = 1 ≥ α = 0.5: growing, gets its part of the growth, G/ΣG = 1/100, raised to the floor 1/(β·n) = 0.25, " +
				"of what others leave of R = 1, not below the floor 1/(2n) = 0.25; category NL → NL; limit 0.5 → 0.25, use 0.5, G 1",
		}, {
			"unknown", input(blind("a", policy.NL, 0.5), svc("s", 10, 0.5, 0.5)),
			"nothing is known about its growth: gets the fair share of R = 0.5 among 1 training tasks; category NL → NL; limit 0.5 → 0.5, use 0.5",
		}, {
			"yields", input(grows("a", policy.NL, 1, 0.5).is(tradl.StateAcceptable), grows("b", policy.NL, 1, 0.5)),
			"has reached its acceptable before: yields; its use is within the fair share 1/n = 0.5, so it gets 1/(n+1) of R = 1; " +
				"category NL → CL; limit 0.5 → 0.3333, use 0.5, G 1",
		}, {
			"need not yield", input(grows("a", policy.NL, 1, 0.25).is(tradl.StateAcceptable), grows("b", policy.NL, 1, 0.25), mute("s", 0.5)).
				with(func(in *Input) { in.Tasks[1].Use = 0 }),
			"has reached its acceptable before; R is not full, 0.5 used: need not yield, gets the fair share of R = 0.5 among 2 training tasks; " +
				"category NL → CL; limit 0.25 → 0.25, use 0.25, G 1",
		}, {
			"progress", input(Task{ID: "a", Kind: KindTraining, Category: policy.NL, Growth: num(1), Progress: num(0.5), Use: 0.5, Limit: 1}),
			"G = 1 ≥ α = 0.5: growing, gets its part of the growth, G/ΣG = 1/1; nobody is limited; category NL → NL; limit none → none, use 0.5, G 1, P 0.5",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.NoError(t, tc.in.Validate())
			must.Eq(t, tc.want, Decide(tc.in).Tasks[0].Why)
		})
	}
}
