// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policies

import (
	"encoding/json"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/internal/policytest"
)

func TestFind(t *testing.T) {
	for i, name := range Names() {
		found, err := Find(name)
		must.NoError(t, err)
		must.Eq(t, All()[i].Name, found.Name)
		_, err = policy.Find(Queries(), name)
		must.NoError(t, err, must.Sprint("what the driver runs can be asked"))
	}
	_, err := Find("flowkon")
	must.EqError(t, err, `must be one of auto, fsp, flowcon, tradl, dqoes, none, got "flowkon"`)
	_, err = policy.Find(Queries(), "flowkon")
	must.ErrorContains(t, err, `unknown policy "flowkon", must be one of: auto, fsp, flowcon, `)
}

func TestQueries(t *testing.T) {
	for _, q := range Queries() {
		policytest.Example(t, q)
	}
	q, err := policy.Find(Queries(), "specon-categorise")
	must.NoError(t, err)
	policytest.Departures(t, "../../../docs/concepts.md", "### `specon-categorise`", q.Departures)
}

// Policies accept the agent's defaults, list departures, and have only known options.
func TestAll(t *testing.T) {
	must.Len(t, 10, Options())
	for _, p := range All() {
		d, err := p.Configure(nil)
		must.NoError(t, err, must.Sprint(p.Name))
		must.Eq(t, p.Name, d.Name)
		text, err := json.Marshal(p.Example)
		must.NoError(t, err)
		var s policy.Snapshot
		must.NoError(t, json.Unmarshal(text, &s))
		must.NoError(t, d.Check(s))
		policytest.Decide(t, d.Decide, s)

		must.SliceNotEmpty(t, p.Departures, must.Sprint(p.Name))
		policytest.Departures(t, "../../../docs/concepts.md", "### Policy `"+p.Name+"`", p.Departures)
	}
}

// live returns a snapshot as the driver writes it: all fields, services and training tasks, state,
// and all policies' parameters.
func live(t *testing.T, decided string) []byte {
	t.Helper()
	x := func(f float64) *float64 { return &f }
	s := policy.Snapshot{
		Node: "node-1", NowS: 1.7e9, Policy: decided, PoolCores: 8, IntervalS: 40, InitialIntervalS: 20, MaxIntervalS: 300, Gone: 0.1,
		State:    dqoes.State{QGood: 1, QBad: -1, Satisfied: 1}.Encode(),
		Policies: map[string]json.RawMessage{},
		Tasks: []policy.Task{
			{ID: "api", Kind: policy.Service, Entitlement: 2000, Use: 0.2, Limit: 0.3, ObjectiveS: x(0.1), ResponseS: x(0.2)},
			{ID: "idle-api", Kind: policy.Service, Entitlement: 500, Limit: 1, ObjectiveS: x(0.1), Value: x(0.3)},
			{ID: "growing", Kind: policy.Training, Entitlement: 4000, Use: 0.3, Limit: 0.4, Epoch: 9, CategoryEpoch: 8, Category: policy.NL, Growth: x(0.2), Progress: x(0.05), Value: x(2.5)},
			{ID: "acceptable", Kind: policy.Training, Entitlement: 1000, Use: 0.3, Limit: 1, Epoch: 4, CategoryEpoch: 4, Category: policy.WL, Growth: x(0.01), Progress: x(0.001),
				Goal: policy.GoalMin, Value: x(0.28), Acceptable: x(0.3), Objective: x(0.25), State: policy.Acceptable, Tracked: true},
			{ID: "diverged", Kind: policy.Training, Entitlement: 1000, Use: 0.1, Limit: 0.1, Epoch: 7, CategoryEpoch: 2, Category: policy.CL, Growth: x(0), Progress: x(0)},
			{ID: "restored", Kind: policy.Training, Entitlement: 1000, Category: policy.CL},
			{ID: "new", Kind: policy.Training, Entitlement: 1000},
		},
	}
	for _, p := range All() {
		d, err := p.Configure(nil)
		must.NoError(t, err)
		s.Policies[p.Name] = d.Params
	}
	data, err := json.Marshal(s)
	must.NoError(t, err)
	return data
}

func TestQuery_live(t *testing.T) {
	for _, decided := range Names() {
		for _, p := range All() {
			out, err := p.Query.Decide(live(t, decided))
			must.NoError(t, err, must.Sprintf("%s after %s", p.Name, decided))
			tasks := out.(policy.Outcome).Tasks
			must.Len(t, 7, tasks)
			for _, d := range tasks {
				must.Between(t, 1e-3, d.Bound(), 1)
				must.NotEq(t, "", d.Rule)
				must.NotEq(t, "", d.Why)
			}
		}
	}
	out, err := policy.Find(Queries(), "dqoes")
	must.NoError(t, err)
	decided, err := out.Decide(live(t, "flowcon"))
	must.NoError(t, err)
	must.StrContains(t, decided.(policy.Outcome).Tasks[0].Why, "moves halfway", must.Sprint("dqoes_step is proportional in the agent"))
}
