// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package dqoes

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/waterfill"
)

// plant is a node with closed-loop services, in which a batch takes work/CPU. Ten
// services with equal parts answer in 31.6 s, as in the thesis.
type plant struct {
	objectives []float64
	limits     []float64
	share      func(limits []float64) []float64
}

const work = 3.16 // seconds of the whole pool per batch

func quota(limits []float64) []float64 {
	claims := make([]waterfill.Claim, len(limits))
	for i, l := range limits {
		claims[i] = waterfill.Claim{Weight: 1, Max: l}
	}
	return waterfill.Divide(1, claims)
}

func weights(limits []float64) []float64 {
	var sum float64
	for _, l := range limits {
		sum += l
	}
	cpu := make([]float64, len(limits))
	for i, l := range limits {
		cpu[i] = l / sum
	}
	return cpu
}

// run simulates runs. It returns the classes of the last run, one letter each, and the
// first run from which they stay.
func (p *plant) run(t *testing.T, params Params, runs int) (classes string, stable int) {
	t.Helper()
	in := input{Snapshot: policy.Snapshot{IntervalS: 20, InitialIntervalS: 20, MaxIntervalS: 320}, Params: params}
	for run := range runs {
		cpu := p.share(p.limits)
		in.Tasks = nil
		for i, o := range p.objectives {
			in.Tasks = append(in.Tasks, task(fmt.Sprintf("service-%d", i), o, work/cpu[i], policy.Share(cpu[i]), policy.Share(p.limits[i])))
		}
		must.NoError(t, in.check())
		out := in.decide()
		in.Snapshot.State, in.IntervalS = out.Outcome.State, out.IntervalS
		must.Between(t, in.InitialIntervalS, in.IntervalS, in.MaxIntervalS)
		var now strings.Builder
		for i, d := range out.Tasks {
			now.WriteString(string(d.Class))
			p.limits[i] = float64(d.Bound())
			must.GreaterEq(t, 1/(2*float64(len(p.limits))), p.limits[i])
		}
		if now.String() != classes {
			classes, stable = now.String(), run
		}
	}
	return classes, stable
}

func all(n int, x float64) []float64 { return slices.Repeat([]float64{x}, n) }

func varied() []float64 { return []float64{75, 53, 61, 44, 31, 95, 82, 5, 13, 25} }

func published() Params { return DefaultParams() }

func ours() Params {
	p := DefaultParams()
	p.Step = StepProportional
	return p
}

// The published case with varied objectives and new services, without limits. The
// thesis ends with 7 to 8 of 10 satisfied and the largest part for the unreachable 5 s.
// Without limits 1 of 10 is, the one with 31 s.
//
// The linear plant bounds the result: at the floor of 1/20 a service answers in 63.2 s,
// faster than the objectives of 75, 82 and 95 s. With hard limits those three stay in
// G, and without 5 s at most 6 of 10 can be satisfied.
func TestPlant_varied(t *testing.T) {
	for _, tc := range []struct {
		name      string
		share     func([]float64) []float64
		params    Params
		start     float64
		classes   string
		fastest   int // run from which the classes stay, with some room
		slowest   int
		satisfied int
		met       int // satisfied or better
	}{
		{"weights, published", weights, published(), 1, "SSSSSSSBBS", 100, 200, 8, 8},
		{"weights, proportional", weights, ours(), 1, "GSSSSGGBSS", 1, 8, 6, 9},
		{"quota, published", quota, published(), 1, "GSSSSGGBBS", 600, 1200, 5, 8},
		{"quota, published, from equal parts", quota, published(), 0.1, "GSSSSGGBBS", 50, 150, 5, 8},
		{"quota, proportional", quota, ours(), 1, "GSSSSGGBSS", 1, 8, 6, 9},
		{"quota, proportional, from equal parts", quota, ours(), 0.1, "GSSSSGGBSS", 1, 5, 6, 9},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := plant{varied(), all(10, tc.start), tc.share}
			classes, stable := p.run(t, tc.params, tc.slowest+100)
			must.Eq(t, tc.classes, classes)
			must.Between(t, tc.fastest, stable, tc.slowest)
			must.Eq(t, tc.satisfied, strings.Count(classes, "S"))
			must.Eq(t, tc.met, 10-strings.Count(classes, "B"))

			cpu := p.share(p.limits)
			for i := range cpu {
				must.LessEq(t, cpu[7]*(1+1e-9), cpu[i], must.Sprint("no task gets more than the one with 5 s"))
			}
		})
	}

	t.Run("without limits", func(t *testing.T) {
		p := plant{varied(), all(10, 1), quota}
		classes, _ := p.run(t, published(), 1)
		must.Eq(t, 1, strings.Count(classes, "S"))
	})
}

