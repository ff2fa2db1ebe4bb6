// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package dqoes

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/fields"
)

func num(x float64) *float64 { return &x }

func task(id string, objective, response float64, use, limit policy.Share) policy.Task {
	return policy.Task{ID: id, Entitlement: 1, ObjectiveS: &objective, ResponseS: &response, Use: use, Limit: limit}
}

func unmeasured(id string, use, limit policy.Share) policy.Task {
	return policy.Task{ID: id, Entitlement: 1, ObjectiveS: num(10), Use: use, Limit: limit}
}

type input struct {
	policy.Snapshot
	Params Params
}

type outcome struct {
	policy.Outcome
	State State
}

func (in input) decide() outcome {
	out := Decide(in.Snapshot, in.Params)
	state, err := stateOf(policy.Snapshot{State: out.State})
	if err != nil {
		panic(err)
	}
	return outcome{out, state}
}

func (in input) check() error {
	var errs fields.Errors
	for _, err := range []error{in.Validate(), Check(in.Snapshot), CheckParams(in.Params)} {
		var more fields.Errors
		errors.As(err, &more)
		errs.Merge(more)
	}
	return errs.Err()
}

func of(tasks ...policy.Task) input {
	return input{
		Snapshot: policy.Snapshot{Tasks: tasks, IntervalS: 40, InitialIntervalS: 20, MaxIntervalS: 160},
		Params:   DefaultParams(),
	}
}

func (in input) with(change func(*Params)) input {
	change(&in.Params)
	return in
}

// beside adds tasks that are no services, n in all with these, that use a part of the
// pool.
func (in input) beside(n int, use policy.Share) input {
	in.Tasks = slices.Clone(in.Tasks)
	for more := n - len(in.Tasks); more > 0; more-- {
		in.Tasks = append(in.Tasks, policy.Task{ID: fmt.Sprint("other-", more), Entitlement: 1, Use: use})
		use = 0
	}
	return in
}

func proportional(p *Params) { p.Step = StepProportional }

type shown struct {
	Class policy.Class
	Limit policy.Share
	Rule  string
}

func show(out outcome) []shown {
	var all []shown
	for _, d := range out.Tasks {
		if d.Rule != RuleNoService {
			all = append(all, shown{d.Class, d.Bound(), d.Rule})
		}
	}
	return all
}

func near(t *testing.T, want, got []shown) {
	t.Helper()
	must.Len(t, len(want), got)
	for i := range want {
		must.Eq(t, want[i].Class, got[i].Class, must.Sprintf("task %d", i))
		must.Eq(t, want[i].Rule, got[i].Rule, must.Sprintf("task %d", i))
		must.InDelta(t, float64(want[i].Limit), float64(got[i].Limit), 1e-12, must.Sprintf("task %d", i))
	}
}

// Algorithm 2, lines 6–15: the edges belong to S.
func TestDecide_classes(t *testing.T) {
	for _, tc := range []struct {
		objective, response float64
		want                policy.Class
	}{
		{40, 31.6, policy.Good},
		{40, 35.999, policy.Good},
		{40, 36, policy.Satisfied},
		{40, 40, policy.Satisfied},
		{40, 44, policy.Satisfied},
		{40, 44.001, policy.Bad},
		{20, 31.6, policy.Bad},
		{0.3, 0.33, policy.Satisfied}, // 0.3 − 0.33 is slightly below −0.03
		{0.3, 0.27, policy.Satisfied},
		{0.3, 0, policy.Good},
		{math.SmallestNonzeroFloat64, 0, policy.Good},
		{1e-300, 1e300, policy.Bad},
	} {
		out := of(task("a", tc.objective, tc.response, 0.5, 1)).decide()
		must.Eq(t, tc.want, out.Tasks[0].Class, must.Sprintf("%+v", tc))
	}
	in := of(task("a", 40, 31.6, 0.5, 1)).with(func(p *Params) { p.Alpha = 0.3 })
	must.Eq(t, policy.Satisfied, in.decide().Tasks[0].Class)
}

