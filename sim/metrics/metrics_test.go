// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package metrics

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func at(s float64) *float64 { return &s }

func two(policy string, seed uint64, a, b float64) Run {
	return Run{Scenario: "s", Policy: policy, Seed: seed, PoolCores: 2, IdleCPUS: 10, Jobs: []Job{
		{ID: "a", ArriveS: 0, EndS: at(a), Quality95S: at(a / 2), CPUS: 90, LostCPUS: 9},
		{ID: "b", ArriveS: 10, EndS: at(b), CPUS: 110, Moves: 1, ThrottledS: 5},
	}}
}

func TestSummarize(t *testing.T) {
	runs := []Run{
		two("none", 1, 100, 110), two("fsp", 1, 50, 110),
		two("none", 2, 100, 110), two("fsp", 2, 80, 120),
	}
	all, err := Summarize(runs, "", 1)
	must.NoError(t, err)
	must.Len(t, 2, all)
	s := all[1]
	must.Eq(t, "fsp", s.Policy)
	must.Eq(t, 4, s.Jobs)
	c := s.Time(Completion)
	must.Eq(t, (75+95)/2.0, c.Seconds.Mean)
	must.InDelta(t, (0.75+0.95)/2, c.Ratio.Mean, 1e-12)
	must.InDelta(t, 0.15, s.Gain(), 1e-12)
	must.Between(t, 0.75, c.Ratio.Low, 0.85)
	must.Between(t, 0.85, c.Ratio.High, 0.95)
	must.InDelta(t, (1+120.0/110)/2, s.Time(Makespan).Ratio.Mean, 1e-12)
	must.InDelta(t, 0.65, s.Time(Quality95).Ratio.Mean, 1e-12)
	must.Eq(t, 0, s.Time("objective").Seconds.N)
	must.Eq(t, 0.25, s.Slower)
	must.InDelta(t, 1.1, s.Ratio.Max, 1e-12)
	must.InDelta(t, (1+1.1)/2, s.Worst.Mean, 1e-12)
	must.Eq(t, "b, seed 2", s.WorstJob)
	must.Eq(t, 0.5, s.Moves)
	must.InDelta(t, 20.0/420, s.Idle, 1e-12)
	must.InDelta(t, 18.0/400, s.Lost, 1e-12)
	must.InDelta(t, 10.0/(50+100+80+110), s.Throttled, 1e-12)

	same := all[0]
	must.Eq(t, Interval{1, 1, 1, 2}, same.Time(Completion).Ratio)
	must.Eq(t, 0, same.Slower)
}

// With draws, each job and the last end are compared with their means.
func TestSummarize_draws(t *testing.T) {
	base := two("none", 1, 100, 110)
	base.Draws = []Run{two("none", 1, 150, 120), two("none", 1, 50, 40)}
	runs := []Run{base, two("fsp", 1, 50, 85)}
	all, err := Summarize(runs, "", 1)
	must.NoError(t, err)
	s := all[1]
	must.Eq(t, 3, s.Draws)
	must.Eq(t, 0.5, s.Ratio.Min)                // 50 of (100+150+50)/3
	must.InDelta(t, 0.9375, s.Ratio.Max, 1e-12) // 75 of (100+110+30)/3
	must.InDelta(t, 125.0/180, s.Time(Completion).Ratio.Mean, 1e-12)
	must.InDelta(t, 85/((110+150+50)/3.0), s.Time(Makespan).Ratio.Mean, 1e-12)
	must.InDelta(t, 100/80.0, all[0].Ratio.Max, 1e-12)
	must.Eq(t, 0.5, all[0].Slower)
	var w bytes.Buffer
	must.NoError(t, WriteTable(&w, all))
	must.StrContains(t, w.String(), "s: 2 jobs, 1 runs, against the mean of 3 draws of none\n")
	ratios, err := Ratios(runs, "", "fsp")
	must.NoError(t, err)
	must.Eq(t, s.Ratio, Distribute(ratios))

	base.Draws[1].Jobs[1].EndS = nil
	all, err = Summarize(runs, "", 1)
	must.NoError(t, err)
	must.Eq(t, 1, all[1].Ratio.N)
}

// An unfinished job is in no mean, and is counted.
func TestSummarize_unfinished(t *testing.T) {
	base, run := two("none", 1, 100, 110), two("fsp", 1, 50, 110)
	run.Jobs[1].EndS = nil
	all, err := Summarize([]Run{base, run}, "none", 1)
	must.NoError(t, err)
	must.Eq(t, 1, all[1].Unfinished)
	must.Eq(t, 0.5, all[1].Time(Completion).Ratio.Mean)
	var w bytes.Buffer
	must.NoError(t, WriteTable(&w, all))
	must.StrContains(t, w.String(), "fsp (1 not ended)")
}

func TestSummarize_services(t *testing.T) {
	base, run := two("none", 1, 100, 110), two("fsp", 1, 50, 110)
	for _, r := range []*Run{&base, &run} {
		r.Jobs[1].EndS, r.Jobs[1].QoEChecks = nil, 10
	}
	run.Jobs[1].QoEHits = 8
	all, err := Summarize([]Run{base, run}, "", 1)
	must.NoError(t, err)
	must.Eq(t, 0, all[1].Unfinished)
	must.Eq(t, 0.8, *all[1].QoEHits)
}

