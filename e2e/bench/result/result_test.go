// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package result

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/e2e/mix"
	"github.com/ebbtide/ebbtide/sim/metrics"
)

func TestTarget(t *testing.T) {
	var curve mix.Curve
	for i, v := range []float64{9, 5, 6, 4, 4, 3, 3.5, 2, 2.5, 2.2, 1} {
		curve = append(curve, mix.Point{T: float64(i), Step: float64(10 * i), Value: v})
	}
	for part, want := range map[float64][2]float64{0.6: {3, 0.5}, 0.9: {2, 0.7}, 1: {1, 1}, 0: {9, 0}} {
		value, at := Target(curve, part)
		must.Eq(t, want, [2]float64{value, at})
		must.LessEq(t, part*10, curve.Reached(value))
	}
	must.Eq(t, 7.0, curve.Reached(2))
	must.True(t, math.IsNaN(curve.Reached(0.5)))
	value, _ := Target(nil, 0.5)
	must.True(t, math.IsNaN(value))
}

func TestSpread(t *testing.T) {
	must.Eq(t, "2 (1 … 3)", spread([]float64{3, 1, 2}, less, count))
	must.Eq(t, "2 (3 … 1)", spread([]float64{3, 1, 2}, more, count))
	must.Eq(t, "1.5 (1 … 2), unknown in 1", spread([]float64{2, 1, math.NaN()}, less, count))
	must.Eq(t, "−10.0 %", spread([]float64{-0.1}, less, change))
	must.Eq(t, "+3.0 % (−10.0 % … +16.0 %)", spread([]float64{-0.1, 0.16}, less, change))
	must.Eq(t, "–", spread(nil, less, count))
}

func TestTable(t *testing.T) {
	table := Table{Title: "T", Header: []string{"a", "bb"}, Rows: [][]string{{"… x", "1"}, {"", "22"}}, Notes: []string{"n"}}
	must.Eq(t, "T\n\n| a | bb |\n| --- | --- |\n| … x | 1 |\n|  | 22 |\n\nn\n", table.Markdown())
	must.Eq(t, "T\n\n  a    bb\n  … x  1\n       22\n\n  n\n", table.Text())
}

// served returns a run of services with constant response times and CPU.
func served(variant, mode string, seed uint64, objectives []float64, responses func(window, task int) float64) Run {
	r := Run{What: DQoES, Case: Varied, Variant: variant, Mode: mode, Seed: seed}
	for _, o := range objectives {
		r.Tasks = append(r.Tasks, Task{Kind: Service, Objective: Number(o), Base: 100})
	}
	for w := range 20 {
		s := Sample{T: float64(2 * (w + 1)), Seconds: 2, Busy: 2}
		for i := range objectives {
			p := responses(w, i)
			reading := Reading{Alive: true, Shares: uint64(100 + i), Quota: float64(1 + i), Response: Unknown(), Cores: 0.1 * float64(i+1)}
			if p > 0 {
				reading.Answers, reading.Response = 2, Number(p)
			}
			s.Tasks = append(s.Tasks, reading)
		}
		r.Samples = append(r.Samples, s)
	}
	return r
}

func TestServe(t *testing.T) {
	// The first is satisfied from window 8 on, the second never, the third exceeds, the fourth
	// does not answer.
	r := served("dqoes", "weight", 1, []float64{1, 0.1, 5, 3}, func(w, i int) float64 {
		switch {
		case i == 0 && w < 8:
			return 2
		case i == 3:
			return 0
		}
		return 1
	})
	o := Serve(r)
	must.Eq(t, "SBG–", o.Classes)
	must.Eq(t, [4]int{1, 1, 1, 1}, [4]int{o.S, o.G, o.B, o.Unknown})
	must.Eq(t, 1.0, o.Stable) // 0 and 1 satisfied are within one
	must.False(t, o.Tightest)
	must.InDelta(t, 0.03, o.LimitSpread, 1e-9)
	must.InDelta(t, 3, o.CPUSpread, 1e-9)
	r.Mode = "quota"
	must.InDelta(t, 3, Serve(r).LimitSpread, 1e-9)

	// Three satisfied together: stable after their three windows.
	late := served("dqoes", "weight", 1, []float64{1, 1, 1}, func(w, _ int) float64 {
		if w < 8 {
			return 2
		}
		return 1
	})
	must.Eq(t, "SSS", Serve(late).Classes)
	must.Eq(t, 9.0, Serve(late).Stable)
	// One that changes at the very end is not.
	never := served("dqoes", "weight", 1, []float64{1, 1, 1}, func(w, _ int) float64 {
		if w < 16 {
			return 2
		}
		return 1
	})
	must.True(t, math.IsNaN(Serve(never).Stable))
	must.Eq(t, Served{}, Serve(Run{}))
}

