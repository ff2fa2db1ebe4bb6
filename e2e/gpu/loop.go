// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/ebbtide/ebbtide/device/gputest"
	"github.com/ebbtide/ebbtide/e2e/bench/result"
)

// A step of the loop: a kernel with concurrent host work.
const (
	kernel = 20 * time.Microsecond
	host   = 200 * time.Microsecond
)

// loopRun is a run of the loop, or of launches alone.
type loopRun struct {
	Way   string  `json:"way"`
	Round int     `json:"round"`
	Bare  bool    `json:"bare"`   // launches alone
	P50   float64 `json:"p50_ns"` // wall time per step; 0 for launches alone
	Wall  float64 `json:"ns"`     // per step, mean
	CPU   float64 `json:"cpu_ns"` // of the process, per step
}

// repeated runs the driver alone once more, which shows the machine's noise.
const repeated = "driver alone, again"

// measureLoop measures the library's cost for a computing program.
func measureLoop(ctx context.Context, b bench) (part, error) {
	busy, err := b.card(gputest.Card{Memory: gib, Context: 8 * mib, Kernel: kernel})
	if err != nil {
		return part{}, err
	}
	idle, err := b.card(gputest.Card{Memory: gib, Context: 8 * mib})
	if err != nil {
		return part{}, err
	}
	once := func(r *gputest.Harness, w way, count int, work int64) (out loopRun, err error) {
		err = b.under(ctx, r, w, []string{"--mode", "loop", "--count", strconv.Itoa(count), "--work", strconv.FormatInt(work, 10)},
			func(p *gputest.Process, _ *gputest.Gate) error {
				l, err := p.Next(ctx, "cpu_ns")
				out = loopRun{Way: w.name, Wall: l.Float("ns"), CPU: l.Float("cpu_ns"), P50: l.Float("p50")}
				return err
			})
		return out, err
	}
	// The work of 200 µs, the same for all.
	const trial = 200_000
	c, err := once(idle, plain, b.steps, trial)
	if err != nil {
		return part{}, err
	}
	work := int64(float64(trial) * float64(host.Nanoseconds()) / c.CPU)

	ways := []way{plain, {name: repeated}, {name: "with the library", gate: true}}
	var runs []loopRun
	err = b.alternate(2*len(ways), func(round, i int) error {
		w, r, count, n := ways[i/2], busy, b.steps, work
		if i%2 == 1 {
			r, count, n = idle, b.launches, 0
		}
		run, err := once(r, w, count, n)
		run.Round, run.Bare = round, i%2 == 1
		runs = append(runs, run)
		return err
	})
	if err != nil {
		return part{}, err
	}
	return part{loopTable(b.options, ways, runs), runs}, nil
}

func loopTable(o options, ways []way, runs []loopRun) result.Table {
	t := result.Table{
		Title:  fmt.Sprintf("A loop: a kernel of %v, %v of work of the host, synchronised; %d steps a run, %d rounds. Median (least … most):", kernel, host, o.steps, o.rounds),
		Header: []string{"", "median step", "mean step", "CPU of a step, mean", "median, against the driver alone in its round", "CPU, against it", "a launch alone"},
	}
	find := func(way string, bare bool) []loopRun { // by round
		out := make([]loopRun, o.rounds)
		for _, r := range runs {
			if r.Way == way && r.Bare == bare {
				out[r.Round] = r
			}
		}
		return out
	}
	var overhead []float64
	for _, w := range ways {
		var p50, wall, cpu, more, moreCPU, bare []float64
		base := find(plain.name, false)
		for i, r := range find(w.name, false) {
			p50, wall, cpu = append(p50, r.P50), append(wall, r.Wall), append(cpu, r.CPU)
			more, moreCPU = append(more, r.P50/base[i].P50-1), append(moreCPU, r.CPU/base[i].CPU-1)
		}
		for _, r := range find(w.name, true) {
			bare = append(bare, r.Wall)
		}
		row := []string{w.name, spread(p50, micro), spread(wall, micro), spread(cpu, micro), spread(more, percent), spread(moreCPU, percent), spread(bare, nano)}
		if w.name == plain.name {
			row[4], row[5] = "–", "–"
		}
		if w.gate {
			overhead = more
		}
		t.Rows = append(t.Rows, row)
	}
	median := result.SpreadOf(overhead).Median
	t.Notes = append(t.Notes, verdict("steady overhead of the loop, of the median step", "< 1 %", median < 0.01, percent(median)),
		"What *driver alone, again* shows is the machine's noise.")
	return t
}

func nano(v float64) string { return fmt.Sprintf("%.0f ns", v) }
