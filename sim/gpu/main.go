// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Command gpu compares ways to divide a GPU's memory on simulated sets of jobs; see its help.
// It is a model, not a measurement.
package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"

	"github.com/ebbtide/ebbtide/device/fairshare"
)

const help = `Usage: gpu [-seeds N] [-jobs N] [-penalty X]

  Divides a simulated card of 12 GiB by each mode of device/fairshare, on sets of jobs
  of one application (homogeneous) and of two (mixed) with up to ten parameter sets,
  and prints their makespan and the memory in use.

  The model: all jobs are submitted at the start; each group has one container that
  runs its jobs sequentially, as in the paper. A job with less memory than it needs
  runs at (has/needs)^penalty of its speed, and not at all below a quarter; it keeps
  its memory to its end, and takes more when its share grows. Compute is shared
  without loss: beyond the card's all jobs slow down alike. There are no transfers,
  start-up times or failures.

  "adaptive" is equation 1 with adaptive coefficients; "+ bounds" adds wishes and
  minima measured from the group. "equal, live" gives all present groups equal parts,
  updated whenever one finishes: its gain over static is not due to equation 1.

Options:
`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("gpu", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.Usage = func() { fmt.Fprint(errs, help); flags.PrintDefaults() }
	seeds := flags.Int("seeds", 40, "number of sets per kind")
	jobs := flags.Int("jobs", 500, "jobs per set")
	penalty := flags.Float64("penalty", 0.5, "cost of missing memory: 0 for none, 1 for proportional")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if *seeds < 1 || *jobs < 1 || !(*penalty >= 0 && *penalty <= 4) {
		fmt.Fprintln(errs, "gpu: -seeds and -jobs must be ≥ 1, -penalty ≥ 0 and ≤ 4")
		return 2
	}
	for _, mixed := range []bool{false, true} {
		compare(out, mixed, *seeds, *jobs, *penalty)
	}
	return 0
}

// schemes returns the compared schemes, the reference first.
func schemes() []scheme {
	return []scheme{
		{name: "static", mode: fairshare.Static},
		{name: "whole card", mode: fairshare.WholeCard},
		{name: "equal, live", mode: fairshare.Adaptive, equal: true},
		{name: "adaptive", mode: fairshare.Adaptive},
		{name: "adaptive + bounds", mode: fairshare.Adaptive, bounds: true},
	}
}

// compare runs all schemes on the same sets and prints the distributions.
func compare(out io.Writer, mixed bool, seeds, jobs int, penalty float64) {
	all := schemes()
	results := make([][]result, len(all))
	for seed := range seeds {
		set := draw(rand.New(rand.NewPCG(uint64(seed), 1)), mixed, jobs)
		for i, s := range all {
			results[i] = append(results[i], simulate(set, s, penalty))
		}
	}
	name := "homogeneous"
	if mixed {
		name = "mixed"
	}
	fmt.Fprintf(out, "%s: %d sets of %d jobs, penalty %g\n", name, seeds, jobs, penalty)
	fmt.Fprintf(out, "  %-18s %10s %8s   %s\n", "", "makespan s", "memory %", "against static, % (min, quarter, median, three quarters, max; sets that got worse)")
	static := results[0]
	for i, s := range all {
		var makespans, utilisations, faster, fuller, slowdowns []float64
		slower, worse, emptier := 0, 0, 0
		for k, r := range results[i] {
			makespans, utilisations = append(makespans, r.makespan), append(utilisations, 100*r.utilisation)
			faster = append(faster, 100*(r.makespan/static[k].makespan-1))
			fuller = append(fuller, 100*(r.utilisation/static[k].utilisation-1))
			if r.makespan > static[k].makespan*(1+1e-9) {
				worse++
			}
			if r.utilisation < static[k].utilisation*(1-1e-9) {
				emptier++
			}
			for j, end := range r.ends {
				slowdowns = append(slowdowns, end/static[k].ends[j])
				if end > static[k].ends[j]*(1+1e-9) {
					slower++
				}
			}
		}
		fmt.Fprintf(out, "  %-18s %10.0f %8.1f", s.name, quantile(makespans, 0.5), quantile(utilisations, 0.5))
		if i == 0 {
			fmt.Fprintln(out)
			continue
		}
		fmt.Fprintf(out, "   makespan %s; %d\n  %41smemory %s; %d\n", spread(faster), worse, "", spread(fuller), emptier)
		fmt.Fprintf(out, "  %41sjobs that end later: %.0f %%; a job's end, × static's: %.2f, %.2f, %.2f, %.2f, %.2f\n", "",
			100*float64(slower)/float64(len(slowdowns)), quantile(slowdowns, 0), quantile(slowdowns, 0.25),
			quantile(slowdowns, 0.5), quantile(slowdowns, 0.75), quantile(slowdowns, 1))
	}
	fmt.Fprintln(out)
}

func spread(values []float64) string {
	return fmt.Sprintf("%+.1f, %+.1f, %+.1f, %+.1f, %+.1f", quantile(values, 0), quantile(values, 0.25),
		quantile(values, 0.5), quantile(values, 0.75), quantile(values, 1))
}

func quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(math.Round(q*float64(len(sorted)-1)))]
}
