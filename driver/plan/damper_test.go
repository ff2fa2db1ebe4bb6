// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/policy"
)

func lim(pairs ...float64) []limits.Limits {
	out := make([]limits.Limits, len(pairs)/2)
	for i := range out {
		out[i] = limits.Limits{Shares: uint64(pairs[2*i]), QuotaCores: pairs[2*i+1]}
	}
	return out
}

func at(s float64) time.Time { return time.Unix(1e9, 0).Add(time.Duration(s * float64(time.Second))) }

func TestDamper(t *testing.T) {
	a, b, c := Request{ID: "a", Base: limits.Limits{Shares: 1000}}, Request{ID: "b", Base: limits.Limits{Shares: 1000}}, Request{ID: "c", Base: limits.Limits{Shares: 1000}}
	two := []Request{a, b}
	type step struct {
		at   float64
		reqs []Request
		plan []limits.Limits
		want []limits.Limits
	}
	cases := []struct {
		name  string
		steps []step
	}{
		{"shares: hysteresis, interval, release", []step{
			{0, two, lim(1500, 0, 500, 0), lim(1500, 0, 500, 0)},              // first limits: immediate
			{20, two, lim(1540, 0, 460, 0), lim(1500, 0, 500, 0)},             // 8 %: below the threshold
			{40, two, lim(1550, 0, 450, 0), lim(1550, 0, 450, 0)},             // 10 % of one: both move
			{45, two, lim(1000, 0, 999, 0), lim(1550, 0, 450, 0)},             // too early
			{50, two, lim(1000, 0, 1000, 0), lim(1000, 0, 1000, 0)},           // release: immediate
			{58.5, two, lim(1500, 0, 500, 0), lim(1000, 0, 1000, 0)},          // too early
			{68.1, two, lim(1500, 0, 500, 0), lim(1500, 0, 500, 0)},           // slightly early tick
			{69, []Request{a}, lim(1000, 0), lim(1000, 0)},                    // a task left: immediate
			{70, []Request{c, a}, lim(1001, 0, 999, 0), lim(1001, 0, 999, 0)}, // another joined: immediate, however small
			{71, []Request{a, c}, lim(500, 0, 1500, 0), lim(999, 0, 1001, 0)}, // order does not matter
		}},
		{"quotas: each task for itself", []step{
			{0, two, lim(1000, 0, 1000, 0), lim(1000, 0, 1000, 0)},
			{5, two, lim(1000, 0, 1000, 2), lim(1000, 0, 1000, 0)},  // first limits
			{20, two, lim(1000, 0, 1000, 2), lim(1000, 0, 1000, 2)}, // from no quota: significant
			{25, two, lim(1000, 3, 1000, 1), lim(1000, 3, 1000, 2)}, // a is due, b is not
			{30, two, lim(1000, 3, 1000, 0), lim(1000, 3, 1000, 0)}, // release: immediate
			{60, two, lim(1000, 3.2, 1000, 0), lim(1000, 3, 1000, 0)},
		}},
		{"the clock goes back", []step{
			{100, two, lim(1000, 0, 1000, 0), lim(1000, 0, 1000, 0)},
			{50, two, lim(1500, 0, 500, 0), lim(1500, 0, 500, 0)},
		}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			d := NewDamper(20 * time.Second)
			for _, s := range tc.steps {
				must.Eq(t, s.want, d.Next(at(s.at), s.reqs, s.plan), must.Sprintf("at %v s", s.at))
			}
		})
	}
}

func TestDamper_releaseToHardLimit(t *testing.T) {
	r := []Request{{ID: "a", Base: limits.Limits{QuotaCores: 3}}}
	d := NewDamper(20 * time.Second)
	must.Eq(t, 1, d.Next(at(0), r, lim(1024, 1))[0].QuotaCores)
	must.Eq(t, 1, d.Next(at(1), r, lim(1024, 2))[0].QuotaCores)
	must.Eq(t, 3, d.Next(at(2), r, lim(1024, 3))[0].QuotaCores)
}

func TestDamper_immediate(t *testing.T) {
	reqs := []Request{{ID: "a", Base: limits.Limits{Shares: 1000}}, {ID: "b", Base: limits.Limits{Shares: 1000}}}
	d := NewDamper(20 * time.Second)
	d.Immediate = true
	d.Next(at(0), reqs, lim(1500, 1, 500, 0))
	must.Eq(t, lim(1501, 1.01, 499, 0), d.Next(at(1), reqs, lim(1501, 1.01, 499, 0)))
	d.Immediate = false
	must.Eq(t, lim(1501, 1.01, 499, 0), d.Next(at(2), reqs, lim(1000, 2, 1001, 0)))
}

func TestDamper_forgets(t *testing.T) {
	var d Damper
	for i := range 1000 {
		d.Next(at(float64(i)), []Request{{ID: fmt.Sprint(i)}}, lim(1024, 0))
	}
	must.MapLen(t, 1, d.entries)
}

func TestDamper_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		interval := 20.0
		d := NewDamper(time.Duration(interval * float64(time.Second)))
		now := 0.0
		have := map[string]limits.Limits{}
		shared, quota := math.Inf(-1), map[string]float64{}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now += rapid.Float64Range(0, 30).Draw(t, "pause")
			var reqs []Request
			for i := range 3 {
				if rapid.IntRange(0, 9).Draw(t, "there") > 0 {
					reqs = append(reqs, Request{ID: fmt.Sprint(i), Base: limits.Limits{Shares: 1000}, Limit: policy.Share(rapid.Float64Range(0.05, 1).Draw(t, "limit"))})
				}
			}
			mode := rapid.SampledFrom([]Mode{ModeWeight, ModeQuota, ModeNone}).Draw(t, "mode")
			plan := Limits(mode, 4, reqs, Options{})
			joined := len(reqs) != len(have)
			for _, r := range reqs {
				if _, ok := have[r.ID]; !ok {
					joined = true
				}
			}
			released := true
			for i, r := range reqs {
				released = released && plan[i].Shares == r.base().Shares
			}
			got := d.Next(at(now), reqs, plan)

			sum, moved := uint64(0), false
			next := map[string]limits.Limits{}
			for i, r := range reqs {
				sum += got[i].Shares
				next[r.ID] = got[i]
				old, known := have[r.ID]
				must.True(t, got[i].Shares == plan[i].Shares || got[i].Shares == old.Shares)
				must.True(t, got[i].QuotaCores == plan[i].QuotaCores || got[i].QuotaCores == old.QuotaCores)
				if joined {
					must.Eq(t, plan[i], got[i])
				}
				moved = moved || got[i].Shares != old.Shares
				if !known {
					quota[r.ID] = now
				}
				if got[i].QuotaCores != old.QuotaCores {
					if !joined && got[i].QuotaCores != 0 {
						must.GreaterEq(t, minIntervalFraction*interval-1e-6, now-quota[r.ID])
					}
					quota[r.ID] = now
				}
			}
			must.Eq(t, uint64(1000*len(reqs)), sum)
			if moved {
				if !joined && !released {
					must.GreaterEq(t, minIntervalFraction*interval-1e-6, now-shared)
				}
				shared = now
			}
			have = next
		}
	})
}
