// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fsp

import (
	"fmt"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/policytest"
)

func amount(x float64) *policy.CPUSeconds { c := policy.CPUSeconds(x); return &c }

// task returns a new task of known size, without a quality point.
func task(id string, left float64) policy.Task {
	return policy.Task{ID: id, Entitlement: 1, RemainingCPUS: amount(left), Overhead: new(float64)}
}

func TestDecide(t *testing.T) {
	change := func(t policy.Task, change func(*policy.Task)) policy.Task { change(&t); return t }
	service := policy.Task{ID: "api", Entitlement: 1, ObjectiveS: new(float64), Use: 0.5, Limit: 0.25}
	*service.ObjectiveS = 1
	ghost := policy.Task{ID: "ghost", Entitlement: 1, CPUS: 50, FairCPUS: 20, Ended: true}
	for _, tc := range []struct {
		name   string
		params Params
		tasks  []policy.Task
		rules  []string
		cores  []float64
		slack  policy.CPUSeconds
	}{
		{name: "none"},
		{
			name: "alone", tasks: []policy.Task{task("a", 10)},
			rules: []string{RulePreferred}, cores: []float64{4},
		}, {
			name: "the shorter first, a floor for the other", tasks: []policy.Task{task("a", 30), task("b", 10)},
			rules: []string{RuleWait, RulePreferred}, cores: []float64{0.2, 3.8}, slack: 9,
		}, {
			name: "quality first, within the slack", params: Params{Quality, 0.1},
			tasks: []policy.Task{change(task("a", 30), func(t *policy.Task) { t.QualityCPUS = amount(1) }), task("b", 10)},
			rules: []string{RulePreferred, RuleGuard}, cores: []float64{0.2 + 9.0/5, 2}, slack: 9,
		}, {
			name:  "first results first, within the slack",
			tasks: []policy.Task{task("a", 30), change(task("b", 10), func(t *policy.Task) { t.CPUS, t.FairCPUS = 10, 10 })},
			rules: []string{RulePreferred, RuleGuard}, cores: []float64{0.2 + 9.0/5, 2}, slack: 9,
		}, {
			name: "not after an eighth",
			tasks: []policy.Task{
				change(task("a", 26.25), func(t *policy.Task) { t.CPUS = 3.75 }), change(task("b", 10), func(t *policy.Task) { t.CPUS, t.FairCPUS = 10, 10 }),
			},
			rules: []string{RuleWait, RulePreferred}, cores: []float64{0.2, 3.8}, slack: 9,
		}, {
			name: "nor if completion is preferred", params: Params{Completion, 0.1},
			tasks: []policy.Task{task("a", 30), change(task("b", 10), func(t *policy.Task) { t.CPUS, t.FairCPUS = 10, 10 })},
			rules: []string{RuleWait, RulePreferred}, cores: []float64{0.2, 3.8}, slack: 9,
		}, {
			name:  "quality passed",
			tasks: []policy.Task{change(task("a", 30), func(t *policy.Task) { t.QualityCPUS = amount(0) }), task("b", 10)},
			rules: []string{RuleWait, RulePreferred}, cores: []float64{0.2, 3.8}, slack: 9,
		}, {
			name: "by the ratio of entitlements", params: Params{Completion, 1},
			tasks: []policy.Task{change(task("a", 30), func(t *policy.Task) { t.Entitlement = 3 }), task("b", 10)},
			rules: []string{RuleWait, RuleWait}, cores: []float64{3, 1},
		}, {
			name: "late ones share by entitlement",
			tasks: []policy.Task{
				change(task("a", 5), func(t *policy.Task) { t.FairCPUS = 50 }),
				change(task("b", 5), func(t *policy.Task) { t.FairCPUS, t.Entitlement = 5, 3 }),
				task("c", 40),
			},
			rules: []string{RuleLate, RuleLate, RuleWait}, cores: []float64{0.98, 2.94, 0.08},
		}, {
			name: "a late one with one thread leaves the rest",
			tasks: []policy.Task{
				change(task("a", 5), func(t *policy.Task) { t.FairCPUS, t.CapCores = 50, 1 }),
				task("b", 40),
			},
			rules: []string{RuleLate, RulePreferred}, cores: []float64{1, 3},
		}, {
			name: "unknown: as its twin", tasks: []policy.Task{{ID: "x", Entitlement: 1}, task("a", 30), task("b", 10), ghost},
			rules: []string{RuleUnknown, RuleWait, RulePreferred, RuleGhost}, cores: []float64{1, 0.1, 2.9, 0}, slack: 19,
		}, {
			name: "unknown and a ghost: nothing is idle", tasks: []policy.Task{{ID: "x", Entitlement: 1}, ghost},
			rules: []string{RuleUnknown, RuleGhost}, cores: []float64{4, 0},
		}, {
			name: "services leave what they do not use up to their limit", tasks: []policy.Task{task("a", 30), service, task("b", 10)},
			rules: []string{RuleWait, RuleService, RulePreferred}, cores: []float64{0.15, 0, 2.85}, slack: 9,
		}, {
			name: "with three threads, one must run soon",
			tasks: []policy.Task{
				change(task("a", 30), func(t *policy.Task) { t.CapCores = 3 }), change(task("b", 20), func(t *policy.Task) { t.CapCores = 3 }),
			},
			rules: []string{RuleGuard, RulePreferred}, cores: []float64{1, 3}, slack: 18,
		}, {
			name: "what the one in front cannot use goes to the next",
			tasks: []policy.Task{
				change(task("a", 70), func(t *policy.Task) { t.FairCPUS, t.CapCores = 60, 1 }), task("b", 100),
			},
			rules: []string{RuleGuard, RuleSpare}, cores: []float64{1, 3}, slack: -33,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.params.Prefer == "" {
				tc.params = DefaultParams()
			}
			s := policy.Snapshot{NowS: 100, PoolCores: 4, IntervalS: 5, Tasks: tc.tasks}
			must.NoError(t, s.Validate())
			must.NoError(t, Check(s, tc.params))
			out := Decide(s, tc.params)
			must.InDelta(t, float64(tc.slack), float64(*out.SlackCPUS), 1e-9)
			for i, d := range out.Tasks {
				must.Eq(t, tc.rules[i], d.Rule)
				if tc.cores[i] == 0 {
					must.Nil(t, d.Limit)
				} else {
					must.InDelta(t, tc.cores[i], 4*float64(*d.Limit), 1e-9, must.Sprint(d.ID))
				}
			}
		})
	}
}

