// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gputest"
	"github.com/ebbtide/ebbtide/e2e/bench/result"
)

// The experiments' card, and all other sizes, are a 64th of one of 64 GiB.
const (
	jobsCard    = gib
	jobsContext = 8 * mib
	jobMemory   = 208 * mib // four fit, with the contexts of sixteen others; five do not
	fit         = 4
	most        = 20
	jobLaunches = 4 // kernels per round
)

// shape is how a job uses the card.
type shape struct {
	name   string
	pieces int           // allocations, with computation in between
	kernel time.Duration // per launch, of which a round has four
	host   time.Duration // host time per round
}

var (
	atOnce = shape{"all memory at once", 1, time.Millisecond, 16 * time.Millisecond}
	grows  = shape{"memory in four pieces", 4, time.Millisecond, 16 * time.Millisecond}
	heavy  = shape{"all memory at once, the card's time, too", 1, 4 * time.Millisecond, 4 * time.Millisecond}
)

// args returns the arguments of a job that allocates in pieces, computes with all memory, verifies
// it, and ends.
func (s shape) args(length time.Duration, seed uint64) []string {
	rounds := int(length / (jobLaunches*s.kernel + s.host))
	return []string{
		"--steps", strconv.Itoa(s.pieces), "--bytes", strconv.Itoa(jobMemory / s.pieces), "--windows", strconv.Itoa(jobLaunches / s.pieces),
		"--count", strconv.Itoa(rounds), "--pause-ms", strconv.FormatInt(s.host.Milliseconds(), 10), "--seed", strconv.FormatUint(seed, 10),
	}
}

// Ways to run several jobs.
const (
	together = "together, driver alone"
	inTurn   = "one after the other, driver alone"
	waiting  = "together, with the gate, nothing is parked"
	gated    = "together, with the gate"
)

type jobsRun struct {
	Shape    string  `json:"shape"`
	Way      string  `json:"way"`
	Round    int     `json:"round"`
	Jobs     int     `json:"jobs"`
	Memory   int     `json:"out_of_memory"` // failed for lack of memory
	Wrong    int     `json:"wrong"`         // with corrupt memory
	Others   int     `json:"failed_otherwise"`
	Makespan float64 `json:"makespan_s"` // until the last end
	Peak     uint64  `json:"peak_bytes"` // of the card, by the gate's ledger; 0 without a gate
	Parks    int64   `json:"parks"`
	First    float64 `json:"first_failure_s"` // after the start; −1 for none
}

func (r jobsRun) right() int { return r.Jobs - r.Memory - r.Wrong - r.Others }

func (b bench) jobs(ctx context.Context, s shape, way string, round, n int) (run jobsRun, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.within)
	defer cancel()
	run = jobsRun{Shape: s.name, Way: way, Round: round, Jobs: n, First: -1}
	r, err := b.card(gputest.Card{Memory: jobsCard, Context: jobsContext, Kernel: s.kernel, Copy: 400 * time.Microsecond, Serial: true})
	if err != nil {
		return run, err
	}
	var g *gputest.Gate
	if way == gated || way == waiting {
		var parks gate.Evictor
		if way == gated {
			e, end, err := r.Evictor(ctx, "", "")
			if err != nil {
				return run, err
			}
			defer end()
			counted := &counting{Evictor: e}
			defer func() { run.Parks = counted.parks.Load() }()
			parks = counted
		}
		g, err = r.Open("", jobsCard, func(o *gate.Options) { o.Evictor, o.Soft = parks, parks != nil })
		if err != nil {
			return run, err
		}
		defer func() { err = errors.Join(err, g.Close()) }()
		watching, stop := context.WithCancel(ctx)
		watched := make(chan uint64)
		go func() { watched <- peak(watching, g) }()
		defer func() { stop(); run.Peak = <-watched }()
	}
	begun := time.Now()
	var mu sync.Mutex
	var wait sync.WaitGroup
	ended := func(p *gputest.Process) {
		_ = p.Wait() // the outcome is measured
		mu.Lock()
		defer mu.Unlock()
		run.Makespan = max(run.Makespan, since(begun, p.Ended))
		code := p.Exit()
		switch code {
		case 0:
			return
		case 2:
			run.Memory++
		case 5:
			run.Wrong++
		default:
			run.Others++
		}
		if at := since(begun, p.Ended); run.First < 0 || at < run.First {
			run.First = at
		}
	}
	defer wait.Wait()
	for i := range n {
		p, err := r.Start(ctx, gputest.Job{
			Container: fmt.Sprintf("job%d", i), Gate: g, Args: s.args(b.length, b.seed*1_000_000+uint64(round)*1000+uint64(i)),
			Env: []string{"EBBTIDE_GATE_CREDIT=" + strconv.Itoa(mib), "EBBTIDE_GATE_WAIT_MS=" + strconv.FormatInt(b.within.Milliseconds(), 10)},
		})
		if err != nil {
			return run, err
		}
		if way == inTurn {
			ended(p)
			continue
		}
		wait.Go(func() { ended(p) })
	}
	wait.Wait()
	return run, ctx.Err()
}

type counting struct {
	gate.Evictor
	parks atomic.Int64
}

func (c *counting) Park(ctx context.Context, processes []ledger.ProcessID) (map[ledger.CardID]uint64, error) {
	c.parks.Add(1)
	return c.Evictor.Park(ctx, processes)
}

// peak returns the highest memory in the gate's ledger until ctx ends.
func peak(ctx context.Context, g *gputest.Gate) (most uint64) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, c := range g.Cards() {
			most = max(most, c.Physical-c.Free)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return most
		}
	}
}

// trial is one configuration of a round.
type trial struct {
	shape shape
	way   string
	jobs  int
}

