// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"fmt"
	"math"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/policy"
)

func TestLimits_weight(t *testing.T) {
	cases := []struct {
		name string
		reqs []Request
		opts Options
		want []uint64
	}{
		{"no tasks", nil, Options{}, nil},
		{"all released", []Request{{Limit: 1, Base: limits.Limits{Shares: 500}}, {Limit: 1, Base: limits.Limits{Shares: 1500}}}, Options{}, []uint64{500, 1500}},
		{"all unmeasured", []Request{{Keeps: true, Limit: 1, Base: limits.Limits{Shares: 500}}, {Keeps: true, Limit: 0.2}}, Options{}, []uint64{500, 1024}},
		{"alone", []Request{{Limit: 0.5, Base: limits.Limits{Shares: 700}}}, Options{}, []uint64{700}},
		{"in proportion", []Request{{Limit: 0.75, Base: limits.Limits{Shares: 500}}, {Limit: 0.25, Base: limits.Limits{Shares: 500}}}, Options{}, []uint64{750, 250}},
		{"the others on the node see the same sum", []Request{{Limit: 0.75, Base: limits.Limits{Shares: 100}}, {Limit: 0.25, Base: limits.Limits{Shares: 1900}}}, Options{}, []uint64{1500, 500}},
		{"floor 1/(2n): the vector of algorithms §2", []Request{{Limit: 0.6, Base: limits.Limits{Shares: 1000}}, {Limit: 0.4, Base: limits.Limits{Shares: 1000}}, {Limit: 1. / 6, Base: limits.Limits{Shares: 1000}}}, Options{}, []uint64{1500, 1000, 500}},
		{"unknown keeps its entitlement", []Request{{Limit: 0.9, Base: limits.Limits{Shares: 800}}, {Limit: 0.3, Base: limits.Limits{Shares: 800}}, {Keeps: true, Limit: 1, Base: limits.Limits{Shares: 500}}, {Limit: 0.3, Base: limits.Limits{Shares: 300}}}, Options{Floor: 0.1}, []uint64{1140, 380, 500, 380}},
		// 1438 shares must not count as fair for a task with 8000 from Nomad.
		{"unknown with small ones", []Request{{Keeps: true, Base: limits.Limits{Shares: 8000}}, {Limit: 0.5, Base: limits.Limits{Shares: 500}}, {Limit: 0.1, Base: limits.Limits{Shares: 500}}}, Options{}, []uint64{8000, 750, 250}},
		{"no limit with one: the entitlement counts", []Request{{Limit: 1, Base: limits.Limits{Shares: 8000}}, {Limit: 1, Base: limits.Limits{Shares: 1000}}, {Limit: 0.05, Base: limits.Limits{Shares: 1000}}}, Options{}, []uint64{8444, 1056, 500}},
		{"NaN and nonsense count as unmeasured", []Request{{Limit: policy.Share(math.NaN()), Base: limits.Limits{Shares: 300}}, {Limit: -1, Base: limits.Limits{Shares: 300}}, {Limit: 0.5, Base: limits.Limits{Shares: 300}}}, Options{}, []uint64{300, 300, 300}},
		{"tiny shares: two is the floor", []Request{{Limit: 1, Base: limits.Limits{Shares: 1}}, {Limit: 0.25, Base: limits.Limits{Shares: 2}}}, Options{}, []uint64{2, 2}},
		{"tiny shares", []Request{{Limit: 1, Base: limits.Limits{Shares: 5}}, {Limit: 0.1, Base: limits.Limits{Shares: 2}}, {Limit: 0.1, Base: limits.Limits{Shares: 2}}}, Options{}, []uint64{5, 2, 2}},
		{"huge shares stop at the kernel's greatest", []Request{{Limit: 1, Base: limits.Limits{Shares: 1 << 40}}, {Limit: 0.25, Base: limits.Limits{Shares: limits.MaxShares}}}, Options{}, []uint64{limits.MaxShares, limits.MaxShares}},
		{"cgroup v2: weights in proportion, not shares", []Request{{Limit: 0.75, Base: limits.Limits{Shares: 1024}}, {Limit: 0.25, Base: limits.Limits{Shares: 1024}}}, Options{Conversion: limits.Quadratic}, []uint64{limits.Quadratic.Shares(150), limits.Quadratic.Shares(50)}},
		{"cgroup v2, old runtime", []Request{{Limit: 0.75, Base: limits.Limits{Shares: 1024}}, {Limit: 0.25, Base: limits.Limits{Shares: 1024}}}, Options{Conversion: limits.Linear}, []uint64{limits.Linear.Shares(59), limits.Linear.Shares(19)}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			got := Limits(ModeWeight, 4, tc.reqs, tc.opts)
			must.Len(t, len(tc.want), got)
			for i, l := range got {
				must.Eq(t, tc.want[i], l.Shares, must.Sprintf("task %d of %v", i, got))
			}
		})
	}
}

