// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/cli"
	"github.com/mattn/go-isatty"

	"github.com/ebbtide/ebbtide/sim"
	"github.com/ebbtide/ebbtide/sim/metrics"
	"github.com/ebbtide/ebbtide/sim/metrics/picture"
	"github.com/ebbtide/ebbtide/sim/scenario"
)

type simCommand struct{ command }

func newSim(io IO) cli.Command { return simCommand{command{io, "sim"}} }

func (simCommand) Synopsis() string { return "Simulate jobs under several policies" }

func (simCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide sim -scenario FILE [-policy NAME[,NAME...]] [-seeds N] [options]

  Simulates the jobs of a scenario under each policy and compares their completion
  times with policy none, job by job. Decisions are made by the code of the driver and
  the shim. Nomad is not needed. docs/sim.md lists the fields of a scenario and the
  columns of the table; sim/scenarios has examples.

  Results are reproducible for the same scenario, policies and seeds. Errors in the
  arguments or the scenario, and missing data, are reported with the field; the exit
  status is then 2.

Options:

  -scenario FILE  Scenario, in HCL.
  -policy NAMES   Policies, separated by commas. Default: auto. "NAME@PLACEMENT"
                  overrides the scenario's placement. none is always included, first.
  -seeds N        Number of runs per policy, with seeds from 1. Default: 1.
  -jobs N         Jobs per workload; overrides the scenario.
  -sizes NAME     What nodes know of the jobs' sizes; overrides the scenario.
  -data DIR       Directory of real curves and traces; overrides the scenario.
  -json           Print the summaries as JSON instead of a table.
  -csv FILE       Write a row per job and run.
  -plot FILE      Plot the distribution of completion relative to none, as SVG.
  -workers N      Concurrent runs. Default: the number of CPUs.

Policies:

  ` + strings.Join(sim.Names(), ", ") + `
Placements:

  ` + strings.Join(scenario.Placements(), ", ") + "\n")
}

const maxSeeds = 10_000

func (c simCommand) Run(args []string) int {
	var (
		path, names, data, table, plot string
		seeds, workers                 int
		asJSON                         bool
		changed                        scenario.Changes
	)
	flags := c.flags()
	flags.StringVar(&path, "scenario", "", "")
	flags.StringVar(&names, "policy", "auto", "")
	flags.IntVar(&seeds, "seeds", 1, "")
	flags.IntVar(&changed.Jobs, "jobs", 0, "")
	flags.StringVar(&changed.Sizes, "sizes", "", "")
	flags.StringVar(&data, "data", "", "")
	flags.BoolVar(&asJSON, "json", false, "")
	flags.StringVar(&table, "csv", "", "")
	flags.StringVar(&plot, "plot", "", "")
	flags.IntVar(&workers, "workers", runtime.NumCPU(), "")
	if status, ok := c.parse(flags, args, c.Help()); !ok {
		return status
	}
	var errs []error
	if flags.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	if path == "" {
		errs = append(errs, errors.New("-scenario: must be given, a file in HCL"))
	}
	if seeds < 1 || seeds > maxSeeds {
		errs = append(errs, fmt.Errorf("-seeds: must be from 1 to %d, got %d", maxSeeds, seeds))
	}
	if workers < 1 {
		errs = append(errs, fmt.Errorf("-workers: must be ≥ 1, got %d", workers))
	}
	if len(errs) > 0 {
		return c.refuse(errs...)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return c.refuse(fmt.Errorf("reading the scenario: %w", err))
	}
	sc, err := scenario.Parse(path, text, changed)
	if err != nil {
		return c.refuse(fmt.Errorf("scenario %s: %w", path, err))
	}
	batch := sim.Batch{Scenario: sc, First: 1, Seeds: seeds, Workers: workers}
	if data == "" {
		data = sc.Data
	}
	if data != "" {
		batch.Data = os.DirFS(data)
	}
	if batch.Variants, err = variants(names, sc); err != nil {
		return c.refuse(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	bar := &progressBar{to: c.io.Err, began: time.Now()}
	if f, ok := c.io.Err.(*os.File); ok && isatty.IsTerminal(f.Fd()) {
		batch.Progress = bar.show
	}
	runs, err := batch.Run(ctx)
	bar.clear()
	switch {
	case sim.Input(err):
		return c.refuse(err)
	case err != nil:
		return c.failed(err)
	}
	summaries, err := metrics.Summarize(runs, "", 1)
	if err != nil {
		return c.failed(err)
	}
	for _, f := range []struct {
		path  string
		write func(io.Writer) error
	}{
		{table, func(w io.Writer) error { return metrics.WriteCSV(w, runs) }},
		{plot, func(w io.Writer) error { return picture.Ratios(w, sc.Name, runs, "") }},
	} {
		if f.path == "" {
			continue
		}
		var out bytes.Buffer
		if err := f.write(&out); err != nil {
			return c.failed(err)
		}
		if err := os.WriteFile(f.path, out.Bytes(), 0o644); err != nil {
			return c.failed(fmt.Errorf("writing the result: %w", err))
		}
	}
	var out bytes.Buffer
	if asJSON {
		enc := json.NewEncoder(&out)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		err = enc.Encode(summaries)
	} else {
		err = metrics.WriteTable(&out, summaries)
	}
	if err != nil {
		return c.failed(fmt.Errorf("encoding the result: %w", err))
	}
	if _, err := c.io.Out.Write(out.Bytes()); err != nil {
		return c.failed(fmt.Errorf("writing the result: %w", err))
	}
	return exitOK
}

// variants returns the policies, none first.
func variants(names string, sc scenario.Scenario) ([]sim.Variant, error) {
	list := []string{metrics.DefaultBase}
	for _, name := range strings.Split(names, ",") {
		if name = strings.TrimSpace(name); !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	var out []sim.Variant
	for _, name := range list {
		v, err := sim.Find(name, sc)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// progressBar shows a long run's progress on a terminal.
type progressBar struct {
	to          io.Writer
	began, last time.Time
	shown       bool
}

// show redraws the bar a few times a second, once the run has taken a second.
func (b *progressBar) show(part float64) {
	const width = 40
	now := time.Now()
	if now.Sub(b.began) < time.Second || now.Sub(b.last) < 200*time.Millisecond {
		return
	}
	b.last, b.shown = now, true
	done := min(int(part*width), width)
	left := ""
	if part > 0.01 {
		left = fmt.Sprintf(", %v left", time.Duration(float64(now.Sub(b.began))*(1-part)/part).Round(time.Second))
	}
	fmt.Fprintf(b.to, "\r[%s%s] %3.0f %%%s\x1b[K", strings.Repeat("#", done), strings.Repeat(".", width-done), 100*part, left)
}

func (b *progressBar) clear() {
	if b.shown {
		fmt.Fprint(b.to, "\r\x1b[K")
	}
}