// DQoES, §6.2.2, ten equal services: with an objective of 20 s, at 31.61 s, all are in B and have equal
// limits; with 40 s, seven are within 10 %, and 47.57, 50.91 and 47.93 s miss it and get more.
func TestDecide_identicalObjectives(t *testing.T) {
	services := func(objective float64, responses ...float64) input {
		var all []policy.Task
		for i := range 10 {
			response := responses[min(i, len(responses)-1)]
			all = append(all, task(fmt.Sprint(i), objective, response, 0.1, 0.1))
		}
		return of(all...)
	}
	for _, s := range show(services(20, 31.61).decide()) {
		must.Eq(t, policy.Bad, s.Class)
		must.Eq(t, 0.1, s.Limit)
	}
	for i, s := range show(services(40, 47.57, 50.91, 47.93, 30, 40).decide()) {
		switch {
		case i < 3:
			must.Eq(t, policy.Bad, s.Class)
			must.Greater(t, 0.1, s.Limit)
		case i == 3:
			must.Eq(t, policy.Good, s.Class)
			must.Less(t, 0.1, s.Limit)
		default:
			must.Eq(t, shown{policy.Satisfied, 0.1, s.Rule}, s)
		}
	}
}

// Algorithm 2, lines 16–24.
func TestDecide_published(t *testing.T) {
	bare := func(p *Params) { p.Headroom = false }
	for _, tc := range []struct {
		name string
		in   input
		want []shown
	}{
		{"no services", of(), nil},
		{
			"by the parts of Q_G and Q_B", // Q_G = 20 + 30, R_G = 0.5, Q_B = −10 − 30
			of(
				task("a", 40, 20, 0.2, 0.3), task("b", 50, 20, 0.3, 0.3), task("c", 40, 41, 0.1, 0.2),
				task("d", 10, 20, 0.2, 0.2), task("e", 10, 40, 0.2, 0.2),
			),
			[]shown{
				{policy.Good, 0.3 * (1 - 20.0/50*0.5*0.1), RuleGood},
				{policy.Good, 0.3 * (1 - 30.0/50*0.5*0.1), RuleGood},
				{policy.Satisfied, 0.2, RuleSatisfied},
				{policy.Bad, 0.2 * (1 + 10.0/40*0.5*0.1), RuleBad},
				{policy.Bad, 0.2 * (1 + 30.0/40*0.5*0.1), RuleBad},
			},
		}, {
			"β", // R_G = 0.5
			of(task("a", 40, 20, 0.5, 0.6), task("b", 10, 20, 0.5, 0.5)).with(func(p *Params) { p.Beta = 1 }),
			[]shown{{policy.Good, 0.3, RuleGood}, {policy.Bad, 0.75, RuleBad}},
		}, {
			"not below the floor 1/(2n), not above the pool",
			of(task("a", 40, 20, 0.5, 0.251), task("b", 10, 20, 0.5, 0.99)),
			[]shown{{policy.Good, 0.25, RuleGood}, {policy.Bad, 1, RuleBad}},
		}, {
			"limits from a fuller node are raised to the floor in all classes",
			of(task("a", 40, 20, 0.1, 0.01), task("b", 40, 40, 0.1, 0.01), task("c", 10, 20, 0.8, 0.01), unmeasured("d", 0, 0.01)),
			[]shown{{policy.Good, 0.125, RuleGood}, {policy.Satisfied, 0.125, RuleSatisfied}, {policy.Bad, 0.125, RuleBad}, {policy.Unmeasured, 0.125, RuleUnmeasured}},
		}, {
			"published: nothing to take while G is empty, on an idle pool neither",
			of(task("a", 10, 20, 0.1, 0.3), task("b", 10, 10, 0.1, 0.5)).with(bare),
			[]shown{{policy.Bad, 0.3, RuleBadFull}, {policy.Satisfied, 0.5, RuleSatisfied}},
		}, {
			"headroom: the idle part of the pool can be taken", // 0.8
			of(task("a", 10, 20, 0.1, 0.3), task("b", 10, 10, 0.1, 0.5)),
			[]shown{{policy.Bad, 0.3 * (1 + 0.8*0.1), RuleBad}, {policy.Satisfied, 0.5, RuleSatisfied}},
		}, {
			"headroom counts for both classes", // R_G = 0.3 + 0.4
			of(task("a", 40, 20, 0.3, 0.4), task("b", 10, 20, 0.3, 0.5)),
			[]shown{{policy.Good, 0.4 * (1 - 0.7*0.1), RuleGood}, {policy.Bad, 0.5 * (1 + 0.7*0.1), RuleBad}},
		}, {
			"what unmeasured services use is not idle", // R_G = 0.2
			of(task("a", 10, 20, 0.5, 0.5), unmeasured("b", 0.3, 0.5)),
			[]shown{{policy.Bad, 0.5 * (1 + 0.2*0.1), RuleBad}, {policy.Unmeasured, 0.5, RuleUnmeasured}},
		}, {
			"a full pool: nothing to take", // 1 − 0.7 − 0.2 − 0.1 > 0
			of(task("a", 10, 20, 0.7, 0.9), task("b", 10, 10, 0.2, 0.5), task("c", 10, 10, 0.1, 0.5)),
			[]shown{{policy.Bad, 0.9, RuleBadFull}, {policy.Satisfied, 0.5, RuleSatisfied}, {policy.Satisfied, 0.5, RuleSatisfied}},
		}, {
			"what others use is not idle", // 0.5 + 0.2 used, R_G = 0.3
			of(task("a", 10, 20, 0.5, 0.5)).beside(3, 0.2),
			[]shown{{policy.Bad, 0.5 * (1 + 0.3*0.1), RuleBad}},
		}, {
			"n counts the others for the floor",
			of(task("a", 40, 20, 1, 0.1), task("b", 40, 20, 1, 0.01)).beside(10, 0),
			[]shown{{policy.Good, 0.1 * (1 - 0.5*0.1), RuleGood}, {policy.Good, 0.05, RuleGood}},
		}, {
			"R_G is at most the pool",
			of(task("a", 40, 20, 3, 1), task("b", 10, 20, 3, 0.5)),
			[]shown{{policy.Good, 0.9, RuleGood}, {policy.Bad, 0.55, RuleBad}},
		}, {
			"sums that overflow",
			of(task("a", 1.7e308, 0, 0.5, 1), task("b", 1.7e308, 0, 0.5, 1), task("c", 1, 1.7e308, 0, 0.5), task("d", 1, 1.7e308, 0, 0.5)),
			[]shown{
				{policy.Good, 1 - 1.7e308/math.MaxFloat64*0.1, RuleGood}, {policy.Good, 1 - 1.7e308/math.MaxFloat64*0.1, RuleGood},
				{policy.Bad, 0.5 * (1 + 1.7e308/math.MaxFloat64*0.1), RuleBad}, {policy.Bad, 0.5 * (1 + 1.7e308/math.MaxFloat64*0.1), RuleBad},
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			near(t, tc.want, show(tc.in.decide()))
		})
	}
}

