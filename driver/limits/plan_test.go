// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"fmt"
	"math"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestPlan_weight(t *testing.T) {
	cases := []struct {
		name string
		reqs []Request
		opts Options
		want []uint64
	}{
		{"nobody", nil, Options{}, nil},
		{"all released", []Request{{Limit: 1, BaseShares: 500}, {Limit: 1, BaseShares: 1500}}, Options{}, []uint64{500, 1500}},
		{"all unmeasured", []Request{{Unmeasured: true, Limit: 1, BaseShares: 500}, {Unmeasured: true, Limit: 0.2}}, Options{}, []uint64{500, 1024}},
		{"alone", []Request{{Limit: 0.5, BaseShares: 700}}, Options{}, []uint64{700}},
		{"in proportion", []Request{{Limit: 0.75, BaseShares: 500}, {Limit: 0.25, BaseShares: 500}}, Options{}, []uint64{750, 250}},
		{"the others on the node see the same sum", []Request{{Limit: 0.75, BaseShares: 100}, {Limit: 0.25, BaseShares: 1900}}, Options{}, []uint64{1500, 500}},
		{"floor 1/(2n): the vector of algorithms §2", []Request{{Limit: 0.6, BaseShares: 1000}, {Limit: 0.4, BaseShares: 1000}, {Limit: 1. / 6, BaseShares: 1000}}, Options{}, []uint64{1500, 1000, 500}},
		{"unmeasured has 1/n exactly", []Request{{Limit: 0.9, BaseShares: 800}, {Limit: 0.3, BaseShares: 800}, {Unmeasured: true, Limit: 1, BaseShares: 100}, {Limit: 0.3, BaseShares: 300}}, Options{}, []uint64{900, 300, 500, 300}},
		{"NaN and nonsense count as unmeasured", []Request{{Limit: math.NaN(), BaseShares: 300}, {Limit: -1, BaseShares: 300}, {Limit: 0.5, BaseShares: 300}}, Options{}, []uint64{300, 300, 300}},
		{"tiny shares: two is the floor", []Request{{Limit: 1, BaseShares: 1}, {Limit: 0.25, BaseShares: 2}}, Options{}, []uint64{2, 2}},
		{"tiny shares", []Request{{Limit: 1, BaseShares: 5}, {Limit: 0.1, BaseShares: 2}, {Limit: 0.1, BaseShares: 2}}, Options{}, []uint64{5, 2, 2}},
		{"huge shares stop at the kernel's greatest", []Request{{Limit: 1, BaseShares: 1 << 40}, {Limit: 0.25, BaseShares: MaxShares}}, Options{}, []uint64{MaxShares, MaxShares}},
		{"cgroup v2: weights in proportion, not shares", []Request{{Limit: 0.75, BaseShares: 1024}, {Limit: 0.25, BaseShares: 1024}}, Options{Conversion: Quadratic}, []uint64{Quadratic.Shares(150), Quadratic.Shares(50)}},
		{"cgroup v2, old runtime", []Request{{Limit: 0.75, BaseShares: 1024}, {Limit: 0.25, BaseShares: 1024}}, Options{Conversion: Linear}, []uint64{Linear.Shares(59), Linear.Shares(19)}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			got := Plan(ModeWeight, 4, tc.reqs, tc.opts)
			must.Len(t, len(tc.want), got)
			for i, l := range got {
				must.Eq(t, tc.want[i], l.Shares, must.Sprintf("task %d of %v", i, got))
			}
		})
	}
}

// The kernel gets the ratio that the policy wants, not the runtime's curve.
func TestPlan_weightRatioV2(t *testing.T) {
	for _, conv := range []Conversion{Identity, Quadratic, Linear} {
		got := Plan(ModeWeight, 4, []Request{{Limit: 0.8, BaseShares: 2000}, {Limit: 0.2, BaseShares: 2000}}, Options{Floor: 0.1, Conversion: conv})
		ratio := float64(conv.Weight(got[0].Shares)) / float64(conv.Weight(got[1].Shares))
		must.InDelta(t, 4, ratio, 0.2, must.Sprint(conv))
	}
}

