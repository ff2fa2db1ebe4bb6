// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/growth"
)

func write(t *testing.T, dir, name string, n int) {
	t.Helper()
	var b strings.Builder
	b.WriteString("progress,iteration,metric\n")
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&b, "%d,%d,%g\n", 10*i, i, 1-math.Exp(-float64(i)/15))
	}
	must.NoError(t, os.WriteFile(filepath.Join(dir, name+".csv"), []byte(b.String()), 0o600))
}

func TestRun(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "cifar10-a", 60)
	write(t, dir, "ncf-a", 10)
	write(t, dir, "ncf-short", 5)
	write(t, dir, "bert-a", 2)
	var out, errs bytes.Buffer
	must.Eq(t, 0, run([]string{"-curves", dir, "-seeds", "2", "-detail"}, &out, &errs))
	must.Eq(t, "", errs.String())
	text := out.String()
	for _, want := range []string{"2 curves", "bert-a", "ncf-short", "| all (30) | robust | ", "noise 10 %", "1 in 4, measured every 1", "| cifar10-a ("} {
		must.StrContains(t, text, want)
	}
	var again bytes.Buffer
	must.Eq(t, 0, run([]string{"-curves", dir, "-seeds", "2", "-detail"}, &again, &errs))
	must.Eq(t, text, again.String())
}

func TestRun_synthetic(t *testing.T) {
	var out, errs bytes.Buffer
	must.Eq(t, 0, run([]string{"-synthetic", "-each", "3", "-seeds", "1"}, &out, &errs))
	must.StrContains(t, out.String(), "12 synthetic curves")
}

func TestRun_missing(t *testing.T) {
	var out, errs bytes.Buffer
	must.Eq(t, 2, run(nil, &out, &errs))
	must.StrContains(t, errs.String(), "-curves FOLDER")
	errs.Reset()
	must.Eq(t, 1, run([]string{"-curves", filepath.Join(t.TempDir(), "no")}, &out, &errs))
	must.StrContains(t, errs.String(), "no curves")
	errs.Reset()
	must.Eq(t, 1, run([]string{"-curves", t.TempDir()}, io.Discard, &errs))
	must.StrContains(t, errs.String(), "no curves")
	must.Eq(t, 2, run([]string{"-nonsense"}, io.Discard, io.Discard))
}

func TestLoad_bad(t *testing.T) {
	for content, want := range map[string]string{
		"a,b\n1,2\n":                                "columns",
		"progress,iteration,metric\n1,2,x\n":        "line 2",
		"progress,iteration,metric\n1,2\n":          "wrong number of fields",
		"progress,iteration,metric\n1,2,3\nx,4,5\n": "line 3",
	} {
		dir := t.TempDir()
		must.NoError(t, os.WriteFile(filepath.Join(dir, "ncf-x.csv"), []byte(content), 0o600))
		_, _, err := load(dir)
		must.ErrorContains(t, err, want)
	}
	_, err := read(filepath.Join(t.TempDir(), "gone"))
	must.ErrorIs(t, err, os.ErrNotExist)
	_, _, err = load("[")
	must.ErrorIs(t, err, filepath.ErrBadPattern)
	_, _, err = load(t.TempDir())
	must.True(t, errors.Is(err, errNoCurves))
}

func TestIsotonic(t *testing.T) {
	must.Eq(t, []float64{5, 3, 3, 3, 1}, isotonic([]float64{5, 2, 4, 3, 1}))
	must.Eq(t, []float64{2, 2, 2}, isotonic([]float64{1, 2, 3}))
	c := []float64{0, 1, 2, 3, 4}
	s := smooth(c, []float64{5, 3, 3, 3, 1})
	for i := 1; i < len(s); i++ {
		must.LessEq(t, s[i-1], s[i])
	}
}

func TestSpearman(t *testing.T) {
	must.InDelta(t, 1, spearman([]float64{1, 2, 3, 4}, []float64{1, 10, 100, 1000}), 1e-12)
	must.InDelta(t, -1, spearman([]float64{4, 3, 2, 1}, []float64{1, 10, 100, 1000}), 1e-12)
	must.Eq(t, 0, spearman([]float64{1, 1, 1}, []float64{1, 2, 3}))
	must.True(t, math.IsNaN(spearman([]float64{1}, []float64{1})))
	must.Eq(t, []float64{1.5, 3, 1.5}, ranks([]float64{2, 5, 2}))
}

func TestQuantile(t *testing.T) {
	must.Eq(t, 2, quantile([]float64{3, math.NaN(), 1, 2}, 0.5))
	must.Eq(t, 3, quantile([]float64{3, 1, 2}, 1))
	must.True(t, math.IsNaN(quantile(nil, 0.5)))
	must.Eq(t, "–", percent(mean(nil)))
}

