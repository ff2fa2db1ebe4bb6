// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package dqoes

import (
	"math"
	"testing"

	"github.com/shoenig/test/must"
)

func num(x float64) *float64 { return &x }

// task builds a measured service.
func task(id string, objective, response, use, limit float64) Task {
	return Task{ID: id, ObjectiveS: objective, ResponseS: &response, Use: use, Limit: limit}
}

// blind builds a service without a response time.
func blind(id string, use, limit float64) Task {
	return Task{ID: id, ObjectiveS: 10, Use: use, Limit: limit}
}

func input(tasks ...Task) Input {
	return Input{Tasks: tasks, IntervalS: 40, InitialIntervalS: 20, MaxIntervalS: 160, Params: DefaultParams()}
}

// with returns the input with other params.
func (in Input) with(change func(*Params)) Input {
	change(&in.Params)
	return in
}

func proportional(p *Params) { p.Step = StepProportional }

// shown is a decision in short.
type shown struct {
	Class Class
	Limit float64
	Rule  string
}

func show(out Output) []shown {
	var all []shown
	for _, d := range out.Tasks {
		all = append(all, shown{d.Class, d.Limit, d.Rule})
	}
	return all
}

// near compares what is shown, limits to the last bits.
func near(t *testing.T, want, got []shown) {
	t.Helper()
	must.Len(t, len(want), got)
	for i := range want {
		must.Eq(t, want[i].Class, got[i].Class, must.Sprintf("task %d", i))
		must.Eq(t, want[i].Rule, got[i].Rule, must.Sprintf("task %d", i))
		must.InDelta(t, want[i].Limit, got[i].Limit, 1e-12, must.Sprintf("task %d", i))
	}
}

// Algorithm 2, lines 6–15: the edges belong to S.
func TestDecide_classes(t *testing.T) {
	for _, tc := range []struct {
		objective, response float64
		want                Class
	}{
		{40, 31.6, Good},
		{40, 35.999, Good},
		{40, 36, Satisfied},
		{40, 40, Satisfied},
		{40, 44, Satisfied},
		{40, 44.001, Bad},
		{20, 31.6, Bad},
		{0.3, 0.33, Satisfied}, // 0.3 − 0.33 is a little below −0.03
		{0.3, 0.27, Satisfied},
		{0.3, 0, Good},
		{math.SmallestNonzeroFloat64, 0, Good},
		{1e-300, 1e300, Bad},
	} {
		out := Decide(input(task("a", tc.objective, tc.response, 0.5, 1)))
		must.Eq(t, tc.want, out.Tasks[0].Class, must.Sprintf("%+v", tc))
	}
	in := input(task("a", 40, 31.6, 0.5, 1)).with(func(p *Params) { p.Alpha = 0.3 })
	must.Eq(t, Satisfied, Decide(in).Tasks[0].Class)
}