func TestPlan_quota(t *testing.T) {
	cases := []struct {
		name string
		pool float64
		reqs []Request
		opts Options
		want []float64
	}{
		{"limit 1 is no limit", 8, []Request{{Limit: 1}, {Limit: 0.5}}, Options{}, []float64{0, 4}},
		{"unmeasured is free", 8, []Request{{Limit: 0.1, Unmeasured: true}, {Limit: 0.5}}, Options{}, []float64{0, 4}},
		{"at least one core where the pool allows", 8, []Request{{Limit: 1}, {Limit: 0.01}}, Options{}, []float64{0, 1}},
		{"a small pool: half of the fair share", 2, []Request{{Limit: 1}, {Limit: 0.01}}, Options{}, []float64{0, 0.5}},
		{"on the border", 4, []Request{{Limit: 1}, {Limit: 0.01}}, Options{}, []float64{0, 1}},
		{"configured least", 8, []Request{{Limit: 1}, {Limit: 0.1}}, Options{QuotaMinCores: 2}, []float64{0, 2}},
		{"never below 10 ms a period", 0.1, []Request{{Limit: 1}, {Limit: 0.01}}, Options{}, []float64{0, 0.1}},
		{"cpu_hard_limit is never exceeded", 8, []Request{{Limit: 1, BaseQuotaCores: 1.5}, {Limit: 0.5, BaseQuotaCores: 0.05}, {Limit: 0.25, BaseQuotaCores: 6}}, Options{}, []float64{1.5, 0.05, 2}},
		{"no pool, no limits", 0, []Request{{Limit: 0.5}, {Limit: 0.5, BaseQuotaCores: 1}}, Options{}, []float64{0, 1}},
		{"a pool that is no number", math.NaN(), []Request{{Limit: 0.5}}, Options{}, []float64{0}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			for i, l := range Plan(ModeQuota, tc.pool, tc.reqs, tc.opts) {
				must.InDelta(t, tc.want[i], l.QuotaCores, 1e-9)
				must.Eq(t, DefaultShares, l.Shares)
			}
		})
	}
}

func TestPlan_none(t *testing.T) {
	reqs := []Request{{Limit: 0.1, BaseShares: 500, BaseQuotaCores: 2}, {Limit: 0.9, BaseShares: 600, BaseQuotaCores: -3}}
	for _, mode := range []Mode{ModeNone, "", "what"} {
		must.Eq(t, []Limits{{500, 2}, {600, 0}}, Plan(mode, 4, reqs, Options{}))
	}
}

func requests() *rapid.Generator[[]Request] {
	return rapid.Custom(func(t *rapid.T) []Request {
		n := rapid.OneOf(rapid.IntRange(1, 8), rapid.SampledFrom([]int{1, 100, 1000})).Draw(t, "n")
		base := rapid.OneOf(
			rapid.Uint64Range(2, 20),
			rapid.Uint64Range(100, 10_000),
			rapid.SampledFrom([]uint64{0, 1, 2, MaxShares, math.MaxUint64}),
		)
		limit := rapid.OneOf(rapid.Float64Range(1e-6, 1), rapid.Just(1.0), rapid.Just(1/(2*float64(n))))
		reqs := make([]Request, n)
		for i := range reqs {
			reqs[i] = Request{
				ID:         fmt.Sprint("task-", i),
				Limit:      limit.Draw(t, "limit"),
				Unmeasured: rapid.IntRange(0, 3).Draw(t, "measured") == 0,
				BaseShares: base.Draw(t, "base"),
			}
			if rapid.Bool().Draw(t, "hard") {
				reqs[i].BaseQuotaCores = rapid.Float64Range(0, 16).Draw(t, "hard limit")
			}
		}
		return reqs
	})
}

func TestPlan_weightProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		reqs := requests().Draw(t, "requests")
		opts := Options{
			Conversion: rapid.SampledFrom([]Conversion{Identity, Quadratic, Linear}).Draw(t, "conversion"),
			Floor:      rapid.SampledFrom([]float64{0, 0.1, 0.5, 1}).Draw(t, "floor"),
		}
		got := Plan(ModeWeight, 4, reqs, opts)
		must.Len(t, len(reqs), got)
		n := float64(len(reqs))
		w := func(l Limits) float64 { return float64(opts.Conversion.Weight(l.Shares)) }

		var before, after float64
		released := true
		for i, r := range reqs {
			before += w(r.Base())
			after += w(got[i])
			released = released && (r.Unmeasured || r.Limit >= 1)
		}
		must.Eq(t, before, after) // conserved, to the unit
		floor := opts.floor()
		_, hi := opts.Conversion.bounds()
		for i, r := range reqs {
			must.Eq(t, r.Base().QuotaCores, got[i].QuotaCores)
			must.Between(t, MinShares, got[i].Shares, MaxShares)
			if released {
				must.Eq(t, r.Base(), got[i])
				continue
			}
			// Rounding moves a task by one unit, the lift to the least weight by two.
			if r.Unmeasured {
				must.InDelta(t, before/n, w(got[i]), 2)
			} else {
				must.GreaterEq(t, min(r.Limit, floor/n)*before-2, w(got[i]))
			}
			// Who is allowed more gets no less.
			for j := range min(i, 50) {
				if !r.Unmeasured && !reqs[j].Unmeasured && r.Limit >= reqs[j].Limit {
					must.GreaterEq(t, w(got[j])-2, w(got[i]))
				}
			}
			must.LessEq(t, float64(hi), w(got[i]))
		}
		must.Eq(t, got, Plan(ModeWeight, 4, reqs, opts)) // the same again
	})
}

