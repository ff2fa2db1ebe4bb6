// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/e2e/bench/result"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// measure does all runs of the plan. Whatever happens, nothing stays behind.
func measure(ctx context.Context, o options, stdout io.Writer) (err error) {
	h, err := harness.New(harness.Options{Logf: o.logf})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			logs := filepath.Join(o.out, "figures-logs")
			if h.CopyLogs(logs) == nil {
				o.logf("The logs of the run are in %s.", logs)
			}
		}
		err = errors.Join(err, h.Close())
	}()
	n := &node{options: o, h: h}
	e := result.Experiment{
		Machine: machine(), Time: time.Now().UTC().Truncate(time.Second), Cores: float64(pool()), Interval: o.interval.Seconds(),
	}
	steps := plan(o)
	m := &measurement{node: n, lengthsOf: make(map[uint64][]length)}
	for i, s := range steps {
		mode := s.mode
		if mode == "" {
			mode = "without limits"
		}
		o.logf("Run %d of %d: %s %s, seed %d, %s, %s.", i+1, len(steps), o.what, s.kase, s.seed, s.name, mode)
		if err := m.prepare(ctx, s); err != nil {
			return err
		}
		if err := n.use(ctx, s); err != nil {
			return err
		}
		run, err := m.one(ctx, s)
		if err != nil {
			return fmt.Errorf("%s, seed %d, %s, %s: %w", o.what, s.seed, s.name, mode, err)
		}
		e.Runs = append(e.Runs, run)
		e.Version, e.Nomad = n.version, n.nomad
		if err := o.write(e); err != nil {
			return err
		}
	}
	return o.show(stdout, e)
}

// measurement is what one run hands to the next ones.
type measurement struct {
	*node
	lengthsOf map[uint64][]length
	work      float64 // of a service's batch
	alone     float64 // what that takes alone, in seconds
	equal     float64 // what it takes when ten services share alike
	equalOf   uint64  // the seed with which that was measured
}

// prepare finds out, before the node runs, what a step needs to know.
func (m *measurement) prepare(ctx context.Context, s step) (err error) {
	switch {
	case m.what == result.TRADL && m.lengthsOf[s.seed] == nil:
		m.lengthsOf[s.seed], err = m.findLengths(ctx, s.seed)
	case m.what == result.DQoES && m.work == 0:
		// Ten services with a tenth of the pool each.
		m.work, m.alone, err = m.batch(ctx, equalResponse*float64(pool())/float64(len(objectives)))
	case m.what == result.Auto && m.work == 0:
		m.work, m.alone, err = m.batch(ctx, mixBatch)
	}
	return err
}

// one does a run.
func (m *measurement) one(ctx context.Context, s step) (result.Run, error) {
	switch m.what {
	case result.TRADL:
		return m.trainings(ctx, s)
	case result.DQoES:
		return m.services(ctx, s)
	}
	return m.mix(ctx, s)
}

func (o options) path(ending string) string {
	return filepath.Join(o.out, "figures-"+o.what+ending)
}

// write writes all figures so far.
func (o options) write(e result.Experiment) error {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return fmt.Errorf("making the directory of the figures: %w", err)
	}
	data, err := json.MarshalIndent(e, "", " ")
	if err != nil {
		return fmt.Errorf("encoding the figures: %w", err)
	}
	if err := os.WriteFile(o.path(".json"), append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing the figures: %w", err)
	}
	return nil
}

// show prints the tables, and writes them as Markdown.
func (o options) show(stdout io.Writer, e result.Experiment) error {
	fmt.Fprintf(stdout, "%s; Nomad %s, Ebbtide %s\n", e.Machine, e.Nomad, e.Version)
	var md strings.Builder
	for _, t := range result.Tables(e) {
		fmt.Fprintf(stdout, "\n%s", t.Text())
		fmt.Fprintf(&md, "%s\n", t.Markdown())
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return fmt.Errorf("making the directory of the figures: %w", err)
	}
	if err := os.WriteFile(o.path(".md"), []byte(md.String()), 0o644); err != nil {
		return fmt.Errorf("writing the tables: %w", err)
	}
	return nil
}

// again shows the figures of earlier runs, put together.
func (o options) again(stdout io.Writer) error {
	var all result.Experiment
	for i, path := range o.from {
		data, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("reading earlier figures: %w", err)
		}
		var e result.Experiment
		if err := json.Unmarshal(data, &e); err != nil {
			return fmt.Errorf("reading earlier figures from %s: %w", path, err)
		}
		if i == 0 {
			all = e
			continue
		}
		if e.Cores != all.Cores || e.Interval != all.Interval || e.Machine != all.Machine {
			return fmt.Errorf("%s is of another machine or interval than %s: %s, %g s", path, o.from[0], e.Machine, e.Interval)
		}
		all.Runs = append(all.Runs, e.Runs...)
	}
	return o.show(stdout, all)
}