// half is half the way from one limit to another, in logarithms.
func half(from, to policy.Share) policy.Share { return policy.Share(math.Sqrt(float64(from * to))) }

// StepProportional: aims are 0.95·o, and 1.025·o on a short pool.
func TestDecide_proportional(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   input
		want []shown
	}{
		{
			"what the response times ask for",
			of(task("a", 40, 30, 0.2, 0.3), task("b", 10, 12, 0.2, 0.2), task("c", 10, 10, 0.1, 0.2)),
			[]shown{
				{policy.Good, half(0.3, 0.2*30/38), RuleGood},
				{policy.Bad, half(0.2, 0.2*12/9.5), RuleBad},
				{policy.Satisfied, 0.2, RuleSatisfied},
			},
		}, {
			"at most a factor 2, and the floor",
			of(task("a", 40, 4, 0.2, 0.9), task("b", 10, 100, 0.05, 0.2)),
			[]shown{{policy.Good, 0.45, RuleGood}, {policy.Bad, 0.4, RuleBad}},
		}, {
			"worse than its target with little use: from the limit",
			of(task("a", 10, 12, 0.01, 0.6)),
			[]shown{{policy.Bad, half(0.6, 0.6*12/9.5), RuleBad}},
		}, {
			"no use, or no time: limits stay",
			of(task("a", 10, 12, 0, 0.4), task("b", 10, 0, 0.1, 0.3), unmeasured("c", 0, 0.2)),
			[]shown{{policy.Bad, 0.4, RuleBad}, {policy.Good, 0.3, RuleGood}, {policy.Unmeasured, 0.2, RuleUnmeasured}},
		}, {
			"short: all aim at 1.025·o, satisfied ones move towards it", // at 0.95·o: 0.29 + 0.24 + 0.12 + 0.1 + 0.266
			of(task("a", 10, 20, 0.2, 0.2), task("b", 10, 9.5, 0.24, 0.24), task("c", 10, 10.2, 0.12, 0.12), task("e", 10, 10.6, 0.1, 0.1), task("d", 40, 30, 0.12, 0.532)),
			[]shown{
				{policy.Bad, half(0.2, 0.2*20/10.25), RuleBad},
				{policy.Satisfied, half(0.24, 0.24*9.5/10.25), RuleSatisfied},
				{policy.Satisfied, 0.12, RuleSatisfied},
				{policy.Satisfied, half(0.1, 0.1*10.6/10.25), RuleSatisfied},
				{policy.Good, 0.266, RuleGood},
			},
		}, {
			"shorter: the largest are cut to one level",
			of(task("a", 1, 20, 0.4, 0.5), task("b", 2, 20, 0.4, 0.6), task("c", 10, 9.5, 0.2, 0.2)),
			[]shown{
				{policy.Bad, (1 - half(0.2, 0.2*9.5/10.25)) / 2, RuleBadFull},
				{policy.Bad, (1 - half(0.2, 0.2*9.5/10.25)) / 2, RuleBadFull},
				{policy.Satisfied, half(0.2, 0.2*9.5/10.25), RuleSatisfied},
			},
		}, {
			"the level: within what others and unmeasured ones leave, not below the floor",
			of(task("a", 1, 20, 0.3, 0.5), task("b", 1, 20, 0.3, 0.5), unmeasured("c", 0.1, 0.7)).
				beside(5, 0.3),
			[]shown{{policy.Bad, 0.3, RuleBadFull}, {policy.Bad, 0.3, RuleBadFull}, {policy.Unmeasured, 0.7, RuleUnmeasured}},
		}, {
			"nothing left: the floor",
			of(task("a", 1, 20, 0.3, 0.5), task("b", 1, 20, 0.3, 0.5)).
				beside(5, 1),
			[]shown{{policy.Bad, 0.1, RuleBadFull}, {policy.Bad, 0.1, RuleBadFull}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			near(t, tc.want, show(tc.in.with(proportional).decide()))
		})
	}
}

