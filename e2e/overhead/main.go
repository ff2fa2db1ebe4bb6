// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Command overhead measures Ebbtide's own cost on a real Nomad: the plugin's CPU with many
// tasks, under flowcon and none, and the CPU of a lone task with and without the plugin.
// Compared configurations alternate, and each round is printed. It needs root, cgroups and
// busybox, and leaves nothing behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/ebbtide/ebbtide/e2e/harness"
)

func main() {
	os.Exit(run(harness.Interruptible(), os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	o.logf = func(format string, args ...any) {
		fmt.Fprintf(stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
	}
	r := results{Time: time.Now().UTC().Truncate(time.Second), Machine: thisMachine(), Options: o.given}
	fmt.Fprintf(stdout, "%s\n", r.Machine)
	for _, p := range parts {
		if o.what != "both" && o.what != p.name {
			continue
		}
		err := o.inHarness(ctx, func(h *harness.Harness) error { return p.measure(ctx, h, o, &r) })
		if err != nil && ctx.Err() != nil {
			fmt.Fprintln(stderr, "overhead: interrupted")
			return 130
		}
		if err == nil {
			p.print(stdout, r)
			err = r.write(filepath.Join(o.out, "overhead.json"))
		}
		if err != nil {
			fmt.Fprintf(stderr, "overhead: %v\n", err)
			return 1
		}
	}
	return 0
}

var parts = []struct {
	name    string
	measure func(context.Context, *harness.Harness, options, *results) error
	print   func(io.Writer, results)
}{
	{"plugin", measurePlugin, printPlugin},
	{"lone", measureLone, printLone},
}

// inHarness runs a measurement, and keeps its logs if it fails.
func (o options) inHarness(ctx context.Context, do func(*harness.Harness) error) error {
	h, err := harness.New(harness.Options{Logf: o.logf})
	if err != nil {
		return err
	}
	if err = do(h); err != nil && ctx.Err() == nil {
		logs := filepath.Join(o.out, "overhead-logs")
		if h.CopyLogs(logs) == nil {
			o.logf("The logs of the run are in %s.", logs)
		}
	}
	left := h.Close()
	if left != nil {
		o.logf("%v", left) // also if interrupted
	}
	return errors.Join(err, left)
}

type options struct {
	what     string // plugin, lone or both
	out      string // directory of the results
	interval time.Duration

	tasks  int
	rounds int
	settle time.Duration
	window time.Duration

	loneRounds int
	loneWindow time.Duration

	given map[string]string // as text, by name
	logf  func(format string, args ...any)
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{given: make(map[string]string)}
	fs := flag.NewFlagSet("overhead", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.what, "what", "both", "what is measured: plugin (its own CPU with many tasks), lone (the CPU of a task alone on its node) or both")
	fs.StringVar(&o.out, "out", "out", "`directory` for overhead.json")
	fs.DurationVar(&o.interval, "interval", 5*time.Second, "the plugin's option `interval`")
	fs.IntVar(&o.tasks, "tasks", 100, "`number` of tasks while the plugin is measured; each needs about 40 MB")
	fs.IntVar(&o.rounds, "rounds", 2, "`number` of measurements of the plugin per policy")
	fs.DurationVar(&o.settle, "settle", 20*time.Second, "`time` between all tasks' first status after a restart and the measurement; must include the first pictures")
	fs.DurationVar(&o.window, "window", time.Minute, "`duration` of a measurement of the plugin")
	fs.IntVar(&o.loneRounds, "rounds-lone", 5, "`number` of measurements of the lone task per way")
	fs.DurationVar(&o.loneWindow, "window-lone", 15*time.Second, "`duration` of a measurement of the lone task")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	var err error
	switch {
	case fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case o.what != "plugin" && o.what != "lone" && o.what != "both":
		err = fmt.Errorf("-what: must be plugin, lone or both, got %q", o.what)
	case o.tasks < 1 || o.tasks > 1000:
		err = fmt.Errorf("-tasks: must be from 1 to 1000, got %d", o.tasks)
	case o.rounds < 1:
		err = fmt.Errorf("-rounds: must be ≥ 1, got %d", o.rounds)
	case o.loneRounds < 1:
		err = fmt.Errorf("-rounds-lone: must be ≥ 1, got %d", o.loneRounds)
	case o.interval < time.Second || o.interval > time.Hour:
		err = fmt.Errorf("-interval: must be from 1s to 1h, got %v", o.interval)
	case o.settle < 0:
		err = fmt.Errorf("-settle: must be ≥ 0, got %v", o.settle)
	case o.window < time.Second:
		err = fmt.Errorf("-window: must be ≥ 1s, got %v", o.window)
	case o.loneWindow < time.Second:
		err = fmt.Errorf("-window-lone: must be ≥ 1s, got %v", o.loneWindow)
	}
	if err != nil {
		fmt.Fprintf(stderr, "overhead: %v\n", err)
		return o, err
	}
	fs.VisitAll(func(f *flag.Flag) { o.given[f.Name] = f.Value.String() })
	o.out, err = filepath.Abs(o.out)
	return o, err
}
