// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"

	"github.com/ebbtide/ebbtide/driver/growth"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/remaining"
)

// parts of a job's CPU time at which estimates of remaining work are checked.

var parts = []float64{0.10, 0.25, 0.50, 0.75}

// errorRow holds relative errors of estimates; NaN where there was none.
type errorRow struct {
	name string
	at   [4][]float64
}

func (w *errorRow) note(part int, estimate *policy.CPUSeconds, left float64) {
	e := math.NaN()
	if estimate != nil {
		e = math.Abs(float64(*estimate)-left) / left
	}
	w.at[part] = append(w.at[part], e)
}

func writeErrors(out io.Writer, first string, rows []*errorRow) {
	fmt.Fprintf(out, "| %s | at 10 %% | at 25 %% | at 50 %% | at 75 %% |\n| --- | --- | --- | --- | --- |\n", first)
	for _, r := range rows {
		fmt.Fprintf(out, "| %s (%d) |", r.name, len(r.at[0]))
		for _, v := range r.at {
			unknown := 0
			for _, x := range v {
				if math.IsNaN(x) {
					unknown++
				}
			}
			switch {
			case unknown == len(v):
				fmt.Fprint(out, " unknown |")
			case unknown > 0:
				fmt.Fprintf(out, " %s (%s), %s unknown |", percent(quantile(v, 0.5)), percent(quantile(v, 0.9)), percent(float64(unknown)/float64(len(v))))
			default:
				fmt.Fprintf(out, " %s (%s) |", percent(quantile(v, 0.5)), percent(quantile(v, 0.9)))
			}
		}
		fmt.Fprintln(out)
	}
}

// trainer is a kind of job. The cost of its steps varies by 10 % from one to the next
// and by about 10 % slowly, as on a shared machine.
type trainer struct {
	name         string
	validate     float64 // CPU time at the end of an epoch, as a part of the epoch's
	epochsKnown  bool
	epochReports bool    // one report at the end of each epoch
	slowStart    bool    // the first 2 % of the steps cost three times as much
	growingSteps bool    // the last step costs twice as much as the first
	resumed      float64 // part of the steps done before it started
	crashes      bool    // crashes near the middle and resumes 5 % of the steps earlier
	noTotal      bool    // no total
	noReports    bool    // no reports
	earlierRun   bool
	rareReports  bool // one report per four fifths of an epoch
}

var trainers = []trainer{
	{name: "steps"},
	{name: "epochs with validation", validate: 0.25, epochsKnown: true},
	{name: "validation, unknown epochs", validate: 0.25},
	{name: "epochs alone", validate: 0.25, epochsKnown: true, epochReports: true},
	{name: "a slow start", validate: 0.25, epochsKnown: true, slowStart: true},
	{name: "steps get longer", validate: 0.25, epochsKnown: true, growingSteps: true},
	{name: "resumed at 40 %", validate: 0.25, epochsKnown: true, resumed: 0.4},
	{name: "restarted near the middle", validate: 0.25, epochsKnown: true, crashes: true},
	{name: "no total, a run before", validate: 0.25, epochsKnown: true, noTotal: true, earlierRun: true},
	{name: "no reports, a run before", validate: 0.25, noReports: true, earlierRun: true},
	{name: "no total", validate: 0.25, epochsKnown: true, noTotal: true},
	{name: "rare reports", validate: 0.25, epochsKnown: true, rareReports: true},
}

type job struct {
	points []remaining.Point
	spent  []float64 // by all processes, when a point was read
	lost   float64   // spent by processes before the last one
	died   float64   // spent when the last one began
	total  float64   // spent at the end
	steps  float64
}

type size struct{ steps, epochs, cost, every float64 }

func newSize(rng *rand.Rand) size {
	s := size{epochs: float64(10 + rng.IntN(40)), cost: math.Exp(rng.Float64() * 3)}
	per := float64(20 + rng.IntN(200))
	s.steps, s.every = per*s.epochs, math.Ceil(per/20)
	return s
}