// Algorithm 3.
func TestDecide_listener(t *testing.T) {
	// One service in each class: Q_G = 20, Q_B = −10, Q_S = 1.
	good, bad, satisfied := task("a", 40, 20, 0.3, 0.3), task("b", 10, 20, 0.3, 0.3), task("c", 10, 10, 0.3, 0.3)
	for _, tc := range []struct {
		name     string
		tasks    []policy.Task
		state    State
		interval float64
		want     State
		next     float64
	}{
		{"the start", nil, State{}, 20, State{20, -10, 1, 0}, 20},
		{"both nearer, once", nil, State{20.1, -10.1, 1, 0}, 20, State{20, -10, 1, 1}, 20},
		{"both nearer, twice", nil, State{20.1, -10.1, 1, 1}, 20, State{20, -10, 1, 2}, 20},
		{"both nearer, the third time", nil, State{20.1, -10.1, 1, 2}, 20, State{20, -10, 1, 0}, 40},
		{"more often", nil, State{20.1, -10.1, 1, 9}, 20, State{20, -10, 1, 0}, 40},
		{"more satisfied", nil, State{20.1, -10.1, 0, 2}, 20, State{20, -10, 1, 0}, 40},
		{"up to the maximum", nil, State{20.1, -10.1, 1, 2}, 100, State{20, -10, 1, 0}, 160},
		{"above the maximum already", nil, State{20.1, -10.1, 1, 2}, 200, State{20, -10, 1, 0}, 200},
		{"Q_G farther", nil, State{19.9, -10.1, 1, 2}, 40, State{20, -10, 1, 0}, 40},
		{"Q_B farther", nil, State{20.1, -9.9, 1, 2}, 40, State{20, -10, 1, 0}, 40},
		{"unchanged but for the last bits", nil, State{20 * (1 + 1e-15), -10 * (1 + 1e-15), 1, 2}, 40, State{20, -10, 1, 0}, 40},
		{"all satisfied all the time: nothing moves", []policy.Task{satisfied}, State{0, 0, 1, 2}, 40, State{0, 0, 1, 0}, 40},
		{"G empty all the time: nothing moves", []policy.Task{bad}, State{0, -20, 0, 2}, 40, State{0, -10, 0, 0}, 40},
		{"fewer satisfied", nil, State{20.1, -10.1, 2, 2}, 100, State{20, -10, 1, 0}, 50},
		{"down to the initial one", nil, State{0, 0, 2, 0}, 30, State{20, -10, 1, 0}, 20},
		{"at the initial one already", nil, State{0, 0, 2, 0}, 20, State{20, -10, 1, 0}, 20},
		{"below the initial one", nil, State{0, 0, 2, 0}, 10, State{20, -10, 1, 0}, 10},
		{"unmeasured: perhaps still satisfied", []policy.Task{good, bad, unmeasured("d", 0, 1)}, State{20.1, -10.1, 1, 2}, 40, State{20, -10, 0, 0}, 40},
		{"unmeasured: fewer all the same", []policy.Task{good, bad, unmeasured("d", 0, 1)}, State{20.1, -10.1, 2, 2}, 40, State{20, -10, 0, 0}, 20},
		{"no tasks left", []policy.Task{}, State{20, -10, 1, 2}, 40, State{}, 20},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := of(good, bad, satisfied)
			if tc.tasks != nil {
				in.Tasks = tc.tasks
			}
			in.Snapshot.State, in.IntervalS = tc.state.Encode(), tc.interval
			must.NoError(t, in.check())
			out := in.decide()
			must.Eq(t, tc.want, out.State)
			must.Eq(t, tc.next, out.IntervalS)
		})
	}
}

