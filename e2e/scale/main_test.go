// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/e2e/scale/measure"
	"github.com/ebbtide/ebbtide/e2e/scale/nomad"
)

// The test binary re-executes itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		main()
	}
	os.Exit(m.Run())
}

// Runs all measurements, with a small cluster.
func TestRun(t *testing.T) {
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{
		"-sizes", "0.05,0.1", "-lists", "2", "-events", "100", "-batch", "3", "-pours", "2", "-decisions", "10", "-rebalances", "2",
		"-idle", "200ms", "-settle", "0s", "-rate", "50", "-waiting", "2000",
	}, &out, &errs)
	must.Eq(t, 0, code, must.Sprint(errs.String()))
	text := out.String()
	for _, want := range []string{
		`0\.05 % +0\.1 % +target`, `nodes +5 +10`, `allocations +50 +100`, `list and model +\d`, `events applied +\d+/s`, `asking all nodes, once +\d.*, 5 answer +\d.*, 10 answer`,
		`p99 < 10 ms`, `nodes among which it chooses, median +5 +10`, `its writes, but for the lock's +– +0 +< 3`, `CPU with 50 events/s +– +\d`, `CPU with 2000 jobs waiting in the queue +– +\d`, `Targets are for 100 %`,
	} {
		must.RegexMatch(t, regexp.MustCompile(want), text)
	}
}

func TestRun_usage(t *testing.T) {
	for _, args := range [][]string{
		{"extra"}, {"-node", "1"}, {"-nodes", "0"}, {"-per-node", "0"}, {"-trainings", "2"}, {"-sizes", "0"}, {"-sizes", "x"}, {"-sizes", "101"},
		{"-lists", "0"}, {"-waiting", "-1"}, {"-rate", "0"}, {"-idle", "-1s"}, {asGenerator, "-nodes", "0"}, {asGenerator, "extra"}, {asMeasured, "-options", "{"},
	} {
		var out, errs bytes.Buffer
		must.Eq(t, 2, run(t.Context(), args, &out, &errs), must.Sprint(args))
		must.NotEq(t, "", errs.String())
	}
	var out, errs bytes.Buffer
	must.Eq(t, 0, run(t.Context(), []string{"-h"}, &out, &errs))
	must.Eq(t, 1, run(t.Context(), []string{asGenerator, "-address", "nowhere:x"}, &out, &errs))
	must.Eq(t, 1, run(t.Context(), []string{asMeasured, "-options", `{"Address": "http://127.0.0.1:1"}`}, &out, &errs))

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	must.Eq(t, 1, run(ended, []string{"-sizes", "0.1"}, &out, &errs))
}

// report meets all targets.
func report() measure.Report {
	return measure.Report{
		Nodes: 10_000, Allocs: 100_000, ModelS: 10, PeakMiB: 200, EventsPerS: []float64{30_000, 40_000}, PlaceS: []float64{0.001, 0.002},
		PlaceNodes: []float64{9000}, RebalanceS: []float64{0.1},
	}
}

func TestTable(t *testing.T) {
	o := options{seed: 3, decisions: 1000, rate: 100}
	at := func(percent float64, r measure.Report) size {
		return size{percent: percent, lists: []measure.Report{r, r}, load: "0.10", cluster: nomad.Options{Nodes: r.Nodes}}
	}
	met := at(100, report())
	met.idle = &watched{Cores: 0.005}
	text := table(o, []size{at(1, report()), met}).Text()
	must.StrContains(t, text, "seed 3")
	must.StrContains(t, text, "All targets are met.")
	must.StrContains(t, text, "1.00 / 2.00 / 2.00 ms")

	for want, worse := range map[string]func(*measure.Report, *watched){
		"list and model":        func(r *measure.Report, _ *watched) { r.ModelS = 31 },
		"memory until then":     func(r *measure.Report, _ *watched) { r.PeakMiB = 1025 },
		"events applied":        func(r *measure.Report, _ *watched) { r.EventsPerS = []float64{1, 19_999, 90_000} },
		"placement decision":    func(r *measure.Report, _ *watched) { r.PlaceS = []float64{0.001, 0.011} },
		"rebalancing all nodes": func(r *measure.Report, _ *watched) { r.RebalanceS = []float64{0.1, 1.5} },
		"CPU of an idle shim":   func(_ *measure.Report, w *watched) { w.Cores = 0.02 },
		"its writes":            func(_ *measure.Report, w *watched) { w.Requests.Known = map[string]int{"PUT variable": 3} },
		"longest step":          func(_ *measure.Report, w *watched) { w.StepS = 0.06 },
	} {
		r, w := report(), watched{}
		worse(&r, &w)
		s := at(100, r)
		s.idle = &w
		must.StrContains(t, fmt.Sprint(table(o, []size{s}).Notes), "Missed: "+want)
	}
	must.StrContains(t, table(o, []size{at(10, report())}).Text(), "Targets are for 100 %")
}

func TestQuantile(t *testing.T) {
	var values []float64
	for i := range 100 {
		values = append(values, float64(100-i))
	}
	must.Eq(t, 50, quantile(values, 0.5))
	must.Eq(t, 99, quantile(values, 0.99))
	must.Eq(t, 100, quantile(values, 1))
	must.Eq(t, 7, quantile([]float64{7}, 0.01))
	must.True(t, math.IsNaN(quantile(nil, 0.5)))
}

// Its text may arrive in two writes.
func TestFollower(t *testing.T) {
	f := &follower{told: make(chan struct{}), what: []byte("following")}
	fmt.Fprint(f, strings.Repeat("x", 10_000), "follo")
	select {
	case <-f.told:
		t.Fatal("told too early")
	default:
	}
	fmt.Fprint(f, "wing")
	<-f.told
	fmt.Fprint(f, "following")
	must.StrHasSuffix(t, "wingfollowing", string(f.last()))
}

func TestProcess(t *testing.T) {
	used, err := cpu(os.Getpid())
	must.NoError(t, err)
	must.GreaterEq(t, 0, used)
	mib, err := measure.Peak(os.Getpid())
	must.NoError(t, err)
	must.Positive(t, mib)
	_, err = cpu(1 << 30)
	must.Error(t, err)
	_, err = measure.Peak(1 << 30)
	must.Error(t, err)
}
