// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/e2e/bench/result"
)

// variant is a configuration to compare.
type variant struct {
	name   string
	policy string
	preset string // a paper's setting, with its own mode
	extra  string // more plugin options
	shim   bool   // moves the jobs
	moves  string // the shim's preset
	free   bool   // no limits: one run serves both modes
}

// allVariants lists the variants, the baseline first.
func allVariants(what string) []variant {
	none := variant{name: result.None, policy: "none", free: true}
	completion := variant{name: "auto completion", policy: "auto", extra: `fsp_prefer = "completion"`}
	switch what {
	case result.Train:
		return []variant{
			none, {name: "flowcon-2019", policy: "flowcon", preset: "flowcon-2019"}, {name: "flowcon-2022", policy: "flowcon", preset: "flowcon-2022"},
			{name: "auto", policy: "auto"}, completion,
		}
	case result.Torch:
		return []variant{none, {name: "auto", policy: "auto"}, completion}
	case result.Cluster:
		return []variant{
			none, {name: "flowcon-2022", policy: "flowcon", preset: "flowcon-2022", shim: true, moves: "flowcon-2022"},
			{name: "specon", policy: "none", preset: "specon", shim: true, moves: "specon"},
			{name: "auto", policy: "auto"}, {name: "auto and shim", policy: "auto", shim: true},
		}
	case result.TRADL:
		return []variant{{name: result.NoTargets, policy: "none", free: true}, none, {name: "tradl", policy: "tradl", preset: "tradl"}, {name: "auto", policy: "auto"}}
	case result.DQoES:
		return []variant{
			none,
			{name: result.Published, policy: "dqoes", preset: "dqoes"},
			{name: "dqoes", policy: "dqoes", extra: `dqoes_step = "proportional"`},
			{name: "auto", policy: "auto"},
		}
	}
	return []variant{none, {name: "flowcon", policy: "flowcon"}, {name: "auto", policy: "auto"}}
}

func names(vs []variant) []string {
	var all []string
	for _, v := range vs {
		all = append(all, v.name)
	}
	return all
}

// step is one run of a plan.
type step struct {
	variant
	mode string // "" for an unlimited one, or a preset
	kase string
	jobs int // per run of training jobs
	mix  string
	seed uint64
}

// is reports whether a run is of this step.
func (s step) is(r result.Run) bool {
	return r.Case == s.kase && r.Variant == s.name && r.Mode == s.mode && r.Seed == s.seed
}

// kernelMode returns the plugin's mode, without effect for unlimited runs.
func (s step) kernelMode() string {
	if s.preset != "" {
		return "quota"
	}
	return cmp.Or(s.mode, "weight")
}

// modesOf returns the modes in which a variant runs: "" for one that has none, or its own.
func (o options) modesOf(v variant) []string {
	if v.free || v.preset != "" {
		return []string{""}
	}
	return o.modes()
}

// plan lists an experiment's runs, seed by seed, so that partial results are comparable. Each
// seed starts with another variant against drift of the machine. With services the unlimited
// one is first, as it determines equal shares.
func plan(o options) []step {
	var steps []step
	cases := []string{""}
	switch o.what {
	case result.DQoES:
		cases = o.cases
	case result.Torch:
		return planJobs(o, []int{torchJobs}, []string{papers})
	case result.Cluster:
		return planJobs(o, []int{clusterJobs}, []string{papers})
	case result.Train:
		return planJobs(o, o.jobs, o.mixes)
	}
	for k := range o.seeds {
		seed := o.seed + uint64(k)
		var free, rest []step
		for _, v := range allVariants(o.what) {
			if len(o.variants) > 0 && !slices.Contains(o.variants, v.name) && !(o.what == result.DQoES && v.free) {
				continue
			}
			if v.free {
				kase := cases[0]
				if o.what == result.DQoES {
					kase = result.Varied
				}
				free = append(free, step{variant: v, seed: seed, kase: kase})
				continue
			}
			for _, mode := range o.modesOf(v) {
				for _, c := range cases {
					rest = append(rest, step{variant: v, mode: mode, seed: seed, kase: c})
				}
			}
		}
		if o.what == result.DQoES {
			steps = append(steps, append(free, rotate(rest, seed)...)...)
			continue
		}
		steps = append(steps, rotate(append(free, rest...), seed)...)
	}
	return steps
}

