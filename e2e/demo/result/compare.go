// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package result

import (
	"math"
	"slices"
)

// Times of a job, in seconds since its own submission; NaN = never.
type Times struct {
	Completion float64
	To90, To95 float64 // until 90 % and 95 % of the quality was there
}

// Range is what quality is measured against: 0 % is the first value that a job
// reported, 100 % the best one that it reached in any of the runs compared. All
// of the demo's metrics are losses: less is better.
type Range struct{ First, Best float64 }

// At is the value at which a part of the quality is there.
func (r Range) At(quality float64) float64 { return r.First - quality*(r.First-r.Best) }

// Left is the part of the loss that is still to go at a value: 1 at the first
// one, 0 at the best.
func (r Range) Left(value float64) float64 {
	if r.First == r.Best {
		return 0
	}
	return (value - r.Best) / (r.First - r.Best)
}

// RangeOf is the range over the curves of the same job in several runs.
func RangeOf(jobs ...Job) Range {
	r := Range{First: math.NaN(), Best: math.NaN()}
	for _, j := range jobs {
		if len(j.Curve) > 0 && math.IsNaN(r.First) {
			r.First = j.Curve[0].Value
		}
		for _, p := range j.Curve {
			if !(p.Value >= r.Best) {
				r.Best = p.Value
			}
		}
	}
	return r
}

// Measure returns a job's times.
func Measure(j Job, r Range) Times {
	t := Times{Completion: j.Finished - j.Submitted, To90: math.NaN(), To95: math.NaN()}
	reached := func(quality float64) float64 {
		for _, p := range j.Curve {
			if p.Value <= r.At(quality) {
				return p.T - j.Submitted
			}
		}
		return math.NaN()
	}
	t.To90, t.To95 = reached(0.90), reached(0.95)
	return t
}

// Row compares one job, or all of them, under two policies.
type Row struct {
	Name, Role    string
	None, Flowcon Times
}

// Comparison is what the summary shows of one pair of runs.
type Comparison struct {
	Rows                          []Row // in order of submission
	Mean                          Row   // of the rows' times; NaN where one of them is
	MakespanNone, MakespanFlowcon float64
	BusyNone, BusyFlowcon         float64

	// Noise is by what part the first job's steps differed between the runs until
	// the second one came: a lone job is not limited, so this is the machine's
	// doing and not the policy's. NaN = unknown.
	Noise float64
}

// Compare compares the two runs of a pair. Jobs are matched by name.
func Compare(p Pair, cores float64) Comparison {
	c := Comparison{
		MakespanNone: p.None.Makespan(), MakespanFlowcon: p.Flowcon.Makespan(),
		BusyNone: p.None.Busy(cores), BusyFlowcon: p.Flowcon.Busy(cores),
	}
	c.Noise = noise(p)
	for _, f := range p.Flowcon.Jobs {
		n, ok := p.None.job(f.Name)
		if !ok {
			continue
		}
		r := RangeOf(f, n)
		c.Rows = append(c.Rows, Row{Name: f.Name, Role: f.Role, None: Measure(n, r), Flowcon: Measure(f, r)})
	}
	c.Mean = Row{Name: "mean", None: meanTimes(c.Rows, func(r Row) Times { return r.None }),
		Flowcon: meanTimes(c.Rows, func(r Row) Times { return r.Flowcon })}
	return c
}

func noise(p Pair) float64 {
	var done [2]float64
	for i, r := range []Run{p.Flowcon, p.None} {
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

func meanTimes(rows []Row, of func(Row) Times) Times {
	var sum Times
	for _, r := range rows {
		t := of(r)
		sum.Completion += t.Completion
		sum.To90 += t.To90
		sum.To95 += t.To95
	}
	n := float64(len(rows))
	return Times{Completion: sum.Completion / n, To90: sum.To90 / n, To95: sum.To95 / n}
}

// Change is by what part a time differs from the one under "none": −0.1 is 10 %
// sooner. NaN where one of them is unknown.
func Change(none, flowcon float64) float64 {
	if none <= 0 {
		return math.NaN()
	}
	return (flowcon - none) / none
}

// Spread is the distribution of a figure over several pairs.
type Spread struct {
	N                int
	Min, Median, Max float64
}

// SpreadOf leaves out what is unknown.
func SpreadOf(values []float64) Spread {
	var v []float64
	for _, x := range values {
		if finite(x) {
			v = append(v, x)
		}
	}
	if len(v) == 0 {
		return Spread{Min: math.NaN(), Median: math.NaN(), Max: math.NaN()}
	}
	slices.Sort(v)
	mid := v[len(v)/2]
	if len(v)%2 == 0 {
		mid = (v[len(v)/2-1] + v[len(v)/2]) / 2
	}
	return Spread{N: len(v), Min: v[0], Median: mid, Max: v[len(v)-1]}
}
