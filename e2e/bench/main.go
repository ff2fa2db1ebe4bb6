// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Command figures measures on a real Nomad what the policies do for jobs with targets:
// training jobs that say what is good enough (TRADL), services with response times
// (DQoES), and all kinds on one node (auto), against the same tasks without limits.
// It needs root and cgroups; nothing stays behind.
//
//	go run ./e2e/bench -what tradl -mode weight -seeds 5
//
// What is compared alternates within one run, seed by seed. Figures are written after
// every run, so that an interrupted one is not lost; -from shows them again, also
// those of several.
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
		err = measure(ctx, o, stdout)
	}
	if err != nil && ctx.Err() != nil {
		fmt.Fprintln(stderr, "figures: interrupted")
		return 130
	}
	if err != nil {
		fmt.Fprintf(stderr, "figures: %v\n", err)
		return 1
	}
	return 0
}