func TestPlan_quotaProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		reqs := requests().Draw(t, "requests")
		pool := rapid.Float64Range(0.01, 256).Draw(t, "pool")
		got := Plan(ModeQuota, pool, reqs, Options{})
		n := float64(len(reqs))
		for i, r := range reqs {
			base, quota := r.Base().QuotaCores, got[i].QuotaCores
			must.Eq(t, r.Base().Shares, got[i].Shares)
			if base > 0 {
				must.Greater(t, 0, quota) // a hard limit is not lifted …
				must.LessEq(t, base, quota)
			}
			if r.Unmeasured || r.Limit >= 1 {
				must.Eq(t, base, quota)
				continue
			}
			least := max(r.Limit*pool, min(1, pool/(2*n)), 0.1)
			if base > 0 {
				least = min(least, base)
			}
			must.InDelta(t, least, quota, 1e-9)
			if pool >= 2*n && base == 0 {
				must.GreaterEq(t, 1, quota)
			}
		}
	})
}

func TestPool(t *testing.T) {
	cases := []struct {
		name string
		in   PoolInput
		want float64
	}{
		{"all of it", PoolInput{NodeCores: 8}, 8},
		{"configured", PoolInput{NodeCores: 8, Configured: 2.5, PinnedCores: 7}, 2.5},
		{"configured, the whole node", PoolInput{NodeCores: 8, Configured: 8}, 8},
		{"reserved.cpu", PoolInput{NodeCores: 8, ReservedMHz: 1000, CoreMHz: 2000}, 7.5},
		{"reserved.cores", PoolInput{NodeCores: 8, UsableCores: 6}, 6},
		{"cores tasks", PoolInput{NodeCores: 8, UsableCores: 6, PinnedCores: 2}, 4},
		{"all three", PoolInput{NodeCores: 8, UsableCores: 6, PinnedCores: 2, ReservedMHz: 500, CoreMHz: 2000}, 3.75},
		{"Nomad in a container", PoolInput{NodeCores: 8, ContainerCores: 3}, 3},
		{"a container larger than what is left", PoolInput{NodeCores: 8, PinnedCores: 6, ContainerCores: 3}, 2},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Pool(tc.in)
			must.NoError(t, err)
			must.InDelta(t, tc.want, got, 1e-9)
		})
	}

	bad := []struct {
		in   PoolInput
		says string
	}{
		{PoolInput{NodeCores: 8, Configured: -1}, "pool_cores: must be between 0 (worked out) and 8 (the node's CPUs), got -1"},
		{PoolInput{NodeCores: 8, Configured: 8.5}, "got 8.5"},
		{PoolInput{NodeCores: 8, Configured: math.NaN()}, "pool_cores: must be"},
		{PoolInput{NodeCores: 8, Configured: math.Inf(1)}, "pool_cores: must be"},
		{PoolInput{}, "node cores: must be ≥ 1, got 0"},
		{PoolInput{NodeCores: 8, UsableCores: 9}, "usable cores: must be between 0 (all) and 8"},
		{PoolInput{NodeCores: 8, ReservedMHz: -5}, "reserved.cpu: must be"},
		{PoolInput{NodeCores: 8, ReservedMHz: 5}, "core speed: must be > 0 MHz"},
		{PoolInput{NodeCores: 8, PinnedCores: -1}, "pinned cores: must be"},
		{PoolInput{NodeCores: 8, ContainerCores: -1}, "container cores: must be"},
	}
	for _, tc := range bad {
		_, err := Pool(tc.in)
		must.ErrorContains(t, err, tc.says)
	}
	_, err := Pool(PoolInput{NodeCores: 8, Configured: -1, PinnedCores: 99}) // all at once
	must.ErrorContains(t, err, "pool_cores")
	must.ErrorContains(t, err, "pinned cores")

	_, err = Pool(PoolInput{NodeCores: 8, PinnedCores: 8})
	must.ErrorIs(t, err, ErrEmptyPool)
	_, err = Pool(PoolInput{NodeCores: 2, ReservedMHz: 9000, CoreMHz: 2000})
	must.ErrorIs(t, err, ErrEmptyPool)
}

func TestNomadShares(t *testing.T) {
	must.Eq(t, 500, NomadShares(500, 8000))
	must.Eq(t, 2, NomadShares(1, 8000))
	must.Eq(t, 2, NomadShares(-5, 8000))
	must.Eq(t, MaxShares, NomadShares(1<<30, 8000))
	// As executor_linux.go of Nomad 1.11: shares / total × 262144.
	must.Eq(t, 131_072, NomadShares(160_000, 320_000))
	must.Eq(t, MaxShares, NomadShares(320_000, 320_000))
	must.Eq(t, 2, NomadShares(2, 1_000_000))
}

func BenchmarkPlan1000(b *testing.B) {
	reqs := make([]Request, 1000)
	for i := range reqs {
		reqs[i] = Request{ID: fmt.Sprint(i), Limit: float64(i+1) / 1000, Unmeasured: i%10 == 0, BaseShares: uint64(100 + i)}
	}
	for _, conv := range []Conversion{Identity, Quadratic} {
		b.Run(fmt.Sprint(conv), func(b *testing.B) {
			for b.Loop() {
				Plan(ModeWeight, 64, reqs, Options{Conversion: conv})
			}
		})
	}
}