func TestSummarize_errors(t *testing.T) {
	for _, tc := range []struct {
		name string
		runs func() []Run
		want string
	}{
		{"no base", func() []Run { return []Run{two("fsp", 1, 1, 20)} }, "scenario s, policy fsp, seed 1: there is no run of policy none"},
		{"other jobs", func() []Run {
			r := two("fsp", 1, 1, 20)
			r.Jobs[0].ID = "x"
			return []Run{two("none", 1, 1, 20), r}
		}, `job "x" is not in the run of policy none`},
		{"twice", func() []Run { return []Run{two("none", 1, 1, 20), two("none", 1, 2, 20)} }, "scenario s, policy none, seed 1: is duplicated"},
		{"fewer jobs", func() []Run {
			r := two("fsp", 1, 1, 20)
			r.Jobs = r.Jobs[:1]
			return []Run{two("none", 1, 1, 20), r}
		}, "must have the 2 jobs of policy none, got 1"},
		{"before its arrival", func() []Run { return []Run{two("none", 1, 1, 5)} }, "jobs[1].end_s: must be a finite number ≥ arrive_s = 10, got 5"},
		{"NaN", func() []Run { return []Run{two("none", 1, math.NaN(), 20)} }, "jobs[0].end_s: must be a finite number ≥ arrive_s = 0, got NaN"},
		{"no jobs", func() []Run { return []Run{{Scenario: "s", Policy: "none", PoolCores: 1}} }, "jobs: must have one job at least"},
		{"no pool", func() []Run { r := two("none", 1, 1, 20); r.PoolCores = 0; return []Run{r} }, "pool_cores: must be > 0, got 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Summarize(tc.runs(), "", 1)
			must.ErrorContains(t, err, tc.want)
		})
	}
}

// Two jobs that share a node had their slice; one that queued had not.
func TestFairness(t *testing.T) {
	fair := Run{PoolCores: 2, Jobs: []Job{
		{ID: "a", EndS: at(100), CPUS: 100}, {ID: "b", EndS: at(100), CPUS: 100},
	}}
	must.Eq(t, []float64{1, 1}, fair.Fairness())
	served := Run{PoolCores: 2, Jobs: []Job{
		{ID: "a", EndS: at(50), CPUS: 100}, {ID: "b", EndS: at(100), CPUS: 100}, {ID: "c", CPUS: 7},
	}}
	rho := served.Fairness()
	must.InDelta(t, 0.5, rho[0], 1e-12)
	must.InDelta(t, 100/(100/(2/1.5)), rho[1], 1e-12)
	must.Eq(t, 0, rho[2])
	capped := Run{PoolCores: 8, Jobs: []Job{{ID: "a", EndS: at(100), CPUS: 100, CapCores: 1}}}
	must.Eq(t, []float64{1}, capped.Fairness())
}

// The interval contains the true mean about 95 times of 100.
func TestBootstrap(t *testing.T) {
	held := 0
	const tries = 200
	for i := range uint64(tries) {
		values := make([]float64, 30)
		for k := range values {
			values[k] = float64((i*7919+uint64(k)*104729)%1000) / 1000 // mean 0.5, uniform
		}
		b := Bootstrap(values, i)
		must.Eq(t, b, Bootstrap(values, i))
		if b.Low <= 0.4995 && 0.4995 <= b.High {
			held++
		}
	}
	must.GreaterEq(t, tries*85/100, held)
}

func TestBootstrap_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(0, 100), 1, 40).Draw(t, "values")
		b := Bootstrap(values, 3)
		must.LessEq(t, b.Mean+1e-9, b.Low)
		must.GreaterEq(t, b.Mean-1e-9, b.High)
		d := Distribute(values)
		must.LessEq(t, d.Median, d.P25)
		must.LessEq(t, d.Max, d.P95)
		must.Eq(t, d.Max, values[len(values)-1])
	})
}

// No NaN, even if nothing finished.
func TestJSON(t *testing.T) {
	r := Run{Scenario: "s", Policy: "none", PoolCores: 1, Jobs: []Job{{ID: "a"}}}
	all, err := Summarize([]Run{r}, "", 1)
	must.NoError(t, err)
	_, err = json.Marshal(all)
	must.NoError(t, err)
	var back Run
	text, err := json.Marshal(two("none", 1, 5, 20))
	must.NoError(t, err)
	must.NoError(t, json.Unmarshal(text, &back))
	must.Eq(t, two("none", 1, 5, 20), back)
}

func TestWrite(t *testing.T) {
	runs := []Run{two("none", 1, 100, 110), two("fsp", 1, 60, 110), two("srpt", 1, 50, 110)}
	all, err := Summarize(runs, "", 1)
	must.NoError(t, err)
	var w bytes.Buffer
	must.NoError(t, WriteTable(&w, all))
	lines := strings.Split(w.String(), "\n")
	must.Eq(t, "s: 2 jobs, 1 runs, against none", lines[0])
	must.StrContains(t, lines[3], "-20.0 %")
	must.StrContains(t, lines[3], "80 %") // of the bound's gain
	w.Reset()
	must.NoError(t, WriteCSV(&w, runs))
	lines = strings.Split(w.String(), "\n")
	must.Eq(t, 8, len(lines))
	// ρ: with 1.9 jobs present on average, 81 CPU-seconds would take 76.95 s.
	must.Eq(t, "s,none,1,a,,0,,100,,,,50,,,90,9,0,0,0,0,1.29954516", lines[1])
}
