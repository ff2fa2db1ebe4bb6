// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"context"
	"os"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/sim/metrics"
	"github.com/ebbtide/ebbtide/sim/scenario"
)

func run(t *testing.T, text string, seeds uint64, names ...string) []metrics.Run {
	t.Helper()
	sc, err := scenario.Parse("test.hcl", []byte(text))
	must.NoError(t, err)
	var runs []metrics.Run
	for seed := range seeds {
		for _, name := range names {
			v, err := Find(name, sc)
			must.NoError(t, err)
			r, err := Run(context.Background(), Config{Scenario: sc, Variant: v, Seed: seed})
			must.NoError(t, err)
			runs = append(runs, r)
		}
	}
	return runs
}

func TestTry(t *testing.T) {
	for _, sizes := range []string{"exact", "estimated", "unknown"} {
		runs := run(t, "sizes = \""+sizes+"\"\n"+`
node "a" { cores = 2 }
workload "generated" { jobs = 12 }
`, 10, "none", "equal", "las", "srpt", "flowcon", "flowcon-published", "fsp-completion", "fsp", "fsp-quality", "auto")
		all, err := metrics.Summarize(runs, "", 1)
		must.NoError(t, err)
		must.NoError(t, metrics.WriteTable(os.Stdout, all))
	}
}