func TestEqual(t *testing.T) {
	r := served(None, "", 1, []float64{1, 1}, func(w, i int) float64 {
		if w >= 10 {
			return 100
		}
		return float64(i + 1)
	})
	must.Eq(t, 1.5, r.Equal())
}

func TestClass(t *testing.T) {
	for response, want := range map[float64]string{0.5: "G", 0.9: "S", 1: "S", 1.1: "S", 1.2: "B"} {
		must.Eq(t, want, class(response, 1), must.Sprint(response))
	}
	must.Eq(t, "", class(math.NaN(), 1))
}

func training(variant, mode string, seed uint64, scale float64) Run {
	return Run{What: TRADL, Variant: variant, Mode: mode, Seed: seed,
		Tasks: []Task{
			{Name: "a", Kind: Training, About: "vae", Submitted: 1, AcceptableAt: Number(1 + 10*scale), ObjectiveAt: Number(1 + 20*scale),
				AcceptableMark: Number(1.5 + 10*scale), ObjectiveMark: Unknown()},
			{Name: "b", Kind: Training, Submitted: 0, AcceptableAt: Number(5), ObjectiveAt: Number(30 * scale), AcceptableMark: Unknown(), ObjectiveMark: Unknown()},
		},
		Samples: []Sample{{Seconds: 2, Busy: 1.9, Tasks: []Reading{{Alive: true, Cores: 1.5, State: "acceptable", Rule: "tradl.acceptable.half"}}}},
	}
}

func TestTrainingTables(t *testing.T) {
	e := Experiment{Setting: Setting{Cores: 2}, Runs: []Run{
		training(None, "", 1, 1), training(NoTargets, "", 1, 2), training("tradl", "weight", 1, 0.8), training("tradl", "quota", 1, 1.1),
		training(None, "", 2, 1), training("tradl", "weight", 2, 0.5),
	}}
	must.Eq(t, []string{"weight", "quota"}, Modes(e.Runs, TRADL))
	tables := TrainingTables(e, "weight")
	must.Len(t, 2, tables)
	none := tables[0]
	must.StrContains(t, none.Title, "seeds: 2")
	must.Eq(t, []string{"job", "target", "under none", "tradl"}, none.Header)
	must.Eq(t, []string{"a (vae)", "acceptable", "10.0 s", "−35.0 % (−50.0 % … −20.0 %)"}, none.Rows[0])
	must.Eq(t, []string{"all have reached it", "objective", "30.0 s", "−35.0 % (−50.0 % … −20.0 %)"}, none.Rows[len(none.Rows)-1])
	must.StrContains(t, strings.Join(none.Notes, " "), "tradl: tradl.acceptable.half (2 ×)")
	must.StrContains(t, strings.Join(none.Notes, " "), "tradl 75 % (with all else on the machine 95 %)")
	must.StrContains(t, strings.Join(none.Notes, " "), "median 0.50 s")
	must.Eq(t, "−60.0 %", tables[1].Rows[0][4])
	must.Eq(t, "+10.0 %", TrainingTables(e, "quota")[0].Rows[1][3][:len("+10.0 %")])
	must.Eq(t, 4, len(Tables(e)))
}

func TestServiceTables(t *testing.T) {
	fast := func(int, int) float64 { return 1 }
	e := Experiment{Setting: Setting{Cores: 2, Interval: 2}, Runs: []Run{
		served("auto", "weight", 1, []float64{1, 2}, fast), served(None, "", 1, []float64{1, 0.2}, fast), served("auto", "weight", 2, []float64{1, 1}, fast),
	}}
	tables := ServiceTables(e, "weight")
	must.Len(t, 1, tables)
	must.Eq(t, None, tables[0].Rows[0][0])
	must.Eq(t, []string{"auto", "1.5 (2 … 1)", "0.5 (1 … 0)", "0", "2"}, tables[0].Rows[1][:5])
	must.Eq(t, "SG SS", tables[0].Rows[1][9])
	must.Eq(t, "Windows a run: 20 (3 ×).", tables[0].Notes[0])
	must.Len(t, 0, ServiceTables(e, "quota")[1:]) // only those without a mode
}

