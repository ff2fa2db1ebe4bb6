// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// Loads with a given curve that use all of a two-core machine. Reports depend only on CPU used, so
// slow machines affect only the duration.

// burner computes on two CPUs and reports a loss, an awk expression of the report number n, per 20
// ms of CPU.
func burner(name, loss string) task {
	return task{name: name, command: "/bin/sh", cpu: 400, args: []string{"-c", fmt.Sprintf(
		`yes > /dev/null & exec awk 'BEGIN { while (1) { for (k = 0; k < 100000; k++) x += k; n++; printf "step=%%d loss=%%.6f\n", n, %s; fflush() } }'`, loss)}}
}

// growing's loss keeps falling.
func growing(name string) task { return burner(name, "1000 - n / 10") }

// flat converges soon after its start.
func flat(name string) task { return burner(name, "1 + 5 / n / n + rand() / 100") }

func settled(name, category string) func(status.Status) bool {
	return func(s status.Status) bool { return s.Category == category }
}

// use measures the processes' CPU use until they have used a total amount.
func use(t *testing.T, cpuSeconds float64, pids ...int) []float64 {
	t.Helper()
	before := make([]harness.Kernel, len(pids))
	for i, pid := range pids {
		before[i] = kernel(t, pid)
	}
	cores := make([]float64, len(pids))
	eventually(t, fmt.Sprintf("the tasks have used %.0f CPU-seconds", cpuSeconds), func() error {
		var sum float64
		for i, pid := range pids {
			now, err := harness.ReadKernel(pid)
			must.NoError(t, err)
			cores[i] = now.Cores(before[i])
			sum += (now.CPU - before[i].CPU).Seconds()
		}
		if sum < cpuSeconds {
			return fmt.Errorf("they have used %.1f", sum)
		}
		return nil
	})
	return cores
}
