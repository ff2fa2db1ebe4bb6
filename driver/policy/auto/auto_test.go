// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package auto

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/plan"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/fsp"
)

// decided decides and checks the invariants: the pool is divided, no task starves,
// services stay within their bound.
func decided(t must.T, s policy.Snapshot, p Params) policy.Outcome {
	t.Helper()
	must.NoError(t, s.Validate())
	must.NoError(t, fsp.Check(s, p.Fsp))
	out := Decide(s, p)
	must.Len(t, len(s.Tasks), out.Tasks)
	fair := s.FairShares()
	var sum, serving, training policy.Share
	free := true
	for i, d := range out.Tasks {
		must.Eq(t, s.Tasks[i].ID, d.ID)
		must.NotEq(t, "", d.Rule)
		must.NotEq(t, "", d.Why)
		if s.Tasks[i].Ended {
			continue
		}
		sum += d.Bound()
		free = free && d.Limit == nil
		if s.Tasks[i].Service() {
			must.Between(t, fair[i]/2*(1-1e-9), d.Bound(), 1)
			serving += d.Bound()
			continue
		}
		training += fair[i]
		must.Eq(t, d.State == policy.Objective, d.Stop)
	}
	if !free && s.Gone == 0 {
		must.LessEq(t, 1+1e-6, float64(sum))
	}
	if training > 0 {
		floors := (1 - training) / 2
		must.LessEq(t, float64(max(floors, min(policy.Share(p.ServiceShare), 1-training/2)))+1e-9, float64(serving))
	}
	return out
}

func TestDecide(t *testing.T) {
	s := Example()
	out := decided(t, s, DefaultParams())
	rules := make(map[string]string)
	for _, d := range out.Tasks {
		rules[d.ID] = d.Rule
	}
	must.Eq(t, map[string]string{
		"resnet-api": RuleService, "nasnet-api": RuleService, "vae": fsp.RulePreferred,
		"mnist": fsp.RulePreferred, "rnn": RuleObjective, "preprocess": fsp.RuleUnknown,
	}, rules)
	must.InDelta(t, 0.2*0.065/0.05/0.95, float64(out.Tasks[0].Bound()), 1e-9)
	must.True(t, out.Tasks[4].Stop)
	must.Eq(t, policy.Acceptable, out.Tasks[3].State)
	must.InDelta(t, float64(out.Tasks[5].Bound()), float64(out.Tasks[4].Bound()), 1e-9, must.Sprint("a task that stops has its fair share"))

	again, err := json.Marshal(decided(t, s, DefaultParams()))
	must.NoError(t, err)
	first, err := json.Marshal(out)
	must.NoError(t, err)
	must.Eq(t, string(first), string(again))
}

// A lone service has no limit, even next to ghosts of training tasks; nor do
// training tasks without progress data.
func TestDecide_noLimit(t *testing.T) {
	s := policy.Snapshot{NowS: 1, PoolCores: 2, IntervalS: 20}
	api := serviceJob("api", 0.3).task
	api.Use, api.ResponseS = 0.3, number(3)
	s.Tasks = []policy.Task{api}
	must.InDelta(t, 1, float64(decided(t, s, DefaultParams()).Tasks[0].Bound()), 1e-9)
	ghost := policy.Task{ID: "ghost", Kind: policy.Training, Entitlement: 4, CPUS: 50, FairCPUS: 20, Ended: true}
	s.Tasks = append(s.Tasks, ghost)
	must.InDelta(t, 1, float64(decided(t, s, DefaultParams()).Tasks[0].Bound()), 1e-9)
	s.Tasks = []policy.Task{trainingJob("a", 1).task, trainingJob("b", 1).task}
	for _, d := range decided(t, s, DefaultParams()).Tasks {
		must.Nil(t, d.Limit)
	}
}