// One sentence of each kind.
func TestDecide_why(t *testing.T) {
	short := []policy.Task{task("x", 1, 20, 0.4, 0.5), task("y", 1, 20, 0.4, 0.5)}
	for _, tc := range []struct {
		name string
		in   input
		want string // of the last service
	}{
		{"unmeasured", of(unmeasured("a", 0, 1)),
			"no batch ended in the interval, objective 10 s: keeps its limit; limit 1 → 1, use 0"},
		{"unmeasured, raised", of(unmeasured("a", 0, 0.2)),
			"no batch ended in the interval, objective 10 s: keeps its limit, bounded by the floor 1/(2n) = 0.5; limit 0.2 → 0.5, use 0"},
		{"satisfied", of(task("a", 10, 10.5, 0.4, 0.6)),
			"response 10.5 s is within 10 % of the objective 10 s: satisfied, limit stays; limit 0.6 → 0.6, use 0.4"},
		{"good", of(task("a", 40, 20, 0.5, 0.8)),
			"response 20 s is below the objective 40 s by more than 10 %: better than its target, releases q/Q_G·R_G·β = 20/20·1·0.1 of its limit; limit 0.8 → 0.72, use 0.5"},
		{"good, floor", of(task("a", 40, 20, 0.5, 0.51)),
			"response 20 s is below the objective 40 s by more than 10 %: better than its target, releases q/Q_G·R_G·β = 20/20·1·0.1 of its limit, bounded by the floor 1/(2n) = 0.5; limit 0.51 → 0.5, use 0.5"},
		{"bad", of(task("a", 10, 20, 0.5, 0.8)),
			"response 20 s is above the objective 10 s by more than 10 %: worse than its target, gets q/Q_B·R_G·β = -10/-10·0.5·0.1 of its limit more; limit 0.8 → 0.84, use 0.5"},
		{"bad, pool", of(task("a", 10, 20, 0.5, 1)),
			"response 20 s is above the objective 10 s by more than 10 %: worse than its target, gets q/Q_B·R_G·β = -10/-10·0.5·0.1 of its limit more, bounded by the pool; limit 1 → 1, use 0.5"},
		{"bad, full", of(task("a", 10, 20, 1, 0.8)),
			"response 20 s is above the objective 10 s by more than 10 %: worse than its target, but no CPU is reclaimable, limit stays; limit 0.8 → 0.8, use 1"},
		{"proportional, good", of(task("a", 40, 30, 0.8, 0.9)).with(proportional),
			"response 30 s is below the objective 40 s by more than 10 %: better than its target, needs 0.6316 for 38 s, moves halfway; limit 0.9 → 0.7539, use 0.8"},
		{"proportional, factor", of(task("a", 1, 30, 0.2, 0.3)).with(proportional).beside(2, 0),
			"response 30 s is above the objective 1 s by more than 10 %: worse than its target, needs 9.474 for 0.95 s, moves by a factor of 2; limit 0.3 → 0.6, use 0.2"},
		{"proportional, unknown need", of(task("a", 1, 30, 0, 0.7)).with(proportional),
			"response 30 s is above the objective 1 s by more than 10 %: worse than its target, but it used no CPU, so its need is unknown: limit stays; limit 0.7 → 0.7, use 0"},
		{"proportional, satisfied", of(task("a", 10, 10, 0.4, 0.6)).with(proportional),
			"response 10 s is within 10 % of the objective 10 s: satisfied, limit stays; limit 0.6 → 0.6, use 0.4"},
		{"proportional, satisfied and short", of(append(short, task("a", 10, 9.5, 0.2, 0.21))...).with(proportional),
			"response 9.5 s is within 10 % of the objective 10 s: satisfied, and the pool is short, needs 0.1946 for 10.25 s, moves halfway; limit 0.21 → 0.2022, use 0.2"},
		{"proportional, full", of(append(short, task("a", 1, 10, 0.2, 0.6))...).with(proportional),
			"response 10 s is above the objective 1 s by more than 10 %: worse than its target, needs 5.854 for 1.025 s, moves by a factor of 2, but the pool is short and the largest are cut to one level; limit 0.6 → 0.3333, use 0.2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.NoError(t, tc.in.check())
			out := tc.in.decide()
			must.Eq(t, tc.want, lastService(out).Why)
		})
	}
}