// Algorithm 2, lines 16–24.
func TestDecide_published(t *testing.T) {
	bare := func(p *Params) { p.Headroom = false }
	for _, tc := range []struct {
		name string
		in   Input
		want []shown
	}{
		{"no services", input(), nil},
		{
			"by the parts of Q_G and Q_B", // Q_G = 20 + 30, R_G = 0.5, Q_B = −10 − 30
			input(
				task("a", 40, 20, 0.2, 0.3), task("b", 50, 20, 0.3, 0.3), task("c", 40, 41, 0.1, 0.2),
				task("d", 10, 20, 0.2, 0.2), task("e", 10, 40, 0.2, 0.2),
			),
			[]shown{
				{Good, 0.3 * (1 - 20.0/50*0.5*0.1), RuleGood},
				{Good, 0.3 * (1 - 30.0/50*0.5*0.1), RuleGood},
				{Satisfied, 0.2, RuleSatisfied},
				{Bad, 0.2 * (1 + 10.0/40*0.5*0.1), RuleBad},
				{Bad, 0.2 * (1 + 30.0/40*0.5*0.1), RuleBad},
			},
		}, {
			"β", // R_G = 0.5
			input(task("a", 40, 20, 0.5, 0.6), task("b", 10, 20, 0.5, 0.5)).with(func(p *Params) { p.Beta = 1 }),
			[]shown{{Good, 0.3, RuleGood}, {Bad, 0.75, RuleBad}},
		}, {
			"not below the floor 1/(2n), not above the pool",
			input(task("a", 40, 20, 0.5, 0.251), task("b", 10, 20, 0.5, 0.99)),
			[]shown{{Good, 0.25, RuleGood}, {Bad, 1, RuleBad}},
		}, {
			"limits from a fuller node are raised to the floor in all classes",
			input(task("a", 40, 20, 0.1, 0.01), task("b", 40, 40, 0.1, 0.01), task("c", 10, 20, 0.8, 0.01), blind("d", 0, 0.01)),
			[]shown{{Good, 0.125, RuleGood}, {Satisfied, 0.125, RuleSatisfied}, {Bad, 0.125, RuleBad}, {Unmeasured, 0.125, RuleUnmeasured}},
		}, {
			"published: nothing to take while G is empty, on an idle pool neither",
			input(task("a", 10, 20, 0.1, 0.3), task("b", 10, 10, 0.1, 0.5)).with(bare),
			[]shown{{Bad, 0.3, RuleBadFull}, {Satisfied, 0.5, RuleSatisfied}},
		}, {
			"headroom: the idle part of the pool can be taken", // 0.8
			input(task("a", 10, 20, 0.1, 0.3), task("b", 10, 10, 0.1, 0.5)),
			[]shown{{Bad, 0.3 * (1 + 0.8*0.1), RuleBad}, {Satisfied, 0.5, RuleSatisfied}},
		}, {
			"headroom counts for both classes", // R_G = 0.3 + 0.4
			input(task("a", 40, 20, 0.3, 0.4), task("b", 10, 20, 0.3, 0.5)),
			[]shown{{Good, 0.4 * (1 - 0.7*0.1), RuleGood}, {Bad, 0.5 * (1 + 0.7*0.1), RuleBad}},
		}, {
			"what unmeasured services use is not idle", // R_G = 0.2
			input(task("a", 10, 20, 0.5, 0.5), blind("b", 0.3, 0.5)),
			[]shown{{Bad, 0.5 * (1 + 0.2*0.1), RuleBad}, {Unmeasured, 0.5, RuleUnmeasured}},
		}, {
			"a full pool: nothing to take", // 1 − 0.7 − 0.2 − 0.1 > 0
			input(task("a", 10, 20, 0.7, 0.9), task("b", 10, 10, 0.2, 0.5), task("c", 10, 10, 0.1, 0.5)),
			[]shown{{Bad, 0.9, RuleBadFull}, {Satisfied, 0.5, RuleSatisfied}, {Satisfied, 0.5, RuleSatisfied}},
		}, {
			"others: what they use is not idle, what they can spare can be taken", // 0.5 + 0.1 used, 0.3 idle, 0.1 extra
			input(task("a", 10, 20, 0.5, 0.5)).with(func(p *Params) { p.Tasks, p.Others, p.Extra = 3, 0.2, 0.1 }),
			[]shown{{Bad, 0.5 * (1 + 0.4*0.1), RuleBad}},
		}, {
			"extra without headroom, and without others",
			input(task("a", 10, 20, 0.5, 0.5)).with(func(p *Params) { p.Headroom, p.Tasks, p.Extra = false, 3, 0.2 }),
			[]shown{{Bad, 0.5 * (1 + 0.2*0.1), RuleBad}},
		}, {
			"n counts the others for the floor",
			input(task("a", 40, 20, 1, 0.1), task("b", 40, 20, 1, 0.01)).with(func(p *Params) { p.Tasks = 10 }),
			[]shown{{Good, 0.1 * (1 - 0.5*0.1), RuleGood}, {Good, 0.05, RuleGood}},
		}, {
			"R_G is at most the pool",
			input(task("a", 40, 20, 3, 1), task("b", 10, 20, 3, 0.5)),
			[]shown{{Good, 0.9, RuleGood}, {Bad, 0.55, RuleBad}},
		}, {
			"params at zero are the published ones", // without headroom
			input(task("a", 40, 20, 0.5, 0.6), task("b", 10, 20, 0.1, 0.5)).with(func(p *Params) { *p = Params{} }),
			[]shown{{Good, 0.6 * (1 - 0.5*0.1), RuleGood}, {Bad, 0.5 * (1 + 0.5*0.1), RuleBad}},
		}, {
			"sums that overflow",
			input(task("a", 1.7e308, 0, 0.5, 1), task("b", 1.7e308, 0, 0.5, 1), task("c", 1, 1.7e308, 0, 0.5), task("d", 1, 1.7e308, 0, 0.5)),
			[]shown{
				{Good, 1 - 1.7e308/math.MaxFloat64*0.1, RuleGood}, {Good, 1 - 1.7e308/math.MaxFloat64*0.1, RuleGood},
				{Bad, 0.5 * (1 + 1.7e308/math.MaxFloat64*0.1), RuleBad}, {Bad, 0.5 * (1 + 1.7e308/math.MaxFloat64*0.1), RuleBad},
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			near(t, tc.want, show(Decide(tc.in)))
		})
	}
}

