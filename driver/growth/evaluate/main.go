// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Evaluate measures the growth estimators on training curves and prints the tables of
// docs/evaluation.md:
//
//	go run ./driver/growth/evaluate -curves FOLDER
//
// Each curve is subsampled, noise is added, and the reports are fed one by one. After
// each, the estimated growth is compared with what the clean curve (the best monotone
// fit, smoothed) still gains per CPU-second.
package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sort"

	"github.com/ebbtide/ebbtide/driver/growth"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("evaluate", flag.ContinueOnError)
	fs.SetOutput(stderr)
	dir := fs.String("curves", "", "`folder` with real curves, as published with AdaptDL (CSV: progress, iteration, metric)")
	synth := fs.Bool("synthetic", false, "evaluate on synthetic curves instead")
	seeds := fs.Uint64("seeds", 5, "seeds 1..n of the noise")
	set := fs.Uint64("set", 1, "seed of the synthetic curves; the estimator was developed on set 1")
	each := fs.Int("each", 10, "synthetic curves per family")
	work := fs.Bool("remaining", false, "evaluate the estimates of remaining work instead")
	trainer := fs.String("trainer", "", "with -remaining: `path` of the project's trainer, to run it for real (minutes)")
	detail := fs.Bool("detail", false, "one more table, by curve")
	if err := fs.Parse(args); err != nil {
		return 2
	}
	if *trainer != "" && !*work {
		fmt.Fprintln(stderr, "evaluate: -trainer is for -remaining")
		return 2
	}
	curves := synthetic(*set, *each)
	if !*synth && *trainer == "" {
		if *dir == "" {
			fmt.Fprintln(stderr, "evaluate: give -curves FOLDER, or -synthetic, which needs no data")
			return 2
		}
		var skipped []string
		var err error
		if curves, skipped, err = load(*dir); err != nil {
			fmt.Fprintf(stderr, "evaluate: %v\n", err)
			return 1
		}
		fmt.Fprintf(stdout, "%d curves; left out, too few points to judge an estimator on: %d files %v\n\n", len(curves), len(skipped), skipped)
	} else if *synth {
		fmt.Fprintf(stdout, "%d synthetic curves, set %d\n\n", len(curves), *set)
	}
	if *work {
		if err := reportRemaining(stdout, stderr, curves, *seeds, *trainer); err != nil {
			fmt.Fprintf(stderr, "evaluate: %v\n", err)
			return 1
		}
		return 0
	}
	report(stdout, evaluate(curves, *seeds), *detail)
	return 0
}

type setting struct {
	stride int // points per report
	every  int // reports per measurement
}

var settings = []setting{{1, 1}, {2, 1}, {4, 1}, {1, 4}}

// noises, as fractions of a curve's range.
var noises = []float64{0.01, 0.03, 0.10}

const minMeasurements = 6

var kinds = []string{"robust", "published", "authors"}

func estimator(kind string, goal growth.Goal) follower {
	if kind == "authors" {
		return &authors{}
	}
	e, err := growth.New(kind, goal)
	if err != nil {
		panic(err)
	}
	return e
}

type result struct {
	kind, curve string
	set         setting
	noise       float64
	rho         float64 // Spearman; 0 when every reading is the same
	zero        float64 // share of zero readings while > 10 % remains; NaN: no such time
	falseGrowth float64 // share of false growth on the plateau; NaN: no plateau
}

func evaluate(curves []curve, seeds uint64) []result {
	var out []result
	for _, c := range curves {
		for _, set := range settings {
			if len(c.c)/set.stride/set.every < minMeasurements {
				continue
			}
			for _, noise := range noises {
				for seed := uint64(1); seed <= seeds; seed++ {
					for _, kind := range kinds {
						r := one(c, set, noise, seed, kind)
						out = append(out, r)
					}
				}
			}
		}
	}
	return out
}

func one(c curve, set setting, noise float64, seed uint64, kind string) result {
	r := result{kind: kind, curve: c.name, set: set, noise: noise, zero: math.NaN(), falseGrowth: math.NaN()}
	rng := rand.New(rand.NewPCG(seed, uint64(len(c.c))))
	est := estimator(kind, c.goal)
	n := len(c.c)
	first, last := c.clean[0], c.clean[n-1]
	size := first - last
	run := c.c[n-1] - c.c[0]
	var read, truth []float64
	var zeros, early, falses, late float64
	reports := 0
	for i := set.stride - 1; i < n; i += set.stride {
		v := c.v[i] + noise*size*rng.NormFloat64()
		p := growth.Point{T: c.c[i], CPU: c.c[i], Value: v, Step: math.NaN()}
		if c.lr != nil {
			p.LR = c.lr[i]
		}
		est.Add(p)
		reports++
		if reports%set.every != 0 {
			continue
		}
		e := est.Measure()
		// The same readings for all: from the third report and the second measurement
		// on.
		if reports < max(3, 2*set.every) || !e.Measured || i == n-1 {
			continue
		}
		here := c.at(c.c[i])
		to := math.Min(c.c[i]+0.05*run, c.c[n-1])
		read = append(read, e.Growth)
		truth = append(truth, (here-c.at(to))/(to-c.c[i])/size)
		left := (here - last) / size
		if left > 0.10 {
			early++
			if e.Growth <= 0 {
				zeros++
			}
		}
		if left < 0.01 {
			late++
			// The estimate predicts more than 1 % of the range within a tenth of the
			// run.
			g := e.Growth
			if kind == "published" {
				g /= size
			}
			if g*0.1*run > 0.01 {
				falses++
			}
		}
	}
	r.rho = spearman(read, truth)
	if early > 0 {
		r.zero = zeros / early
	}
	if late > 0 {
		r.falseGrowth = falses / late
	}
	return r
}

