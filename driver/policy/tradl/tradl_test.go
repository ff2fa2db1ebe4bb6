// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tradl

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy"
)

func num(x float64) *float64 { return &x }

// task builds a task with a loss and targets 0.3 and 0.25.
func task(id string, value float64, use, limit policy.Share) policy.Task {
	return policy.Task{ID: id, Goal: policy.GoalMin, Value: &value, Acceptable: num(0.3), Objective: num(0.25), Use: use, Limit: limit}
}

type input struct {
	policy.Snapshot
	Params Params
}

func (in input) decide() policy.Outcome { return Decide(in.Snapshot, in.Params) }

func of(tasks ...policy.Task) input {
	for i := range tasks {
		tasks[i].Entitlement = 1
	}
	return input{policy.Snapshot{Tasks: tasks}, DefaultParams()}
}

type shown struct {
	State policy.TargetState
	Limit policy.Share // 0 = none
	Stop  bool
	Rule  string
}

func show(out policy.Outcome) []shown {
	var all []shown
	for _, d := range out.Tasks {
		s := shown{State: d.State, Stop: d.Stop, Rule: d.Rule}
		if d.Limit != nil {
			s.Limit = *d.Limit
		}
		all = append(all, s)
	}
	return all
}

func TestDecide(t *testing.T) {
	const training, acceptable, objective = policy.InTraining, policy.Acceptable, policy.Objective
	for _, tc := range []struct {
		name string
		in   input
		want []shown
	}{
		{"no tasks", of(), nil},
		{
			"the pool is not full: no limits, the objective ends its task all the same",
			of(task("a", 0.5, 0.3, 1), task("b", 0.28, 0.3, 1.0/6), task("c", 0.2, 0.2, 0.25)),
			[]shown{
				{State: training, Rule: RuleNotFull},
				{State: acceptable, Rule: RuleNotFull},
				{State: objective, Stop: true, Rule: RuleObjective},
			},
		}, {
			"full from a on, whatever the last bit of the sum", // 0.1 + 0.2 + 0.6 = 0.8999999999999999
			of(task("a", 0.5, 0.1, 1), task("b", 0.28, 0.2, 1), task("c", 0.5, 0.6, 1)),
			[]shown{
				{State: training, Rule: RuleTraining},
				{State: acceptable, Limit: 1.0 / 4, Rule: RuleEven},
				{State: training, Rule: RuleTraining},
			},
		}, {
			"full with what those used who have left",
			func() input {
				in := of(task("a", 0.5, 0.3, 1), task("b", 0.28, 0.2, 1))
				in.Gone = 0.4
				return in
			}(),
			[]shown{
				{State: training, Rule: RuleTraining},
				{State: acceptable, Limit: 1.0 / 3, Rule: RuleEven},
			},
		}, {
			"all acceptable: no limits",
			of(task("a", 0.3, 0.5, 0.25), task("b", 0.28, 0.5, 1.0/3)),
			[]shown{
				{State: acceptable, Rule: RuleAllAcceptable},
				{State: acceptable, Rule: RuleAllAcceptable},
			},
		}, {
			"a task that has reached the objective leaves: no task to make room for",
			of(task("a", 0.3, 0.5, 0.25), task("b", 0.2, 0.5, 1.0/3)),
			[]shown{
				{State: acceptable, Rule: RuleAllAcceptable},
				{State: objective, Stop: true, Rule: RuleObjective},
			},
		}, {
			"acceptable: half of the fair share above it, 1/(n+1) otherwise",
			of(task("a", 0.5, 0.4, 1), task("b", 0.28, 0.36, 1), task("c", 0.28, 0.25, 1), task("d", 0.28, 0.1, 1)),
			[]shown{
				{State: training, Rule: RuleTraining},
				{State: acceptable, Limit: 1.0 / 8, Rule: RuleHalf},
				{State: acceptable, Limit: 1.0 / 5, Rule: RuleEven},
				{State: acceptable, Limit: 1.0 / 5, Rule: RuleEven},
			},
		}, {
			"objective on a full pool: the limit stays while it saves, but not below the floor",
			of(task("a", 0.5, 0.5, 1), task("b", 0.2, 0.4, 1), task("c", 0.25, 0.1, 0.2), task("d", 0.2, 0.1, 0.01)),
			[]shown{
				{State: training, Rule: RuleTraining},
				{State: objective, Stop: true, Rule: RuleObjective},
				{State: objective, Limit: 0.2, Stop: true, Rule: RuleObjective},
				{State: objective, Limit: 0.125, Stop: true, Rule: RuleObjective},
			},
		}, {
			"a lone task is never limited",
			of(task("a", 0.28, 1, 0.5)),
			[]shown{{State: acceptable, Rule: RuleAllAcceptable}},
		}, {
			"targets are passed once",
			of(
				policy.Task{ID: "a", Goal: policy.GoalMin, Value: num(9), Acceptable: num(0.3), State: acceptable, Use: 0.5, Limit: 1},
				policy.Task{ID: "b", Goal: policy.GoalMin, Value: num(9), Objective: num(0.3), State: objective, Use: 0.3, Limit: 1},
				policy.Task{ID: "c", State: acceptable, Use: 0.2, Limit: 1},
				policy.Task{ID: "d", Goal: policy.GoalMax, Value: num(0.95), Acceptable: num(0.5), Objective: num(0.9), State: acceptable, Limit: 1},
				policy.Task{ID: "e", Goal: policy.GoalMax, Value: num(0.1), Acceptable: num(0.5), State: training, Limit: 1},
			),
			[]shown{
				{State: acceptable, Limit: 0.1, Rule: RuleHalf},
				{State: objective, Stop: true, Rule: RuleObjective},
				{State: acceptable, Limit: 1.0 / 6, Rule: RuleEven},
				{State: objective, Stop: true, Rule: RuleObjective},
				{State: training, Rule: RuleTraining},
			},
		}, {
			"tracked: only the state counts",
			of(
				policy.Task{ID: "a", Goal: policy.GoalMin, Value: num(0.1), Acceptable: num(0.3), Objective: num(0.2), Tracked: true, Use: 0.5, Limit: 1},
				policy.Task{ID: "b", Goal: policy.GoalMin, Value: num(0.1), Acceptable: num(0.3), Objective: num(0.2), State: acceptable, Tracked: true, Use: 0.5, Limit: 1},
			),
			[]shown{
				{State: training, Rule: RuleTraining},
				{State: acceptable, Limit: 1.0 / 3, Rule: RuleEven},
			},
		}, {
			"without targets or reports: training forever",
			of(
				policy.Task{ID: "a", Goal: policy.GoalMin, Value: num(0), Use: 0.5, Limit: 1},
				policy.Task{ID: "b", Goal: policy.GoalMax, Acceptable: num(0.3), Use: 0.5, Limit: 0.1},
				policy.Task{ID: "c", Use: 0.1, Limit: 1},
				policy.Task{ID: "d", Goal: policy.GoalMin, Value: num(1), Objective: num(2), Use: 0.1, Limit: 1},
			),
			[]shown{
				{State: training, Rule: RuleTraining},
				{State: training, Rule: RuleUnmeasured},
				{State: training, Rule: RuleUnmeasured},
				{State: objective, Stop: true, Rule: RuleObjective},
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.NoError(t, tc.in.Validate())
			must.Eq(t, tc.want, show(tc.in.decide()))
		})
	}
}

