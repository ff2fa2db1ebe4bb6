// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Command moves measures the cost of a move: it moves a training job between two Nomad clients on
// this machine, and prints its downtime and repeated steps. It needs root, cgroups and busybox, and
// leaves nothing behind.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/e2e/bench/result"
	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/store"
)

func main() {
	os.Exit(run(harness.Interruptible(), os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("moves", flag.ContinueOnError)
	fs.SetOutput(stderr)
	moves := fs.Int("moves", 20, "`number` of moves")
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err == nil && (fs.NArg() > 0 || *moves < 1):
		err = fmt.Errorf("-moves: must be ≥ 1, got %d, and no other argument, got %q", *moves, fs.Args())
		fmt.Fprintf(stderr, "moves: %v\n", err)
		fallthrough
	case err != nil:
		return 2
	}
	logf := func(format string, args ...any) {
		fmt.Fprintf(stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
	}
	all, err := measure(ctx, *moves, logf)
	if len(all) > 0 {
		fmt.Fprint(stdout, table(all).Text())
	}
	if err != nil {
		fmt.Fprintf(stderr, "moves: %v\n", err)
		return 1
	}
	return 0
}

// moved is one move, in seconds.
type moved struct {
	Gap     float64 // from the last step on the source to the first on the target
	Frozen  float64 // of it: from the freeze to the registration
	Restore float64 // of it: from the start on the target to the first step
	Again   float64 // repeated steps
	All     float64 // of the whole command
}

func measure(ctx context.Context, moves int, logf func(string, ...any)) (all []moved, err error) {
	h, err := harness.New(harness.Options{Logf: logf})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	config := harness.AgentConfig{PluginName: "ebbtide-driver", Plugin: `engine = "exec"`, LogLevel: "INFO"}
	first, err := h.StartAgent(ctx, config)
	if err != nil {
		return nil, err
	}
	config.Join = first
	second, err := h.StartAgent(ctx, config)
	if err != nil {
		return nil, err
	}
	for _, a := range []*harness.Agent{first, second} {
		if _, err := a.WaitDriver(ctx, "ebbtide", true); err != nil {
			return nil, err
		}
	}
	id, err := first.Run(ctx, hcl)
	if err != nil {
		return nil, err
	}
	alloc, err := first.WaitRunning(ctx, id)
	if err != nil {
		return nil, err
	}
	for len(all) < moves {
		from, to := first, second
		if alloc.NodeID == second.NodeID() {
			from, to = second, first
		}
		m, next, err := one(ctx, from, to, alloc)
		if err != nil {
			return all, fmt.Errorf("move %d: %w", len(all)+1, err)
		}
		logf("Move %d of %d: %.2f s without a step.", len(all)+1, moves, m.Gap)
		all, alloc = append(all, m), next
	}
	return all, first.StopJob(ctx, id)
}

// hcl is the job: recorded steps of 10 ms.
const hcl = `
job "mover" {
  type = "batch"
  group "train" {
    ephemeral_disk {
      sticky  = true
      migrate = true
    }
    task "train" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args = [
          "-model", "mlp", "-threads", "1", "-steps", "0", "-wait", "10ms", "-every", "1", "-style", "none",
          "-progress-file", "${NOMAD_ALLOC_DIR}/data/steps.jsonl", "-checkpoint", "${NOMAD_ALLOC_DIR}/data/model.ckpt", "-resume",
        ]
        progress {
          file = "${NOMAD_ALLOC_DIR}/data/steps.jsonl"
        }
        checkpoint {
          path = "${NOMAD_ALLOC_DIR}/data/model.ckpt"
        }
      }
      resources {
        cpu    = 200
        memory = 128
      }
    }
  }
}
`

// deadline bounds a move; a healthy one takes seconds.
const deadline = 2 * time.Minute

func one(ctx context.Context, from, to *harness.Agent, alloc *api.Allocation) (m moved, next *api.Allocation, err error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	steps := func(a *harness.Agent, id string) string {
		return filepath.Join(a.AllocDir(id), "alloc", "data", "steps.jsonl")
	}
	source := steps(from, alloc.ID)
	begun := size(source)
	if err := harness.Poll(ctx, "the training job has done some steps", func(context.Context) error {
		if size(source) < begun+4096 {
			return errors.New("not yet")
		}
		return nil
	}); err != nil {
		return m, nil, err
	}
	var stands, told time.Time
	opts := move.DefaultOptions()
	opts.Claims, opts.Owner = store.Claims{Store: store.Store{Client: from.API, Namespace: "default", Path: "ebbtide/shim"}}, "moves"
	opts.Report = func(p move.Phase, _ string) {
		switch p {
		case move.PhaseSave:
			stands = time.Now()
		case move.PhaseBind:
			told = time.Now()
		}
	}
	start := time.Now()
	res, err := move.Move(ctx, move.API{Client: from.API, Agent: config.Nomad{}.Agent}, move.Request{Alloc: alloc.ID, Node: to.NodeID()}, opts)
	if err != nil {
		return m, nil, err
	}
	m.All, m.Frozen = time.Since(start).Seconds(), told.Sub(stands).Seconds()
	info, err := os.Stat(source)
	if err != nil {
		return m, nil, err
	}
	last, err := lastStep(source)
	if err != nil {
		return m, nil, err
	}
	resumed, err := firstAfter(steps(to, res.NewAlloc), info.Size())
	if err != nil {
		return m, nil, err
	}
	if next, _, err = from.API.Allocations().Info(res.NewAlloc, (&api.QueryOptions{}).WithContext(ctx)); err != nil {
		return m, nil, err
	}
	m.Restore = resumed.Elapsed
	m.Gap = next.TaskStates["train"].StartedAt.Sub(info.ModTime()).Seconds() + m.Restore
	m.Again = last.Step - resumed.Step + 1
	return m, next, nil
}

func size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// line is a trainer's report.
type line struct {
	Step    float64 `json:"step"`
	Elapsed float64 `json:"elapsed_s"` // since the process's start
}

func lastStep(path string) (line, error) {
	var l line
	data, err := os.ReadFile(path)
	if err != nil {
		return l, err
	}
	lines := bytes.Split(data, []byte("\n"))
	if len(lines) < 2 {
		return l, errors.New("the training job has written no step")
	}
	last := lines[len(lines)-2]
	if err := json.Unmarshal(last, &l); err != nil {
		return l, fmt.Errorf("reading the last step: %w: %.100q", err, last)
	}
	return l, nil
}

// firstAfter returns the first step after the migrated ones.
func firstAfter(path string, carried int64) (line, error) {
	var l line
	f, err := os.Open(path)
	if err != nil {
		return l, err
	}
	defer f.Close()
	if _, err := f.Seek(carried, io.SeekStart); err != nil {
		return l, err
	}
	text, err := bufio.NewReader(f).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(text, &l)
	}
	if err != nil {
		return l, fmt.Errorf("reading the first step on the target: %w: %.100q", err, text)
	}
	return l, nil
}

func table(all []moved) result.Table {
	t := result.Table{
		Title:  fmt.Sprintf("%d moves of a training job between two clients on one machine", len(all)),
		Header: []string{"", "least", "median", "most"},
	}
	for _, row := range []struct {
		name   string
		of     func(moved) float64
		format string
	}{
		{"from the last step to the first one", func(m moved) float64 { return m.Gap }, "%.2f s"},
		{"of it: until Nomad is told", func(m moved) float64 { return m.Frozen }, "%.2f s"},
		{"of it: from the start on the target to the first step", func(m moved) float64 { return m.Restore }, "%.2f s"},
		{"the whole, less that", func(m moved) float64 { return m.Gap - m.Restore }, "%.2f s"},
		{"steps done twice", func(m moved) float64 { return m.Again }, "%.0f"},
		{"the whole command", func(m moved) float64 { return m.All }, "%.2f s"},
	} {
		var values []float64
		for _, m := range all {
			values = append(values, row.of(m))
		}
		s := result.SpreadOf(values)
		cells := []string{row.name}
		for _, v := range []float64{s.Min, s.Median, s.Max} {
			cells = append(cells, fmt.Sprintf(row.format, v))
		}
		t.Rows = append(t.Rows, cells)
	}
	return t
}
