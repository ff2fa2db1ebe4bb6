// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/gputest"
)

// The test binary re-executes itself to call CUDA.
func TestMain(m *testing.M) {
	gputest.Helper(os.Args)
	os.Exit(m.Run())
}

// Runs all experiments, scaled down.
func TestRun(t *testing.T) {
	for _, tool := range []string{"gcc", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(tool, "is needed")
		}
	}
	raw := filepath.Join(t.TempDir(), "raw.json")
	o, err := parse([]string{"-rounds", "1", "-allocations", "2000", "-length", "200ms", "-json", raw}, os.Stderr)
	must.NoError(t, err)
	o.jobsOf, o.steps, o.launches = []int{4, 7}, 50, 1000
	var out, errs bytes.Buffer
	must.NoError(t, all(t.Context(), o, &out, &errs), must.Sprint(errs.String()))

	data, err := os.ReadFile(raw)
	must.NoError(t, err)
	var got struct {
		Parts struct {
			Allocation struct{ Raw []allocationRun }
			Loop       struct{ Raw []loopRun }
			Accuracy   struct{ Raw []accuracyRun }
			Gate       struct{ Raw []jobsRun }
			Makespan   struct{ Raw []jobsRun }
			Turns      struct{ Raw []turnsRun }
		}
	}
	must.NoError(t, json.Unmarshal(data, &got))
	must.Len(t, len(allocationWays()), got.Parts.Allocation.Raw)
	must.Len(t, 6, got.Parts.Loop.Raw)
	must.Len(t, len(greeds())*len(accuracyLimits), got.Parts.Accuracy.Raw)
	for _, r := range got.Parts.Accuracy.Raw {
		must.Between(t, 0.99, r.Part, 1, must.Sprintf("%+v", r))
	}
	must.Len(t, 12, got.Parts.Gate.Raw)
	for _, r := range append(got.Parts.Gate.Raw, got.Parts.Makespan.Raw...) {
		must.Zero(t, r.Wrong+r.Others, must.Sprintf("%+v", r))
		must.LessEq(t, uint64(jobsCard), r.Peak)
		switch {
		case r.Way == together:
			// More growing jobs than expected may fail.
			must.LessEq(t, min(r.Jobs, fit), r.right(), must.Sprintf("%+v", r))
			must.Eq(t, r.Jobs <= fit, r.right() == r.Jobs)
		case r.Way != waiting || r.Shape != grows.name:
			must.Eq(t, r.Jobs, r.right(), must.Sprintf("%+v", r))
		}
	}
	must.Len(t, 12, got.Parts.Makespan.Raw)
	must.Len(t, len(turnSettings)*len(turnWays), got.Parts.Turns.Raw)
	for _, r := range got.Parts.Turns.Raw {
		must.Zero(t, r.Failed, must.Sprintf("%+v", r))
	}
	must.StrContains(t, out.String(), "with the gate: 0 failures in all rounds (wanted: 0 failures).")
	must.StrContains(t, out.String(), "| cuMemAllocAsync | 100.0000 % |")
}

func TestRun_usage(t *testing.T) {
	for _, args := range [][]string{
		{"extra"}, {"-round", "1"}, {"-rounds", "0"}, {"-what", "all"}, {"-what", "loop,"}, {"-allocations", "0"}, {"-length", "1ms"}, {"-jobs", "4,x"}, {"-jobs", "5"}, {"-jobs", "4,0"},
	} {
		var out, errs bytes.Buffer
		must.Eq(t, 2, run(t.Context(), args, &out, &errs), must.Sprint(args))
		must.NotEq(t, "", errs.String())
	}
	var out, errs bytes.Buffer
	must.Eq(t, 0, run(t.Context(), []string{"-h"}, &out, &errs))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	must.Eq(t, 1, run(ended, []string{"-what", "accuracy"}, &out, &errs))
}

func TestTables(t *testing.T) {
	o := options{rounds: 2, allocations: 10, length: time.Second, steps: 10}
	ways := allocationWays()
	var runs []allocationRun
	for round := range 2 {
		for i, p50 := range []float64{300, 1400, 60_300, 90_000} {
			runs = append(runs, allocationRun{Way: ways[i].name, Round: round, P50: p50 + float64(round)*100})
		}
	}
	text := allocationTable(o, ways, runs).Markdown()
	must.StrContains(t, text, "| within the credit | 1.45 µs (1.40 µs … 1.50 µs) | 1.10 µs (1.05 µs … 1.15 µs) |")
	must.StrContains(t, text, "**Missed**: within the credit: 1.10 µs, wanted < 1 µs over the driver's own.")
	must.StrContains(t, text, "**Missed**: with a round trip: 60.00 µs, wanted < 50 µs.")

	loops := []loopRun{{Way: plain.name, P50: 100, CPU: 100}, {Way: plain.name, Round: 1, P50: 200, CPU: 100}}
	for round, more := range []float64{101, 204} {
		loops = append(loops, loopRun{Way: repeated, Round: round, P50: 100, CPU: 100}, loopRun{Way: "with the library", Round: round, P50: more, CPU: 100})
	}
	text = loopTable(o, []way{plain, {name: repeated}, {name: "with the library", gate: true}}, loops).Markdown()
	must.StrContains(t, text, "+1.50 % (+1.00 % … +2.00 %)")
	must.StrContains(t, text, "**Missed**: steady overhead")

	must.StrContains(t, accuracyTable([]accuracyRun{{Kind: "cuMemAlloc", Part: 1.01}, {Kind: "cuMemCreate", Part: 0.98}}).Markdown(), "**Missed**: accuracy of the limit, the worst … the best: 98.0000 … 101.0000 %")

	a := trial{atOnce, together, fit}
	b := trial{atOnce, gated, 8}
	jobs := []jobsRun{{Shape: atOnce.name, Way: together, Jobs: fit, Makespan: 2}, {Shape: atOnce.name, Way: gated, Jobs: 8, Makespan: 5, Wrong: 1}, {Shape: atOnce.name, Way: gated, Jobs: 8, Makespan: 6}}
	text = gateTable(o, []trial{a, b}, jobs).Markdown()
	must.StrContains(t, text, "| 0 (0 … 1) | 8 (7 … 8) |")
	must.StrContains(t, text, "**Missed**: all memory at once, with the gate: 1 failures in all rounds")
}
