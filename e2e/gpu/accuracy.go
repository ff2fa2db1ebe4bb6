// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gputest"
	"github.com/ebbtide/ebbtide/e2e/bench/result"
)

// A real card's memory and contexts.
const (
	accuracyCard    = 16 * gib
	accuracyContext = 400 * mib
)

// greedyJob is a job that allocates as much as it can.
type greedyJob struct {
	name, alloc string
	processes   int
	least       int // bytes; after a denial it requests half, down to this
	env         []string
}

func greeds() []greedyJob {
	return []greedyJob{
		{name: "cuMemAlloc", alloc: "sync", processes: 1, least: 4096},
		{name: "cuMemAllocAsync", alloc: "async", processes: 1, least: 4096},
		{name: "cuMemCreate", alloc: "vmm", processes: 1, least: 2 * mib},
		{name: "cuMemAllocManaged", alloc: "managed", processes: 1, least: 4096},
		{name: "cuArrayCreate", alloc: "array", processes: 1, least: 4096},
		{name: "cuMemAlloc, four processes", alloc: "sync", processes: 4, least: 4096},
		{name: "cuMemAlloc, contexts taken for half", alloc: "sync", processes: 1, least: 4096,
			env: []string{"EBBTIDE_GATE_CONTEXT=" + strconv.Itoa(accuracyContext/2)}},
	}
}

// accuracyLimits are in bytes; one is unaligned.
var accuracyLimits = []uint64{2 * gib, 4 * gib, 5433*mib + 12_345, 15 * gib}

// accuracyRun is the memory that a greedy container got.
type accuracyRun struct {
	Kind  string  `json:"kind"`
	Limit uint64  `json:"limit_bytes"`
	Card  uint64  `json:"card_bytes"` // according to NVML, with contexts
	Part  float64 `json:"part"`       // fraction of the limit
}

// measureAccuracy measures how close to its limit a container gets. It is deterministic, so one
// round is enough.
func measureAccuracy(ctx context.Context, b bench) (part, error) {
	var runs []accuracyRun
	for _, kind := range greeds() {
		for _, limit := range accuracyLimits {
			run, err := b.greedy(ctx, kind, limit)
			if err != nil {
				return part{}, fmt.Errorf("%s, limit %d: %w", kind.name, limit, err)
			}
			runs = append(runs, run)
		}
	}
	return part{accuracyTable(runs), runs}, nil
}

func (b bench) greedy(ctx context.Context, kind greedyJob, limit uint64) (run accuracyRun, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.within)
	defer cancel()
	r, err := b.card(gputest.Card{Memory: accuracyCard, Context: accuracyContext})
	if err != nil {
		return run, err
	}
	g, err := r.Open("", accuracyCard, func(o *gate.Options) { o.Shares = gputest.Shares{Otherwise: gate.Share{Bytes: limit}} })
	if err != nil {
		return run, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	var all []*gputest.Process
	defer func() {
		for _, p := range all {
			err = errors.Join(err, p.Wait())
		}
	}()
	for range kind.processes {
		p, err := r.Start(ctx, gputest.Job{
			Container: container, Gate: g, Env: append([]string{"EBBTIDE_GATE_WAIT_MS=10"}, kind.env...),
			Args: []string{"--mode", "fill", "--alloc", kind.alloc, "--bytes", strconv.Itoa(64 * mib), "--least", strconv.Itoa(kind.least), "--ask", "1", "--hold-ms", "-1"},
		})
		if err != nil {
			return run, err
		}
		all = append(all, p)
	}
	// All have contexts before the first allocation.
	for _, p := range all {
		if _, err := p.Next(ctx, "ready"); err != nil {
			return run, err
		}
	}
	for _, p := range all {
		if err := p.Tell(); err != nil {
			return run, err
		}
	}
	for _, p := range all {
		l, err := p.Next(ctx, "code")
		if err != nil {
			return run, err
		}
		if l.Int("code") != 2 {
			return run, fmt.Errorf("it ended with error %d, expected out of memory (2)", l.Int("code"))
		}
	}
	u, err := r.Usage(ctx)
	if err != nil {
		return run, err
	}
	return accuracyRun{Kind: kind.name, Limit: limit, Card: u.Used, Part: float64(u.Used) / float64(limit)}, nil
}

func accuracyTable(runs []accuracyRun) result.Table {
	t := result.Table{
		Title:  "What greedy jobs get before `CUDA_ERROR_OUT_OF_MEMORY`, of their limit, according to NVML, contexts of 400 MiB included:",
		Header: []string{"memory"},
	}
	for _, limit := range accuracyLimits {
		t.Header = append(t.Header, fmt.Sprintf("limit %.2f MiB", float64(limit)/mib))
	}
	var parts []float64
	for _, kind := range greeds() {
		row := []string{kind.name}
		for _, r := range runs {
			if r.Kind == kind.name {
				row = append(row, fmt.Sprintf("%.4f %%", 100*r.Part))
				parts = append(parts, r.Part)
			}
		}
		t.Rows = append(t.Rows, row)
	}
	s := result.SpreadOf(parts)
	t.Notes = append(t.Notes, verdict("accuracy of the limit, the worst … the best", "≥ 99 % and never above 100 %",
		s.Min >= 0.99 && s.Max <= 1, fmt.Sprintf("%.4f … %.4f %%", 100*s.Min, 100*s.Max)))
	return t
}
