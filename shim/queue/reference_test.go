// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package queue

import (
	"math"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

// reference is the fluid in its plainest form, twin by twin and step by step.
type reference struct {
	weights map[string]float64
	owner   []string
	use     [][]float64
	left    []float64
	on      []bool
	job     []int
}

func newReference(in Input) *reference {
	f := &reference{weights: make(map[string]float64)}
	for _, j := range in.Jobs {
		f.weights[j.Owner] = 1
	}
	for _, o := range in.Owners {
		f.weights[o.Name] = o.Weight
	}
	total := make(Resources)
	for _, n := range in.Nodes {
		for name, x := range n.Capacity {
			total[name] += x
		}
	}
	for i, j := range in.Jobs {
		fits := j.Ended
		for _, n := range in.Nodes {
			fits = fits || (j.Feasible == nil || slices.Contains(j.Feasible, n.ID)) && j.fits(n.Capacity)
		}
		if !fits {
			continue
		}
		f.owner, f.use = append(f.owner, j.Owner), append(f.use, []float64{j.Needs["gpu"] / total["gpu"], j.Needs["cores"] / total["cores"]})
		f.left, f.on, f.job = append(f.left, in.Params.twinLeft(&j)), append(f.on, j.RemainingS == nil && !j.Ended), append(f.job, i)
	}
	return f
}

// fill returns the rates.
func (f *reference) fill(runs []bool) []float64 {
	rate, used := make([]float64, len(runs)), make([]float64, 2)
	open := slices.Clone(runs)
	for slices.Contains(open, true) {
		opened := make(map[string]float64)
		for i, is := range open {
			if is {
				opened[f.owner[i]]++
			}
		}
		speed, grow, step := make([]float64, len(runs)), make([]float64, 2), math.Inf(1)
		for i, is := range open {
			if is {
				speed[i] = f.weights[f.owner[i]] / opened[f.owner[i]] / slices.Max(f.use[i])
				step = min(step, (1-rate[i])/speed[i])
				add(grow, f.use[i], speed[i])
			}
		}
		for r, g := range grow {
			if g > 0 {
				step = min(step, (1-used[r])/g)
			}
		}
		add(used, grow, step)
		add(rate, speed, step)
		for i, u := range f.use {
			full := func(r int) bool { return u[r] > 0 && used[r] > 1-1e-12 }
			open[i] = open[i] && rate[i] < 1-1e-12 && !full(0) && !full(1)
		}
	}
	return rate
}

// advance returns what each twin has had, and when it ended.
func (f *reference) advance(seconds float64, each int) (had, ends []float64) {
	had, ends = make([]float64, len(f.left)), slices.Repeat([]float64{math.Inf(1)}, len(f.left))
	left, runs := slices.Clone(f.left), slices.Clone(f.on)
	for i, l := range left {
		if runs[i] = l > 0 || f.on[i]; l == 0 {
			left[i] = math.Inf(1)
		}
	}
	for now := 0.0; now < seconds; {
		rate := f.fill(runs)
		in := slices.Repeat([]float64{math.Inf(1)}, len(left))
		for i := range left {
			if runs[i] && rate[i] > 0 {
				in[i] = (left[i] - had[i]) / rate[i]
			}
		}
		due := slices.DeleteFunc(slices.Sorted(slices.Values(in)), func(at float64) bool { return math.IsInf(at, 1) })
		step := seconds - now
		if len(due) > 0 {
			step = min(step, due[min(each, len(due))-1])
		}
		if math.IsInf(step, 1) {
			break
		}
		for i, at := range in {
			had[i] += step * rate[i]
			if at <= step {
				ends[i] = now + at
				if runs[i] = f.on[i]; !f.on[i] {
					had[i] = left[i]
				}
				left[i] = math.Inf(1)
			}
		}
		now += step
	}
	return had, ends
}

func near(t must.T, want, got float64) {
	t.Helper()
	if !math.IsInf(want, 1) || !math.IsInf(got, 1) {
		must.InDelta(t, want, got, 1e-9*(1+math.Abs(want)))
	}
}

// The fluid by kinds is that by twins: what twins get, when they end, and the order of their jobs.
func TestFluid_reference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := someInput(t, rapid.SampledFrom([]int{12, 200}).Draw(t, "at most"))
		f := newReference(in)
		_, ends := f.advance(math.Inf(1), 1+len(f.left)/batches)
		want := slices.Repeat([]float64{math.Inf(1)}, len(in.Jobs))
		for k, i := range f.job {
			if want[i] = ends[k]; f.left[k] == 0 {
				want[i] = 0
			}
		}
		c := newCluster(in)
		for i, got := range c.ends(c.twins()) {
			near(t, want[i], got)
		}
		rank := make(map[string]int)
		for k, i := range in.byFairFinish(want) {
			rank[in.Jobs[i].ID] = k + 1
		}
		for _, d := range Decide(in).Jobs {
			must.Eq(t, rank[d.ID], d.Rank)
		}

		seconds := rapid.OneOf(rapid.Float64Range(0, 20_000), rapid.Just(math.Inf(1))).Draw(t, "seconds")
		had, ends := f.advance(seconds, 1)
		before := slices.Clone(in.Jobs)
		at := in.Advance(seconds)
		for k, i := range f.job {
			near(t, before[i].FairS+had[k], in.Jobs[i].FairS)
			if !f.on[k] {
				near(t, ends[k], at[i])
			}
		}
	})
}
