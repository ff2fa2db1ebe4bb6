// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/sim/metrics"
)

func TestStudy(t *testing.T) {
	sc, err := load("../scenarios/sizes.hcl")
	must.NoError(t, err)
	sc.Workloads[0].Jobs = 6
	var all table
	for seed := range uint64(2) {
		must.NoError(t, all.study(sc, "fsp", seed+1))
	}
	for _, r := range all.rows {
		must.Len(t, len(r.plain), r.right, must.Sprint(r.name))
		must.Len(t, len(r.plain), r.twins, must.Sprint(r.name))
	}
	ratios := func(name string) (plain, twins, right metrics.Distribution) {
		r := all.row(name)
		return metrics.Distribute(r.plain), metrics.Distribute(r.twins), metrics.Distribute(r.right)
	}
	// A twin is the job under plain Nomad, if its size is right.
	plain, twins, right := ratios("exact")
	must.Eq(t, 12, plain.N)
	must.InDelta(t, plain.Median, twins.Median, 0.02)
	must.LessEq(t, 1.02, plain.Max)
	_, _, right = ratios("right")
	must.Eq(t, 1, right.Min)
	must.Eq(t, 1, right.Max)
	plain, _, _ = ratios("unknown")
	must.Between(t, 0.99, plain.Median, 1.01)
	// A job with too large a total comes last, and the others gain.
	plain, _, right = ratios("one 15, itself")
	must.Eq(t, 12, plain.N)
	must.Greater(t, 1.5, plain.Max)
	must.Greater(t, 1.1, right.Median)
	_, _, right = ratios("one 15, the others")
	must.Eq(t, 60, right.N)
	must.LessEq(t, 1, right.Median)
}

func TestRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "few.hcl")
	must.NoError(t, os.WriteFile(path, []byte("node \"a\" { cores = 2 }\nworkload \"generated\" { jobs = 2 }\n"), 0o644))
	var once, again, errs strings.Builder
	args := []string{"-scenario", path, "-seeds", "2"}
	must.Zero(t, run(args, &once, &errs))
	must.Zero(t, run(args, &again, &errs))
	must.Eq(t, once.String(), again.String())
	must.Eq(t, "", errs.String())
	must.StrContains(t, once.String(), "few, auto, seeds 1 to 2\n")
	must.StrContains(t, once.String(), "\nall 5 or 1/5 ")
	must.NoError(t, os.WriteFile(path, []byte("node \"a\" { cores = 2 }\nservice \"s\" {\n objective_s = 1\n batch_cpu_s = 1\n for_s = 9\n}\n"), 0o644))
	for _, args := range [][]string{{"-seeds", "0"}, {"-x"}, {"-scenario", "none.hcl"}, {"-scenario", path}, {"more"}} {
		must.Eq(t, 2, run(args, &once, &errs))
	}
	must.Eq(t, 1, run([]string{"-scenario", "../scenarios/sizes.hcl", "-policy", "fastest"}, &once, &errs))
}
