// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package workload generates a simulation's jobs, from distributions or from real training
// curves, arrival lists and traces (see docs/sim.md), reproducibly by seed.
package workload

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

type Job struct {
	ID   string
	Kind string // application or model

	ArriveS float64 // since the run's start
	// WorkCPUS is its work in undisturbed CPU-seconds.
	WorkCPUS float64
	CapCores float64 // the most it can use; 0 for the whole node
	AskCores float64 // must be free on its node
	Overhead float64 // on r > 1 cores it is r/(1 + Overhead·(r − 1)) times as fast as on one
	Weight   float64 // relative entitlement

	// Of a training job: it counts Steps, and reports along Curve with noise of σ = Noise,
	// relative to the curve's span.
	Steps      int
	Total      float64 // steps that it reports as its total; 0 for Steps
	Curve      *Curve
	Noise      float64
	Acceptable *float64
	Objective  *float64

	// Service is set for a service, which has no Curve and no WorkCPUS.
	Service *Service
}

type Service struct {
	ObjectiveS float64 // response-time target, in seconds per batch
	BatchCPUS  float64 // of a batch
	ForS       float64 // duration in seconds
}

const (
	Generated = "generated" // lognormal sizes, three shapes of curves
	AdaptDL   = "adaptdl"   // arrival lists with real curves
	Alibaba   = "alibaba"   // pods of a production cluster, with real curves
	Papers    = "papers"    // the papers' models
)

func Sources() []string { return []string{Generated, AdaptDL, Alibaba, Papers} }

// Spec configures the jobs.
type Spec struct {
	Source string
	Jobs   int

	MedianCPUS float64 // of their work
	Sigma      float64 // of the work's logarithm (generated)
	// OverS is the duration of the arrivals, in seconds. 0 for Spread times what the pool needs
	// for all work.
	OverS   float64
	Spread  float64
	At      []float64 // or explicit arrival times
	Caps    []float64 // values of CapCores to draw from; none for the source's
	Weights []float64 // entitlements to draw from; none for 1
	Asks    bool      // jobs ask for their cores, so they may queue; generated sizes are then per core

	Steps   int
	Reports int     // of generated curves
	Noise   float64 // σ, relative to the curve's span
	Targets bool    // add an acceptable value and an objective
	List    int     // AdaptDL's list, 1 to 4; 0 by seed
	// Totals are the reported totals relative to Steps, in order of arrival, repeated; none for 1.
	Totals []float64

	PoolCores float64 // of all nodes
}

// most bounds a traced job's work relative to the median: traces have jobs of 100 days next to
// those of a minute, which a node would see nothing else of.
const most = 20

// Make returns the jobs in order of arrival. Only the data that the source needs is read.
func Make(s Spec, data Data, seed uint64) ([]Job, error) {
	r := rand.New(rand.NewPCG(seed, 4))
	jobs, err := s.draw(r, data, seed)
	if err != nil {
		return nil, fmt.Errorf("workload %s: %w", s.Source, err)
	}
	s.scale(jobs)
	if s.Asks {
		s.ask(jobs, r)
	}
	s.arrive(jobs, r)
	for i := range jobs {
		j := &jobs[i]
		j.ID = fmt.Sprintf("%s-%0*d", j.Kind, len(fmt.Sprint(len(jobs)-1)), i)
		if len(s.Caps) > 0 && !s.Asks {
			j.CapCores = s.Caps[r.IntN(len(s.Caps))]
		}
		if j.Weight = 1; len(s.Weights) > 0 {
			j.Weight = s.Weights[r.IntN(len(s.Weights))]
		}
		j.Steps, j.Noise = max(s.Steps, len(j.Curve.X)-1), s.Noise
		if len(s.Totals) > 0 {
			j.Total = max(math.Round(float64(j.Steps)*s.Totals[i%len(s.Totals)]), 1)
		}
		if s.Targets && j.Objective == nil {
			c := j.Curve
			acceptable, objective := c.At(c.Reach(0.9)), c.At(c.Reach(0.98))
			j.Acceptable, j.Objective = &acceptable, &objective
		}
		if !s.Targets {
			j.Acceptable, j.Objective = nil, nil
		}
	}
	return jobs, nil
}

