// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package auto

import (
	"encoding/json"
	"errors"
	"math"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
	"github.com/ebbtide/ebbtide/driver/policy/tradl"
)

// svc is a service that was measured; its objective is 10 s.
func svc(id string, response float64, use, limit policy.Share) policy.Task {
	t := mute(id, limit)
	t.ResponseS, t.Use = &response, use
	return t
}

// mute is a service that was not measured.
func mute(id string, limit policy.Share) policy.Task {
	return policy.Task{ID: id, Kind: policy.Service, Entitlement: 1, ObjectiveS: num(10), Limit: limit}
}

// grows is a training task that was measured, and uses all that it may.
func grows(id string, c policy.Category, g float64, limit policy.Share) policy.Task {
	t := blind(id, c, limit)
	t.Growth = &g
	return t
}

// blind is a training task of which nothing is known.
func blind(id string, c policy.Category, limit policy.Share) policy.Task {
	return policy.Task{ID: id, Kind: policy.Training, Entitlement: 1, Category: c, Use: limit, Limit: limit}
}

// idle is a training task that used no CPU.
func idle(id string, c policy.Category, limit policy.Share) policy.Task {
	t := blind(id, c, limit)
	t.Use = 0
	return t
}

// is adds what a task has reached.
func is(t policy.Task, s policy.TargetState) policy.Task {
	t.State, t.Tracked = s, true
	return t
}

// input is a snapshot with parameters.
type input struct {
	policy.Snapshot
	Params Params
}

func (in input) decide() policy.Outcome { return Decide(in.Snapshot, in.Params) }

// check is what the policy reports of the input.
func (in input) check() error {
	return errors.Join(in.Validate(), dqoes.Check(in.Snapshot), CheckParams(in.Params))
}

// of builds a valid input. α is 0.5.
func of(tasks ...policy.Task) input {
	in := input{policy.Snapshot{Tasks: tasks, IntervalS: 40, InitialIntervalS: 20, MaxIntervalS: 160}, DefaultParams()}
	in.Params.Flowcon.Alpha = flowcon.FixedAlpha(0.5)
	return in
}

func (in input) with(change func(*input)) input {
	change(&in)
	return in
}

func (in input) on(event policy.Event) input {
	in.Event = event
	return in
}

// services is what DQoES hands over from run to run.
func services(t must.T, state json.RawMessage) (s dqoes.State) {
	t.Helper()
	must.NoError(t, json.Unmarshal(state, &s))
	return s
}

const (
	halfOf4 = 1.0 / 8
	halfOf3 = 1.0 / 6
	halfOf5 = 1.0 / 10
)