// Ten times 40 s is reachable: with hard limits 10 of 10 are satisfied; weights leave
// nothing idle, so all are better.
func TestPlant_identicalReachable(t *testing.T) {
	for _, tc := range []struct {
		name   string
		params Params
		start  float64
		stable int
	}{
		{"published", published(), 1, 300},
		{"published, from equal parts", published(), 0.1, 20},
		{"proportional", ours(), 1, 5},
		{"proportional, from equal parts", ours(), 0.1, 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := plant{all(10, 40), all(10, tc.start), quota}
			classes, stable := p.run(t, tc.params, 400)
			must.Eq(t, "SSSSSSSSSS", classes)
			must.LessEq(t, tc.stable, stable)

			p = plant{all(10, 40), all(10, tc.start), weights}
			classes, _ = p.run(t, tc.params, 100)
			must.Eq(t, "GGGGGGGGGG", classes)
		})
	}
}

// Ten times 20 s is unreachable: all are worse, with equal parts.
func TestPlant_identicalUnreachable(t *testing.T) {
	for _, share := range []func([]float64) []float64{quota, weights} {
		for _, params := range []Params{published(), ours()} {
			p := plant{all(10, 20), all(10, 1), share}
			classes, stable := p.run(t, params, 100)
			must.Eq(t, "BBBBBBBBBB", classes)
			must.Eq(t, 0, stable)
			must.InDelta(t, 1, spread(p.share(p.limits)), 1e-9)
		}
	}

	// The published step does not equalise old limits on a full pool; the proportional
	// one does.
	start := []float64{1, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1, 0.075, 0.05}
	for _, share := range []func([]float64) []float64{quota, weights} {
		p := plant{all(10, 20), slices.Clone(start), share}
		_, _ = p.run(t, ours(), 20)
		must.Less(t, 1.05, spread(p.share(p.limits)))
	}
}

func spread(xs []float64) float64 { return slices.Max(xs) / slices.Min(xs) }

// Noise must be damped: an interval at 20 % off the weight moves a limit by a third of
// that on average. (The full way: by half.)
func TestPlant_noise(t *testing.T) {
	const sigma = 0.2
	rnd := rand.New(rand.NewPCG(1, 2))
	noisy := func(limits []float64) []float64 {
		cpu := weights(limits)
		var sum float64
		for i := range cpu {
			cpu[i] *= math.Exp(sigma * rnd.NormFloat64())
			sum += cpu[i]
		}
		for i := range cpu {
			cpu[i] /= sum
		}
		return cpu
	}
	objectives := all(10, 31.6/0.9) // with a little room
	p := plant{objectives, all(10, 0.1), noisy}
	_, _ = p.run(t, ours(), 20)
	var squares float64
	const runs = 400
	for range runs {
		_, _ = p.run(t, ours(), 1)
		sum := 0.0
		for _, l := range p.limits {
			sum += l
		}
		for _, l := range p.limits {
			d := math.Log(10 * l / sum)
			squares += d * d
		}
	}
	must.Less(t, 0.45*sigma, math.Sqrt(squares/(10*runs)))
}

func TestPlant_greedy(t *testing.T) {
	for _, params := range []Params{published(), ours()} {
		p := plant{[]float64{0.001, 40, 40, 40}, all(4, 1), quota}
		classes, _ := p.run(t, params, 400)
		must.StrHasPrefix(t, "B", classes)
		must.Eq(t, 0, strings.Count(classes[1:], "B"))
		for _, cpu := range p.share(p.limits)[1:] {
			must.GreaterEq(t, work/(1.1*40), cpu)
		}
	}
}

// A lone open-loop service computes a tenth of the time: with a hard limit of l its
// batches take work/l. Limits derived from its use would starve it.
func TestPlant_openLoop(t *testing.T) {
	const batch = 0.5 // seconds of the whole pool
	for _, objective := range []float64{0.6, 1, 2, 5} {
		limit := 1.0
		var class policy.Class
		for range 20 {
			response := batch / limit
			in := of(task("a", objective, response, 0.05, policy.Share(limit))).with(proportional).beside(10, 0)
			d := in.decide().Tasks[0]
			limit, class = float64(d.Bound()), d.Class
		}
		must.Eq(t, policy.Satisfied, class, must.Sprintf("%v s", objective))
	}
}