// The finish times of task and twin, and the twin's rate.
func TestDecide_finish(t *testing.T) {
	s := policy.Snapshot{NowS: 1000, PoolCores: 2, Tasks: []policy.Task{task("a", 30), task("b", 10)}}
	out := Decide(s, Params{Completion, least}).Tasks
	for i, want := range [][2]float64{{1020, 1020}, {1010, 1005}} {
		must.InDelta(t, want[0], *out[i].FairFinishS, 1e-6)
		must.InDelta(t, want[1], *out[i].FinishS, 1e-6)
		must.Eq(t, 1, out[i].FairRateCores)
	}
	must.Eq(t, "preferred: its twin has 10 CPU-seconds remaining; level with its fair share; expected to end in 6 s; "+
		"with its fair share it would in 10 s; 2 of 2 cores, fair share 1", out[1].Why)
}

func snapshots(t *rapid.T) (policy.Snapshot, Params) {
	amounts := rapid.OneOf(rapid.SampledFrom([]float64{0, 5e-319, 1e-300, 1, 10, maxCPUS}), rapid.Float64Range(0, 1000))
	maybe := rapid.OneOf(rapid.Just[*policy.CPUSeconds](nil), rapid.Map(amounts, amount))
	s := policy.Snapshot{
		NowS: 1.7e9, PoolCores: policy.Cores(rapid.SampledFrom([]float64{minCores, 0.5, 4, maxCores}).Draw(t, "pool")),
		IntervalS: rapid.SampledFrom([]float64{0, 5e-324, 20, 1e308}).Draw(t, "interval"),
		Tasks:     make([]policy.Task, rapid.IntRange(0, 10).Draw(t, "n")),
	}
	for i := range s.Tasks {
		in := &s.Tasks[i]
		*in = policy.Task{
			ID:          fmt.Sprintf("task-%d", i),
			Entitlement: rapid.SampledFrom([]float64{5e-324, 1, 1, 2, 1e300}).Draw(t, "entitlement"),
			CPUS:        policy.CPUSeconds(amounts.Draw(t, "cpu")), FairCPUS: policy.CPUSeconds(amounts.Draw(t, "fair")),
		}
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0:
			in.Ended = true
		case 1:
			in.ObjectiveS, in.Use = new(float64), policy.Share(rapid.SampledFrom([]float64{0, 0.3, 1e300}).Draw(t, "use"))
			*in.ObjectiveS = 1
		default:
			in.RemainingCPUS, in.QualityCPUS = maybe.Draw(t, "remaining"), maybe.Draw(t, "quality")
			in.CapCores = policy.Cores(rapid.SampledFrom([]float64{0, 0, minCores, 1}).Draw(t, "cap"))
		}
	}
	p := Params{
		Prefer: rapid.SampledFrom([]Prefer{Balanced, Completion, Quality}).Draw(t, "prefer"),
		Floor:  rapid.SampledFrom([]float64{5e-324, 0.1, 1}).Draw(t, "floor"),
	}
	must.NoError(t, s.Validate())
	must.NoError(t, Check(s, p))
	return s, p
}