// half is half of the way from one limit to another, in logarithms.
func half(from, to float64) float64 { return math.Sqrt(from * to) }

// StepProportional: aims are 0.95·o, and 1.025·o where the pool is short.
func TestDecide_proportional(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   Input
		want []shown
	}{
		{
			"what the response times ask for",
			input(task("a", 40, 30, 0.2, 0.3), task("b", 10, 12, 0.2, 0.2), task("c", 10, 10, 0.1, 0.2)),
			[]shown{
				{Good, half(0.3, 0.2*30/38), RuleGood},
				{Bad, half(0.2, 0.2*12/9.5), RuleBad},
				{Satisfied, 0.2, RuleSatisfied},
			},
		}, {
			"at most a factor 2, and the floor",
			input(task("a", 40, 4, 0.2, 0.9), task("b", 10, 100, 0.05, 0.2)),
			[]shown{{Good, 0.45, RuleGood}, {Bad, 0.4, RuleBad}},
		}, {
			"worse than asked with little use: from the limit",
			input(task("a", 10, 12, 0.01, 0.6)),
			[]shown{{Bad, half(0.6, 0.6*12/9.5), RuleBad}},
		}, {
			"no use, or no time: limits stay",
			input(task("a", 10, 12, 0, 0.4), task("b", 10, 0, 0.1, 0.3), blind("c", 0, 0.2)),
			[]shown{{Bad, 0.4, RuleBad}, {Good, 0.3, RuleGood}, {Unmeasured, 0.2, RuleUnmeasured}},
		}, {
			"short: all aim at 1.025·o, satisfied ones move towards it", // at 0.95·o: 0.29 + 0.24 + 0.12 + 0.1 + 0.266
			input(task("a", 10, 20, 0.2, 0.2), task("b", 10, 9.5, 0.24, 0.24), task("c", 10, 10.2, 0.12, 0.12), task("e", 10, 10.6, 0.1, 0.1), task("d", 40, 30, 0.12, 0.532)),
			[]shown{
				{Bad, half(0.2, 0.2*20/10.25), RuleBad},
				{Satisfied, half(0.24, 0.24*9.5/10.25), RuleSatisfied},
				{Satisfied, 0.12, RuleSatisfied},
				{Satisfied, half(0.1, 0.1*10.6/10.25), RuleSatisfied},
				{Good, 0.266, RuleGood},
			},
		}, {
			"shorter: the largest are cut to one level",
			input(task("a", 1, 20, 0.4, 0.5), task("b", 2, 20, 0.4, 0.6), task("c", 10, 9.5, 0.2, 0.2)),
			[]shown{
				{Bad, (1 - half(0.2, 0.2*9.5/10.25)) / 2, RuleBadFull},
				{Bad, (1 - half(0.2, 0.2*9.5/10.25)) / 2, RuleBadFull},
				{Satisfied, half(0.2, 0.2*9.5/10.25), RuleSatisfied},
			},
		}, {
			"the level: within what others and unmeasured ones leave, not below the floor",
			input(task("a", 1, 20, 0.3, 0.5), task("b", 1, 20, 0.3, 0.5), blind("c", 0.1, 0.7)).
				with(func(p *Params) { p.Tasks, p.Others, p.Extra = 5, 0.4, 0.1 }),
			[]shown{{Bad, 0.3, RuleBadFull}, {Bad, 0.3, RuleBadFull}, {Unmeasured, 0.7, RuleUnmeasured}},
		}, {
			"nothing left: the floor",
			input(task("a", 1, 20, 0.3, 0.5), task("b", 1, 20, 0.3, 0.5)).
				with(func(p *Params) { p.Tasks, p.Others = 5, 1 }),
			[]shown{{Bad, 0.1, RuleBadFull}, {Bad, 0.1, RuleBadFull}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			near(t, tc.want, show(Decide(tc.in.with(proportional))))
		})
	}
}

