// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Command bench measures the policies' effects on a real Nomad: on training jobs as in the
// FlowCon papers (train), in PyTorch and containers (torch), with targets (tradl), on services
// with response times (dqoes), on all kinds on one node (auto), and on four nodes with and without
// the shim (cluster), each against the same tasks without limits. It needs root and cgroups, and
// leaves nothing behind. A seed takes 5 minutes (auto) to an hour (train).
//
// torch needs Debian's python3-torch and docker.io. Its containers run torch/train.py in an empty
// image with the host's /usr mounted read-only, and with OMP_WAIT_POLICY=passive: idle threads of
// GNU's OpenMP spin, so two jobs with two threads each on two busy cores took 68 CPU-seconds each
// without it, and 10 with it.
//
//	go run ./e2e/bench -what train -jobs 10 -seeds 5 -out docs/results
//
// Compared variants alternate seed by seed. Results are written after each run, and the same
// command resumes an interrupted one; results of different commits, machines and settings are
// never mixed.
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
		fmt.Fprintln(stderr, "bench: interrupted; run the same command to resume")
		return 130
	}
	if err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return 1
	}
	return 0
}