// Tasks whose threads wait for each other are served concurrently: whole cores first, as many as pay,
// the rest in equal parts; by heSRPT while nothing is known.
func TestDecide_overhead(t *testing.T) {
	of := func(overheads ...float64) []float64 { return overheads }
	for _, tc := range []struct {
		pool      float64
		overheads []float64 // < 0: unknown
		cores     []float64
	}{
		{2, of(0, 0, 0), of(2, 0, 0)},
		{2, of(0.3, 0.3, 0.3), of(1, 1, 0)},
		{2, of(-1, -1, -1), of(10.0/9, 8.0/9, 0)},
		{2, of(0.3, 0.3), of(1, 1)},
		{8, of(-1, -1), of(6, 2)},
		{8, of(0.1, 0.1, 0.1, 0.1, 0.1), of(2, 2, 2, 2, 0)},
		{8, of(0.05, 0.05, 0.05, 0.05), of(4, 4, 0, 0)},
		{2, of(-1, 0, -1, 0.3, 0), of(2, 0, 0, 0, 0)}, // the median of those that are known
		{2, of(-1, 0.3, 0, 0.3), of(1, 1, 0, 0)},
	} {
		s := policy.Snapshot{NowS: 1, PoolCores: policy.Cores(tc.pool), IntervalS: 1}
		for i, o := range tc.overheads {
			s.Tasks = append(s.Tasks, task(string(rune('a'+i)), 1000+float64(i)))
			if s.Tasks[i].Overhead = nil; o >= 0 {
				s.Tasks[i].Overhead = &o
			}
		}
		for i, d := range Decide(s, Params{Completion, 1e-9}).Tasks {
			must.InDelta(t, tc.cores[i], tc.pool*float64(*d.Limit), 1e-6, must.Sprint(tc, d.ID))
		}
	}
}

func TestDecide_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, p := snapshots(t)
		out := policytest.Decide(t, func(s policy.Snapshot) policy.Outcome { return Decide(s, p) }, s)
		must.Len(t, len(s.Tasks), out.Tasks)
		sum, beyond, below := 0.0, false, false
		bound := func(in policy.Task) float64 {
			if in.CapCores > 0 {
				return min(float64(in.CapCores/s.PoolCores), 1)
			}
			return 1
		}
		for i, d := range out.Tasks {
			in := s.Tasks[i]
			must.Eq(t, in.ID, d.ID)
			must.NotEq(t, "", d.Why)
			must.Eq(t, d.Late, d.Rule == RuleLate)
			must.Eq(t, in.Service() || in.Ended, d.Limit == nil)
			if d.Limit == nil {
				continue
			}
			must.Between(t, least, float64(*d.Limit), 1)
			sum += float64(*d.Limit)
			if most := bound(in); float64(*d.Limit) > max(most*(1+exact), least) {
				beyond = true
			} else if float64(*d.Limit) < most*(1-exact) {
				below = true
			}
		}
		served := slices.ContainsFunc(s.Tasks, policy.Task.Service) // which reduce the pool
		must.False(t, beyond && below && !served, must.Sprint("a task has what it cannot use, and another could"))
		must.LessEq(t, 1+exact, sum)
	})
}

func TestDecide_unitOfEntitlement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, p := snapshots(t)
		for i := range s.Tasks {
			s.Tasks[i].Entitlement = float64(1 + i%3)
		}
		policytest.Entitled(t, func(s policy.Snapshot) policy.Outcome { return Decide(s, p) }, s,
			rapid.SampledFrom([]float64{0x1p-10, 0.5, 8, 1024}).Draw(t, "factor"))
	})
}

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{12, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := policy.Snapshot{NowS: 1.7e9, PoolCores: 64, IntervalS: 20, Tasks: make([]policy.Task, n)}
			for i, l := range jobs(1, n, 0.5) {
				s.Tasks[i] = task(fmt.Sprint(i), l.size)
				s.Tasks[i].QualityCPUS = amount(l.size / 2)
			}
			b.ReportAllocs()
			for b.Loop() {
				Decide(s, DefaultParams())
			}
		})
	}
}
