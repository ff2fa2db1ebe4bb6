// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Command scale measures a large cluster's cost for the shim: time and memory of listing, events
// per second, duration of decisions, and idle CPU. The load generator (package nomad) and the
// shim's code run in separate processes.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ebbtide/ebbtide/cli"
	"github.com/ebbtide/ebbtide/e2e/scale/measure"
	"github.com/ebbtide/ebbtide/e2e/scale/nomad"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// Roles of the processes, by the first argument.
const (
	asGenerator = "serve"
	asMeasured  = "measured"
	asEbbtide   = "ebbtide"
)

type options struct {
	nodes, perNode        int
	trainings             float64
	seed                  uint64
	percents              []float64
	lists, pours          int
	events, batch         int
	decisions, rebalances int
	idle                  time.Duration
	rate                  float64
	settle                time.Duration
	waiting               int
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := error(nil)
	switch {
	case len(args) > 0 && args[0] == asEbbtide:
		return cli.Run(args[1:], os.Stdin, stdout, stderr)
	case len(args) > 0 && args[0] == asGenerator:
		err = serve(ctx, args[1:], stdout, stderr)
	case len(args) > 0 && args[0] == asMeasured:
		err = measured(ctx, args[1:], stdout, stderr)
	default:
		var o options
		if o, err = parse(args, stderr); err == nil {
			err = all(ctx, o, stdout, stderr)
		}
	}
	var usage *usageError
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "scale: %v\n", err)
		return 2
	case err != nil:
		fmt.Fprintf(stderr, "scale: %v\n", err)
		return 1
	}
	return 0
}

type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }

func read(fs *flag.FlagSet, args []string, stderr io.Writer) error {
	fs.SetOutput(stderr)
	err := fs.Parse(args)
	if err == nil && fs.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		return &usageError{err}
	}
	return err
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var percents string
	fs := flag.NewFlagSet("scale", flag.ContinueOnError)
	fs.IntVar(&o.nodes, "nodes", 10_000, "`number` of nodes at 100 %")
	fs.IntVar(&o.perNode, "per-node", 10, "`number` of allocations on each node")
	fs.Float64Var(&o.trainings, "trainings", 0.3, "`fraction` of allocations that are training jobs'")
	fs.Uint64Var(&o.seed, "seed", 1, "`seed` of the cluster")
	fs.StringVar(&percents, "sizes", "1,10,100", "`sizes` to measure, in percent")
	fs.IntVar(&o.lists, "lists", 5, "`number` of listings, each by a separate process")
	fs.IntVar(&o.events, "events", 50_000, "`number` of events per pour")
	fs.IntVar(&o.batch, "batch", 50, "`number` of allocations in one change")
	fs.IntVar(&o.pours, "pours", 5, "`number` of pours")
	fs.IntVar(&o.decisions, "decisions", 1000, "`number` of placement decisions")
	fs.IntVar(&o.rebalances, "rebalances", 20, "`number` of rebalancing decisions")
	fs.DurationVar(&o.idle, "idle", time.Minute, "`duration` of measuring an idle shim at the largest size; 0 to skip it")
	fs.Float64Var(&o.rate, "rate", 100, "`events` per second for an idle shim")
	fs.IntVar(&o.waiting, "waiting", 5000, "`number` of jobs that wait in the queue at 100 %, for a last measurement; 0 to skip it")
	fs.DurationVar(&o.settle, "settle", 20*time.Second, "`time` between a shim's connection and its measurement")
	if err := read(fs, args, stderr); err != nil {
		return o, err
	}
	for _, text := range strings.Split(percents, ",") {
		p, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil || !(p > 0 && p <= 100) {
			return o, &usageError{fmt.Errorf("-sizes: must be numbers > 0 and ≤ 100, got %q", text)}
		}
		o.percents = append(o.percents, p)
	}
	full := nomad.Options{Nodes: o.nodes, PerNode: o.perNode, Trainings: o.trainings, Seed: o.seed}
	if err := full.Validate(); err != nil {
		return o, &usageError{err}
	}
	for name, n := range map[string]int{"-lists": o.lists, "-events": o.events, "-batch": o.batch, "-pours": o.pours, "-decisions": o.decisions, "-rebalances": o.rebalances} {
		if n < 1 {
			return o, &usageError{fmt.Errorf("%s: must be ≥ 1, got %d", name, n)}
		}
	}
	if o.idle < 0 || o.settle < 0 || o.waiting < 0 || !(o.rate > 0) {
		return o, &usageError{errors.New("-idle, -settle and -waiting must be ≥ 0, -rate > 0")}
	}
	return o, nil
}

func (o options) cluster(percent float64) nomad.Options {
	return nomad.Options{Nodes: max(1, int(float64(o.nodes)*percent/100)), PerNode: o.perNode, Trainings: o.trainings, Seed: o.seed}
}

// serve runs the load generator, and prints its address.
func serve(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o nomad.Options
	fs := flag.NewFlagSet(asGenerator, flag.ContinueOnError)
	fs.IntVar(&o.Nodes, "nodes", 100, "`number` of nodes")
	fs.IntVar(&o.PerNode, "per-node", 10, "`number` of allocations on each")
	fs.Float64Var(&o.Trainings, "trainings", 0.3, "`fraction` of allocations that are training jobs'")
	fs.IntVar(&o.Waiting, "waiting", 0, "`number` of jobs that wait in the queue")
	fs.Uint64Var(&o.Seed, "seed", 1, "`seed` of the cluster")
	address := fs.String("address", "127.0.0.1:0", "where it listens")
	if err := read(fs, args, stderr); err != nil {
		return err
	}
	if err := o.Validate(); err != nil {
		return &usageError{err}
	}
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	server := &http.Server{Handler: nomad.New(o), ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	fmt.Fprintf(stdout, "http://%s\n", listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// measured runs the measured process, and prints a report.
func measured(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o measure.Options
	fs := flag.NewFlagSet(asMeasured, flag.ContinueOnError)
	text := fs.String("options", "{}", "`options` as JSON")
	if err := read(fs, args, stderr); err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(*text), &o); err != nil {
		return &usageError{fmt.Errorf("-options: %w", err)}
	}
	report, err := measure.Run(ctx, o)
	if err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(report)
}