// The mixes of training jobs, and how a case names them.
const (
	papers = "papers"
	single = "single"
	waits  = "waits"
)

var mixes = map[string]string{papers: "", single: ", one thread each", waits: ", half of them wait"}

func planJobs(o options, sizes []int, mixed []string) []step {
	var steps []step
	for k := range o.seeds {
		seed := o.seed + uint64(k)
		for _, name := range mixed {
			for _, n := range sizes {
				var all []step
				for _, v := range allVariants(o.what) {
					for _, mode := range o.modesOf(v) {
						if len(o.variants) == 0 || slices.Contains(o.variants, v.name) {
							all = append(all, step{variant: v, mode: mode, seed: seed, jobs: n, mix: name, kase: fmt.Sprintf("%d jobs%s", n, mixes[name])})
						}
					}
				}
				steps = append(steps, rotate(all, seed)...)
			}
		}
	}
	return steps
}

func rotate[T any](all []T, seed uint64) []T {
	if len(all) == 0 {
		return nil
	}
	by := seed % uint64(len(all))
	return append(slices.Clone(all[by:]), all[:by]...)
}

// tradlJob is one of the five training jobs of the thesis's TRADL experiment (§6.1.3), with time
// scaled down by ten. In the thesis, jobs were submitted at random within 200 s, and without TRADL reached
// their objectives after about 31 s (job 4), 100 s (1), 428 s (3), 541 s (5) and 579 s (2); the
// lengths reproduce this when sharing. The thesis does not name the models.
type tradlJob struct {
	name, model string
	pool        float64 // seconds of the whole pool
}

func courses(scale float64) []tradlJob {
	all := []tradlJob{
		{"job1", "mlp", 3.5},
		{"job2", "vae", 19},
		{"job3", "mlp", 11},
		{"job4", "logreg", 1.5},
		{"job5", "gru", 18},
	}
	for i := range all {
		all[i].pool *= scale
	}
	return all
}

// spreadOver is the interval of the submissions.
const spreadOver = 20 * time.Second

// Fractions of a job's steps at which its targets are reached.
const (
	acceptableAt = 0.6
	objectiveAt  = 0.9
)

// submissions returns random submission times, the first at 0.
func submissions(n int, seed uint64, scale float64) []time.Duration {
	r := rand.New(rand.NewPCG(seed, 7))
	at := make([]time.Duration, n)
	for i := range at {
		at[i] = time.Duration(r.Float64() * scale * float64(spreadOver))
	}
	first := slices.Min(at)
	for i := range at {
		at[i] -= first
	}
	return at
}

// The services of the thesis's DQoES experiment (§6.2): objectives in seconds per batch, and a
// batch's duration with equal shares.
var (
	objectives  = []float64{75, 53, 61, 44, 31, 95, 82, 5, 13, 25}
	equalTime   = 31.6
	reachable   = 40.0
	unreachable = 20.0
)

// objectivesOf scales a case's objectives to this machine's response time with equal shares.
func objectivesOf(kase string, equal float64) []float64 {
	out := slices.Clone(objectives)
	for i := range out {
		switch kase {
		case result.Reachable:
			out[i] = reachable
		case result.Unreachable:
			out[i] = unreachable
		}
		// Rounded to microseconds, as written in the job.
		out[i] = math.Round(out[i]/equalTime*equal*1e6) / 1e6
	}
	return out
}

// equalResponse is a batch's target duration, in seconds, when ten services share equally:
// several per interval.
const equalResponse = 0.3

// The mix's objectives, relative to a batch's duration on an idle machine. With only the services,
// each has a core; with three training jobs a fair share is a third of one. Busy hyperthreads slow
// a batch by up to a third.
var mixObjectives = []float64{2.5, 3}

// mixBatch is a batch's duration on an idle machine, in seconds.
const mixBatch = 0.1

// mixModels are the models of the joining training jobs.
var mixModels = []string{"vae", "mlp", "gru"}

// mixJoin is the time of their joining, as a fraction of the run.
const mixJoin = 0.35
