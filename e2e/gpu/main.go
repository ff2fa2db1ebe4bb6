// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

// Command gpu measures cost and benefit of sharing a GPU's memory on the fake card, with the real
// preload library and gate, without Nomad. Compared ways alternate. It needs gcc and make, but not
// root, and leaves nothing behind.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/device/gputest"
	"github.com/ebbtide/ebbtide/e2e/bench/result"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

func main() {
	gputest.Helper(os.Args)
	os.Exit(run(harness.Interruptible(), os.Args[1:], os.Stdout, os.Stderr))
}

// parts lists the experiments in order.
var parts = []struct {
	name    string
	measure func(context.Context, bench) (part, error)
}{
	{"allocation", measureAllocations},
	{"loop", measureLoop},
	{"accuracy", measureAccuracy},
	{"gate", measureGate},
	{"makespan", measureMakespan},
	{"turns", measureTurns},
}

// part is an experiment's table and data.
type part struct {
	Table result.Table `json:"-"`
	Raw   any          `json:"raw"`
}

// bench is the environment of an experiment.
type bench struct {
	options
	built, scratch string
}

// card returns a harness with its own fake card.
func (b bench) card(c gputest.Card) (*gputest.Harness, error) {
	dir, err := os.MkdirTemp(b.scratch, "card")
	if err != nil {
		return nil, fmt.Errorf("making a card: %w", err)
	}
	return gputest.Fake(b.built, dir, c), nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	if err := all(ctx, o, stdout, stderr); err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		fmt.Fprintf(stderr, "gpu: %v\n", err)
		return 1
	}
	return 0
}

func all(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	scratch, err := os.MkdirTemp("", "ebbtide-gpu")
	if err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	b := bench{options: o, built: filepath.Join(scratch, "built"), scratch: scratch}
	if err := gputest.Build(b.built); err != nil {
		return err
	}
	raw := struct {
		Time    time.Time       `json:"time"`
		Machine machine         `json:"machine"`
		Rounds  int             `json:"rounds"`
		Seed    uint64          `json:"seed"`
		Parts   map[string]part `json:"parts"`
	}{time.Now().UTC().Truncate(time.Second), thisMachine(), o.rounds, o.seed, make(map[string]part)}
	fmt.Fprintf(stdout, "%s; %d rounds, seed %d; a fake card\n", raw.Machine, o.rounds, o.seed)
	for _, p := range parts {
		if !slices.Contains(o.what, p.name) {
			continue
		}
		begun := time.Now()
		got, err := p.measure(ctx, b)
		if err != nil {
			return fmt.Errorf("measuring %s: %w", p.name, err)
		}
		raw.Parts[p.name] = got
		fmt.Fprintf(stdout, "\n%s", got.Table.Markdown())
		fmt.Fprintf(stderr, "gpu: %s took %.0f s\n", p.name, time.Since(begun).Seconds())
	}
	if o.json == "" {
		return nil
	}
	data, err := json.MarshalIndent(raw, "", " ")
	if err != nil {
		return fmt.Errorf("encoding the results: %w", err)
	}
	if err := os.WriteFile(o.json, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing the results: %w", err)
	}
	return nil
}

// options are the command line's.
type options struct {
	what        []string
	rounds      int
	seed        uint64
	json        string
	allocations int
	steps       int           // of the loop
	launches    int           // of an empty kernel
	jobsOf      []int         // numbers of jobs in the gate's experiment
	length      time.Duration // a job's computation alone
	within      time.Duration
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{steps: 2000, launches: 1_000_000, within: 2 * time.Minute}
	var known []string
	for _, p := range parts {
		known = append(known, p.name)
	}
	fs := flag.NewFlagSet("gpu", flag.ContinueOnError)
	fs.SetOutput(stderr)
	what := fs.String("what", strings.Join(known, ","), "`list` of experiments")
	fs.IntVar(&o.rounds, "rounds", 5, "`number` of rounds of everything compared")
	fs.Uint64Var(&o.seed, "seed", 1, "`seed` of the order in a round and of the jobs")
	fs.StringVar(&o.json, "json", "", "`file` for all results")
	fs.IntVar(&o.allocations, "allocations", 100_000, "`number` of timed allocations")
	fs.DurationVar(&o.length, "length", time.Second, "`duration` of a job's computation alone")
	jobs := fs.String("jobs", "4,5,7,20", "`numbers` of jobs in the gate's experiment; those that fit are the reference")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	var err error
	switch {
	case fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case o.rounds < 1 || o.rounds > 1000:
		err = fmt.Errorf("-rounds: must be from 1 to 1000, got %d", o.rounds)
	case o.length < 100*time.Millisecond || o.length > 10*time.Minute:
		err = fmt.Errorf("-length: must be from 100ms to 10m, got %v", o.length)
	case o.allocations < 1 || o.allocations > 10_000_000:
		err = fmt.Errorf("-allocations: must be from 1 to 10000000, got %d", o.allocations)
	}
	for text := range strings.SplitSeq(*jobs, ",") {
		n, bad := strconv.Atoi(strings.TrimSpace(text))
		if (bad != nil || n < 1 || n > most) && err == nil {
			err = fmt.Errorf("-jobs: must be a list of numbers from 1 to %d, got %q", most, *jobs)
		}
		o.jobsOf = append(o.jobsOf, n)
	}
	if !slices.Contains(o.jobsOf, fit) && err == nil {
		err = fmt.Errorf("-jobs: must contain %d, got %q", fit, *jobs)
	}
	o.within += 40 * o.length
	for _, name := range strings.Split(*what, ",") {
		if name = strings.TrimSpace(name); !slices.Contains(known, name) && err == nil {
			err = fmt.Errorf("-what: must be a list of %s, got %q", strings.Join(known, ", "), name)
		}
		o.what = append(o.what, name)
	}
	if err != nil {
		fmt.Fprintf(stderr, "gpu: %v\n", err)
	}
	return o, err
}

type machine struct {
	Cores  int    `json:"cores"`
	CPU    string `json:"cpu"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	Load   string `json:"load"` // averages at the start
}

func (m machine) String() string {
	return fmt.Sprintf("%d cores (%s), Linux %s, %s, load %s", m.Cores, m.CPU, m.Kernel, m.Go, m.Load)
}

func thisMachine() machine {
	m := machine{Cores: runtime.NumCPU(), CPU: "unknown", Kernel: "unknown", Go: runtime.Version(), Load: "unknown"}
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(data)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	if data, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load = strings.Join(strings.Fields(string(data))[:3], " ")
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	return m
}
