// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package queue

import (
	"fmt"
	"math"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func fill(weights []float64, owner []int, use [][]float64) []float64 {
	f := newFluid(len(use[0]))
	for _, w := range weights {
		f.owners = append(f.owners, fluidOwner{weight: w})
	}
	for i, u := range use {
		f.join(owner[i], u, twin{job: i, left: 1})
	}
	f.sort()
	f.fill()
	rate := make([]float64, len(use))
	for _, k := range f.kinds {
		for _, t := range k.twins {
			rate[t.job] = k.rate
		}
	}
	return rate
}

func TestFluid(t *testing.T) {
	one := func(x ...float64) (use [][]float64) {
		for _, x := range x {
			use = append(use, []float64{x})
		}
		return use
	}
	for _, tc := range []struct {
		name    string
		weights []float64
		owner   []int
		use     [][]float64
		want    []float64
	}{
		{"room for all", []float64{1}, []int{0, 0}, one(0.25, 0.5), []float64{1, 1}},
		{"equally", []float64{1}, []int{0, 0}, one(1, 1), []float64{0.5, 0.5}},
		{"a small one has its whole place", []float64{1}, []int{0, 0, 0}, one(0.2, 1, 1), []float64{1, 0.4, 0.4}},
		{"owners equally, whatever they submit", []float64{1, 1}, []int{0, 0, 0, 1}, one(1, 1, 1, 1), []float64{1. / 6, 1. / 6, 1. / 6, 0.5}},
		{"owners by weight", []float64{3, 1}, []int{0, 1}, one(1, 1), []float64{0.75, 0.25}},
		{"what an owner cannot use goes to the others", []float64{1, 1}, []int{0, 1, 1}, one(0.2, 1, 1), []float64{1, 0.4, 0.4}},
		// Ghodsi et al., "Dominant Resource Fairness", NSDI 2011, §4.1: 9 CPUs and 18 GB; A's tasks need
		// <1, 4>, B's <3, 1>. A gets three, B two. Here each has one job ten times a task's size.
		{"DRF's example", []float64{1, 1}, []int{0, 1}, [][]float64{{10. / 9, 40. / 18}, {30. / 9, 10. / 18}}, []float64{0.3, 0.2}},
		{"another resource is left", []float64{1, 1}, []int{0, 1}, [][]float64{{1, 0}, {0, 1}}, []float64{1, 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := fill(tc.weights, tc.owner, tc.use)
			for i, want := range tc.want {
				must.InDelta(t, want, got[i], 1e-12, must.Sprint(got))
			}
		})
	}
}

// Nothing is used more than it is there, and who gets less than its place lacks something that is
// used up.
func TestFluid_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.Float64Range(0.1, 10), 1, 3).Draw(t, "weights")
		n, resources := rapid.IntRange(1, 8).Draw(t, "n"), rapid.IntRange(1, 3).Draw(t, "resources")
		var owner []int
		var use [][]float64
		for range n {
			owner = append(owner, rapid.IntRange(0, len(weights)-1).Draw(t, "owner"))
			u := rapid.SliceOfN(rapid.OneOf(rapid.Just(0.0), rapid.SampledFrom([]float64{0.25, 0.5, 1}), rapid.Float64Range(0.01, 1)), resources, resources).Draw(t, "use")
			u[rapid.IntRange(0, resources-1).Draw(t, "some")] += 0.01
			use = append(use, u)
		}
		rate := fill(weights, owner, use)
		used := make([]float64, resources)
		for i, r := range rate {
			must.Between(t, 0, r, 1)
			for k, u := range use[i] {
				used[k] += r * u
			}
		}
		for _, u := range used {
			must.LessEq(t, 1+1e-9, u)
		}
		for i, r := range rate {
			scarce := false
			for k, u := range use[i] {
				scarce = scarce || u > 0 && used[k] > 1-1e-9
			}
			must.True(t, scarce || r > 1-1e-9, must.Sprintf("%v %v", rate, used))
		}
	})
}

