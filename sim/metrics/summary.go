// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package metrics

import (
	"cmp"
	"fmt"
	"slices"
)

// Slower is the relative delay from which a job counts as slower; repeated runs differ by less.
const Slower = 0.02

// DefaultBase is plain Nomad.
const DefaultBase = "none"

// Summary is how a scenario's jobs fared under a policy over all runs.
type Summary struct {
	Scenario string `json:"scenario"`
	Policy   string `json:"policy"`
	Base     string `json:"base"`
	Runs     int    `json:"runs"`
	Jobs     int    `json:"jobs"`
	// Draws is over how many runs per seed the base's times are means, 0 for one.
	Draws int `json:"draws,omitempty"`
	// Unfinished jobs are in none of the times below; with any of them times are not
	// comparable.
	Unfinished int `json:"unfinished"`

	// Times are means over a run's jobs, in the order of measures.
	Times []Time `json:"times"`
	// Ratio is each job's completion relative to the base.
	Ratio Distribution `json:"ratio"`
	// Slower is the fraction of jobs slower by more than 2 %.
	Slower float64 `json:"slower"`
	// Worst is the greatest ratio per run.
	Worst Interval `json:"worst"`
	// WorstJob is the job with the greatest ratio, and its seed.
	WorstJob string `json:"worst_job"`
	// Fairness is the finish-time fairness ρ.
	Fairness Distribution `json:"fairness"`
	// Share is each job's completion relative to that with its fair share of the cluster; times
	// under ten minutes count as ten.
	Share Distribution `json:"share"`

	// Throttled is relative to the jobs' time, Idle to the pool while jobs were present, Lost
	// to the CPU time used.
	Throttled float64 `json:"throttled"`
	Idle      float64 `json:"idle"`
	Lost      float64 `json:"lost"`
	Moves     float64 `json:"moves"` // per job
	// QoEHits is the fraction of checks within the target, nil without services.
	QoEHits *float64 `json:"qoe_hits,omitempty"`
}

type Time struct {
	Name    string   `json:"name"`
	Seconds Interval `json:"seconds"`
	// Ratio is relative to the base of the same seed, over jobs with this time in both.
	Ratio Interval `json:"ratio"`
}

// Distribution is over all jobs of all runs.
type Distribution struct {
	Min    float64 `json:"min"`
	P5     float64 `json:"p5"`
	P25    float64 `json:"p25"`
	Median float64 `json:"median"`
	P75    float64 `json:"p75"`
	P95    float64 `json:"p95"`
	Max    float64 `json:"max"`
	N      int     `json:"n"`
}

// Distribute returns the distribution of values, which it sorts.
func Distribute(values []float64) Distribution {
	if len(values) == 0 {
		return Distribution{}
	}
	slices.Sort(values)
	q := func(q float64) float64 { return quantile(values, q) }
	return Distribution{q(0), q(0.05), q(0.25), q(0.5), q(0.75), q(0.95), q(1), len(values)}
}

const (
	Completion = "completion"
	Makespan   = "makespan"
	Quality95  = "quality_95"
	Start      = "start" // the first
)

func measures() []measure {
	return []measure{
		{Completion, Job.Completion},
		{"quality_50", func(j Job) (float64, bool) { return j.since(j.Quality50S) }},
		{"quality_90", func(j Job) (float64, bool) { return j.since(j.Quality90S) }},
		{Quality95, func(j Job) (float64, bool) { return j.since(j.Quality95S) }},
		{Start, func(j Job) (float64, bool) { return j.since(j.StartS) }},
		{"acceptable", func(j Job) (float64, bool) { return j.since(j.AcceptableS) }},
		{"objective", func(j Job) (float64, bool) { return j.since(j.ObjectiveS) }},
	}
}

type measure struct {
	name string
	of   func(Job) (float64, bool)
}

func (s Summary) Time(name string) Time {
	for _, t := range s.Times {
		if t.Name == name {
			return t
		}
	}
	return Time{Name: name}
}

// Gain returns the relative reduction of mean completion; negative for a loss.
func (s Summary) Gain() float64 { return 1 - s.Time(Completion).Ratio.Mean }