// Algorithm 3.
func TestDecide_listener(t *testing.T) {
	// One service in each class: Q_G = 20, Q_B = −10, Q_S = 1.
	good, bad, satisfied := task("a", 40, 20, 0.3, 0.3), task("b", 10, 20, 0.3, 0.3), task("c", 10, 10, 0.3, 0.3)
	for _, tc := range []struct {
		name     string
		tasks    []Task
		state    State
		interval float64
		want     State
		next     float64
		again    bool
	}{
		{"the start", nil, State{}, 20, State{20, -10, 1, 0}, 20, false},
		{"both nearer, once", nil, State{20.1, -10.1, 1, 0}, 20, State{20, -10, 1, 1}, 20, false},
		{"both nearer, twice", nil, State{20.1, -10.1, 1, 1}, 20, State{20, -10, 1, 2}, 20, false},
		{"both nearer, the third time", nil, State{20.1, -10.1, 1, 2}, 20, State{20, -10, 1, 0}, 40, false},
		{"more often", nil, State{20.1, -10.1, 1, 9}, 20, State{20, -10, 1, 0}, 40, false},
		{"more satisfied", nil, State{20.1, -10.1, 0, 2}, 20, State{20, -10, 1, 0}, 40, false},
		{"up to the maximum", nil, State{20.1, -10.1, 1, 2}, 100, State{20, -10, 1, 0}, 160, false},
		{"above the maximum already", nil, State{20.1, -10.1, 1, 2}, 200, State{20, -10, 1, 0}, 200, false},
		{"Q_G farther", nil, State{19.9, -10.1, 1, 2}, 40, State{20, -10, 1, 0}, 40, false},
		{"Q_B farther", nil, State{20.1, -9.9, 1, 2}, 40, State{20, -10, 1, 0}, 40, false},
		{"unchanged but for the last bits", nil, State{20 * (1 + 1e-15), -10 * (1 + 1e-15), 1, 2}, 40, State{20, -10, 1, 0}, 40, false},
		{"all satisfied all the time: nothing moves", []Task{satisfied}, State{0, 0, 1, 2}, 40, State{0, 0, 1, 0}, 40, false},
		{"G empty all the time: nothing moves", []Task{bad}, State{0, -20, 0, 2}, 40, State{0, -10, 0, 0}, 40, false},
		{"fewer satisfied", nil, State{20.1, -10.1, 2, 2}, 100, State{20, -10, 1, 0}, 50, true},
		{"down to the initial one", nil, State{0, 0, 2, 0}, 30, State{20, -10, 1, 0}, 20, true},
		{"at the initial one already", nil, State{0, 0, 2, 0}, 20, State{20, -10, 1, 0}, 20, true},
		{"below the initial one", nil, State{0, 0, 2, 0}, 10, State{20, -10, 1, 0}, 10, true},
		{"unmeasured: perhaps still satisfied", []Task{good, bad, blind("d", 0, 1)}, State{20.1, -10.1, 1, 2}, 40, State{20, -10, 0, 0}, 40, false},
		{"unmeasured: fewer all the same", []Task{good, bad, blind("d", 0, 1)}, State{20.1, -10.1, 2, 2}, 40, State{20, -10, 0, 0}, 20, true},
		{"nobody left", []Task{}, State{20, -10, 1, 2}, 40, State{}, 20, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := input(good, bad, satisfied)
			if tc.tasks != nil {
				in.Tasks = tc.tasks
			}
			in.State, in.IntervalS = tc.state, tc.interval
			must.NoError(t, in.Validate())
			out := Decide(in)
			must.Eq(t, tc.want, out.State)
			must.Eq(t, tc.next, out.IntervalS)
			must.Eq(t, tc.again, out.Again)
		})
	}
}