// The policy's ratio is set in the kernel's weights, not in the runtime's shares.
func TestLimits_weightRatioV2(t *testing.T) {
	for _, conv := range []limits.Conversion{limits.Identity, limits.Quadratic, limits.Linear} {
		got := Limits(ModeWeight, 4, []Request{{Limit: 0.8, Base: limits.Limits{Shares: 2000}}, {Limit: 0.2, Base: limits.Limits{Shares: 2000}}}, Options{Floor: 0.1, Conversion: conv})
		ratio := float64(conv.Weight(got[0].Shares)) / float64(conv.Weight(got[1].Shares))
		must.InDelta(t, 4, ratio, 0.2, must.Sprint(conv))
	}
}

func TestLimits_quota(t *testing.T) {
	cases := []struct {
		name string
		pool policy.Cores
		reqs []Request
		opts Options
		want []float64
	}{
		{"limit 1 is no limit", 8, []Request{{Limit: 1}, {Limit: 0.5}}, Options{}, []float64{0, 4}},
		{"unmeasured is free", 8, []Request{{Limit: 0.1, Keeps: true}, {Limit: 0.5}}, Options{}, []float64{0, 4}},
		{"at least one core where the pool allows", 8, []Request{{Limit: 1}, {Limit: 0.01}}, Options{}, []float64{0, 1}},
		{"a small pool: half of the fair share", 2, []Request{{Limit: 1}, {Limit: 0.01}}, Options{}, []float64{0, 0.5}},
		{"on the border", 4, []Request{{Limit: 1}, {Limit: 0.01}}, Options{}, []float64{0, 1}},
		{"configured least", 8, []Request{{Limit: 1}, {Limit: 0.1}}, Options{QuotaMinCores: 2}, []float64{0, 2}},
		{"never below 10 ms a period", 0.1, []Request{{Limit: 1}, {Limit: 0.01}}, Options{}, []float64{0, 0.1}},
		{"cpu_hard_limit is never exceeded", 8, []Request{{Limit: 1, Base: limits.Limits{QuotaCores: 1.5}}, {Limit: 0.5, Base: limits.Limits{QuotaCores: 0.05}}, {Limit: 0.25, Base: limits.Limits{QuotaCores: 6}}}, Options{}, []float64{1.5, 0.05, 2}},
		{"no pool, no limits", 0, []Request{{Limit: 0.5}, {Limit: 0.5, Base: limits.Limits{QuotaCores: 1}}}, Options{}, []float64{0, 1}},
		{"a pool that is no number", policy.Cores(math.NaN()), []Request{{Limit: 0.5}}, Options{}, []float64{0}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			for i, l := range Limits(ModeQuota, tc.pool, tc.reqs, tc.opts) {
				must.InDelta(t, tc.want[i], l.QuotaCores, 1e-9)
				must.Eq(t, limits.DefaultShares, l.Shares)
			}
		})
	}
}

func TestLimits_none(t *testing.T) {
	reqs := []Request{{Limit: 0.1, Base: limits.Limits{Shares: 500, QuotaCores: 2}}, {Limit: 0.9, Base: limits.Limits{Shares: 600, QuotaCores: -3}}}
	for _, mode := range []Mode{ModeNone, "", "what"} {
		must.Eq(t, lim(500, 2, 600, 0), Limits(mode, 4, reqs, Options{}))
	}
}