// Run in pieces, twins get what they get at once; and they end when expected.
func TestAdvance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := someInput(t, 12)
		c := newCluster(in)
		ends := c.ends(c.twins())
		whole, pieces := in, in
		whole.Jobs, pieces.Jobs = append([]Job(nil), in.Jobs...), append([]Job(nil), in.Jobs...)
		a, b := rapid.Float64Range(0, 5000).Draw(t, "a"), rapid.Float64Range(0, 5000).Draw(t, "b")
		at := whole.Advance(a + b)
		pieces.Advance(a)
		pieces.Advance(b)
		for i, j := range whole.Jobs {
			must.InDelta(t, j.FairS, pieces.Jobs[i].FairS, 1e-6*(1+j.FairS))
			must.GreaterEq(t, in.Jobs[i].FairS, j.FairS)
			if left := in.Params.twinLeft(&in.Jobs[i]); left > 0 && c.fits(i) && (j.RemainingS != nil || j.Ended) {
				if ends[i] < a+b-1e-6 {
					must.InDelta(t, ends[i], at[i], 1e-6*(1+ends[i]))
					must.InDelta(t, in.Jobs[i].FairS+left, j.FairS, 1e-6*(1+left))
				} else if ends[i] > a+b {
					must.True(t, math.IsInf(at[i], 1))
				}
			}
		}
	})
}

func (j Job) fits(free Resources) bool {
	for name, x := range j.Needs {
		if x > free[name] {
			return false
		}
	}
	return true
}

// someInput draws a valid input, of two resources and at most so many jobs.
func someInput(t *rapid.T, jobs int) Input {
	in := Input{NowS: 10_000, Params: DefaultParams(), Owners: []Owner{{Name: "big", Weight: 3}}}
	amount := rapid.SampledFrom([]float64{1, 2, 4, 8})
	for i := range rapid.IntRange(1, 3).Draw(t, "nodes") {
		in.Nodes = append(in.Nodes, Node{ID: fmt.Sprint("node", i), Capacity: Resources{"gpu": amount.Draw(t, "gpus"), "cores": 4 * amount.Draw(t, "cores")}})
	}
	free := make([]Resources, len(in.Nodes))
	for i, n := range in.Nodes {
		free[i] = Resources{"gpu": n.Capacity["gpu"], "cores": n.Capacity["cores"]}
	}
	seconds := rapid.Float64Range(0, 10_000)
	for i := range rapid.IntRange(0, jobs).Draw(t, "jobs") {
		j := Job{
			ID: fmt.Sprint("job", i), Owner: rapid.SampledFrom([]string{"", "big", "small"}).Draw(t, "owner"),
			Needs: Resources{"cores": amount.Draw(t, "needs cores")}, SubmittedS: seconds.Draw(t, "submitted"),
			ServedS: seconds.Draw(t, "served"), FairS: seconds.Draw(t, "fair"), Suspendable: rapid.Bool().Draw(t, "suspendable"),
			CostS: rapid.SampledFrom([]float64{0, 10, 600}).Draw(t, "cost"),
		}
		if rapid.Bool().Draw(t, "gpu") {
			j.Needs["gpu"] = amount.Draw(t, "needs gpus")
		}
		if rapid.IntRange(0, 3).Draw(t, "known") > 0 {
			left := seconds.Draw(t, "left")
			j.RemainingS = &left
		}
		if rapid.IntRange(0, 3).Draw(t, "feasible") == 0 {
			j.Feasible = []string{rapid.SampledFrom(in.Nodes).Draw(t, "on").ID}
			j.Local = rapid.Bool().Draw(t, "local")
		}
		switch rapid.IntRange(0, 3).Draw(t, "state") {
		case 0:
			j.Ended = true
		case 1, 2:
			for n := range in.Nodes {
				if (j.Feasible == nil || j.Feasible[0] == in.Nodes[n].ID) && j.fits(free[n]) {
					j.Node, j.SinceS = in.Nodes[n].ID, seconds.Draw(t, "since")
					for name, x := range j.Needs {
						free[n][name] -= x
					}
					break
				}
			}
		}
		in.Jobs = append(in.Jobs, j)
	}
	must.NoError(t, in.Validate())
	return in
}