func (b bench) trials(ctx context.Context, all []trial) ([]jobsRun, error) {
	var runs []jobsRun
	err := b.alternate(len(all), func(round, i int) error {
		run, err := b.jobs(ctx, all[i].shape, all[i].way, round, all[i].jobs)
		runs = append(runs, run)
		return err
	})
	return runs, err
}

// measureGate runs the paper's experiment: equal jobs, four of which fit.
func measureGate(ctx context.Context, b bench) (part, error) {
	var all []trial
	for _, s := range []shape{atOnce, grows} {
		for _, way := range []string{together, waiting, gated} {
			for _, n := range b.jobsOf {
				all = append(all, trial{s, way, n})
			}
		}
	}
	runs, err := b.trials(ctx, all)
	if err != nil {
		return part{}, err
	}
	return part{gateTable(b.options, all, runs), runs}, nil
}

func gateTable(o options, all []trial, runs []jobsRun) result.Table {
	t := result.Table{
		Title: fmt.Sprintf("Equal jobs, of which %d fit the card, begun together, each computing for %v; %d rounds. *Batch* is what %d jobs take with the driver alone. Median (least … most):",
			fit, o.length, o.rounds, fit),
		Header: []string{"job", "way", "jobs", "out of memory", "wrong or failed otherwise", "right at the end", "parked", "makespan", "of n/4 batches"},
	}
	worst := make(map[shape]int) // of the gate's failures
	for _, a := range all {
		row, failed := jobsRow(a, runs)
		batch := values(runs, trial{a.shape, together, fit}, func(r jobsRun) float64 { return r.Makespan })
		ratio := "–"
		if len(batch) > 0 && failed == 0 {
			n := result.SpreadOf(batch).Median * float64(a.jobs) / fit
			ratio = spread(values(runs, a, func(r jobsRun) float64 { return r.Makespan / n }), times)
		}
		t.Rows = append(t.Rows, append(row, ratio))
		if a.way == gated {
			worst[a.shape] += failed
		}
	}
	for _, s := range []shape{atOnce, grows} {
		t.Notes = append(t.Notes, verdict(s.name+", with the gate", "0 failures", worst[s] == 0, fmt.Sprintf("%d failures in all rounds", worst[s])))
	}
	t.Notes = append(t.Notes, "Makespan where jobs failed is that of the others.")
	return t
}

// jobsRow returns a table row, and the failures of all rounds.
func jobsRow(a trial, runs []jobsRun) ([]string, int) {
	failed := 0
	for _, v := range values(runs, a, func(r jobsRun) float64 { return float64(r.Jobs - r.right()) }) {
		failed += int(v)
	}
	return []string{
		a.shape.name, a.way, strconv.Itoa(a.jobs),
		spread(values(runs, a, func(r jobsRun) float64 { return float64(r.Memory) }), whole),
		spread(values(runs, a, func(r jobsRun) float64 { return float64(r.Wrong + r.Others) }), whole),
		spread(values(runs, a, func(r jobsRun) float64 { return float64(r.right()) }), whole),
		spread(values(runs, a, func(r jobsRun) float64 { return float64(r.Parks) }), whole),
		spread(values(runs, a, func(r jobsRun) float64 { return r.Makespan }), seconds),
	}, failed
}

func values(runs []jobsRun, a trial, f func(jobsRun) float64) []float64 {
	var out []float64
	for _, r := range runs {
		if r.Shape == a.shape.name && r.Way == a.way && r.Jobs == a.jobs {
			out = append(out, f(r))
		}
	}
	return out
}

func times(v float64) string { return fmt.Sprintf("%.2f", v) }

// twice is the number of jobs that need twice the card.
const twice = (2*jobsCard + jobMemory + jobsContext - 1) / (jobMemory + jobsContext)

// measureMakespan compares ways to run jobs that need twice the card.
func measureMakespan(ctx context.Context, b bench) (part, error) {
	var all []trial
	for _, s := range []shape{atOnce, grows, heavy} {
		for _, way := range []string{inTurn, together, waiting, gated} {
			all = append(all, trial{s, way, twice})
		}
	}
	runs, err := b.trials(ctx, all)
	if err != nil {
		return part{}, err
	}
	return part{makespanTable(b.options, all, runs), runs}, nil
}

func makespanTable(o options, all []trial, runs []jobsRun) result.Table {
	t := result.Table{
		Title: fmt.Sprintf("%d jobs that want %.2f times the card, and compute for %v when alone; %d rounds. Median (least … most):",
			twice, float64(twice)*(jobMemory+jobsContext)/jobsCard, o.length, o.rounds),
		Header: []string{"job", "way", "jobs", "out of memory", "wrong or failed otherwise", "right at the end", "parked", "makespan", "sequential : this"},
	}
	var notes []string
	for _, a := range all {
		row, failed := jobsRow(a, runs)
		sequential := result.SpreadOf(values(runs, trial{a.shape, inTurn, a.jobs}, func(r jobsRun) float64 { return r.Makespan })).Median
		ratio := "–"
		if failed == 0 {
			ratio = spread(values(runs, a, func(r jobsRun) float64 { return sequential / r.Makespan }), times)
		}
		t.Rows = append(t.Rows, append(row, ratio))
		if a.way != gated {
			continue
		}
		if failed > 0 {
			notes = append(notes, fmt.Sprintf("%d of %d jobs failed", failed, a.jobs*o.rounds))
			continue
		}
		notes = append(notes, fmt.Sprintf("%s × faster than sequential", ratio))
	}
	t.Notes = append(t.Notes, "With the gate: "+strings.Join(notes, "; ")+".",
		"Kernels of all jobs run one after the other, as on a card that each of them fills; the four kernels of a round take 4 ms of 20 ms, and 16 of 20 where the card's time is wanted, too.")
	return t
}