func TestDecide_rules(t *testing.T) {
	published := func(in *input) { in.Params.Dqoes.Step = dqoes.StepPublished }
	for _, tc := range []struct {
		name  string
		in    input
		want  []float64
		rules []string
	}{
		// Rule 1.
		{
			"1: a floor for a task far slower than the others",
			of(grows("a", policy.NL, 1000, 0.5), grows("b", policy.NL, 1, 0.5)),
			[]float64{0.75, 0.25},
			[]string{flowcon.RuleNL, flowcon.RuleNL},
		}, {
			"1: whatever β is",
			of(grows("a", policy.NL, 1000, 0.5), grows("b", policy.NL, 1, 0.5)).
				with(func(in *input) { in.Params.Flowcon.Beta = 100 }),
			[]float64{0.75, 0.25},
			[]string{flowcon.RuleNL, flowcon.RuleNL},
		},
		// Rule 2.
		{
			"2: a stopping task keeps its share, the others divide the rest",
			of(is(grows("a", policy.NL, 1, 0.2), policy.Objective), grows("b", policy.NL, 3, 0.4), grows("c", policy.NL, 1, 0.4)),
			[]float64{0.2, 0.6, 0.2},
			[]string{tradl.RuleObjective, flowcon.RuleNL, flowcon.RuleNL},
		}, {
			"2: up to the fair share",
			of(is(grows("a", policy.NL, 1, 0.6), policy.Objective), grows("b", policy.NL, 1, 0.2), grows("c", policy.NL, 1, 0.2)),
			[]float64{1.0 / 3, 1.0 / 3, 1.0 / 3},
			[]string{tradl.RuleObjective, flowcon.RuleNL, flowcon.RuleNL},
		}, {
			"2: the fair share if it had none",
			of(is(grows("a", policy.NL, 1, 1), policy.Objective), mute("s", 1), blind("c", policy.NL, 1)),
			[]float64{1.0 / 3, 1.0 / 3, 1.0 / 3},
			[]string{tradl.RuleObjective, RuleShare, RuleUnknown},
		}, {
			"2: a stopping task is nobody for whom others are limited",
			of(is(grows("a", policy.NL, 1, 0.5), policy.Objective), grows("b", policy.NL, 1, 0.5)),
			[]float64{1, 1},
			[]string{tradl.RuleObjective, RuleFree},
		}, {
			"2: all stop",
			of(is(grows("a", policy.NL, 1, 0.5), policy.Objective)),
			[]float64{1},
			[]string{tradl.RuleObjective},
		},
		// Rule 3.
		{
			"3: a lone task",
			of(grows("a", policy.WL, 0.1, 0.5)),
			[]float64{1},
			[]string{RuleFree},
		}, {
			"3: nothing is known about anybody",
			of(blind("a", policy.NL, 1), blind("b", policy.New, 0)),
			[]float64{1, 1},
			[]string{RuleFree, RuleFree},
		}, {
			"3: all converged or acceptable",
			of(grows("a", policy.CL, 0.1, 0.3), is(grows("b", policy.NL, 1, 0.3), policy.Acceptable),
				idle("c", policy.CL, 0.4)),
			[]float64{1, 1, 1},
			[]string{RuleFree, RuleFree, RuleFree},
		}, {
			"3: a lone service",
			of(svc("s", 2, 1, 0.3)),
			[]float64{1},
			[]string{dqoes.RuleGood},
		},
		// Rule 4.
		{
			"4: who was free does not claim the pool of those who join him",
			of(svc("s", 10, 0.1, 1), blind("a", policy.New, 0)).on(policy.EventJoin),
			[]float64{0.5, 0.5},
			[]string{RuleEvent, RuleUnknown},
		}, {
			"4: a new service begins with the fair share",
			of(mute("s", 0), blind("a", policy.NL, 1), blind("b", policy.NL, 1)),
			[]float64{1.0 / 3, 1.0 / 3, 1.0 / 3},
			[]string{RuleShare, RuleUnknown, RuleUnknown},
		}, {
			"4: an idle service keeps its limit",
			of(mute("s", 0.4), blind("a", policy.NL, 0.6)),
			[]float64{0.4, 0.6},
			[]string{dqoes.RuleUnmeasured, RuleUnknown},
		},
		// Rule 5: 8 s with 0.5 of the pool would be 9.5 s with 0.421.
		{
			"5: what a service needs of borrowed CPU is its own",
			of(svc("s", 8, 0.5, 0.3), blind("a", policy.NL, 0.7)).with(published).on(policy.EventJoin),
			[]float64{0.5 * 8 / 9.5, 1 - 0.5*8/9.5},
			[]string{RuleEvent, RuleUnknown},
		}, {
			"5: a satisfied one needs all that it uses",
			of(svc("s", 10, 0.5, 0.3), blind("a", policy.NL, 0.7)).with(published),
			[]float64{0.5, 0.5},
			[]string{dqoes.RuleSatisfied, RuleUnknown},
		},
		// Rule 6.
		{
			"6: DQoES takes from training tasks what they use above what is theirs",
			// Of 0.8 training tasks use they keep at least 1 − 2/3: R_G is 0.8 − 1/3.
			of(svc("s", 15, 0.2, 0.2), blind("a", policy.NL, 0.4), blind("b", policy.NL, 0.4)).with(published),
			[]float64{0.2 * (1 + 0.1*(0.8-1.0/3)), 0.5 - 0.1*(1+0.1*(0.8-1.0/3)), 0.5 - 0.1*(1+0.1*(0.8-1.0/3))},
			[]string{dqoes.RuleBad, RuleUnknown, RuleUnknown},
		}, {
			"6: the proportional step",
			of(svc("s", 15, 0.2, 0.2), blind("a", policy.NL, 0.4), blind("b", policy.NL, 0.4)),
			[]float64{0.2 * math.Sqrt(15/9.5), 0.5 - 0.1*math.Sqrt(15/9.5), 0.5 - 0.1*math.Sqrt(15/9.5)},
			[]string{dqoes.RuleBad, RuleUnknown, RuleUnknown},
		}, {
			"6: not on an event",
			of(svc("s", 15, 0.2, 0.2), blind("a", policy.NL, 0.4), blind("b", policy.NL, 0.4)).on(policy.EventLeave),
			[]float64{0.2, 0.4, 0.4},
			[]string{RuleEvent, RuleUnknown, RuleUnknown},
		},
		// Rule 7.
		{
			"7: little use is not little need",
			of(svc("s", 8.4, 0.1, 0.5), blind("a", policy.NL, 0.5)),
			[]float64{0.5 * 8.4 / 10.5, 1 - 0.5*8.4/10.5},
			[]string{RuleKeep, RuleUnknown},
		},
		// Rule 8.
		{
			"8: without training tasks services have the pool",
			of(svc("s", 10, 0.3, 0.3), svc("t", 10, 0.5, 0.5)),
			[]float64{0.375, 0.625},
			[]string{dqoes.RuleSatisfied, dqoes.RuleSatisfied},
		}, {
			"8: training tasks keep their floors",
			of(svc("s", 10, 0.7, 0.7), blind("a", policy.NL, 0.1), blind("b", policy.NL, 0.1), blind("c", policy.NL, 0.1)),
			[]float64{1 - 3*halfOf4, halfOf4, halfOf4, halfOf4},
			[]string{RuleBound, RuleUnknown, RuleUnknown, RuleUnknown},
		}, {
			"8: the share of services",
			of(svc("s", 10, 0.7, 0.7), blind("a", policy.NL, 0.3)).
				with(func(in *input) { in.Params.ServiceShare = 0.6 }),
			[]float64{0.6, 0.4},
			[]string{RuleBound, RuleUnknown},
		}, {
			"8: but not less than their floors",
			of(svc("s", 30, 0.4, 0.4), svc("t", 30, 0.4, 0.4), blind("a", policy.NL, 0.2)).
				with(func(in *input) { in.Params.ServiceShare = 0.01 }),
			[]float64{halfOf3, halfOf3, 2.0 / 3},
			[]string{RuleBound, RuleBound, RuleUnknown},
		}, {
			"8: satisfied services are cut last",
			of(svc("s", 10, 0.4, 0.4), svc("t", 100, 0.3, 0.3), svc("u", 10, 0.15, 0.15), blind("a", policy.NL, 0.15)),
			[]float64{0.4 / 1.05, 0.8 - 0.4/1.05 - 0.15, 0.15, 0.2},
			[]string{RuleKeep, RuleBound, dqoes.RuleSatisfied, RuleUnknown},
		}, {
			"8: but they are, the largest first, if that is not enough",
			of(svc("s", 10, 0.7, 0.7), mute("t", 0), svc("u", 10, 0.1, 0.1), blind("a", policy.NL, 0.1), blind("b", policy.NL, 0.1)).
				on(policy.EventJoin),
			[]float64{0.5, 0.2, 0.1, 0.1, 0.1},
			[]string{RuleBound, RuleShare, RuleEvent, RuleUnknown, RuleUnknown},
		},
		// Rule 10, with 0.8 for training tasks.
		{
			"10: an acceptable task yields half",
			of(svc("s", 10, 0.2, 0.2), is(grows("a", policy.NL, 1, 0.5), policy.Acceptable), grows("b", policy.NL, 1, 0.3)),
			[]float64{0.2, 0.8 / 4, 0.6},
			[]string{dqoes.RuleSatisfied, tradl.RuleHalf, flowcon.RuleNL},
		}, {
			"10: or to 1/(n+1)",
			of(svc("s", 10, 0.2, 0.2), is(grows("a", policy.CL, 1, 0.3), policy.Acceptable), grows("b", policy.NL, 1, 0.5)),
			[]float64{0.2, 0.8 / 3, 1.6 / 3},
			[]string{dqoes.RuleSatisfied, tradl.RuleEven, flowcon.RuleNL},
		}, {
			"10: not below the floor",
			of(svc("s", 10, 0.5, 0.5), is(grows("a", policy.NL, 1, 0.3), policy.Acceptable), grows("b", policy.NL, 1, 0.2)),
			[]float64{0.5, halfOf3, 0.5 - halfOf3},
			[]string{dqoes.RuleSatisfied, tradl.RuleHalf, flowcon.RuleNL},
		}, {
			"10: R is not full",
			of(svc("s", 10, 0.2, 0.2), is(grows("a", policy.NL, 1, 0.4), policy.Acceptable), grows("b", policy.NL, 1, 0.4)).
				with(func(in *input) { in.Tasks[2].Use = 0.1 }),
			[]float64{0.2, 0.4, 0.4},
			[]string{dqoes.RuleSatisfied, RuleAcceptable, flowcon.RuleNL},
		}, {
			"10: all acceptable",
			of(svc("s", 10, 0.2, 0.2), is(grows("a", policy.NL, 1, 0.5), policy.Acceptable),
				is(grows("b", policy.NL, 1, 0.3), policy.Acceptable)),
			[]float64{0.2, 0.4, 0.4},
			[]string{dqoes.RuleSatisfied, RuleAcceptable, RuleAcceptable},
		},
		// Rule 11.
		{
			"11: the fair share of R",
			of(blind("a", policy.NL, 0.4), grows("b", policy.NL, 3, 0.3), grows("c", policy.NL, 1, 0.3)),
			[]float64{1.0 / 3, 0.5, halfOf3},
			[]string{RuleUnknown, flowcon.RuleNL, flowcon.RuleNL},
		}, {
			"11: a new task, even if its growth is known",
			// It counts in ΣG: 3/13 and, raised to FlowCon's floor, 1/6.
			of(grows("a", policy.New, 9, 0), grows("b", policy.NL, 3, 0.5), grows("c", policy.NL, 1, 0.5)).on(policy.EventJoin),
			[]float64{1.0 / 3, 2.0 / 3 * (3.0 / 13) / (3.0/13 + halfOf3), 2.0 / 3 * halfOf3 / (3.0/13 + halfOf3)},
			[]string{RuleUnknown, flowcon.RuleNL, flowcon.RuleNL},
		}, {
			"11: more if nobody else takes it",
			of(blind("a", policy.NL, 0.3), is(grows("b", policy.NL, 1, 0.7), policy.Acceptable)),
			[]float64{0.75, 0.25},
			[]string{RuleUnknown, tradl.RuleHalf},
		},
		// Rule 12.
		{
			"12: what is left in proportion to FlowCon's limits",
			of(svc("s", 10, 0.5, 0.5), grows("a", policy.NL, 3, 0.3), grows("b", policy.NL, 2, 0.2)),
			[]float64{0.5, 0.3, 0.2},
			[]string{dqoes.RuleSatisfied, flowcon.RuleNL, flowcon.RuleNL},
		}, {
			"12: a watched task keeps its part",
			of(svc("s", 10, 0.4, 0.4), grows("a", policy.NL, 3, 0.36), grows("b", policy.NL, 0.1, 0.24)),
			[]float64{0.4, 0.36, 0.24},
			[]string{dqoes.RuleSatisfied, flowcon.RuleNL, flowcon.RuleWL},
		}, {
			"12: so does one that is idle, of more and of less",
			// The service needs 0.4·5/9.5, and goes half of the way.
			of(svc("s", 5, 0.4, 0.4), grows("a", policy.NL, 3, 0.36),
				idle("b", policy.WL, 0.24)),
			[]float64{0.4 * math.Sqrt(5/9.5), 0.6 * (1 - 0.4*math.Sqrt(5/9.5)), 0.4 * (1 - 0.4*math.Sqrt(5/9.5))},
			[]string{dqoes.RuleGood, flowcon.RuleNL, flowcon.RuleUndefined},
		}, {
			"12: unless the floors of others need it",
			of(grows("a", policy.NL, 3, 0.05), grows("b", policy.NL, 0.1, 0.95)),
			[]float64{0.25, 0.75},
			[]string{flowcon.RuleNL, flowcon.RuleWL},
		}, {
			"12: only tasks that keep their part divide everything",
			of(grows("a", policy.NL, 0.1, 0.2), idle("b", policy.WL, 0.3), blind("c", policy.NL, 0.5)),
			[]float64{2.0 / 3 * 0.4, 2.0 / 3 * 0.6, 1.0 / 3},
			[]string{flowcon.RuleWL, flowcon.RuleUndefined, RuleUnknown},
		}, {
			"12: all converged beside a service",
			of(svc("s", 10, 0.5, 0.5), grows("a", policy.CL, 0.2, 0.4), grows("b", policy.CL, 0.1, 0.1)),
			[]float64{0.5, 0.25, 0.25},
			[]string{dqoes.RuleSatisfied, flowcon.RuleAllCL, flowcon.RuleAllCL},
		}, {
			"12: the only training task beside a service",
			of(svc("s", 10, 0.5, 0.5), grows("a", policy.NL, 0.2, 0.5)),
			[]float64{0.5, 0.5},
			[]string{dqoes.RuleSatisfied, flowcon.RuleLone},
		}, {
			"12: acceptable tasks count as converged",
			of(svc("s", 10, 0.5, 0.5), is(grows("a", policy.CL, 9, 0.2), policy.Acceptable), grows("b", policy.WL, 0.2, 0.2),
				blind("c", policy.NL, 0.1), blind("d", policy.NL, 0.1)),
			[]float64{0.5, halfOf5, 0.15, 0.125, 0.125},
			[]string{dqoes.RuleSatisfied, tradl.RuleHalf, flowcon.RuleCL, RuleUnknown, RuleUnknown},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.NoError(t, tc.in.check())
			out := tc.in.decide()
			check(t, tc.in, out)
			var rules []string
			var have []float64
			for _, d := range out.Tasks {
				rules = append(rules, d.Rule)
				have = append(have, float64(d.Bound()))
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
	target := func(k policy.Task) policy.Task {
		goal := 0.1
		k.Goal, k.Acceptable = policy.GoalMin, &goal
		return is(k, policy.InTraining)
	}
	for _, tc := range []struct {
		name  string
		in    input
		want  []float64
		rules []string
	}{
		{
			"converged",
			of(grows("a", policy.NL, 9, 0.5), target(grows("b", policy.CL, 0.1, 0.5))),
			[]float64{0.5, 0.5},
			[]string{flowcon.RuleNL, RuleWanting},
		}, {
			"beside a converged one without a target",
			of(grows("a", policy.NL, 9, 0.4), target(grows("b", policy.CL, 0.1, 0.3)), grows("c", policy.CL, 0.1, 0.3)),
			[]float64{1 - 1.0/3 - halfOf3, 1.0 / 3, halfOf3},
			[]string{flowcon.RuleNL, RuleWanting, flowcon.RuleCL},
		}, {
			"watched",
			of(grows("a", policy.NL, 9, 0.8), target(grows("b", policy.NL, 0.1, 0.2))),
			[]float64{0.5, 0.5},
			[]string{flowcon.RuleNL, RuleWanting},
		}, {
			"growing fast it has more",
			of(target(grows("a", policy.NL, 9, 0.5)), grows("b", policy.NL, 3, 0.5)),
			[]float64{0.75, 0.25},
			[]string{flowcon.RuleNL, flowcon.RuleNL},
		}, {
			"of what a service leaves",
			of(svc("s", 10, 0.4, 0.4), grows("a", policy.NL, 9, 0.3), target(grows("b", policy.CL, 0.1, 0.3))),
			[]float64{0.4, 0.3, 0.3},
			[]string{dqoes.RuleSatisfied, flowcon.RuleNL, RuleWanting},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.NoError(t, tc.in.check())
			out := tc.in.decide()
			for i, want := range tc.want {
				must.InDelta(t, want, float64(out.Tasks[i].Bound()), 1e-9, must.Sprint(out.Tasks[i]))
				must.Eq(t, tc.rules[i], out.Tasks[i].Rule, must.Sprint(out.Tasks[i]))
			}
		})
	}
	why := of(grows("a", policy.NL, 9, 0.5), target(grows("b", policy.CL, 0.1, 0.5))).decide().Tasks[1].Why
	must.StrContains(t, why, "but it has a target that it has not reached: not less than the fair share of R = 1 among 2 training tasks")
}

func TestDecide_output(t *testing.T) {
	t.Run("no tasks", func(t *testing.T) {
		out := of().decide()
		must.NotNil(t, out.Tasks) // "[]" in JSON, not "null"
		must.Len(t, 0, out.Tasks)
	})
	t.Run("uses that overflow", func(t *testing.T) {
		in := of(svc("s", 30, 1e308, 0.2), blind("a", policy.NL, 0.4), blind("b", policy.NL, 0.4))
		in.Tasks[1].Use, in.Tasks[2].Use = 1.7e308, 1.7e308
		must.NoError(t, in.check())
		check(t, in, in.decide())
	})
	t.Run("categories, states, classes", func(t *testing.T) {
		out := of(svc("s", 30, 0.2, 0.2), mute("t", 0), is(grows("a", policy.CL, 1, 0.2), policy.Acceptable),
			blind("b", policy.New, 0), is(grows("c", policy.New, 1, 0), policy.Objective)).decide()
		must.Eq(t, []policy.Class{policy.Bad, policy.Unmeasured, "", "", ""}, each(out, func(d policy.Decision) policy.Class { return d.Class }))
		must.Eq(t, []policy.Category{"", "", policy.CL, policy.NL, policy.NL}, each(out, func(d policy.Decision) policy.Category { return d.Category }))
		must.Eq(t, []policy.TargetState{"", "", policy.Acceptable, policy.InTraining, policy.Objective},
			each(out, func(d policy.Decision) policy.TargetState { return d.State }))
		must.Eq(t, []bool{false, false, false, false, true}, each(out, func(d policy.Decision) bool { return d.Stop }))
	})
	t.Run("a value that reaches a target", func(t *testing.T) {
		a := grows("a", policy.NL, 1, 0.5)
		a.Goal, a.Value, a.Objective = policy.GoalMax, num(0.95), num(0.93)
		must.True(t, of(a, grows("b", policy.NL, 1, 0.5)).decide().Tasks[0].Stop)
		a.Tracked = true
		must.False(t, of(a, grows("b", policy.NL, 1, 0.5)).decide().Tasks[0].Stop)
	})
	t.Run("unmeasured", func(t *testing.T) {
		unmeasured := func(d policy.Decision) bool { return d.Unknown }
		// Free, and with the fair share of the pool.
		must.Eq(t, []bool{true, false}, each(of(blind("a", policy.NL, 1), grows("b", policy.NL, 1, 1)).decide(), unmeasured))
		must.Eq(t, []bool{true, false, false}, each(of(blind("a", policy.NL, 1), grows("b", policy.NL, 3, 1),
			grows("c", policy.NL, 1, 1)).decide(), unmeasured))
		// It has more than that; a service must not compete with a task without a ceiling.
		must.Eq(t, []bool{false, false}, each(of(blind("a", policy.NL, 0.3),
			is(grows("b", policy.NL, 1, 0.7), policy.Acceptable)).decide(), unmeasured))
		must.Eq(t, []bool{false, false}, each(of(blind("a", policy.NL, 0.5), mute("s", 0)).decide(), unmeasured))
	})
}

func each[T any](out policy.Outcome, of func(policy.Decision) T) (all []T) {
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
		in   input
		want float64
	}{
		{"no tasks: as FlowCon", of(), 80},
		{"training goes on", of(grows("a", policy.NL, 1, 1)), 40},
		{"all converged", of(grows("a", policy.CL, 0.1, 1)), 80},
		{"all converged, up to the maximum", of(grows("a", policy.CL, 0.1, 1)).with(func(in *input) { in.MaxIntervalS = 50 }), 50},
		{"an event", of(grows("a", policy.NL, 1, 1)).on(policy.EventJoin), 20},
		{"services are satisfied", of(svc("s", 10, 0.5, 0.5), svc("t", 10, 0.5, 0.5)), 40},
		{"services come nearer", of(svc("s", 15, 0.5, 0.5), svc("t", 5, 0.5, 0.5)).with(func(in *input) { in.State = trend.Encode() }), 80},
		{"services come nearer, but training goes on", of(svc("s", 15, 0.3, 0.3), svc("t", 5, 0.3, 0.3), grows("a", policy.NL, 1, 0.4)).
			with(func(in *input) { in.State = trend.Encode() }), 40},
		{"all converged, but services are watched", of(svc("s", 10, 0.5, 0.5), grows("a", policy.CL, 0.1, 0.5)), 40},
		{"a service has lost its target", of(svc("s", 15, 0.5, 0.5), grows("a", policy.CL, 0.1, 0.5)).
			with(func(in *input) { in.State = dqoes.State{Satisfied: 1}.Encode() }), 20},
		{"an event, all converged, with services", of(svc("s", 10, 0.5, 0.5), grows("a", policy.CL, 0.1, 0.5)).on(policy.EventLeave), 20},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.NoError(t, tc.in.check())
			must.Eq(t, tc.want, tc.in.decide().IntervalS)
		})
	}
	// On an event nothing was measured, so the listener has nothing to compare.
	in := of(svc("s", 30, 0.5, 0.5)).with(func(in *input) { in.State = trend.Encode() }).on(policy.EventJoin)
	must.Eq(t, trend, services(t, in.decide().State))
	must.Eq(t, dqoes.State{QBad: -20}, services(t, in.on(policy.EventNone).decide().State))
	// Nor is there anything to remember without services.
	must.Nil(t, of(grows("a", policy.NL, 1, 1)).with(func(in *input) { in.State = trend.Encode() }).decide().State)
}

