// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package result

import (
	"math"

	"github.com/ebbtide/ebbtide/sim/metrics"
)

func (r Run) Metrics(seed uint64, cores float64) metrics.Run {
	out := metrics.Run{Scenario: "demo", Policy: r.Policy, Seed: seed, PoolCores: cores}
	used := 0.0
	for _, j := range r.Jobs {
		out.Jobs = append(out.Jobs, metrics.Job{
			ID: j.Name, Kind: j.Model, ArriveS: j.Submitted, StartS: &j.Started, EndS: &j.Finished,
			Quality50S: j.Curve.Quality(0.50), Quality90S: j.Curve.Quality(0.90), Quality95S: j.Curve.Quality(0.95),
			CPUS: j.CPUSeconds(),
		})
		used += j.CPUSeconds()
	}
	out.IdleCPUS = max(0, out.Present()*cores-used)
	return out
}

func (e Experiment) Runs() []metrics.Run {
	var all []metrics.Run
	for _, p := range e.Pairs {
		all = append(all, p.None.Metrics(p.Seed, e.Cores), p.With.Metrics(p.Seed, e.Cores))
	}
	return all
}

// Comparison is the summary of a pair.
type Comparison struct {
	None, With metrics.Run
	Summary    metrics.Summary // of With, against None
	// Noise is the relative difference of the first job's steps until the second job arrives: a
	// lone job is not limited, so the machine causes it. NaN if unknown.
	Noise float64
}

// Compare compares a pair's runs. The error reports impossible figures.
func Compare(p Pair, cores float64) (Comparison, error) {
	c := Comparison{None: p.None.Metrics(p.Seed, cores), With: p.With.Metrics(p.Seed, cores), Noise: noise(p)}
	all, err := metrics.Summarize([]metrics.Run{c.None, c.With}, p.None.Policy, p.Seed)
	if err != nil {
		return c, err
	}
	c.Summary = all[len(all)-1]
	return c, nil
}

func noise(p Pair) float64 {
	var done [2]float64
	for i, r := range []Run{p.With, p.None} {
		if len(r.Jobs) < 2 {
			return math.NaN()
		}
		for _, q := range r.Jobs[0].Curve {
			if q.T < r.Jobs[1].Submitted {
				done[i] = q.Step
			}
		}
	}
	return math.Abs(done[0]-done[1]) / math.Max(done[0], done[1])
}
