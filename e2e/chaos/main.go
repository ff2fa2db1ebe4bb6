// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Command chaos injects random failures into a real Nomad while jobs are moved, and checks the
// jobs: a server, three clients and two shims are killed, stopped and suspended, plugins and
// `ebbtide move` killed, nodes drained, allocations stopped and jobs scaled, one failure at a time,
// during several moves, while jobs of the queue are suspended and go on. A fourth client's disk counts as full, and some jobs have a disconnect block:
// neither may take part in a move. Jobs keep records that Nomad does not manage (witness.go). It needs root, cgroups
// and busybox, and leaves nothing behind.
//
//	go run ./e2e/chaos -seed 1 -minutes 5
//
// The exit status is 1 if two copies of a job ran concurrently, a job resumed without its
// checkpoint, a completed job ran again, or a job was left bound, frozen or not running.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/ebbtide/ebbtide/e2e/harness"
)

func main() {
	os.Exit(run(harness.Interruptible(), os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	fs := flag.NewFlagSet("chaos", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Uint64Var(&o.seed, "seed", 1, "`seed` of what is broken, and when")
	fs.Float64Var(&o.minutes, "minutes", 5, "`minutes` of breaking things")
	fs.IntVar(&o.jobs, "jobs", 12, "`number` of jobs")
	fs.IntVar(&o.queued, "queued", 4, "`number` of jobs of the queue, which are suspended and go on")
	fs.IntVar(&o.movers, "movers", 3, "`number` of concurrent moves by ebbtide move")
	fs.StringVar(&o.keep, "keep", "", "`directory` for copies of logs and witnesses")
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err == nil && (fs.NArg() > 0 || !(o.minutes > 0) || o.jobs < 1 || min(o.movers, o.queued) < 0):
		fmt.Fprintf(stderr, "chaos: -minutes must be > 0, -jobs ≥ 1, -movers and -queued ≥ 0, got %v, %d, %d and %d; and no other argument, got %q\n", o.minutes, o.jobs, o.movers, o.queued, fs.Args())
		fallthrough
	case err != nil:
		return 2
	}
	o.logf = func(format string, args ...any) {
		fmt.Fprintf(stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
	}
	r, err := runChaos(ctx, o)
	if r != nil {
		fmt.Fprint(stdout, r.text())
	}
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "chaos: %v\n", err)
		return 1
	case len(r.wrong) > 0:
		return 1
	}
	return 0
}
