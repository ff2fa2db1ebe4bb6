// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fsp

import (
	"math"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/driver/policy"
)

const exact = 1e-6 // relative

func loads(t *rapid.T) ([]load, Params) {
	weighted := rapid.Bool().Draw(t, "weighted")
	together := rapid.Bool().Draw(t, "together")
	unknown := rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "unknown")
	out := make([]load, rapid.IntRange(1, 10).Draw(t, "n"))
	for i := range out {
		out[i] = load{
			size:    math.Exp(rapid.Float64Range(0, 6).Draw(t, "size")),
			weight:  1,
			quality: rapid.SampledFrom([]float64{0, 0.25, 0.9, 1}).Draw(t, "quality"),
			unknown: rapid.IntRange(0, 9).Draw(t, "of unknown size") < unknown,
		}
		if weighted {
			out[i].weight = math.Exp(rapid.Float64Range(-3, 3).Draw(t, "weight"))
		}
		if !together {
			out[i].arrives = rapid.Float64Range(0, 300).Draw(t, "arrives")
		}
	}
	return out, Params{
		Prefer: rapid.SampledFrom([]Prefer{Balanced, Completion, Quality}).Draw(t, "prefer"),
		Floor:  rapid.OneOf(rapid.SampledFrom([]float64{1e-6, 0.1, 1}), rapid.Float64Range(0.01, 1)).Draw(t, "floor"),
	}
}

// With exact sizes, without caps and with fluid CPU no task ends later than under fair sharing;
// tasks of unknown size never have less; no CPU is idle, and no task is below its floor.
func TestFluid_neverLater(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, p := loads(t)
		f := fluid{pool: rapid.Float64Range(0.5, 8).Draw(t, "pool"), interval: rapid.SampledFrom([]float64{0, 7, 100}).Draw(t, "interval")}
		fair, _ := f.run(all, fairSharing)
		f.check = func(f *fluid, s policy.Snapshot, out policy.Outcome) {
			sum, running := 0.0, false
			// Due to rounding a task may get almost nothing at its end.
			ending := slices.ContainsFunc(out.Tasks, func(d policy.Decision) bool { return d.Late })
			must.GreaterEq(t, -exact*f.pool, float64(*out.SlackCPUS))
			for i, d := range out.Tasks {
				in := s.Tasks[i]
				if in.Ended {
					must.Nil(t, d.Limit)
					continue
				}
				rate := float64(*d.Limit) * f.pool
				sum, running = sum+rate, true
				must.True(t, ending || rate >= p.Floor*float64(d.FairRateCores)*(1-exact), must.Sprint("the floor"))
				if in.RemainingCPUS == nil {
					must.GreaterEq(t, float64(in.FairCPUS)*(1-exact), float64(in.CPUS), must.Sprint("unknown"))
					must.GreaterEq(t, float64(d.FairRateCores)*(1-exact), rate)
				} else if *in.RemainingCPUS > exact {
					must.False(t, d.Late)
					must.LessEq(t, *d.FairFinishS+exact*(1+f.now), *d.FinishS)
				}
			}
			if running {
				must.InDelta(t, f.pool, sum, f.pool*exact) // least
			}
		}
		ends, _ := f.run(all, decided(t, p))
		for i := range all {
			must.LessEq(t, fair[i]*(1+exact)+exact, ends[i], must.Sprint(i))
		}
	})
}

// If no task joins, each ends when first predicted. (With a floor, the tasks behind gain slightly
// at each end, which is not predicted.)
func TestFluid_expected(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, p := loads(t)
		p.Floor = least
		for i := range all {
			all[i].arrives, all[i].unknown = 0, false
			all[i].size *= 1 + float64(i)/97 // or rounding would decide ties
		}
		f := fluid{pool: 2}
		var expected []float64
		f.check = func(_ *fluid, _ policy.Snapshot, out policy.Outcome) {
			for _, d := range out.Tasks {
				if len(expected) < len(all) {
					expected = append(expected, *d.FinishS)
				}
			}
		}
		ends, _ := f.run(all, decided(t, p))
		for i := range all {
			must.InDelta(t, ends[i], expected[i], 1e-4*(1+ends[i]))
		}
	})
}

// A floor of 1 is fair sharing.
func TestFluid_fair(t *testing.T) {
	all := jobs(1, 12, 0.5)
	f := fluid{pool: 2}
	fair, _ := f.run(all, fairSharing)
	ends, _ := f.run(all, decided(t, Params{Quality, 1}))
	for i := range all {
		must.InDelta(t, fair[i], ends[i], 1e-3)
	}
}

// Completion is close to SRPT, the optimum of the mean.
func TestFluid_completion(t *testing.T) {
	plain := func(seed uint64) []load { return jobs(seed, 12, 0.5) }
	best := compare(40, fluid{pool: 2}, plain, srpt)
	for _, tc := range []struct{ floor, within float64 }{{least, 0.03}, {0.1, 0.06}} {
		got := compare(40, fluid{pool: 2}, plain, func() divide { return decided(t, Params{Completion, tc.floor}) })
		t.Logf("floor %v: mean %+.1f %%, SRPT %+.1f %%", tc.floor, 100*got.mean, 100*best.mean)
		must.LessEq(t, (1+best.mean)*(1+tc.within), 1+got.mean)
		must.LessEq(t, 1+exact, got.worst)
	}
}

// A task that always claims to be near its end exceeds its fair share only by what the others can
// spare: their gain is unchanged, and none loses.
func TestDecide_falseClaims(t *testing.T) {
	for seed := range uint64(20) {
		all := append(jobs(seed, 10, 0.5), load{size: 4000, weight: 1, claims: 1})
		f := fluid{pool: 2, interval: 5}
		fair, _ := f.run(all, fairSharing)
		got, _ := f.run(all, decided(t, DefaultParams()))
		sum, worst := 0.0, 0.0
		for i := range fair[:10] {
			sum += got[i] / fair[i] / 10
			worst = max(worst, got[i]/fair[i])
		}
		must.Less(t, 0.8, sum)
		must.Less(t, 1.1, worst)
	}
}