// The sentences, whole: figures included.
func TestDecide_why(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   input
		want string // of the first task
	}{
		{
			"free", of(blind("a", policy.New, 0)),
			"new: enters NL without a limit; nobody is limited; category new → NL; limit none → none, use 0",
		}, {
			"stop", of(is(grows("a", policy.NL, 1, 0.25), policy.Objective), mute("s", 0)),
			"has reached its objective before: has succeeded and stops; category NL → NL; limit 0.25 → 0.25, use 0.25, G 1",
		}, {
			"new service", of(mute("s", 0), blind("a", policy.NL, 1)),
			"no response time yet and no limit so far: begins with the fair share; limit none → 0.5, use 0",
		}, {
			"event", of(svc("s", 10, 0.2, 0.25), blind("a", policy.NL, 0.75)).on(policy.EventJoin),
			"a task has joined or left: keeps its share until it is measured again; limit 0.25 → 0.25, use 0.2",
		}, {
			"borrowed", of(svc("s", 10, 0.5, 0.25), blind("a", policy.NL, 0.75)).on(policy.EventJoin),
			"a task has joined or left: keeps its share until it is measured again; it uses more than its share 0.25 " +
				"and needs 0.5 of it, which counts as its own; limit 0.25 → 0.5, use 0.5",
		}, {
			"alone", of(svc("s", 10, 0.25, 0.25), svc("t", 10, 0.25, 0.25)),
			"response 10 s is within 10 % of the objective 10 s: satisfied, limit stays; " +
				"no training task is there, so services divide the whole pool; limit 0.25 → 0.5, use 0.25",
		}, {
			"bound", of(svc("s", 10, 0.75, 0.75), mute("t", 0.125), blind("a", policy.NL, 0.125)).on(policy.EventJoin),
			"a task has joined or left: keeps its share until it is measured again; " +
				"all services ask for 0.9167 of the pool and may have 0.8, so the largest are cut; limit 0.75 → 0.6333, use 0.75",
		}, {
			"bound by floors", of(svc("s", 30, 0.4, 0.4), svc("t", 30, 0.4, 0.4), blind("a", policy.NL, 0.2)).
				with(func(in *input) { in.Params.ServiceShare = 0.01 }).on(policy.EventLeave),
			"a task has joined or left: keeps its share until it is measured again; " +
				"all services ask for 0.8 of the pool and may have 0.3333, so the largest are cut; limit 0.4 → 0.1667, use 0.4",
		}, {
			"keep", of(svc("s", 8.4, 0.1, 0.5), blind("a", policy.NL, 0.5)),
			"response 8.4 s is below the objective 10 s by more than 10 %: better than asked; " +
				"keeps p/((1+α/2)·o) = 0.8 of 0.5, so that it answers in 10.5 s at most; limit 0.5 → 0.4, use 0.1",
		}, {
			"growing", of(grows("a", policy.NL, 3, 0.25), svc("s", 10, 0.5, 0.5), grows("b", policy.NL, 1, 0.25)),
			"G = 3 ≥ α = 0.5: growing, gets its part of the growth, G/ΣG = 3/4, of what others leave of R = 0.5; " +
				"category NL → NL; limit 0.25 → 0.3333, use 0.25, G 3",
		}, {
			"watched", of(grows("a", policy.NL, 0.25, 0.25), svc("s", 10, 0.5, 0.5), grows("b", policy.NL, 1, 0.25)),
			"G = 0.25 < α = 0.5: watched, keeps its part of R = 0.5; category NL → WL; limit 0.25 → 0.25, use 0.25, G 0.25",
		}, {
			"idle", of(idle("a", policy.CL, 0.25), grows("b", policy.NL, 1, 0.25), svc("s", 10, 0.5, 0.5)),
			"used no CPU or reported nothing, so growth is undefined, keeps its part of R = 0.5; category CL → CL; limit 0.25 → 0.25, use 0",
		}, {
			"all converged", of(grows("a", policy.CL, 0.25, 0.25), grows("b", policy.CL, 0.1, 0.25), svc("s", 10, 0.5, 0.5)),
			"all tasks have converged: divide what others leave of R = 0.5 equally; category CL → CL; limit 0.25 → 0.25, use 0.25, G 0.25",
		}, {
			"lone", of(grows("a", policy.NL, 0.25, 0.5), svc("s", 10, 0.5, 0.5)),
			"the only task: gets what services leave, R = 0.5; category NL → WL; limit 0.5 → 0.5, use 0.5, G 0.25",
		}, {
			"floor", of(grows("a", policy.NL, 1, 0.5), grows("b", policy.NL, 99, 0.5)),
			"G = 1 ≥ α = 0.5: growing, gets its part of the growth, G/ΣG = 1/100, raised to the floor 1/(β·n) = 0.25, " +
				"of what others leave of R = 1, not below the floor 1/(2n) = 0.25; category NL → NL; limit 0.5 → 0.25, use 0.5, G 1",
		}, {
			"unknown", of(blind("a", policy.NL, 0.5), svc("s", 10, 0.5, 0.5)),
			"nothing is known about its growth: gets the fair share of R = 0.5 among 1 training tasks; category NL → NL; limit 0.5 → 0.5, use 0.5",
		}, {
			"yields", of(is(grows("a", policy.NL, 1, 0.5), policy.Acceptable), grows("b", policy.NL, 1, 0.5)),
			"has reached its acceptable before: yields; its use is within the fair share 1/n = 0.5, so it gets 1/(n+1) of R = 1; " +
				"category NL → CL; limit 0.5 → 0.3333, use 0.5, G 1",
		}, {
			"need not yield", of(is(grows("a", policy.NL, 1, 0.25), policy.Acceptable), grows("b", policy.NL, 1, 0.25), mute("s", 0.5)).
				with(func(in *input) { in.Tasks[1].Use = 0 }),
			"has reached its acceptable before; R is not full, 0.5 used: need not yield, gets the fair share of R = 0.5 among 2 training tasks; " +
				"category NL → CL; limit 0.25 → 0.25, use 0.25, G 1",
		}, {
			"progress", of(policy.Task{ID: "a", Kind: policy.Training, Entitlement: 1, Category: policy.NL, Growth: num(1), Progress: num(0.5), Use: 0.5, Limit: 1}),
			"G = 1 ≥ α = 0.5: growing, gets its part of the growth, G/ΣG = 1/1; nobody is limited; category NL → NL; limit none → none, use 0.5, G 1, P 0.5",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.NoError(t, tc.in.check())
			must.Eq(t, tc.want, tc.in.decide().Tasks[0].Why)
		})
	}
}