func requests() *rapid.Generator[[]Request] {
	return rapid.Custom(func(t *rapid.T) []Request {
		n := rapid.OneOf(rapid.IntRange(1, 8), rapid.SampledFrom([]int{1, 100, 1000})).Draw(t, "n")
		base := rapid.OneOf(
			rapid.Uint64Range(2, 20),
			rapid.Uint64Range(100, 10_000),
			rapid.SampledFrom([]uint64{0, 1, 2, limits.MaxShares, math.MaxUint64}),
		)
		limit := rapid.OneOf(rapid.Float64Range(1e-6, 1), rapid.Just(1.0), rapid.Just(1/(2*float64(n))))
		reqs := make([]Request, n)
		for i := range reqs {
			reqs[i] = Request{
				ID:    fmt.Sprint("task-", i),
				Limit: policy.Share(limit.Draw(t, "limit")),
				Keeps: rapid.IntRange(0, 3).Draw(t, "measured") == 0,
				Base:  limits.Limits{Shares: base.Draw(t, "base")},
			}
			if rapid.Bool().Draw(t, "hard") {
				reqs[i].Base.QuotaCores = rapid.Float64Range(0, 16).Draw(t, "hard limit")
			}
		}
		return reqs
	})
}

func TestLimits_weightProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		reqs := requests().Draw(t, "requests")
		opts := Options{
			Conversion: rapid.SampledFrom([]limits.Conversion{limits.Identity, limits.Quadratic, limits.Linear}).Draw(t, "conversion"),
			Floor:      rapid.SampledFrom([]float64{0, 0.1, 0.5, 1}).Draw(t, "floor"),
		}
		got := Limits(ModeWeight, 4, reqs, opts)
		must.Len(t, len(reqs), got)
		w := func(l limits.Limits) float64 { return float64(opts.Conversion.Weight(l.Shares)) }

		var before, after float64
		released := true
		for i, r := range reqs {
			before += w(r.base())
			after += w(got[i])
			released = released && (r.Keeps || r.Limit >= 1)
		}
		must.Eq(t, before, after)
		floor := opts.floor()
		_, hi := opts.Conversion.Bounds()
		for i, r := range reqs {
			must.Eq(t, r.base().QuotaCores, got[i].QuotaCores)
			must.Between(t, limits.MinShares, got[i].Shares, limits.MaxShares)
			if released {
				must.Eq(t, r.base(), got[i])
				continue
			}
			// Rounding changes a weight by one unit, or two if it raises another to the minimum.
			if r.Keeps {
				must.InDelta(t, w(r.base()), w(got[i]), 2)
			} else {
				must.GreaterEq(t, min(float64(r.Limit)*before, floor*w(r.base()))-2, w(got[i]))
			}
			for j := range min(i, 50) {
				if r.bound() && reqs[j].bound() && r.base().Shares == reqs[j].base().Shares && r.Limit >= reqs[j].Limit {
					must.GreaterEq(t, w(got[j])-2, w(got[i]))
				}
			}
			must.LessEq(t, float64(hi), w(got[i]))
		}
		must.Eq(t, got, Limits(ModeWeight, 4, reqs, opts))
	})
}

