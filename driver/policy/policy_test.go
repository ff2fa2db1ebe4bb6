// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/internal/fields"
)

type split struct {
	Part struct {
		Of    float64 `json:"of" strict:"optional"`
		Extra bool    `json:"extra" strict:"optional"`
	} `json:"part" strict:"optional"`
}

func toy() Definition[split] {
	defaults := split{}
	defaults.Part.Of = 0.5
	return Definition[split]{
		Name: "split", Synopsis: "a part for each", Defaults: defaults,
		CheckParams: func(p split) error {
			var errs fields.Errors
			if !(p.Part.Of > 0 && p.Part.Of <= 1) {
				errs.Add("part.of", "must be > 0 and ≤ 1, got %v", p.Part.Of)
			}
			return errs.Err()
		},
		Options: Under("part", []Option{
			{Name: "split_of", Kind: KindNumber, Default: "0.5", Param: "of"},
			{Name: "split_extra", Kind: KindBool, Default: "false", Param: "extra"},
		}),
		Needs: []string{"tasks[].use", "interval_s"},
		Check: func(s Snapshot, _ split) error {
			errs := s.CheckIntervals()
			if len(s.Tasks) > 2 {
				errs.Add("tasks", "must be at most 2, got %d", len(s.Tasks))
			}
			return errs.Err()
		},
		Example: Snapshot{
			Tasks:     []Task{{ID: "a", Entitlement: 1, Use: 0.5, Growth: num(1)}, {ID: "b", Entitlement: 1}},
			IntervalS: 20, InitialIntervalS: 20, MaxIntervalS: 40,
		},
		Decide: func(s Snapshot, p split) Outcome {
			out := Outcome{State: s.State}
			for _, t := range s.Tasks {
				limit := Share(p.Part.Of * t.Entitlement)
				out.Tasks = append(out.Tasks, Decision{ID: t.ID, Limit: &limit, Rule: "split.part"})
			}
			return out
		},
	}
}

func TestPolicy_Decide(t *testing.T) {
	p := toy().Policy()
	example, err := json.Marshal(p.Example)
	must.NoError(t, err)
	must.Eq(t, `{"interval_s":20,"initial_interval_s":20,"max_interval_s":40,`+
		`"tasks":[{"id":"a","entitlement":1,"use":0.5,"growth":1},{"id":"b","entitlement":1,"use":0}],`+
		`"params":{"part":{"of":0.5,"extra":false}}}`, string(example))
	must.Eq(t, `{"part":{"of":0.5,"extra":false}}`, string(p.Params))

	const tasks = `"tasks": [{"id": "a", "use": 0}], "interval_s": 20, "initial_interval_s": 20, "max_interval_s": 20`
	for name, tc := range map[string]struct{ in, limit, state, err string }{
		"example":           {in: string(example), limit: "0.5"},
		"params":            {in: `{` + tasks + `, "params": {"part": {"of": 0.25}}}`, limit: "0.25"},
		"of the agent":      {in: `{` + tasks + `, "policies": {"split": {"part": {"of": 0.125}}, "other": {"x": 1}}}`, limit: "0.125"},
		"the given ones":    {in: `{` + tasks + `, "params": {}, "policies": {"split": {"part": {"of": 0.125}}}}`, limit: "0.5"},
		"its state":         {in: `{` + tasks + `, "policy": "split", "state": {"x": 1}}`, limit: "0.5", state: `{"x": 1}`},
		"another's state":   {in: `{` + tasks + `, "policy": "other", "state": {"x": 1}}`, limit: "0.5"},
		"any policy":        {in: `{` + tasks + `, "state": {"x": 1}}`, limit: "0.5", state: `{"x": 1}`},
		"missing":           {in: `{"tasks": [{"id": "a"}], "initial_interval_s": 1, "max_interval_s": 1}`, err: "interval_s: is missing: the current time between two runs, in seconds\ntasks[0].use: is missing: the task's CPU"},
		"unknown":           {in: `{` + tasks + `, "x": 1, "params": {"y": 2, "part": {"of": 2}}}`, err: "x: unknown field"},
		"wrong params":      {in: `{` + tasks + `, "params": {"part": {"of": 2}}}`, err: "params.part.of: must be > 0 and ≤ 1, got 2"},
		"params are a list": {in: `{` + tasks + `, "params": []}`, err: "params: must be an object, got a list"},
		"its own check": {in: `{"tasks": [{"id": "a", "use": 0}, {"id": "b", "use": 0}, {"id": "c", "use": -1}], "interval_s": 9, "initial_interval_s": 20, "max_interval_s": 20}`,
			err: "tasks[2].use: must be ≥ 0, got -1\ntasks: must be at most 2, got 3"},
		"no JSON": {in: `{"tasks": [`, err: "line 1"},
	} {
		out, err := p.Decide([]byte(tc.in))
		if tc.err != "" {
			must.ErrorContains(t, err, tc.err, must.Sprint(name))
			var errs fields.Errors
			must.True(t, errors.As(err, &errs))
			continue
		}
		must.NoError(t, err, must.Sprint(name))
		data, err := json.Marshal(out)
		must.NoError(t, err)
		must.StrContains(t, string(data), `"limit":`+tc.limit+",", must.Sprint(name))
		must.Eq(t, tc.state, string(out.(Outcome).State), must.Sprint(name))
	}
}