func TestDecide_full(t *testing.T) {
	in := of(task("a", 0.5, 0.4, 1), task("b", 0.28, 0.3, 1))
	must.Eq(t, RuleNotFull, in.decide().Tasks[1].Rule)
	in.Params.Full = 0.7
	must.Eq(t, RuleEven, in.decide().Tasks[1].Rule)
}

// TRADL, §4.1.2: "FaceRecognition, <0.93, 0.98>", an accuracy, beside a task without targets.
func TestDecide_faceRecognition(t *testing.T) {
	state := policy.InTraining
	for _, tc := range []struct {
		accuracy float64
		want     shown
	}{
		{0.92, shown{policy.InTraining, 0, false, RuleTraining}},
		{0.93, shown{policy.Acceptable, 0.25, false, RuleHalf}},
		{0.97, shown{policy.Acceptable, 0.25, false, RuleHalf}},
		{0.98, shown{policy.Objective, 0, true, RuleObjective}},
	} {
		face := policy.Task{ID: "face", Goal: policy.GoalMax, Value: &tc.accuracy, Acceptable: num(0.93), Objective: num(0.98), State: state, Use: 0.6, Limit: 1}
		got := show(of(face, policy.Task{ID: "other", Use: 0.4, Limit: 1}).decide())[0]
		must.Eq(t, tc.want, got)
		state = got.State
	}
}

// The two published limits alternate.
func TestDecide_settles(t *testing.T) {
	in := of(task("a", 0.5, 0.5, 1), task("b", 0.28, 0.5, 1))
	for _, want := range []policy.Share{1.0 / 3, 1.0 / 3} {
		in.Tasks[1].Limit = *in.decide().Tasks[1].Limit
		must.Eq(t, want, in.Tasks[1].Limit)
		in.Tasks[1].Use, in.Tasks[0].Use = in.Tasks[1].Limit, 1-in.Tasks[1].Limit
	}
	in.Tasks[1].Use, in.Tasks[0].Use = 0.6, 0.4
	for _, want := range []policy.Share{1.0 / 4, 1.0 / 3, 1.0 / 3} {
		in.Tasks[1].Limit = *in.decide().Tasks[1].Limit
		must.Eq(t, want, in.Tasks[1].Limit)
		in.Tasks[1].Use, in.Tasks[0].Use = in.Tasks[1].Limit, 1-in.Tasks[1].Limit
	}
}