func TestAt(t *testing.T) {
	c := curve{c: []float64{1, 2, 3}, clean: []float64{9, 5, 1}}
	for x, want := range map[float64]float64{0: 9, 1: 9, 1.5: 7, 3: 1, 4: 1} {
		must.Eq(t, want, c.at(x))
	}
}

func TestAuthors(t *testing.T) {
	var a authors
	must.False(t, a.Measure().Measured)
	a.Add(growth.Point{CPU: 1, Value: 10})
	a.Add(growth.Point{CPU: 2, Value: 8})
	must.False(t, a.Measure().Measured)
	a.Add(growth.Point{CPU: 4, Value: 4})
	m := a.Measure()
	must.True(t, m.Measured)
	must.InDelta(t, 5./10/2, m.Growth, 1e-12)
	must.Eq(t, m, a.Measure())
	must.Eq(t, "nothing", app("nothing"))
}

// With step schedules, a known learning rate makes the robust estimator better, on the
// same readings, and better than the published one.
func TestLearningRate(t *testing.T) {
	var with, without, published []float64
	for _, c := range synthetic(5, 25) {
		if c.lr == nil || len(c.c) < 40 || len(c.c) > 400 {
			continue
		}
		n := len(c.c)
		size, run := c.clean[0]-c.clean[n-1], c.c[n-1]-c.c[0]
		rng := rand.New(rand.NewPCG(1, uint64(n)))
		ests := []follower{estimator(growth.KindRobust, c.goal), estimator(growth.KindRobust, c.goal), estimator(growth.KindPublished, c.goal)}
		var read [3][]float64
		var truth []float64
		for i := range n - 1 {
			p := growth.Point{T: c.c[i], CPU: c.c[i], Value: c.v[i] + 0.03*size*rng.NormFloat64(), Step: math.NaN()}
			var m [3]growth.Estimate
			for k, e := range ests {
				if k == 0 {
					p.LR = c.lr[i]
				} else {
					p.LR = 0
				}
				e.Add(p)
				m[k] = e.Measure()
			}
			if !m[0].Measured || !m[1].Measured || !m[2].Measured {
				continue
			}
			to := math.Min(c.c[i]+0.05*run, c.c[n-1])
			truth = append(truth, (c.at(c.c[i])-c.at(to))/(to-c.c[i]))
			for k := range m {
				read[k] = append(read[k], m[k].Growth)
			}
		}
		with, without, published = append(with, spearman(read[0], truth)), append(without, spearman(read[1], truth)), append(published, spearman(read[2], truth))
	}
	t.Logf("rank correlation, median of %d curves: %.2f with the learning rate, %.2f without, %.2f published",
		len(with), quantile(with, 0.5), quantile(without, 0.5), quantile(published, 0.5))
	must.Greater(t, quantile(without, 0.5)+0.1, quantile(with, 0.5))
	must.Greater(t, quantile(published, 0.5), quantile(with, 0.5))
	must.GreaterEq(t, quantile(without, 0.1), quantile(with, 0.1))
}

func TestRun_remaining(t *testing.T) {
	var out, errs bytes.Buffer
	must.Eq(t, 0, run([]string{"-remaining", "-synthetic", "-each", "2", "-seeds", "1"}, &out, &errs))
	for _, want := range []string{"| epochs with validation (20) |", "| no total (20) | unknown |", "| exponential (6) |", "to an objective"} {
		must.StrContains(t, out.String(), want)
	}
	must.StrNotContains(t, out.String(), "NaN")
	text := out.String()
	out.Reset()
	must.Eq(t, 0, run([]string{"-remaining", "-synthetic", "-each", "2", "-seeds", "1"}, &out, &errs))
	must.Eq(t, text, out.String())
}

func TestRun_trainer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trainer")
	script := "#!/bin/sh\nfor i in 1 2 3; do echo step=$i total_steps=3 loss=0.$i; done\n"
	must.NoError(t, os.WriteFile(path, []byte(script), 0o700))
	points, total, err := follow(path, nil)
	must.NoError(t, err)
	must.Len(t, 3, points)
	must.Eq(t, 3, points[2].Step)
	must.Eq(t, 3, points[2].Total)
	must.Greater(t, 0, total)
	must.GreaterEq(t, points[2].CPU, total+0.02) // accounting ticks

	var out, errs bytes.Buffer
	must.Eq(t, 0, run([]string{"-remaining", "-trainer", path, "-seeds", "1"}, &out, &errs))
	must.StrContains(t, out.String(), "| plain, resumed (4) |")
	must.Eq(t, 1, run([]string{"-remaining", "-trainer", path + "x"}, &out, &errs))
	must.StrContains(t, errs.String(), "no such file")
	must.Eq(t, 2, run([]string{"-trainer", path}, &out, &errs))
	must.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\nexit 3\n"), 0o700))
	_, _, err = follow(path, nil)
	must.ErrorContains(t, err, "exit status 3")
}
