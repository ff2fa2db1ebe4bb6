// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package view

import (
	"bytes"
	"math"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/e2e/demo/result"
	"github.com/ebbtide/ebbtide/sim/metrics"
)

var nan = math.NaN()

// golden compares with testdata; UPDATE=1 rewrites it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name
	if os.Getenv("UPDATE") != "" {
		must.NoError(t, os.MkdirAll("testdata", 0o755))
		must.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	must.NoError(t, err)
	must.Eq(t, string(want), got)
}

func someFrame() Frame {
	return Frame{Policy: "flowcon", Elapsed: 34 * time.Second, Cores: 2, Alpha: 0.0213, Jobs: []Line{
		{Name: "vae", State: Running, Category: "CL", Value: 106.4, Step: 15480, Total: 23040, Ahead: -12.3, Limit: 0.1667, Use: 0.18},
		{Name: "mlp", State: Running, Category: "NL", Value: 0.75557, Step: 512, Total: nan, Ahead: 7.6, Limit: 1, Use: 0.7},
		{Name: "gru", State: Running, Category: "WL", Value: nan, Step: nan, Total: nan, Ahead: nan, Limit: nan, Use: nan},
		{Name: "old", State: Done, Took: 68 * time.Second, Value: 1, Step: 10, Total: 10, Ahead: 0, Limit: 1, Use: 0},
		{Name: "logreg", State: Planned, Wait: 6400 * time.Millisecond, Value: nan, Step: nan, Total: nan, Ahead: nan, Limit: nan, Use: nan},
		{Name: "new", State: Starting, Value: nan, Step: nan, Total: nan, Ahead: nan, Limit: nan, Use: nan},
	}}
}

func TestTable(t *testing.T) {
	var b strings.Builder
	for _, width := range []int{120, 80, 60, 40} {
		b.WriteString(strings.Join(Table(someFrame(), Look{Width: width}), "\n") + "\n\n")
	}
	golden(t, "table.txt", b.String())
}

func TestTableFits(t *testing.T) {
	for width := 1; width < 200; width++ {
		for _, line := range Table(someFrame(), Look{Width: width}) {
			must.LessEq(t, width, utf8.RuneCountInString(line))
		}
	}
}

func TestTableColours(t *testing.T) {
	plain := strings.Join(Table(someFrame(), Look{Width: 100}), "\n")
	must.StrNotContains(t, plain, "\x1b")
	coloured := strings.Join(Table(someFrame(), Look{Width: 100, Colour: true}), "\n")
	must.StrContains(t, coloured, "\x1b[32mNL growing")
	bare := coloured
	for _, sgr := range []string{bold, dim, red, green, yellow, blue, grey, "0"} {
		bare = strings.ReplaceAll(bare, "\x1b["+sgr+"m", "")
	}
	must.Eq(t, plain, bare)
}

func TestPlain(t *testing.T) {
	golden(t, "plain.txt", strings.Join(Plain(someFrame(), nil), "\n")+"\n")
	told := strings.Join(Plain(someFrame(), map[string]bool{"old": true, "vae": true}), "\n")
	must.StrNotContains(t, told, "old")
	must.StrContains(t, told, "vae")
}

func TestFigures(t *testing.T) {
	for _, c := range []struct {
		v      float64
		digits int
		want   string
	}{
		{nan, 3, "-"}, {0, 3, "0"}, {106.43, 4, "106.4"}, {0.75557, 4, "0.7556"}, {0.0031, 2, "0.0031"}, {0.41, 2, "0.41"},
		{1.676, 2, "1.7"}, {2, 3, "2.00"}, {12345, 3, "12345"}, {1e-7, 2, "1.0e-07"}, {-1.5, 2, "-1.5"},
	} {
		must.Eq(t, c.want, figure(c.v, c.digits))
	}
	must.Eq(t, "5 s", clock(4600*time.Millisecond))
	must.Eq(t, "1:00", clock(59700*time.Millisecond))
	must.Eq(t, "0 s", clock(-time.Second))
	must.Eq(t, "  +0.0 %", signed(-1e-9))
}

