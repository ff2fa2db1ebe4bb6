// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/e2e/bench/result"
	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/e2e/mix"
	"github.com/ebbtide/ebbtide/e2e/origin"
)

// measure executes the missing runs, and always cleans up.
func measure(ctx context.Context, o options, stdout io.Writer) (err error) {
	root, err := harness.FindRoot()
	if err != nil {
		return err
	}
	commit, err := origin.Commit(ctx, root)
	if err != nil {
		return err
	}
	e, err := o.open(commit)
	if err != nil {
		return err
	}
	steps := slices.DeleteFunc(plan(o), func(s step) bool { return slices.ContainsFunc(e.Runs, s.is) })
	if len(steps) == 0 {
		o.logf("%s: all runs have been done.", o.what)
		return show(stdout, e)
	}
	if o.what == result.Torch {
		if err := findTorch(ctx); err != nil {
			return err
		}
	}
	h, err := harness.New(harness.Options{Logf: o.logf})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			logs := filepath.Join(o.out, "bench-logs")
			if h.CopyLogs(logs) == nil {
				o.logf("The logs of the run are in %s.", logs)
			}
		}
		err = errors.Join(err, h.Close())
	}()
	n := &node{options: o, h: h}
	m := &measurement{node: n, e: &e}
	for i, s := range steps {
		mode := s.mode
		if mode == "" {
			mode = "without limits"
		}
		o.logf("Run %d of %d: %s %s, seed %d, %s, %s.", i+1, len(steps), o.what, s.kase, s.seed, s.name, mode)
		if err := m.prepare(ctx, s); err != nil {
			return err
		}
		if err := n.configure(ctx, s); err != nil {
			return err
		}
		run, err := m.execute(ctx, s)
		if err != nil {
			return fmt.Errorf("%s, seed %d, %s, %s: %w", o.what, s.seed, s.name, mode, err)
		}
		e.Runs = append(e.Runs, run)
		e.Version, e.Nomad = n.version, n.nomad
		if err := o.write(e); err != nil {
			return err
		}
	}
	return show(stdout, e)
}

// setting returns what a file's runs have in common.
func (o options) setting(commit string) result.Setting {
	return result.Setting{
		What: o.what, Commit: commit, Machine: origin.Machine(), Cores: float64(pool()), Interval: o.interval.Seconds(),
		Scale: o.scale, Threads: o.threads, Length: o.length.Seconds(),
	}
}

// open reads existing results or creates new ones. It rejects those of another commit, machine
// or setting.
func (o options) open(commit string) (result.Experiment, error) {
	e := result.Experiment{Setting: o.setting(commit), Commands: []string{o.command}, Time: time.Now().UTC().Truncate(time.Second)}
	if o.restart {
		return e, nil
	}
	old, err := read(o.path())
	if errors.Is(err, fs.ErrNotExist) {
		return e, nil
	}
	if err != nil {
		return e, err
	}
	if d := e.Differs(old.Setting); d != "" {
		return e, fmt.Errorf("cannot resume %s: here %s; finish it with the original setup, choose another -out, or start over with -restart", o.path(), d)
	}
	if strings.HasSuffix(commit, origin.Dirty) {
		return e, fmt.Errorf("cannot resume %s: the source has uncommitted changes, which may differ from those of the first run; commit them, or start over with -restart", o.path())
	}
	if !slices.Contains(old.Commands, o.command) {
		old.Commands = append(old.Commands, o.command)
	}
	return old, nil
}

// measurement is the state shared by runs.
type measurement struct {
	*node
	e       *result.Experiment
	lengths []result.Length // of the seed's training jobs
}

// prepare measures what a step requires, before the node runs.
func (m *measurement) prepare(ctx context.Context, s step) (err error) {
	c := &m.e.Calibration
	switch {
	case (m.what == result.Train || m.what == result.Cluster) && c.Speeds == nil:
		m.logf("Finding out how fast the models are here.")
		c.Speeds, err = mix.Speeds(ctx, m.h, m.threads)
	case m.what == result.Torch && c.Speeds == nil:
		m.logf("Finding out how fast PyTorch is here.")
		c.Speeds, err = torchSpeeds(ctx, m.h.Tools.Root, m.threads)
	case m.what == result.TRADL:
		m.lengths, err = m.findLengths(ctx, s.seed)
	case m.what == result.DQoES && c.Work == 0:
		// Ten services with a tenth of the pool each.
		c.Work, c.Alone, err = m.batch(ctx, equalResponse*float64(pool())/float64(len(objectives)))
	case m.what == result.Auto && c.Work == 0:
		c.Work, c.Alone, err = m.batch(ctx, mixBatch)
	}
	return err
}

func (m *measurement) execute(ctx context.Context, s step) (result.Run, error) {
	switch m.what {
	case result.Train, result.Torch, result.Cluster:
		return m.train(ctx, s)
	case result.TRADL:
		return m.trainings(ctx, s)
	case result.DQoES:
		return m.services(ctx, s)
	}
	return m.mix(ctx, s)
}

func (o options) path() string { return filepath.Join(o.out, o.what+".json") }

// write replaces the results file atomically.
func (o options) write(e result.Experiment) error {
	data, err := e.Encode()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return fmt.Errorf("making the directory of the results: %w", err)
	}
	if err := os.WriteFile(o.path()+".tmp", data, 0o644); err != nil {
		return fmt.Errorf("writing the results: %w", err)
	}
	if err := os.Rename(o.path()+".tmp", o.path()); err != nil {
		return fmt.Errorf("writing the results: %w", err)
	}
	return nil
}

func show(stdout io.Writer, e result.Experiment) error {
	fmt.Fprintf(stdout, "%s: %s; Nomad %s, Ebbtide %s (%s)\n", e.What, e.Machine, e.Nomad, e.Version, e.Commit)
	jobs, err := result.JobText(e)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\n%s", jobs)
	for _, t := range result.Tables(e) {
		fmt.Fprintf(stdout, "\n%s", t.Text())
	}
	return nil
}

func read(path string) (result.Experiment, error) {
	var e result.Experiment
	data, err := os.ReadFile(path)
	if err != nil {
		return e, fmt.Errorf("reading results: %w", err)
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return e, fmt.Errorf("reading results from %s: %w", path, err)
	}
	return e, nil
}

// again prints existing results.
func (o options) again(stdout io.Writer) error {
	for _, path := range o.from {
		e, err := read(path)
		if err != nil {
			return err
		}
		if err := show(stdout, e); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}
