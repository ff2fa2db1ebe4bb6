// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Command bench measures on a real Nomad what the policies do: for training jobs as in the
// FlowCon papers (train), for such in PyTorch and containers (torch), for jobs with targets
// (tradl), for services with response times (dqoes), and for all kinds on one node (auto),
// each against the same tasks without limits. It needs root and cgroups; nothing stays
// behind.
//
//	go run ./e2e/bench -what train -jobs 10 -seeds 5 -out docs/results
//
// What is compared alternates within one run, seed by seed. Results are written after
// every run; the same command goes on where an interrupted one has stopped. Results of
// one commit, machine and setting are never mixed with those of another.
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

// run measures what is asked for; it returns the exit status.
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
	if len(o.from) > 0 {
		err = o.again(stdout)
	} else {
		for _, o.what = range o.whats {
			err = measure(ctx, o, stdout)
			if errors.Is(err, errNoTorch) && len(o.whats) > 1 {
				o.logf("Leaving out %s: %v.", o.what, err)
				err = nil
			}
			if err != nil {
				break
			}
		}
	}
	if err != nil && ctx.Err() != nil {
		fmt.Fprintln(stderr, "bench: interrupted; the same command goes on")
		return 130
	}
	if err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return 1
	}
	return 0
}
