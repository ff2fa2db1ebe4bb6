// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fsp

import (
	"encoding/json"
	"errors"
	"math"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy"
)

func TestPolicy_checks(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*policy.Snapshot, *Params)
		want   string // "" = valid
	}{
		{"example", func(*policy.Snapshot, *Params) {}, ""},
		{"no pool", func(s *policy.Snapshot, _ *Params) { s.PoolCores = 0 }, `pool_cores: must be ≥ 0.001 and ≤ 1e+06, got 0`},
		{"now", func(s *policy.Snapshot, _ *Params) { s.NowS = -1 }, `now_s: must be ≥ 0 and ≤ 1e+12, got -1`},
		{"now NaN", func(s *policy.Snapshot, _ *Params) { s.NowS = math.NaN() }, `now_s: must be ≥ 0 and ≤ 1e+12, got NaN`},
		{"cap", func(s *policy.Snapshot, _ *Params) { s.Tasks[1].CapCores = 1e-9 }, `tasks[1].cap_cores: must be ≥ 0.001 and ≤ 1e+06, or 0 for the pool, got 1e-09`},
		{"cpu", func(s *policy.Snapshot, _ *Params) { s.Tasks[1].CPUS = 2e12 }, `tasks[1].cpu_s: must be ≥ 0 and ≤ 1e+12, got 2e+12`},
		{"twin", func(s *policy.Snapshot, _ *Params) { s.Tasks[0].FairCPUS = -1 }, `tasks[0].fair_cpu_s: must be ≥ 0, got -1`},
		{"remaining", func(s *policy.Snapshot, _ *Params) { *s.Tasks[0].RemainingCPUS = -1 }, `tasks[0].remaining_cpu_s: must be ≥ 0, got -1`},
		{"remaining NaN", func(s *policy.Snapshot, _ *Params) { *s.Tasks[0].RemainingCPUS = policy.CPUSeconds(math.NaN()) }, `tasks[0].remaining_cpu_s: must be ≥ 0, got NaN`},
		{"quality", func(s *policy.Snapshot, _ *Params) { *s.Tasks[0].QualityCPUS = -1 }, `tasks[0].quality_cpu_s: must be ≥ 0, got -1`},
		{"quality after the end", func(s *policy.Snapshot, _ *Params) { *s.Tasks[0].QualityCPUS = 1e6 }, ""},
		{"ended", func(s *policy.Snapshot, _ *Params) { s.Tasks[0].Ended = true }, `tasks[0].remaining_cpu_s: must be 0 or null for a task that has ended, got 300`},
		{"ended, size unknown", func(s *policy.Snapshot, _ *Params) { s.Tasks[4].Ended = true }, ""},
		{"ended service", func(s *policy.Snapshot, _ *Params) { s.Tasks[6].Ended = true }, `tasks[6].ended: is for training tasks only`},
		{"prefer", func(_ *policy.Snapshot, p *Params) { p.Prefer = "speed" }, `prefer: must be one of "balanced", "completion", "quality", got "speed"`},
		{"floor", func(_ *policy.Snapshot, p *Params) { p.Floor = 0 }, `floor: must be > 0 and ≤ 1, got 0`},
		{"floor NaN", func(_ *policy.Snapshot, p *Params) { p.Floor = math.NaN() }, `floor: must be > 0 and ≤ 1, got NaN`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, p := Example(), DefaultParams()
			tc.change(&s, &p)
			err := s.Validate()
			if err == nil {
				err = errors.Join(Check(s, p), CheckParams(p))
			}
			if tc.want == "" {
				must.NoError(t, err)
			} else {
				must.EqError(t, err, tc.want)
			}
		})
	}
}

func TestPolicy_Configure(t *testing.T) {
	d, err := Policy().Configure(nil)
	must.NoError(t, err)
	must.Eq(t, `{"prefer":"balanced","floor":0.1}`, string(d.Params))
	_, err = Policy().Configure(map[string]json.RawMessage{"fsp_prefer": json.RawMessage(`"x"`), "fsp_floor": json.RawMessage("2")})
	must.EqError(t, err, "fsp_prefer: must be one of \"balanced\", \"completion\", \"quality\", got \"x\"\nfsp_floor: must be > 0 and ≤ 1, got 2")
}

func TestExample(t *testing.T) {
	var rules []string
	for _, d := range Decide(Example(), DefaultParams()).Tasks {
		rules = append(rules, d.Rule)
	}
	must.Eq(t, []string{RuleWait, RulePreferred, RulePreferred, RuleLate, RuleUnknown, RuleGhost, RuleService}, rules)
}