func TestPolicy_Configure(t *testing.T) {
	p := toy().Policy()
	set := func(text string) map[string]json.RawMessage {
		var values map[string]json.RawMessage
		must.NoError(t, json.Unmarshal([]byte(text), &values))
		return values
	}
	d, err := p.Configure(nil)
	must.NoError(t, err)
	must.Eq(t, string(p.Params), string(d.Params))
	d, err = p.Configure(set(`{"split_of": 0.25, "split_extra": true, "other": 7}`))
	must.NoError(t, err)
	must.Eq(t, `{"part":{"of":0.25,"extra":true}}`, string(d.Params))
	s := toy().Example
	must.NoError(t, d.Check(s))
	must.Eq(t, 0.25, d.Decide(s).Tasks[0].Bound())
	s.IntervalS = -1
	must.ErrorContains(t, d.Check(s), "interval_s: must be ≥ 0, got -1")
	_, err = p.Configure(set(`{"split_of": 2, "split_extra": "yes"}`))
	must.EqError(t, err, `split_extra: must be a bool, got a string "yes"`+"\nsplit_of: must be > 0 and ≤ 1, got 2")

	unchecked := toy()
	unchecked.Check = nil
	d, err = unchecked.Policy().Configure(nil)
	must.NoError(t, err)
	s.IntervalS = 20
	must.NoError(t, d.Check(s))
}

func TestPolicy_failure(t *testing.T) {
	broken := toy()
	failure := errors.New("no memory")
	broken.CheckParams = func(split) error { return failure }
	_, err := broken.Policy().Configure(nil)
	must.ErrorContains(t, err, "no memory")
	must.ErrorIs(t, join(failure, nil), failure)
	must.ErrorIs(t, join(fields.Errors{{Path: "a"}}, failure), failure)
	must.NoError(t, join(nil, nil))
}

func TestQueries(t *testing.T) {
	type in struct {
		X float64 `json:"x"`
	}
	q := NewQuery("double", "twice x", in{}, in{X: 1}, func(i in) in { return in{2 * i.X} })
	out, err := q.Decide([]byte(`{"x": 3}`))
	must.NoError(t, err)
	must.Eq(t, any(in{6}), out)
	_, err = q.Decide([]byte(`{}`))
	must.EqError(t, err, "x: is missing")

	found, err := Find([]Query{q, toy().Policy().Query}, "split")
	must.NoError(t, err)
	must.Eq(t, "a part for each", found.Synopsis)
	_, err = Find([]Query{q, found}, "x")
	must.EqError(t, err, `unknown policy "x", must be one of: double, split`)
}

func TestBounds(t *testing.T) {
	half := Share(0.5)
	must.Eq(t, 1, Decision{}.Bound())
	must.Eq(t, half, Decision{Limit: &half}.Bound())
	must.Eq(t, 1, Task{}.Bound())
	must.Eq(t, half, Task{Limit: half}.Bound())
	must.Eq(t, 0, TargetState("").Rank())
	must.Less(t, Objective.Rank(), Acceptable.Rank())
}

func TestPolicy_ghosts(t *testing.T) {
	s := Snapshot{Tasks: []Task{{ID: "a", Entitlement: 1}, {ID: "gone", Entitlement: 1, Ended: true}}, IntervalS: 20, InitialIntervalS: 20}
	for _, ghosts := range []bool{false, true} {
		d := toy()
		d.Ghosts = ghosts
		decider, err := d.Policy().Configure(nil)
		must.NoError(t, err)
		tasks := decider.Decide(s).Tasks
		must.Eq(t, "a", tasks[0].ID)
		must.Eq(t, ghosts, len(tasks) == 2)
	}
	must.Len(t, 2, s.Tasks)
}