func (k trainer) run(s size, rng *rand.Rand) job {
	per := s.steps / s.epochs
	every := s.every
	if k.rareReports {
		every = math.Ceil(0.8 * per)
	}
	poll := s.cost * s.steps / 600
	j := job{steps: s.steps}
	spent, slow := 0.03*s.cost*s.steps, 0.0
	machine := math.Exp(0.05 * rng.NormFloat64())
	dies := math.Inf(1)
	if k.crashes {
		dies = math.Floor(s.steps * (0.4 + 0.2*rng.Float64()))
	}
	for i := math.Floor(k.resumed*s.steps) + 1; i <= s.steps; i++ {
		slow = 0.998*slow + 0.1*math.Sqrt(1-0.998*0.998)*rng.NormFloat64()
		cost := s.cost * machine * math.Exp(slow+0.1*rng.NormFloat64())
		if k.slowStart && i < 0.02*s.steps {
			cost *= 3
		}
		if k.growingSteps {
			cost *= 1 + i/s.steps
		}
		spent += cost
		end := math.Mod(i, per) == 0
		if end && k.epochReports || !k.epochReports && math.Mod(i, every) == 0 {
			p := remaining.Point{Step: i, Total: s.steps}
			if k.epochsKnown {
				p.PerEpoch = per
			}
			if k.epochReports {
				p.Step, p.Total, p.PerEpoch = i/per, s.epochs, 1
			}
			if k.noTotal {
				p.Total = 0
			}
			read := math.Ceil(spent/poll) * poll
			p.CPU = read - j.lost
			j.points, j.spent = append(j.points, p), append(j.spent, read)
		}
		if end {
			spent += k.validate * per * s.cost * machine * math.Exp(slow)
		}
		if i == dies {
			i -= math.Floor(0.05 * s.steps)
			dies = math.Inf(1)
			j.lost, j.died = spent, spent
			spent += 0.03 * s.cost * s.steps
		}
	}
	j.total = spent
	if k.noReports {
		j.points = nil
	}
	return j
}

func sizes(seeds uint64) []*errorRow {
	var rows []*errorRow
	for n, k := range trainers {
		w := &errorRow{name: k.name}
		rows = append(rows, w)
		for seed := range 20 * seeds {
			rng := rand.New(rand.NewPCG(seed, uint64(n)))
			s := newSize(rng)
			var d remaining.Declared
			if k.earlierRun {
				before := k.run(s, rng)
				d.Earlier.CPUS = before.total
				if !k.noReports {
					d.Earlier.Steps = before.steps
				}
			}
			j := k.run(s, rng)
			e := remaining.New(d, remaining.State{})
			i := 0
			for part, x := range parts {
				now := x * j.total
				for ; i < len(j.points) && j.spent[i] <= now; i++ {
					e.Add(j.points[i])
				}
				cpu := now
				if now > j.died {
					cpu -= j.lost
				}
				w.note(part, e.Estimate(cpu, remaining.Curve{}).CPUS, j.total-now)
			}
		}
	}
	return rows
}

// ways measures, at parts of the way, estimates of the way to an objective of 90 % of a
// curve's improvement.
func ways(curves []curve, seeds uint64) []*errorRow {
	byApp := map[string]*errorRow{}
	all := &errorRow{name: "all"}
	out := []*errorRow{all}
	for _, c := range curves {
		row, ok := byApp[app(c.name)]
		if !ok {
			row = &errorRow{name: app(c.name)}
			byApp[app(c.name)] = row
			out = append(out, row)
		}
		for _, noise := range noises {
			for seed := uint64(1); seed <= seeds; seed++ {
				along(row, c, noise, seed)
				along(all, c, noise, seed)
			}
		}
	}
	return out
}

func along(w *errorRow, c curve, noise float64, seed uint64) {
	n := len(c.c)
	size := c.clean[0] - c.clean[n-1]
	level := c.clean[0] - 0.9*size
	there := 0
	for c.clean[there] > level {
		there++
	}
	way := c.c[there]
	objective := orient(c.goal, []float64{level})[0]
	k := remaining.Curve{Objective: &objective}
	rng := rand.New(rand.NewPCG(seed, uint64(n)))
	fit := estimator(growth.KindRobust, c.goal)
	e := remaining.New(remaining.Declared{}, remaining.State{})
	i := 0
	for part, x := range parts {
		for ; i < n && c.c[i] <= x*way; i++ {
			v := c.v[i] + noise*size*rng.NormFloat64()
			p := growth.Point{T: c.c[i], CPU: c.c[i], Value: v, Step: float64(i + 1)}
			if c.lr != nil {
				p.LR = c.lr[i]
			}
			fit.Add(p)
			m := fit.Measure()
			k.Fit, k.Plateau = m.Fit, m.Plateau
			e.Add(remaining.Point{CPU: c.c[i], Step: float64(i + 1)})
		}
		w.note(part, e.Estimate(x*way, k).CPUS, (1-x)*way)
	}
}

// reportRemaining prints the tables for remaining work; with a trainer, only that
// trainer's.
func reportRemaining(out, progressTo io.Writer, curves []curve, seeds uint64, trainer string) error {
	if trainer != "" {
		rows, err := realTrainers(trainer, seeds, progressTo)
		if err == nil {
			writeErrors(out, "until its end", rows)
		}
		return err
	}
	writeErrors(out, "until its end", sizes(seeds))
	fmt.Fprintln(out)
	writeErrors(out, "to an objective, 90 % of the improvement", ways(curves, seeds))
	return nil
}