func TestLimits_quotaProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		reqs := requests().Draw(t, "requests")
		pool := rapid.Float64Range(0.01, 256).Draw(t, "pool")
		got := Limits(ModeQuota, policy.Cores(pool), reqs, Options{})
		entitled, _ := Entitlements(reqs, limits.Identity)
		var total float64
		for _, e := range entitled {
			total += e
		}
		for i, r := range reqs {
			base, quota := r.base().QuotaCores, got[i].QuotaCores
			must.Eq(t, r.base().Shares, got[i].Shares)
			if base > 0 {
				must.Greater(t, 0, quota) // a hard limit is not lifted …
				must.LessEq(t, base, quota)
			}
			if r.Keeps || r.Limit >= 1 {
				must.Eq(t, base, quota)
				continue
			}
			part := pool * entitled[i] / total
			least := max(float64(r.Limit)*pool, min(1, part/2), 0.1)
			if base > 0 {
				least = min(least, base)
			}
			must.InDelta(t, least, quota, 1e-9)
			if part >= 2 && base == 0 {
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
		{"configured", PoolInput{NodeCores: 8, Configured: 2.5}, 2.5},
		{"configured, the whole node", PoolInput{NodeCores: 8, Configured: 8}, 8},
		{"reserved.cpu", PoolInput{NodeCores: 8, ReservedMHz: 1000, CoreMHz: 2000}, 7.5},
		{"reserved.cores", PoolInput{NodeCores: 8, UsableCores: 6}, 6},
		{"both", PoolInput{NodeCores: 8, UsableCores: 6, ReservedMHz: 500, CoreMHz: 2000}, 5.75},
		{"Nomad in a container", PoolInput{NodeCores: 8, ContainerCores: 3}, 3},
		{"a container larger than what is left", PoolInput{NodeCores: 8, UsableCores: 2, ContainerCores: 3}, 2},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Pool(tc.in)
			must.NoError(t, err)
			must.InDelta(t, tc.want, float64(got), 1e-9)
		})
	}

	bad := []struct {
		in   PoolInput
		says string
	}{
		{PoolInput{NodeCores: 8, Configured: -1}, "pool_cores: must be between 0 (automatic) and 8 (the node's CPUs), got -1"},
		{PoolInput{NodeCores: 8, Configured: 8.5}, "got 8.5"},
		{PoolInput{NodeCores: 8, Configured: math.NaN()}, "pool_cores: must be"},
		{PoolInput{NodeCores: 8, Configured: math.Inf(1)}, "pool_cores: must be"},
		{PoolInput{}, "node cores: must be ≥ 1, got 0"},
		{PoolInput{NodeCores: 8, UsableCores: 9}, "usable cores: must be between 0 (all) and 8"},
		{PoolInput{NodeCores: 8, ReservedMHz: -5}, "reserved.cpu: must be"},
		{PoolInput{NodeCores: 8, ReservedMHz: 5}, "core speed: must be > 0 MHz"},
		{PoolInput{NodeCores: 8, ContainerCores: -1}, "container cores: must be"},
	}
	for _, tc := range bad {
		_, err := Pool(tc.in)
		must.ErrorContains(t, err, tc.says)
	}
	_, err := Pool(PoolInput{NodeCores: 8, Configured: -1, UsableCores: 9})
	must.ErrorContains(t, err, "pool_cores")
	must.ErrorContains(t, err, "usable cores")

	_, err = Pool(PoolInput{NodeCores: 2, ReservedMHz: 9000, CoreMHz: 2000})
	must.ErrorIs(t, err, ErrEmptyPool)
}

func TestNomadShares(t *testing.T) {
	must.Eq(t, 500, NomadShares(500, 8000))
	must.Eq(t, 2, NomadShares(1, 8000))
	must.Eq(t, 2, NomadShares(-5, 8000))
	must.Eq(t, limits.MaxShares, NomadShares(1<<30, 8000))
	// As in executor_linux.go of Nomad 1.11: shares / total × 262144.
	must.Eq(t, 131_072, NomadShares(160_000, 320_000))
	must.Eq(t, limits.MaxShares, NomadShares(320_000, 320_000))
	must.Eq(t, 2, NomadShares(2, 1_000_000))
}

func BenchmarkLimits1000(b *testing.B) {
	reqs := make([]Request, 1000)
	for i := range reqs {
		reqs[i] = Request{ID: fmt.Sprint(i), Limit: policy.Share(i+1) / 1000, Keeps: i%10 == 0, Base: limits.Limits{Shares: uint64(100 + i)}}
	}
	for _, conv := range []limits.Conversion{limits.Identity, limits.Quadratic} {
		b.Run(fmt.Sprint(conv), func(b *testing.B) {
			for b.Loop() {
				Limits(ModeWeight, 64, reqs, Options{Conversion: conv})
			}
		})
	}
}

func TestModest(t *testing.T) {
	of := func(demands ...policy.Cores) []Request {
		reqs := []Request{{Base: limits.Limits{Shares: 1000}}, {Base: limits.Limits{Shares: 1000}}, {Base: limits.Limits{Shares: 2000}}}
		for i, d := range demands {
			reqs[i].Demand = d
		}
		return reqs
	}
	reqs := of(0.5, 0.6, 0)
	must.Eq(t, []policy.Cores{0.5, 0, 0}, Modest(2, reqs, limits.Identity))
	must.Eq(t, []bool{true, false, false}, []bool{reqs[0].Keeps, reqs[1].Keeps, reqs[2].Keeps})
	must.Eq(t, []policy.Cores{2, 2, 4}, Modest(8, of(0.5, 2, 3), limits.Identity))
	must.SliceEmpty(t, Modest(2, nil, limits.Identity))
}