// One sentence of each kind.
func TestDecide_why(t *testing.T) {
	short := []Task{task("x", 1, 20, 0.4, 0.5), task("y", 1, 20, 0.4, 0.5)}
	for _, tc := range []struct {
		name string
		in   Input
		want string // of the last service
	}{
		{"unmeasured", input(blind("a", 0, 1)),
			"no batch ended in the interval, objective 10 s: keeps its limit; limit 1 → 1, use 0"},
		{"unmeasured, raised", input(blind("a", 0, 0.2)),
			"no batch ended in the interval, objective 10 s: keeps its limit, bounded by the floor 1/(2n) = 0.5; limit 0.2 → 0.5, use 0"},
		{"satisfied", input(task("a", 10, 10.5, 0.4, 0.6)),
			"response 10.5 s is within 10 % of the objective 10 s: satisfied, limit stays; limit 0.6 → 0.6, use 0.4"},
		{"good", input(task("a", 40, 20, 0.5, 0.8)),
			"response 20 s is below the objective 40 s by more than 10 %: better than asked, gives away q/Q_G·R_G·β = 20/20·1·0.1 of its limit; limit 0.8 → 0.72, use 0.5"},
		{"good, floor", input(task("a", 40, 20, 0.5, 0.51)),
			"response 20 s is below the objective 40 s by more than 10 %: better than asked, gives away q/Q_G·R_G·β = 20/20·1·0.1 of its limit, bounded by the floor 1/(2n) = 0.5; limit 0.51 → 0.5, use 0.5"},
		{"bad", input(task("a", 10, 20, 0.5, 0.8)),
			"response 20 s is above the objective 10 s by more than 10 %: worse than asked, gets q/Q_B·R_G·β = -10/-10·0.5·0.1 of its limit more; limit 0.8 → 0.84, use 0.5"},
		{"bad, pool", input(task("a", 10, 20, 0.5, 1)),
			"response 20 s is above the objective 10 s by more than 10 %: worse than asked, gets q/Q_B·R_G·β = -10/-10·0.5·0.1 of its limit more, bounded by the pool; limit 1 → 1, use 0.5"},
		{"bad, full", input(task("a", 10, 20, 1, 0.8)),
			"response 20 s is above the objective 10 s by more than 10 %: worse than asked, but nobody has CPU to spare, limit stays; limit 0.8 → 0.8, use 1"},
		{"proportional, good", input(task("a", 40, 30, 0.8, 0.9)).with(proportional),
			"response 30 s is below the objective 40 s by more than 10 %: better than asked, needs 0.6316 for 38 s, goes half of the way; limit 0.9 → 0.7539, use 0.8"},
		{"proportional, factor", input(task("a", 1, 30, 0.2, 0.3)).with(func(p *Params) { proportional(p); p.Tasks = 2 }),
			"response 30 s is above the objective 1 s by more than 10 %: worse than asked, needs 9.474 for 0.95 s, goes a factor 2; limit 0.3 → 0.6, use 0.2"},
		{"proportional, unknown need", input(task("a", 1, 30, 0, 0.7)).with(proportional),
			"response 30 s is above the objective 1 s by more than 10 %: worse than asked, but what it needs cannot be said from its use: limit stays; limit 0.7 → 0.7, use 0"},
		{"proportional, satisfied", input(task("a", 10, 10, 0.4, 0.6)).with(proportional),
			"response 10 s is within 10 % of the objective 10 s: satisfied, limit stays; limit 0.6 → 0.6, use 0.4"},
		{"proportional, satisfied and short", input(append(short, task("a", 10, 9.5, 0.2, 0.21))...).with(proportional),
			"response 9.5 s is within 10 % of the objective 10 s: satisfied, and the pool is short, needs 0.1946 for 10.25 s, goes half of the way; limit 0.21 → 0.2022, use 0.2"},
		{"proportional, full", input(append(short, task("a", 1, 10, 0.2, 0.6))...).with(proportional),
			"response 10 s is above the objective 1 s by more than 10 %: worse than asked, needs 5.854 for 1.025 s, goes a factor 2, but the pool is short and the largest are cut to one level; limit 0.6 → 0.3333, use 0.2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.NoError(t, tc.in.Validate())
			out := Decide(tc.in)
			must.Eq(t, tc.want, out.Tasks[len(out.Tasks)-1].Why)
		})
	}
}
