// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/e2e/bench/result"
)

// options are the command line's.
type options struct {
	what     string
	mode     string
	seed     uint64
	seeds    int
	out      string // directory of the figures
	from     []string
	interval time.Duration
	length   time.Duration // of a run of services
	scale    float64
	threads  int // of each training
	cases    []string
	variants []string // "" = all
	lengths  string   // file with what was found out about the trainings

	logf func(format string, args ...any)
}

// modes are the modes to measure.
func (o options) modes() []string {
	if o.mode == "both" {
		return []string{"weight", "quota"}
	}
	return []string{o.mode}
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{}
	fs := flag.NewFlagSet("figures", flag.ContinueOnError)
	fs.SetOutput(stderr)
	var cases, variants, from string
	fs.StringVar(&o.what, "what", result.TRADL, "what is measured: tradl (training jobs with targets), dqoes (ten services) or auto (all kinds)")
	fs.StringVar(&o.mode, "mode", "weight", "how limits are enforced: weight, quota or both, in turn for each seed")
	fs.Uint64Var(&o.seed, "seed", 1, "first `seed`")
	fs.IntVar(&o.seeds, "seeds", 5, "`number` of seeds: of data, start values and times of submission")
	fs.StringVar(&o.out, "out", "out", "`directory` for figures-<what>.json and .md")
	fs.StringVar(&from, "from", "", "comma-separated JSON `files` of earlier runs: show their tables, nothing else")
	fs.DurationVar(&o.interval, "interval", 2*time.Second, "the plugin's option `interval`, and the length of a window")
	fs.DurationVar(&o.length, "length", 50*time.Second, "`time` that a run of services or of all kinds is followed")
	fs.Float64Var(&o.scale, "scale", 1, "`factor` for the length of the training jobs and the times between them")
	fs.IntVar(&o.threads, "threads", pool(), "`threads` of each training job")
	fs.StringVar(&cases, "cases", "varied,reachable,unreachable", "with -what dqoes: comma-separated `cases`, of varied, reachable, unreachable")
	fs.StringVar(&variants, "variants", "", "comma-separated `names` of variants to measure, e.g. none,tradl (default all)")
	fs.StringVar(&o.lengths, "lengths", "", "`file` to keep what was found out about the training jobs in, and to take it from (default none)")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	split := func(text string) []string {
		var all []string
		for _, part := range strings.Split(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				all = append(all, part)
			}
		}
		return all
	}
	o.cases, o.variants, o.from = split(cases), split(variants), split(from)
	err := o.check(fs.Args())
	if err != nil {
		fmt.Fprintf(stderr, "figures: %v\n", err)
		return o, err
	}
	o.out, err = filepath.Abs(o.out)
	return o, err
}

func (o options) check(rest []string) error {
	known := []string{result.Varied, result.Reachable, result.Unreachable}
	for _, c := range o.cases {
		if !slices.Contains(known, c) {
			return fmt.Errorf("-cases: must be of %s, got %q", strings.Join(known, ", "), c)
		}
	}
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case !slices.Contains([]string{result.TRADL, result.DQoES, result.Auto}, o.what):
		return fmt.Errorf("-what: must be tradl, dqoes or auto, got %q", o.what)
	case !slices.Contains([]string{"weight", "quota", "both"}, o.mode):
		return fmt.Errorf("-mode: must be weight, quota or both, got %q", o.mode)
	case o.seeds < 1:
		return fmt.Errorf("-seeds: must be ≥ 1, got %d", o.seeds)
	case o.interval < time.Second || o.interval > time.Minute:
		return fmt.Errorf("-interval: must be from 1s to 1m, got %v", o.interval)
	case o.length < 10*o.interval:
		return fmt.Errorf("-length: must be ≥ ten intervals, %v, got %v", 10*o.interval, o.length)
	case !(o.scale >= 0.05 && o.scale <= 100):
		return fmt.Errorf("-scale: must be from 0.05 to 100, got %v", o.scale)
	case o.threads < 1 || o.threads > 64:
		return fmt.Errorf("-threads: must be from 1 to 64, got %d", o.threads)
	case o.what == result.DQoES && len(o.cases) == 0:
		return fmt.Errorf("-cases: must name one")
	}
	for _, v := range o.variants {
		if all := names(allVariants(o.what)); !slices.Contains(all, v) {
			return fmt.Errorf("-variants: must be of %s, got %q", strings.Join(all, ", "), v)
		}
	}
	return nil
}