// someRun has jobs with these ends and good times; NaN for never.
func someRun(policy string, idle float64, times ...[2]float64) metrics.Run {
	r := metrics.Run{Scenario: "demo", Policy: policy, Seed: 1, PoolCores: 2, IdleCPUS: idle}
	for i, t := range times {
		j := metrics.Job{ID: []string{"vae", "mlp", "gru2", "logreg"}[i], Kind: []string{"vae", "mlp", "gru", "logreg"}[i], EndS: &t[0], CPUS: 25}
		if !math.IsNaN(t[1]) {
			j.Quality95S = &t[1]
		}
		r.Jobs = append(r.Jobs, j)
	}
	return r
}

func compare(t *testing.T, none, with metrics.Run) result.Comparison {
	all, err := metrics.Summarize([]metrics.Run{none, with}, "none", 1)
	must.NoError(t, err)
	return result.Comparison{None: none, With: with, Summary: all[1], Noise: nan}
}

func TestSummary(t *testing.T) {
	none := someRun("none", 3, [2]float64{80, 20}, [2]float64{50, 30}, [2]float64{44, 12}, [2]float64{20, nan})
	with := someRun("auto", 4, [2]float64{80.5, 25}, [2]float64{45, 21}, [2]float64{30, 12.1}, [2]float64{22, 10})
	golden(t, "summary.txt", Summary(compare(t, none, with), Look{Width: 80}))
	must.StrContains(t, Summary(compare(t, none, with), Look{Colour: true}), "\x1b[31mdone later")

	with.IdleCPUS = 60
	shared := compare(t, none, with)
	shared.Noise = 0.24
	must.StrContains(t, Summary(shared, Look{}), "differed by 24 %: noise")
	must.StrContains(t, Summary(shared, Look{}), "the comparison is less exact")

	lost := compare(t, someRun("none", 0, [2]float64{1, 1}), someRun("auto", 0, [2]float64{2, 2}))
	must.StrContains(t, Summary(lost, Look{}), "done sooner     none\n")
	must.Eq(t, "mean time to end +100.0 % under auto, worst job × 2.00", Outcome(lost.Summary))
	must.StrContains(t, Summary(lost, Look{}), "worst job       2.00 times its time under none (vae, seed 1)\n")
}

func TestScreenLive(t *testing.T) {
	var out bytes.Buffer
	s := NewScreen(&out, true, false, func() int { return 60 })
	s.Logf("starting\n")
	must.Eq(t, "starting\n", out.String())
	out.Reset()

	f := Frame{Policy: "none", Alpha: nan, Jobs: []Line{{Name: "a", State: Planned}}}
	s.Show(f)
	must.StrNotContains(t, out.String(), "\x1b")
	must.Eq(t, 3, strings.Count(out.String(), "\n"))
	out.Reset()

	s.Show(f)
	must.StrHasPrefix(t, "\x1b[3A\r\x1b[J", out.String())
	out.Reset()

	s.Logf("a line")
	must.StrHasPrefix(t, "\x1b[3A\r\x1b[Ja line\npolicy none", out.String())
	s.Settle()
	out.Reset()
	s.Logf("below")
	must.Eq(t, "below\n", out.String())
}

func TestScreenLog(t *testing.T) {
	var out bytes.Buffer
	s := NewScreen(&out, false, false, func() int { return 60 })
	show := func(at time.Duration, state State) int {
		out.Reset()
		s.Show(Frame{Policy: "flowcon", Elapsed: at, Jobs: []Line{{Name: "a", State: state, Value: nan}}})
		must.StrNotContains(t, out.String(), "\x1b")
		return strings.Count(out.String(), "\n")
	}
	must.Eq(t, 1, show(0, Running))
	must.Eq(t, 0, show(plainEvery-time.Millisecond, Running))
	must.Eq(t, 1, show(plainEvery, Running))
	must.Eq(t, 1, show(2*plainEvery, Done))
	must.Eq(t, 0, show(3*plainEvery, Done)) // already logged
	s.Settle()
	must.Eq(t, 1, show(0, Running)) // the next run
}
