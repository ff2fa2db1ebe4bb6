// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func TestSimulate(t *testing.T) {
	for seed := range uint64(3) {
		for _, mixed := range []bool{false, true} {
			set := draw(rand.New(rand.NewPCG(seed, 1)), mixed, 25)
			for _, s := range schemes() {
				r := simulate(set, s, 0.5)
				must.Between(t, 0, r.utilisation, 1, must.Sprint(s.name))
				for i, end := range r.ends {
					must.Between(t, set[i].seconds*(1-1e-9), end, r.makespan, must.Sprint(s.name))
				}
			}
		}
	}
}

// With the whole card, jobs run sequentially.
func TestSimulate_wholeCard(t *testing.T) {
	set := draw(rand.New(rand.NewPCG(1, 1)), true, 40)
	alone := 0.0
	for _, j := range set {
		alone += j.seconds
	}
	must.InDelta(t, alone, simulate(set, schemes()[1], 1).makespan, 1e-6*alone)
}

func TestRun(t *testing.T) {
	var once, again, errs strings.Builder
	args := []string{"-seeds", "2", "-jobs", "30"}
	must.Zero(t, run(args, &once, &errs))
	must.Zero(t, run(args, &again, &errs))
	must.Eq(t, once.String(), again.String(), must.Sprint("seeds decide all"))
	must.StrContains(t, once.String(), "mixed: 2 sets of 30 jobs, penalty 0.5\n")
	must.Eq(t, "", errs.String())
	for _, args := range [][]string{{"-seeds", "0"}, {"-penalty", "-1"}, {"-x"}} {
		must.Eq(t, 2, run(args, &once, &errs))
	}
}