// key pairs runs.
type key struct {
	scenario string
	seed     uint64
}

// Summarize compares each run with the base policy's ("" for DefaultBase) of the same scenario
// and seed, and summarises by scenario and policy in order of appearance. seed is for the
// intervals. The error is a fields.Errors for impossible figures, or names the run without a
// counterpart.
func Summarize(runs []Run, base string, seed uint64) ([]Summary, error) {
	base = BaseName(base)
	bases, seen := make(map[key]Run), make(map[string]bool)
	for _, r := range runs {
		if err := r.Validate(); err != nil {
			return nil, fmt.Errorf("%s: %w", r.Name(), err)
		}
		if seen[r.Name()] {
			return nil, fmt.Errorf("%s: is duplicated", r.Name())
		}
		seen[r.Name()] = true
		if r.Policy == base {
			bases[key{r.Scenario, r.Seed}] = r
		}
	}
	type group struct{ scenario, policy string }
	var order []group
	pairs := make(map[group][]pair)
	for _, r := range runs {
		p, err := pairUp(r, bases, base)
		if err != nil {
			return nil, err
		}
		g := group{r.Scenario, r.Policy}
		if pairs[g] == nil {
			order = append(order, g)
		}
		pairs[g] = append(pairs[g], p)
	}
	out := make([]Summary, len(order))
	for i, g := range order {
		out[i] = summarize(pairs[g], seed)
		out[i].Scenario, out[i].Policy, out[i].Base = g.scenario, g.policy, base
	}
	return out, nil
}

func BaseName(base string) string { return cmp.Or(base, DefaultBase) }

// Policies returns the runs' policies in order of appearance.
func Policies(runs []Run) []string {
	var out []string
	for _, r := range runs {
		if !slices.Contains(out, r.Policy) {
			out = append(out, r.Policy)
		}
	}
	return out
}

// Ratios returns each job's completion relative to the base run ("" for DefaultBase). The error
// names a run without one.
func Ratios(runs []Run, base, policy string) ([]float64, error) {
	bases := make(map[key]Run)
	for _, r := range runs {
		if r.Policy == BaseName(base) {
			bases[key{r.Scenario, r.Seed}] = r
		}
	}
	var out []float64
	for _, r := range runs {
		if r.Policy != policy {
			continue
		}
		p, err := pairUp(r, bases, base)
		if err != nil {
			return nil, err
		}
		for i := range r.Jobs {
			if run, base, ok := p.times(measures()[0], i); ok && base > 0 {
				out = append(out, run/base)
			}
		}
	}
	return out, nil
}

func pairUp(r Run, bases map[key]Run, base string) (pair, error) {
	b, ok := bases[key{r.Scenario, r.Seed}]
	if !ok {
		return pair{}, fmt.Errorf("%s: there is no run of policy %s with this scenario and seed to compare it with", r.Name(), BaseName(base))
	}
	return match(r, b)
}

// pair is a run and its base.
type pair struct {
	run   Run
	bases []Run // the base run and its draws
	index []int // of run.Jobs[i] in their jobs
}

func match(r, base Run) (pair, error) {
	p := pair{run: r, bases: append([]Run{base}, base.Draws...), index: make([]int, len(r.Jobs))}
	if len(base.Jobs) != len(r.Jobs) {
		return p, fmt.Errorf("%s: must have the %d jobs of policy %s, got %d", r.Name(), len(base.Jobs), base.Policy, len(r.Jobs))
	}
	byID := make(map[string]int, len(base.Jobs))
	for i, j := range base.Jobs {
		byID[j.ID] = i
	}
	for i, j := range r.Jobs {
		k, ok := byID[j.ID]
		if !ok {
			return p, fmt.Errorf("%s: job %q is not in the run of policy %s", r.Name(), j.ID, base.Policy)
		}
		p.index[i] = k
	}
	return p, nil
}

// times returns a job's time and the base's; ok is false if a run lacks it.
func (p pair) times(m measure, i int) (run, base float64, ok bool) {
	run, ok = m.of(p.run.Jobs[i])
	for _, b := range p.bases {
		seconds, there := m.of(b.Jobs[p.index[i]])
		base += seconds
		ok = ok && there
	}
	return run, base / float64(len(p.bases)), ok
}