// One sentence of each kind.
func TestDecide_why(t *testing.T) {
	with := func(t policy.Task, change func(*policy.Task)) policy.Task { change(&t); return t }
	full := task("z", 0.5, 0.5, 1)
	for _, tc := range []struct {
		rest []policy.Task
		task policy.Task
		want string
	}{
		{nil, task("a", 0.5, 0.3, 0.2),
			"value 0.5, has not reached acceptable 0.3; the pool is not full, 0.3 used: no limits; limit 0.2 → none, use 0.3"},
		{nil, task("a", 0.28, 0.95, 1),
			"value 0.28 reaches acceptable 0.3, objective 0.25 not yet; all 1 tasks are acceptable: no limits, free competition; limit none → none, use 0.95"},
		{[]policy.Task{full}, task("a", 0.2, 0.5, 0.3),
			"value 0.2 reaches objective 0.25: has succeeded and stops; limit 0.3 → 0.3, use 0.5"},
		{[]policy.Task{full}, task("a", 0.28, 0.55, 1),
			"value 0.28 reaches acceptable 0.3, objective 0.25 not yet: yields; its use is above the fair share 1/n = 0.5, so it gets 1/(2n); limit none → 0.25, use 0.55"},
		{[]policy.Task{full}, with(task("a", 0.4, 0.4, 0.25), func(t *policy.Task) { t.State, t.Objective = policy.Acceptable, nil }),
			"reached acceptable 0.3 earlier, value 0.4 does not revoke it: yields; its use is within the fair share 1/n = 0.5, so it gets 1/(n+1); limit 0.25 → 0.3333, use 0.4"},
		{[]policy.Task{full}, with(task("a", 0, 0.4, 1), func(t *policy.Task) { t.State, t.Value = policy.Objective, nil }),
			"reached objective 0.25 earlier: has succeeded and stops; limit none → none, use 0.4"},
		{[]policy.Task{full}, policy.Task{ID: "a", State: policy.Objective, Use: 0.4, Limit: 1},
			"reached its objective earlier: has succeeded and stops; limit none → none, use 0.4"},
		{[]policy.Task{full}, with(task("a", 0.28, 0.4, 1), func(t *policy.Task) { t.Tracked = true }),
			"value 0.28 reaches acceptable 0.3, but not often enough in a row: no limit; limit none → none, use 0.4"},
		{[]policy.Task{full}, with(task("a", 0.28, 0.4, 1), func(t *policy.Task) { t.Acceptable = nil }),
			"value 0.28, has not reached objective 0.25: no limit; limit none → none, use 0.4"},
		{[]policy.Task{full}, with(task("a", 0, 0.4, 1), func(t *policy.Task) { t.Value = nil }),
			"has not reported yet, has not reached acceptable 0.3: no limit; limit none → none, use 0.4"},
		{[]policy.Task{full}, policy.Task{ID: "a", Use: 0.4, Limit: 1},
			"has not reported yet, has no target: no limit; limit none → none, use 0.4"},
	} {
		in := of(append(tc.rest, tc.task)...)
		must.NoError(t, in.Validate())
		out := in.decide()
		must.Eq(t, tc.want, out.Tasks[len(out.Tasks)-1].Why)
	}
}

func TestDecide_entitlement(t *testing.T) {
	in := of(task("a", 0.5, 0.3, 1), task("big", 0.28, 0.65, 1), task("small", 0.28, 0.05, 1))
	in.Tasks[1].Entitlement, in.Tasks[2].Entitlement = 16, 3
	out := in.decide()
	must.Nil(t, out.Tasks[0].Limit)
	must.InDelta(t, 0.8*3/4, float64(*out.Tasks[1].Limit), 1e-12)
	must.StrContains(t, out.Tasks[1].Why, "its use is within the fair share φ = 0.8, so it gets φ·n/(n+1); limit none → 0.6")
	in.Tasks[2].Use = 0.16
	out = in.decide()
	must.InDelta(t, 0.15/2, float64(*out.Tasks[2].Limit), 1e-12)
	must.StrContains(t, out.Tasks[2].Why, "its use is above the fair share φ = 0.15, so it gets φ/2;")
	must.Eq(t, 0.5, out.Floor)
}

// A service is a task without targets: it counts, and others yield to it.
func TestDecide_service(t *testing.T) {
	in := of(policy.Task{ID: "api", Kind: policy.Service, ObjectiveS: num(1), Use: 0.6, Limit: 0.5}, task("a", 0.28, 0.4, 1))
	must.NoError(t, in.Validate())
	must.Eq(t, []shown{{State: policy.InTraining, Rule: RuleUnmeasured}, {State: policy.Acceptable, Limit: 1.0 / 3, Rule: RuleEven}}, show(in.decide()))
}