func TestDecide_properties(t *testing.T) {
	share := func(t *rapid.T, name string) policy.Share {
		return policy.Share(rapid.Float64Range(0, 1).Draw(t, name))
	}
	rapid.Check(t, func(t *rapid.T) {
		s := policy.Snapshot{
			NowS: 1e9, PoolCores: 4, IntervalS: rapid.SampledFrom([]float64{0, 5, 20}).Draw(t, "interval"),
			Event: rapid.SampledFrom([]policy.Event{policy.EventNone, policy.EventJoin, policy.EventLeave}).Draw(t, "event"),
		}
		for i := range rapid.IntRange(0, 9).Draw(t, "tasks") {
			task := policy.Task{
				ID: fmt.Sprint("task-", i), Kind: policy.Training, Entitlement: rapid.SampledFrom([]float64{0.5, 1, 3}).Draw(t, "entitlement"),
				Use: share(t, "use"), Limit: share(t, "limit"),
			}
			if rapid.Bool().Draw(t, "service") {
				task.Kind = policy.Service
				task.ObjectiveS = number(rapid.SampledFrom([]float64{1e-300, 0.01, 1, 1e300}).Draw(t, "objective"))
				if rapid.Bool().Draw(t, "measured") {
					task.ResponseS = number(rapid.SampledFrom([]float64{0, 0.011, 1, 1e300}).Draw(t, "response"))
				}
			} else {
				task.State = rapid.SampledFrom([]policy.TargetState{"", policy.Acceptable, policy.Objective}).Draw(t, "state")
				task.CPUS, task.FairCPUS = policy.CPUSeconds(100*share(t, "used")), policy.CPUSeconds(100*share(t, "fair"))
				if task.Ended = rapid.Bool().Draw(t, "ended"); !task.Ended && rapid.Bool().Draw(t, "known") {
					left := policy.CPUSeconds(100 * share(t, "left"))
					task.RemainingCPUS = &left
				}
			}
			s.Tasks = append(s.Tasks, task)
		}
		p := DefaultParams()
		p.ServiceShare = rapid.SampledFrom([]float64{1e-9, 0.3, 0.8, 1}).Draw(t, "service share")
		out := decided(t, s, p)
		// The floor is a tenth of the twin's share. Twins share, with ghosts, what
		// services leave: half of the fair shares.
		var running, twins float64
		for _, task := range s.Tasks {
			if task.Service() {
				continue
			}
			twins += task.Entitlement
			if !task.Ended {
				running += task.Entitlement
			}
		}
		reqs := requests(s.Tasks, out)
		for i, l := range plan.Limits(plan.ModeWeight, 4, reqs, plan.Options{Floor: out.Floor}) {
			least := 0.05 * float64(reqs[i].Base.Shares)
			if twins > 0 {
				least *= running / twins
			}
			must.GreaterEq(t, math.Floor(least*(1-1e-9)), float64(l.Shares), must.Sprint("no task starves"))
		}
	})
}

func requests(tasks []policy.Task, out policy.Outcome) []plan.Request {
	var reqs []plan.Request
	for i, d := range out.Tasks {
		if !tasks[i].Ended {
			reqs = append(reqs, plan.Request{
				ID: d.ID, Limit: d.Bound(), Keeps: d.Unknown, Base: limits.Limits{Shares: uint64(1000 * tasks[i].Entitlement)},
			})
		}
	}
	return reqs
}

func TestCheckParams(t *testing.T) {
	p := Params{Fsp: fsp.Params{Prefer: "speed", Floor: 2}, ServiceShare: 0, Tolerance: 1}
	must.EqError(t, CheckParams(p), "fsp.prefer: must be one of \"balanced\", \"completion\", \"quality\", got \"speed\"\n"+
		"fsp.floor: must be > 0 and ≤ 1, got 2\nservice_share: must be > 0 and ≤ 1, got 0\ntolerance: must be > 0 and < 1, got 1")
}

func TestPolicy_Configure(t *testing.T) {
	d, err := Policy().Configure(nil)
	must.NoError(t, err)
	want, err := json.Marshal(DefaultParams())
	must.NoError(t, err)
	must.Eq(t, string(want), string(d.Params))
	_, err = Policy().Configure(map[string]json.RawMessage{"dqoes_alpha": json.RawMessage("1"), "fsp_floor": json.RawMessage("0")})
	must.EqError(t, err, "fsp_floor: must be > 0 and ≤ 1, got 0\ndqoes_alpha: must be > 0 and < 1, got 1")
}
