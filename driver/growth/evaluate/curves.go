// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"github.com/ebbtide/ebbtide/driver/growth"
)

// curve is a training run: a metric against CPU-seconds (or batches as a stand-in).
type curve struct {
	name  string
	goal  growth.Goal
	c, v  []float64
	clean []float64 // the curve without noise, oriented so that lower is better
	lr    []float64 // the learning rate, if known
}

var errNoCurves = errors.New("no curves")

// goals by the first part of a file's name. bert has only two points per file.
var goals = map[string]growth.Goal{
	"cifar10": growth.Max, "ncf": growth.Max, "deepspeech2": growth.Min,
}

func load(dir string) (curves []curve, skipped []string, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.csv"))
	if err != nil {
		return nil, nil, fmt.Errorf("listing %s: %w", dir, err)
	}
	if len(files) == 0 {
		return nil, nil, fmt.Errorf("%w in %s", errNoCurves, dir)
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".csv")
		app, _, _ := strings.Cut(name, "-")
		goal, ok := goals[app]
		if !ok {
			skipped = append(skipped, name)
			continue
		}
		c, err := read(f)
		if err != nil {
			return nil, nil, err
		}
		if len(c.c) < 8 {
			skipped = append(skipped, name)
			continue
		}
		c.name, c.goal = name, goal
		c.clean = smooth(c.c, isotonic(orient(goal, c.v)))
		curves = append(curves, c)
	}
	return curves, skipped, nil
}

func read(path string) (curve, error) {
	var c curve
	f, err := os.Open(path)
	if err != nil {
		return c, fmt.Errorf("opening curve: %w", err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return c, fmt.Errorf("reading %s: %w", path, err)
	}
	for i, row := range rows {
		if i == 0 {
			if len(row) < 3 || row[0] != "progress" || row[2] != "metric" {
				return c, fmt.Errorf("reading %s: columns must begin with progress,iteration,metric", path)
			}
			continue
		}
		x, err1 := strconv.ParseFloat(row[0], 64)
		y, err2 := strconv.ParseFloat(row[2], 64)
		if err := errors.Join(err1, err2); err != nil {
			return c, fmt.Errorf("reading %s, line %d: %w", path, i+1, err)
		}
		c.c, c.v = append(c.c, x), append(c.v, y)
	}
	return c, nil
}

func orient(goal growth.Goal, v []float64) []float64 {
	u := make([]float64, len(v))
	for i, x := range v {
		u[i] = x
		if goal == growth.Max {
			u[i] = -x
		}
	}
	return u
}

// isotonic returns the best non-increasing fit (pool adjacent violators).
func isotonic(u []float64) []float64 {
	type block struct {
		mean float64
		n    int
	}
	var bs []block
	for _, x := range u {
		bs = append(bs, block{x, 1})
		for k := len(bs); k > 1 && bs[k-1].mean > bs[k-2].mean; k = len(bs) {
			a, b := bs[k-2], bs[k-1]
			n := a.n + b.n
			bs = append(bs[:k-2], block{(a.mean*float64(a.n) + b.mean*float64(b.n)) / float64(n), n})
		}
	}
	out := make([]float64, 0, len(u))
	for _, b := range bs {
		for range b.n {
			out = append(out, b.mean)
		}
	}
	return out
}

// smooth smooths an isotonic fit with a Gaussian kernel of 2 % of the run, which keeps
// it monotone.
func smooth(c, u []float64) []float64 {
	bw := 0.02 * (c[len(c)-1] - c[0])
	out := make([]float64, len(u))
	for i := range u {
		var s, w float64
		for j := range u {
			d := (c[j] - c[i]) / bw
			k := math.Exp(-d * d / 2)
			s += k * u[j]
			w += k
		}
		out[i] = s / w
	}
	return out
}

// synthetic returns curves of several families with parameters drawn from the seed. The
// estimator was developed on these, not on files.
func synthetic(seed uint64, each int) []curve {
	rng := rand.New(rand.NewPCG(seed, 1))
	logUniform := func(a, b float64) float64 { return a * math.Exp(rng.Float64()*math.Log(b/a)) }
	families := []struct {
		name string
		make func() (fn, lr func(x float64) float64) // x in (0, 1]; lr may be nil
	}{
		{"power", func() (fn, lr func(float64) float64) {
			p, b := 0.3+1.2*rng.Float64(), logUniform(0.003, 0.1)
			return func(x float64) float64 { return math.Pow(x/b+1, -p) }, nil
		}},
		{"exponential", func() (fn, lr func(float64) float64) {
			k := logUniform(2, 40)
			return func(x float64) float64 { return math.Exp(-k * x) }, nil
		}},
		{"sigmoid", func() (fn, lr func(float64) float64) {
			m, w := 0.1+0.6*rng.Float64(), logUniform(0.02, 0.12)
			return func(x float64) float64 { return 1 / (1 + math.Exp((x-m)/w)) }, nil
		}},
		{"steps", func() (fn, lr func(float64) float64) {
			k := logUniform(8, 40)
			a, b := 0.3+0.2*rng.Float64(), 0.6+0.2*rng.Float64()
			da, db := 0.1+0.3*rng.Float64(), 0.02+0.1*rng.Float64()
			drop := func(x, at, d float64) float64 { return d * math.Exp(-60*math.Max(0, x-at)) }
			fn = func(x float64) float64 { return math.Exp(-k*x) + drop(x, a, da) + drop(x, b, db) }
			lr = func(x float64) float64 {
				switch {
				case x <= a:
					return 0.1
				case x <= b:
					return 0.01
				}
				return 0.001
			}
			return fn, lr
		}},
	}
	var out []curve
	for _, f := range families {
		for i := range each {
			fn, lr := f.make()
			n := []int{12, 40, 100, 400, 2000}[i%5]
			scale, shift := logUniform(0.01, 100), 10*rng.Float64()
			total := logUniform(100, 1e5)
			c := curve{name: fmt.Sprintf("%s-%d-%d", f.name, n, i), goal: growth.Min}
			if i%2 == 1 {
				c.goal = growth.Max
			}
			for j := range n {
				x := float64(j+1) / float64(n)
				u := shift + scale*fn(x)
				c.c = append(c.c, x*total)
				c.clean = append(c.clean, u)
				if lr != nil {
					c.lr = append(c.lr, lr(x))
				}
			}
			c.v = orient(c.goal, c.clean)
			out = append(out, c)
		}
	}
	return out
}

func (c curve) at(x float64) float64 {
	i := sort.SearchFloat64s(c.c, x)
	switch i {
	case 0:
		return c.clean[0]
	case len(c.c):
		return c.clean[len(c.c)-1]
	}
	f := (x - c.c[i-1]) / (c.c[i] - c.c[i-1])
	return c.clean[i-1] + f*(c.clean[i]-c.clean[i-1])
}
