// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

// Command bundle runs the tests of GPU sharing on a machine with a card and neither Go nor a
// compiler. Its folder has all that they need (make gpu-bundle); run.sh starts it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sys/unix"
)

// Exit statuses.
const (
	passed  = 0
	failed  = 1
	nothing = 2 // no test can run here
	broken  = 3 // there is no report
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	o, err := parse(args, errs)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return passed
	case err == nil:
		var status int
		if status, err = all(ctx, o, out); err == nil {
			return status
		}
	}
	fmt.Fprintln(errs, err)
	return broken
}

type options struct {
	dir   string // of the bundle
	out   string // of the report
	fake  bool
	limit time.Duration // for all
	each  time.Duration // for one
	match *regexp.Regexp
	state string // the plugin's state directory
}

func parse(args []string, errs io.Writer) (o options, err error) {
	self, err := os.Executable()
	if err != nil {
		return o, fmt.Errorf("looking for the bundle: %w", err)
	}
	o.dir = filepath.Dir(self)
	f := flag.NewFlagSet("run.sh", flag.ContinueOnError)
	f.SetOutput(errs)
	f.BoolVar(&o.fake, "fake", os.Getenv("EBBTIDE_TEST_GPU") == "fake", "run on the fake card")
	f.StringVar(&o.out, "out", o.dir, "the folder of the report")
	f.DurationVar(&o.limit, "limit", 8*time.Minute, "the time for all tests; those for which none is left are skipped")
	f.DurationVar(&o.each, "each", 3*time.Minute, "the time for one test")
	f.StringVar(&o.state, "state", "/var/lib/ebbtide/gpu", "the plugin's state_dir, to record there that all tests have passed")
	match := f.String("run", ".", "only tests whose name matches this expression")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("there are no arguments but options, got %q", f.Args())
	}
	if o.limit < least || o.each <= 0 {
		return o, fmt.Errorf("-limit must be at least %v and -each more than 0, got %v and %v", least, o.limit, o.each)
	}
	if o.match, err = regexp.Compile(*match); err != nil {
		return o, fmt.Errorf("-run: %w", err)
	}
	if o.out, err = filepath.Abs(o.out); err != nil {
		return o, fmt.Errorf("-out: %w", err)
	}
	return o, nil
}
