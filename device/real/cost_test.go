// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package real

import (
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/gputest"
	"github.com/ebbtide/ebbtide/device/real/report"
)

// What the library costs on this driver. Both ways alternate.
func TestCost(t *testing.T) {
	const rounds = 5
	ctx := within(t, 4*time.Minute)
	one := func(key string, library bool, env []string, args ...string) float64 {
		t.Helper()
		j := gputest.Job{Container: "cost", Args: args, Env: env}
		if library {
			j.Gate = open(t, budget, 4*gib)
		}
		p := start(t, ctx, j)
		l := next(t, ctx, p, key)
		must.NoError(t, p.Wait())
		return l.Float(key)
	}
	for _, m := range []struct {
		name, key string
		most      float64 // times the driver's: an order of magnitude above the expected
		args, env []string
	}{
		{"allocation of 4 KiB", "p50", 20, []string{"--mode", "many", "--count", "20000", "--bytes", "4096"}, nil},
		// Each is a round trip to the gate: two processes are woken.
		{"allocation of 4 KiB, none granted ahead", "p50", 1000, []string{"--mode", "many", "--count", "2000", "--bytes", "4096"}, []string{"EBBTIDE_GATE_CREDIT=1"}},
		{"launch", "ns", 20, []string{"--mode", "loop", "--count", "20000"}, nil},
		{"step: launch, host, wait", "p50", 20, []string{"--mode", "loop", "--count", "1000", "--work", "200000"}, nil},
	} {
		var plain, ours []float64
		for round := range rounds {
			first := one(m.key, round%2 == 1, m.env, m.args...)
			second := one(m.key, round%2 == 0, m.env, m.args...)
			if round%2 == 1 {
				first, second = second, first
			}
			plain, ours = append(plain, first), append(ours, second)
		}
		driver, library := compare(t, m.name, "ns", plain, ours)
		must.Less(t, m.most*driver, library, must.Sprint(strings.Join(m.args, " ")))
	}
}

// compare reports what something takes with the driver alone and with library and gate,
// alternating, and returns the medians.
func compare(t *testing.T, of, unit string, plain, ours []float64) (driver, library float64) {
	t.Helper()
	ratio := make([]float64, len(plain))
	for i := range plain {
		ratio[i] = ours[i] / plain[i]
	}
	alone := report.Measured("driver", "what it takes with the driver alone", unit, plain...).For(of)
	with := report.Measured("library", "what it takes with library and gate", unit, ours...).For(of)
	record(t, alone)
	record(t, with)
	record(t, report.Measured("ratio", "the second by the first, each pair taken one after the other", "", ratio...).For(of))
	return *alone.Median, *with.Median
}
