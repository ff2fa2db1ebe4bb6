// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Command sizes simulates what wrong sizes cost; see its help.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/ebbtide/ebbtide/sim"
	"github.com/ebbtide/ebbtide/sim/metrics"
	"github.com/ebbtide/ebbtide/sim/scenario"
)

const help = `Usage: sizes [-scenario FILE] [-policy NAME] [-seeds N]

  Simulates a scenario's jobs with reported totals that are wrong by 2, 5 and 15 times:
  that of one job, each in turn; those of all; and those of all, alternately too large
  and too small. "exact", "right" and "unknown" are sizes known exactly, estimated from
  right totals, and unknown.

  Prints the jobs' times to their ends, relative to plain Nomad, to their twins as the
  driver keeps them, and to right totals. "slower" jobs took over 2 % longer than under
  plain Nomad; "loser" is the job that took longest, relative to it.

Options:
`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("sizes", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.Usage = func() { fmt.Fprint(errs, help); flags.PrintDefaults() }
	path := flags.String("scenario", "sim/scenarios/sizes.hcl", "scenario with one workload")
	policy := flags.String("policy", "auto", "policy, as for ebbtide sim")
	seeds := flags.Uint64("seeds", 16, "number of seeds, from 1")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if *seeds < 1 || flags.NArg() > 0 {
		fmt.Fprintln(errs, "sizes: -seeds must be ≥ 1, and there are no arguments")
		return 2
	}
	sc, err := load(*path)
	if err != nil {
		fmt.Fprintln(errs, "sizes:", err)
		return 2
	}
	var all table
	for seed := uint64(1); seed <= *seeds; seed++ {
		if err := all.study(sc, *policy, seed); err != nil {
			fmt.Fprintln(errs, "sizes:", err)
			return 1
		}
	}
	fmt.Fprintf(out, "%s, %s, seeds 1 to %d\n", sc.Name, *policy, *seeds)
	if err := all.write(out); err != nil {
		fmt.Fprintln(errs, "sizes: writing the table:", err)
		return 1
	}
	return 0
}

func load(path string) (scenario.Scenario, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return scenario.Scenario{}, fmt.Errorf("reading the scenario: %w", err)
	}
	sc, err := scenario.Parse(path, text, scenario.Changes{})
	if err == nil && (len(sc.Workloads) != 1 || len(sc.Services) > 0) {
		err = errors.New("must have one workload and no service")
	}
	if err != nil {
		return sc, fmt.Errorf("scenario %s: %w", path, err)
	}
	return sc, nil
}

// simulate returns the jobs with these totals, in order of arrival.
func simulate(sc scenario.Scenario, policy string, seed uint64, totals ...float64) ([]metrics.Job, error) {
	sc.Workloads = slices.Clone(sc.Workloads)
	sc.Workloads[0].Totals = totals
	v, err := sim.Find(policy, sc)
	if err != nil {
		return nil, err
	}
	r, err := sim.Run(context.Background(), sim.Config{Scenario: sc, Variant: v, Seed: seed})
	if err == nil && r.Unfinished() > 0 {
		err = fmt.Errorf("%s: %d jobs did not end", r.Name(), r.Unfinished())
	}
	return r.Jobs, err
}

// table has a row per case, in order of appearance.
type table struct{ rows []*row }

type row struct {
	name                string
	plain, twins, right []float64 // times to the end, relative to these
	slower              int
	worst               float64
	loser               string
}

func (t *table) row(name string) *row {
	for _, r := range t.rows {
		if r.name == name {
			return r
		}
	}
	r := &row{name: name}
	t.rows = append(t.rows, r)
	return r
}

// study adds a seed.
func (t *table) study(sc scenario.Scenario, policy string, seed uint64) error {
	var plain, right []metrics.Job
	add := func(name string, sizes string, wrong int, totals ...float64) error {
		sc.Sizes = sizes
		jobs, err := simulate(sc, policy, seed, totals...)
		if err != nil {
			return err
		}
		for i, j := range jobs {
			who := name
			switch {
			case wrong == i:
				who += ", itself"
			case wrong >= 0:
				who += ", the others"
			}
			t.row(who).add(seed, j, plain[i], right[i])
		}
		return nil
	}
	sc.Sizes = scenario.Estimated
	var err error
	if plain, err = simulate(sc, metrics.DefaultBase, seed); err != nil {
		return err
	}
	if right, err = simulate(sc, policy, seed); err != nil {
		return err
	}
	const all = -1
	errs := []error{
		add("exact", scenario.Exact, all),
		add("right", scenario.Estimated, all),
		add("unknown", scenario.Unknown, all),
	}
	for _, f := range []struct {
		name   string
		factor float64
	}{{"1/15", 1.0 / 15}, {"1/5", 1.0 / 5}, {"1/2", 1.0 / 2}, {"2", 2}, {"5", 5}, {"15", 15}} {
		for k := range plain {
			totals := slices.Repeat([]float64{1}, len(plain))
			totals[k] = f.factor
			errs = append(errs, add("one "+f.name, scenario.Estimated, k, totals...))
		}
		errs = append(errs, add("all "+f.name, scenario.Estimated, all, f.factor))
		if f.factor > 1 {
			errs = append(errs, add(fmt.Sprintf("all %s or 1/%s", f.name, f.name), scenario.Estimated, all, f.factor, 1/f.factor))
		}
	}
	return errors.Join(errs...)
}

func (r *row) add(seed uint64, j, plain, right metrics.Job) {
	end, _ := j.Completion()
	p, _ := plain.Completion()
	e, _ := right.Completion()
	r.plain, r.right = append(r.plain, end/p), append(r.right, end/e)
	if j.TwinEndS != nil {
		r.twins = append(r.twins, end/(*j.TwinEndS-j.ArriveS))
	}
	if end > p*(1+metrics.Slower) {
		r.slower++
	}
	if end/p > r.worst {
		r.worst, r.loser = end/p, fmt.Sprintf("%s, seed %d: %.0f CPU-s", j.ID, seed, j.CPUS)
	}
}

func (t *table) write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "totals\tjobs\tplain: mean\tmedian\tp95\tworst\tslower\ttwin: mean\tmedian\tp95\tworst\tright: mean\tmedian\tp95\tworst\tloser\t\n")
	for _, r := range t.rows {
		fmt.Fprintf(w, "%s\t%d\t%s\t%.1f %%\t%s\t%s\t%s\t\n", r.name, len(r.plain), describe(r.plain),
			100*float64(r.slower)/float64(len(r.plain)), describe(r.twins), describe(r.right), r.loser)
	}
	return w.Flush()
}

// describe returns the mean, median, 95th percentile and greatest as cells.
func describe(values []float64) string {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	d := metrics.Distribute(values)
	return fmt.Sprintf("%.2f\t%.2f\t%.2f\t%.2f", sum/float64(len(values)), d.Median, d.P95, d.Max)
}