func lastService(out outcome) (last policy.Decision) {
	for _, d := range out.Tasks {
		if d.Rule != RuleNoService {
			last = d
		}
	}
	return last
}

func TestDecide_event(t *testing.T) {
	for _, event := range []policy.Event{policy.EventJoin, policy.EventLeave} {
		in := of(task("a", 40, 20, 0.3, 0.3), task("b", 10, 20, 0.3, 0.3), unmeasured("c", 0, 0)).beside(4, 0.1)
		in.Event, in.Snapshot.State = event, State{30, -20, 1, 2}.Encode()
		out := in.decide()
		near(t, []shown{{policy.Good, 0.3, RuleEvent}, {policy.Bad, 0.3, RuleEvent}, {policy.Unmeasured, 1, RuleUnmeasured}}, show(out))
		must.Eq(t, State{30, -20, 1, 2}, out.State)
		must.Eq(t, 20.0, out.IntervalS)
		must.StrContains(t, out.Tasks[0].Why, "a task joined or left: keeps its limit until it is measured again; limit 0.3 → 0.3")
		must.Eq(t, policy.Decision{ID: "other-1", Limit: out.Tasks[3].Limit, Rule: RuleNoService,
			Why: "the task has no ebbtide_qoe_target: policy dqoes does not limit it"}, out.Tasks[3])
		must.Eq(t, 1, out.Tasks[3].Bound())
	}
}

func TestDecide_lastServiceLeaves(t *testing.T) {
	in := of().beside(1, 0.1)
	in.Event, in.Snapshot.State = policy.EventLeave, State{30, -20, 1, 2}.Encode()
	must.Eq(t, State{}, in.decide().State)
}

func TestDecide_entitlement(t *testing.T) {
	in := of(task("big", 1, 20, 0.5, 0.9), task("small", 1, 20, 0.4, 0.9), task("good", 40, 1, 0.01, 0.01)).with(proportional)
	in.Tasks[0].Entitlement, in.Tasks[1].Entitlement, in.Tasks[2].Entitlement = 6, 3, 1
	out := in.decide()
	near(t, []shown{{policy.Bad, 0.95 * 2 / 3, RuleBadFull}, {policy.Bad, 0.95 / 3, RuleBadFull}, {policy.Good, 0.05, RuleGood}}, show(out))
	must.StrContains(t, out.Tasks[2].Why, "bounded by the floor φ/2 = 0.05")
	must.Eq(t, 0.5, out.Floor)
}