func TestMix(t *testing.T) {
	r := Run{What: Auto, Variant: "auto", Mode: "weight", Joined: 11}
	r.Tasks = []Task{
		{Name: "s", Kind: Service, Objective: 1, Base: 100},
		{Kind: Quiet, Base: 100},
		{Kind: Training, Submitted: 9, Base: 100},
	}
	for w := range 20 {
		s := Sample{T: float64(2 * (w + 1)), Seconds: 2, Busy: 1.9}
		p := 0.5
		if w == 4 || w == 7 { // between submission and join, and after it
			p = 2
		}
		s.Tasks = []Reading{{Alive: true, Cores: 0.5, Shares: 100, Answers: 3, Response: Number(p)}, {Alive: true, Cores: 0.4, Shares: 100}, {}}
		if w >= 6 {
			s.Tasks[2] = Reading{Alive: true, Cores: 1, Shares: 50}
			s.Busy = 2
		}
		if w == 19 {
			s.Busy = 1.8
		}
		r.Samples = append(r.Samples, s)
	}
	m := Mix(r, 2)
	must.Eq(t, 14, m.Windows)
	must.Eq(t, []float64{1}, m.Before)
	must.InDelta(t, 13.0/14, m.After[0], 1e-9)
	must.Eq(t, []float64{1}, m.Later)
	must.Eq(t, []float64{0.5}, m.Training)
	must.InDelta(t, 0.2, m.Quiet, 1e-9)
	must.Eq(t, 14, m.Throttled)
	must.InDelta(t, 0.1/14, m.Idle, 1e-9)
	must.InDelta(t, 0.1, m.IdleWorst, 1e-9)

	e := Experiment{Setting: Setting{Cores: 2, Interval: 2}, Runs: []Run{r}}
	tables := MixTables(e, "weight")
	must.Len(t, 2, tables)
	must.Eq(t, []string{"auto", "s", "100 %", "93 %", "100 %", "0.50"}, tables[0].Rows[0])
	must.Eq(t, []string{"auto", "50 %", "50 %", "20 %", "0.7 %", "10.0 %", "14 (14 after the join)"}, tables[1].Rows[0])
	must.Len(t, 0, MixTables(e, "quota"))
}

// Unknown values survive encoding.
func TestJSON(t *testing.T) {
	e := Experiment{Runs: []Run{{What: TRADL, Joined: Unknown(), Tasks: []Task{{Name: "a", Finished: Unknown(), Submitted: 1.5}}}}}
	data, err := json.Marshal(e)
	must.NoError(t, err)
	var back Experiment
	must.NoError(t, json.Unmarshal(data, &back))
	must.True(t, math.IsNaN(float64(back.Runs[0].Tasks[0].Finished)))
	must.Eq(t, Number(1.5), back.Runs[0].Tasks[0].Submitted)
	must.Eq(t, fmt.Sprint(e), fmt.Sprint(back))
}

func at(s float64) *float64 { return &s }

func TestJobText(t *testing.T) {
	run := func(variant, mode string, seed uint64, end float64) Run {
		return Run{What: Train, Case: "2 jobs", Variant: variant, Mode: mode, Seed: seed, Other: 0.1, Jobs: []metrics.Job{
			{ID: "a", EndS: at(end), CPUS: 10}, {ID: "b", ArriveS: 1, EndS: at(11), CPUS: 10},
		}}
	}
	e := Experiment{Setting: Setting{Cores: 2}, Runs: []Run{
		run(None, "", 1, 10), run("auto", "weight", 1, 5), run("auto", "quota", 2, 5), // its none run is missing
	}}
	e.Runs[1].Other = 5
	text, err := JobText(e)
	must.NoError(t, err)
	must.StrContains(t, text, "train, 2 jobs, mode weight: 2 jobs, 1 runs, against none")
	must.StrContains(t, text, "-25.0 %")
	must.StrNotContains(t, text, "mode quota")
	must.StrContains(t, text, "2 jobs, auto, seed 1: something else used 5 CPU-seconds")
	must.StrNotContains(t, text, "2 jobs, none, seed 1: something")
}

// Output can be read back, a line per run.
func TestEncode(t *testing.T) {
	for _, runs := range [][]Run{nil, {{What: Train, Seed: 1, Joined: 1}}, {{What: Train, Seed: 1, Joined: 1}, {What: Train, Seed: 2, Joined: 1}}} {
		e := Experiment{Setting: Setting{What: Train, Commit: "c"}, Runs: runs}
		data, err := e.Encode()
		must.NoError(t, err)
		must.Eq(t, len(runs), strings.Count(string(data), "\n{"))
		var back Experiment
		must.NoError(t, json.Unmarshal(data, &back))
		must.Len(t, len(runs), back.Runs)
		must.Eq(t, e.Setting, back.Setting)
	}
}

func TestDiffers(t *testing.T) {
	a := Setting{What: Train, Commit: "a", Cores: 2}
	must.Eq(t, "", a.Differs(a))
	b := a
	b.Commit = "b"
	must.Eq(t, "commit is a, not b", a.Differs(b))
}
