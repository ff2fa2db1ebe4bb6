// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/ebbtide/ebbtide/e2e/bench/result"
	"github.com/ebbtide/ebbtide/sim"
	"github.com/ebbtide/ebbtide/sim/metrics"
	"github.com/ebbtide/ebbtide/sim/scenario"
	"github.com/ebbtide/ebbtide/sim/workload"
)

// machine calibrates the simulator: a job's maximum number of cores, and its threads' losses
// (scenario.Scenario.Overhead).
type machine struct{ cap, overhead float64 }

// replayed is a real run, and none's run of the same jobs.
type replayed struct{ none, run result.Run }

// accuracy simulates the jobs of real runs that have goals, calibrated on the first seed. Its values are
// the differences, in points, between the predicted and the measured change of the mean, of the other
// seeds.
func (e allResults) accuracy() (values []value, on string, err error) {
	x := e.bench[result.Train]
	var first, rest []replayed
	seeds := result.Seeds(x.Runs, func(result.Run) bool { return true })
	for _, r := range x.Runs {
		none := slices.IndexFunc(x.Runs, func(n result.Run) bool {
			return n.Variant == result.None && n.Case == r.Case && n.Seed == r.Seed
		})
		if none >= 0 && slices.ContainsFunc(x.Runs[none].Jobs, func(j metrics.Job) bool { return j.CPUS <= 0 || j.EndS == nil }) {
			continue
		}
		known := r.Variant == result.None || r.Variant == "auto"
		if none < 0 || r.Mode == "quota" || !known || !slices.Contains(goalCases(), r.Case) {
			continue
		}
		if p := (replayed{x.Runs[none], r}); r.Seed == seeds[0] {
			first = append(first, p)
		} else {
			rest = append(rest, p)
		}
	}
	if len(first) == 0 || len(rest) == 0 {
		return nil, "", nil
	}
	var best machine
	least := math.Inf(1)
	for cap := 1.6; cap < 2.01; cap += 0.1 {
		for overhead := 0.0; overhead < 0.51; overhead += 0.05 {
			m := machine{cap * x.Cores / 2, overhead}
			sum := 0.0
			for _, p := range first {
				predicted, measured, err := p.means(x, m)
				if err != nil {
					return nil, "", err
				}
				off := predicted/measured - 1
				sum += off * off
			}
			if sum < least {
				least, best = sum, m
			}
		}
	}
	type means struct{ predicted, measured []float64 }
	of := make(map[string]means) // by case and variant, in the order of seeds
	for _, p := range rest {
		predicted, measured, err := p.means(x, best)
		if err != nil {
			return nil, "", err
		}
		was := of[p.run.Case+p.run.Variant]
		of[p.run.Case+p.run.Variant] = means{append(was.predicted, predicted), append(was.measured, measured)}
	}
	for _, kase := range goalCases() {
		none, auto := of[kase+result.None], of[kase+"auto"]
		if n := len(none.measured); n == 0 || len(auto.measured) != n {
			continue
		}
		change := func(none, auto []float64) float64 {
			sum := 0.0
			for i := range none {
				sum += auto[i] / none[i]
			}
			return sum / float64(len(none))
		}
		predicted, measured := change(none.predicted, auto.predicted), change(none.measured, auto.measured)
		values = append(values, value{kase, 100 * math.Abs(predicted-measured), fmt.Sprintf("predicted %s, measured %s", points(predicted), percent(measured))})
	}
	return values, fmt.Sprintf(", calibrated on seed %d (at most %.1f cores a job, overhead %.2f)", seeds[0], best.cap, best.overhead), nil
}

// means returns the mean completion of the simulated and of the real run, in seconds.
func (p replayed) means(x result.Experiment, m machine) (predicted, measured float64, err error) {
	// Without the CPU of agent and plugin.
	cores := x.Cores - p.run.Other/metrics.Run{Jobs: p.run.Jobs}.Present()
	text := fmt.Sprintf("interval_s = %g\noverhead = %g\nnode \"node\" {\n  cores = %g\n}\nworkload \"generated\" {\n  jobs = %d\n}\n",
		x.Interval, m.overhead, cores, len(p.none.Jobs))
	s, err := scenario.Parse("replayed", []byte(text), scenario.Changes{})
	if err != nil {
		return 0, 0, fmt.Errorf("replaying a run: %w", err)
	}
	v, err := sim.Find(p.run.Variant, s)
	if err != nil {
		return 0, 0, fmt.Errorf("replaying a run: %w", err)
	}
	var jobs []workload.Job
	for _, j := range p.none.Jobs {
		jobs = append(jobs, workload.Job{
			ID: j.ID, Kind: j.Kind, ArriveS: j.ArriveS, CapCores: m.cap, Weight: 1,
			WorkCPUS: j.CPUS, Steps: 1000, Curve: workload.Exponential(100),
		})
	}
	out, err := sim.Run(context.Background(), sim.Config{Scenario: s, Variant: v, Seed: p.run.Seed, Jobs: jobs})
	if err != nil {
		return 0, 0, fmt.Errorf("replaying a run: %w", err)
	}
	return mean(out.Jobs), mean(p.run.Jobs), nil
}

// mean completion of jobs that have all ended
func mean(jobs []metrics.Job) float64 {
	sum := 0.0
	for _, j := range jobs {
		sum += *j.EndS - j.ArriveS
	}
	return sum / float64(len(jobs))
}
