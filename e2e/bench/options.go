// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/e2e/bench/result"
)

// options are the command line's.
type options struct {
	whats    []string
	what     string // currently measured
	jobs     []int  // per run
	mixes    []string
	restart  bool
	command  string
	mode     string
	seed     uint64
	seeds    int
	out      string // directory of the results
	from     []string
	interval time.Duration
	length   time.Duration // of a run of services
	scale    float64
	threads  int // per training
	cases    []string
	variants []string // empty for all

	logf func(format string, args ...any)
}

func (o options) modes() []string {
	if o.mode == "both" {
		return []string{"weight", "quota"}
	}
	return []string{o.mode}
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	var whats, jobs, mixes, cases, variants, from string
	fs.StringVar(&whats, "what", "all", "comma-separated `list` of what is measured: train (training jobs), torch (training jobs in PyTorch, in containers), cluster (20 of them on four nodes), tradl (training jobs with targets), dqoes (ten services), auto (all kinds); all")
	fs.StringVar(&jobs, "jobs", "3,5,10,15", "with -what train: comma-separated `numbers` of jobs")
	fs.StringVar(&mixes, "mixes", papers, "with -what train: comma-separated `mixes`: papers (jobs with -threads each), single (with one thread each), waits (every other one on one thread, waiting for something else for two thirds of its time)")
	fs.BoolVar(&o.restart, "restart", false, "discard existing results instead of resuming")
	fs.StringVar(&o.mode, "mode", "weight", "how limits are enforced: weight, quota or both, in turn for each seed")
	fs.Uint64Var(&o.seed, "seed", 1, "first `seed`")
	fs.IntVar(&o.seeds, "seeds", 5, "`number` of seeds: of data, start values and times of submission")
	fs.StringVar(&o.out, "out", "out", "`directory` for <what>.json; existing results are resumed")
	fs.StringVar(&from, "from", "", "comma-separated JSON `files` of results: only show their tables")
	fs.DurationVar(&o.interval, "interval", 5*time.Second, "the plugin's option `interval`, and the length of a window")
	fs.DurationVar(&o.length, "length", 125*time.Second, "`duration` of a run of services or of all kinds")
	fs.Float64Var(&o.scale, "scale", 3, "`factor` for the length of the training jobs, 20 to 80 s each, and the times between them")
	fs.IntVar(&o.threads, "threads", pool(), "`threads` of each training job")
	fs.StringVar(&cases, "cases", "varied,reachable,unreachable", "with -what dqoes: comma-separated `cases`, of varied, reachable, unreachable")
	fs.StringVar(&variants, "variants", "", "comma-separated `names` of variants to measure, e.g. none,tradl (default all)")
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
	o.whats, o.mixes, o.cases, o.variants, o.from = split(whats), split(mixes), split(cases), split(variants), split(from)
	if slices.Equal(o.whats, []string{"all"}) {
		o.whats = result.All()
	}
	o.command = "go run ./e2e/bench"
	for _, a := range args {
		if strings.Contains(a, " ") {
			a = strconv.Quote(a)
		}
		o.command += " " + a
	}
	var err error
	for _, n := range split(jobs) {
		var v int
		if v, err = strconv.Atoi(n); err != nil || v < 1 || v > 100 {
			err = fmt.Errorf("-jobs: must be whole numbers from 1 to 100, got %q", n)
			break
		}
		o.jobs = append(o.jobs, v)
	}
	if err == nil {
		err = o.check(fs.Args())
	}
	if err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
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
	for _, m := range o.mixes {
		if _, ok := mixes[m]; !ok {
			return fmt.Errorf("-mixes: must be of %s, got %q", strings.Join(slices.Sorted(maps.Keys(mixes)), ", "), m)
		}
	}
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case len(o.whats) == 0:
		return fmt.Errorf("-what: must name one of %s", strings.Join(result.All(), ", "))
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
	case slices.Contains(o.whats, result.Train) && len(o.jobs) == 0:
		return fmt.Errorf("-jobs: must name a number")
	case slices.Contains(o.whats, result.Train) && len(o.mixes) == 0:
		return fmt.Errorf("-mixes: must name one")
	case slices.Contains(o.whats, result.DQoES) && len(o.cases) == 0:
		return fmt.Errorf("-cases: must name one")
	}
	for _, what := range o.whats {
		if !slices.Contains(result.All(), what) {
			return fmt.Errorf("-what: must be of %s, or all, got %q", strings.Join(result.All(), ", "), what)
		}
		for _, v := range o.variants {
			if all := names(allVariants(what)); !slices.Contains(all, v) {
				return fmt.Errorf("-variants: must be of %s with -what %s, got %q", strings.Join(all, ", "), what, v)
			}
		}
	}
	return nil
}