// Shares go by what Nomad gave: a task that asked for more has more, of the pool and of R.
func TestDecide_entitlement(t *testing.T) {
	entitled := func(e float64, t policy.Task) policy.Task {
		t.Entitlement = e
		return t
	}
	for _, tc := range []struct {
		name string
		in   input
		want []float64
	}{
		{"nothing is known: as under plain Nomad", of(entitled(8000, idle("a", policy.New, 0)), entitled(500, mute("s", 0)), entitled(1500, idle("b", policy.New, 0))),
			[]float64{0.8, 0.05, 0.15}},
		{"growth counts by entitlement", of(entitled(3, grows("a", policy.NL, 1, 0.5)), entitled(1, grows("b", policy.NL, 1, 0.5))),
			[]float64{0.75, 0.25}},
		{"the floor is half of it", of(entitled(3, grows("a", policy.NL, 1, 0.5)), entitled(1, grows("b", policy.NL, 99, 0.5))),
			[]float64{0.375, 0.625}},
		{"an acceptable task yields by it", of(entitled(3, is(grows("a", policy.NL, 1, 0.5), policy.Acceptable)), entitled(1, grows("b", policy.NL, 1, 0.5))),
			[]float64{0.5, 0.5}},
		{"converged beside a service: free competition", of(svc("s", 10, 0.5, 0.5), entitled(3, grows("a", policy.CL, 0.1, 0.25)), entitled(1, grows("b", policy.CL, 0.1, 0.25))),
			[]float64{0.5, 0.375, 0.125}},
		{"services are cut to one level of it", of(entitled(2, svc("s", 100, 0.4, 0.4)), svc("t", 100, 0.4, 0.4), blind("a", policy.NL, 0.2)),
			[]float64{0.8 * 2 / 3, 0.8 / 3, 0.2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.NoError(t, tc.in.check())
			out := tc.in.decide()
			check(t, tc.in, out)
			for i, want := range tc.want {
				must.InDelta(t, want, float64(out.Tasks[i].Bound()), 1e-9, must.Sprint(out.Tasks[i].Why))
			}
		})
	}
}

// A category changes only on new evidence.
func TestDecide_fresh(t *testing.T) {
	slow := grows("slow", policy.WL, 0.1, 0.5)
	slow.Epoch, slow.CategoryEpoch = 7, 7
	in := of(slow, grows("fast", policy.NL, 1, 0.5), blind("new", policy.New, 0)).on(policy.EventJoin)
	must.Eq(t, policy.WL, in.decide().Tasks[0].Category)
	in.Tasks[0].Epoch = 8
	must.Eq(t, policy.CL, in.decide().Tasks[0].Category)
}