func (s Spec) draw(r *rand.Rand, data Data, seed uint64) ([]Job, error) {
	switch s.Source {
	case AdaptDL:
		list := s.List
		if list == 0 {
			list = int(seed%adaptdlLists) + 1
		}
		return s.adaptdl(r, data, list)
	case Alibaba:
		return s.alibaba(r, data)
	case Papers:
		return s.papers(r), nil
	}
	jobs := make([]Job, s.Jobs)
	for i := range jobs {
		jobs[i] = Job{Kind: "job", WorkCPUS: exp(float64(s.Sigma * Normal(r))), Curve: anyLoss(r, s.Reports)}
	}
	return jobs, nil
}

// scale sets the median of the work. Generated jobs have a median of 1.
func (s Spec) scale(jobs []Job) {
	median := 1.0
	if s.Source != Generated {
		work := make([]float64, len(jobs))
		for i, j := range jobs {
			work[i] = j.WorkCPUS
		}
		slices.Sort(work)
		median = work[len(work)/2]
	}
	for i := range jobs {
		jobs[i].WorkCPUS = s.MedianCPUS * min(max(jobs[i].WorkCPUS/median, 1.0/most), most)
	}
}

// ask lets the jobs ask for the cores that they can use.
func (s Spec) ask(jobs []Job, r *rand.Rand) {
	for i := range jobs {
		j := &jobs[i]
		if len(s.Caps) > 0 {
			j.CapCores = s.Caps[r.IntN(len(s.Caps))]
		}
		if j.AskCores = j.CapCores; s.Source == Generated || s.Source == Papers {
			j.WorkCPUS *= j.CapCores
		}
	}
}

// arrive spreads the arrivals, keeping a trace's bursts and lulls.
func (s Spec) arrive(jobs []Job, r *rand.Rand) {
	if len(s.At) > 0 {
		for i := range jobs {
			jobs[i].ArriveS = s.At[i]
		}
	} else {
		over := s.OverS
		if over == 0 {
			for _, j := range jobs {
				over += j.WorkCPUS
			}
			over *= s.Spread / s.PoolCores
		}
		first, last := jobs[0].ArriveS, 0.0
		for _, j := range jobs {
			first, last = min(first, j.ArriveS), max(last, j.ArriveS)
		}
		for i := range jobs {
			if last > first {
				jobs[i].ArriveS = over * ((jobs[i].ArriveS - first) / (last - first))
			} else {
				jobs[i].ArriveS = over * r.Float64()
			}
		}
	}
	slices.SortStableFunc(jobs, func(a, b Job) int { return cmp.Compare(a.ArriveS, b.ArriveS) })
}

// model is one of the papers' models: its loss, its targets (TRADL) and relative size. The
// papers plot curves but print no sizes, which are ours.
type model struct {
	name                  string
	from, to              float64
	speed                 float64
	size                  float64
	acceptable, objective float64
}

func models() []model {
	return []model{
		{"vae", 180, 105, 6, 1.8, 120, 110},
		{"mnist", 2.3, 0.2, 9, 0.7, 0.3, 0.25},
		{"lstm-cfc", 0.25, 0.012, 8, 1, 0.02, 0.015},
		{"lstm-crf", 30, 10, 12, 1.6, 10.5, 10.2},
		{"bi-rnn", 2.2, 0.45, 7, 1.2, 0.6, 0.5},
		{"gru", 0.3, 0.006, 10, 0.6, 0.01, 0.008},
		{"rnn", 2.2, 0.45, 6, 0.9, 0.55, 0.5},
		{"dynamic-rnn", 0.7, 0.06, 5, 0.8, 0.15, 0.1},
	}
}

// papers repeats the models in order, with random sizes, as they were trained for different
// numbers of epochs.
func (s Spec) papers(r *rand.Rand) []Job {
	all := models()
	jobs := make([]Job, s.Jobs)
	for i := range jobs {
		m := all[i%len(all)]
		acceptable, objective := m.acceptable, m.objective
		shape, speed := shape(r.IntN(int(shapes))), m.speed
		if shape == hyperbolic {
			speed *= 4 // to be as far at the same time
		}
		jobs[i] = Job{
			Kind: m.name, WorkCPUS: m.size * between(r, 0.7, 1.3), Curve: loss(shape, speed, m.from, m.to, s.Reports),
			Acceptable: &acceptable, Objective: &objective,
		}
	}
	r.Shuffle(len(jobs), func(a, b int) { jobs[a], jobs[b] = jobs[b], jobs[a] })
	return jobs
}