// span returns the base's makespan, in seconds.
func (p pair) span() float64 {
	sum := 0.0
	for _, b := range p.bases {
		sum += b.Makespan()
	}
	return sum / float64(len(p.bases))
}

func summarize(pairs []pair, seed uint64) Summary {
	s := Summary{Runs: len(pairs)}
	if n := len(pairs[0].bases); n > 1 {
		s.Draws = n
	}
	for _, m := range measures() {
		var seconds, ratios []float64
		for _, p := range pairs {
			run, base, n := 0.0, 0.0, 0
			for i := range p.run.Jobs {
				if a, b, ok := p.times(m, i); ok {
					run, base, n = run+a, base+b, n+1
				}
			}
			if n > 0 {
				seconds = append(seconds, run/float64(n))
			}
			if base > 0 {
				ratios = append(ratios, run/base)
			}
		}
		s.add(m.name, seconds, ratios, seed)
		if m.name == Completion {
			seconds, ratios = nil, nil
			for _, p := range pairs {
				span := p.run.Makespan()
				seconds = append(seconds, span)
				if base := p.span(); base > 0 {
					ratios = append(ratios, span/base)
				}
			}
			s.add(Makespan, seconds, ratios, seed)
		}
	}
	s.compare(pairs, seed)
	s.use(pairs)
	return s
}

func (s *Summary) add(name string, seconds, ratios []float64, seed uint64) {
	if len(seconds) > 0 {
		s.Times = append(s.Times, Time{name, Bootstrap(seconds, seed), Bootstrap(ratios, seed)})
	}
}

// shortest is the time, in seconds, as which shorter ones count in Summary.Share.
const shortest = 600

func (s *Summary) compare(pairs []pair, seed uint64) {
	complete := measures()[0]
	var ratios, worsts, fairness, shares []float64
	slower, most := 0, 0.0
	for _, p := range pairs {
		worst := 0.0
		for i, j := range p.run.Jobs {
			run, base, ok := p.times(complete, i)
			if !ok || base <= 0 {
				continue
			}
			ratio := run / base
			ratios = append(ratios, ratio)
			worst = max(worst, ratio)
			if ratio > 1+Slower {
				slower++
			}
			if ratio > most {
				most, s.WorstJob = ratio, fmt.Sprintf("%s, seed %d", j.ID, p.run.Seed)
			}
		}
		if worst > 0 {
			worsts = append(worsts, worst)
		}
		for _, j := range p.run.Jobs {
			fair, known := j.since(j.FairEndS)
			if took, ok := j.Completion(); ok && known {
				shares = append(shares, max(took, shortest)/max(fair, shortest))
			}
		}
		for _, rho := range p.run.Fairness() {
			if rho > 0 {
				fairness = append(fairness, rho)
			}
		}
		s.Jobs += len(p.run.Jobs)
		s.Unfinished += p.run.Unfinished()
	}
	if len(ratios) > 0 {
		s.Slower = float64(slower) / float64(len(ratios))
	}
	s.Ratio, s.Fairness, s.Share, s.Worst = Distribute(ratios), Distribute(fairness), Distribute(shares), Bootstrap(worsts, seed)
}

func (s *Summary) use(pairs []pair) {
	var throttled, present, idle, used, lost float64
	moves, checks, hits := 0, 0, 0
	for _, p := range pairs {
		idle += p.run.IdleCPUS
		for _, j := range p.run.Jobs {
			if took, ok := j.Completion(); ok {
				present += took
				throttled += j.ThrottledS
			}
			used += j.CPUS
			lost += j.LostCPUS
			moves, checks, hits = moves+j.Moves, checks+j.QoEChecks, hits+j.QoEHits
		}
	}
	s.Throttled, s.Idle, s.Lost = part(throttled, present), part(idle, idle+used), part(lost, used)
	s.Moves = part(float64(moves), float64(s.Jobs))
	if checks > 0 {
		share := part(float64(hits), float64(checks))
		s.QoEHits = &share
	}
}

// part is x relative to whole, 0 for an empty whole.
func part(x, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return x / whole
}