type follower interface {
	Add(growth.Point)
	Measure() growth.Estimate
}

// authors is the papers' authors' code, as far as known: the mean of an interval's
// reports, divided by the largest loss so far.
type authors struct {
	sum, cpu, n   float64
	base, baseCPU float64
	largest       float64
	have          bool
	est           growth.Estimate
}

func (a *authors) Add(p growth.Point) {
	a.sum += p.Value
	a.cpu = p.CPU
	a.n++
	a.largest = math.Max(a.largest, math.Abs(p.Value))
}

func (a *authors) Measure() growth.Estimate {
	if a.n == 0 {
		return a.est
	}
	mean := a.sum / a.n
	if a.have && a.cpu > a.baseCPU && a.largest > 0 {
		a.est.Measured = true
		a.est.Growth = math.Abs(mean-a.base) / a.largest / (a.cpu - a.baseCPU)
	}
	a.base, a.baseCPU, a.have = mean, a.cpu, true
	a.sum, a.n = 0, 0
	return a.est
}

// spearman returns the rank correlation with ties at their mean rank; 0 if either side is constant.
func spearman(a, b []float64) float64 {
	if len(a) < 3 {
		return math.NaN()
	}
	x, y := ranks(a), ranks(b)
	n := float64(len(x))
	mean := (n + 1) / 2
	var xy, xx, yy float64
	for i := range x {
		dx, dy := x[i]-mean, y[i]-mean
		xy += dx * dy
		xx += dx * dx
		yy += dy * dy
	}
	if xx == 0 || yy == 0 {
		return 0
	}
	return xy / math.Sqrt(xx*yy)
}

func ranks(a []float64) []float64 {
	idx := make([]int, len(a))
	for i := range idx {
		idx[i] = i
	}
	sort.SliceStable(idx, func(i, j int) bool { return a[idx[i]] < a[idx[j]] })
	out := make([]float64, len(a))
	for i := 0; i < len(idx); {
		j := i
		for j < len(idx) && a[idx[j]] == a[idx[i]] {
			j++
		}
		for k := i; k < j; k++ {
			out[idx[k]] = float64(i+j+1) / 2
		}
		i = j
	}
	return out
}

// quantile ignores NaN; it is NaN without values.
func quantile(v []float64, q float64) float64 {
	v = slices.DeleteFunc(slices.Clone(v), math.IsNaN)
	if len(v) == 0 {
		return math.NaN()
	}
	slices.Sort(v)
	p := q * float64(len(v)-1)
	i := int(p)
	if i == len(v)-1 {
		return v[i]
	}
	return v[i] + (p-float64(i))*(v[i+1]-v[i])
}

func mean(v []float64) float64 {
	v = slices.DeleteFunc(slices.Clone(v), math.IsNaN)
	s := 0.0
	for _, x := range v {
		s += x
	}
	return s / float64(len(v))
}

type group struct {
	name string
	keep func(result) bool
}

func report(w io.Writer, rs []result, detail bool) {
	groups := []group{{"all", func(result) bool { return true }}}
	for _, n := range noises {
		groups = append(groups, group{fmt.Sprintf("noise %g %%", n*100), func(r result) bool { return r.noise == n }})
	}
	for _, s := range settings {
		groups = append(groups, group{fmt.Sprintf("1 in %d, measured every %d", s.stride, s.every), func(r result) bool { return r.set == s }})
	}
	var apps []string
	for _, r := range rs {
		if a := app(r.curve); !slices.Contains(apps, a) {
			apps = append(apps, a)
		}
	}
	for _, a := range apps {
		groups = append(groups, group{a, func(r result) bool { return app(r.curve) == a }})
	}
	table(w, rs, groups)
	if detail {
		groups = nil
		var names []string
		for _, r := range rs {
			if !slices.Contains(names, r.curve) {
				names = append(names, r.curve)
				groups = append(groups, group{r.curve, func(x result) bool { return x.curve == r.curve }})
			}
		}
		fmt.Fprintln(w)
		table(w, rs, groups)
	}
}

func app(name string) string {
	for i := range name {
		if name[i] == '-' {
			return name[:i]
		}
	}
	return name
}

func table(w io.Writer, rs []result, groups []group) {
	fmt.Fprintln(w, "| runs | estimator | rank correlation: median (p10 … p90) | worst curve | zero while > 10 % remains: mean (p90) | false growth on plateau: mean (p90) |")
	fmt.Fprintln(w, "| --- | --- | --- | --- | --- | --- |")
	for _, g := range groups {
		for _, kind := range kinds {
			var rho, zero, fals []float64
			by := map[string][]float64{}
			for _, r := range rs {
				if r.kind != kind || !g.keep(r) {
					continue
				}
				rho, zero, fals = append(rho, r.rho), append(zero, r.zero), append(fals, r.falseGrowth)
				by[r.curve] = append(by[r.curve], r.rho)
			}
			if len(rho) == 0 {
				continue
			}
			worst, worstAt := math.Inf(1), ""
			for name, v := range by {
				if m := quantile(v, 0.5); m < worst || m == worst && name < worstAt {
					worst, worstAt = m, name
				}
			}
			fmt.Fprintf(w, "| %s (%d) | %s | %.2f (%.2f … %.2f) | %.2f %s | %s (%s) | %s (%s) |\n",
				g.name, len(rho), kind, quantile(rho, 0.5), quantile(rho, 0.1), quantile(rho, 0.9), worst, worstAt,
				percent(mean(zero)), percent(quantile(zero, 0.9)), percent(mean(fals)), percent(quantile(fals, 0.9)))
		}
	}
}

func percent(x float64) string {
	if math.IsNaN(x) {
		return "–"
	}
	return fmt.Sprintf("%.0f %%", 100*x)
}
