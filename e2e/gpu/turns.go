// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gputest"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/fsp"
	"github.com/ebbtide/ebbtide/driver/turns"
	"github.com/ebbtide/ebbtide/driver/twin"
	"github.com/ebbtide/ebbtide/e2e/bench/result"
)

// Ways to decide whose turn it is on a card that each job fills.
const (
	atOnceTurns = "all at once"
	queueTurns  = "one after the other, as they came"
	roundTurns  = "in turn, for half a unit each (nvshare's rule)"
	fairTurns   = "fair finish"
)

var turnWays = []string{atOnceTurns, queueTurns, roundTurns, fairTurns}

// turnSetting is a set of jobs; lengths and arrivals are in units of options.length.
type turnSetting struct {
	name   string
	memory int // bytes of each
	jobs   func(*rand.Rand) (lengths, arrivals []float64)
}

func four(*rand.Rand) (lengths, arrivals []float64) {
	return []float64{4, 3, 2, 1}, []float64{0, 0, 0, 0}
}

func ten(r *rand.Rand) (lengths, arrivals []float64) {
	at := 0.0
	for range 10 {
		lengths, arrivals = append(lengths, 0.5+3.5*r.Float64()), append(arrivals, at)
		at += 1.5 * r.ExpFloat64()
	}
	return lengths, arrivals
}

var turnSettings = []turnSetting{
	{"four jobs of 1 to 4 units, all fit", 64 * mib, four},
	{"ten jobs that arrive, of 0.5 to 4 units, all fit", 64 * mib, ten},
	{"four jobs of 1 to 4 units, one fits", 800 * mib, four},
}

// turnsKernel is a kernel's time; a round has four, and no time on the host.
const turnsKernel = 4 * time.Millisecond

type turnsRun struct {
	Setting string    `json:"setting"`
	Way     string    `json:"way"`
	Round   int       `json:"round"`
	Took    []float64 `json:"took_s"` // from a job's arrival to its end
	Last    float64   `json:"last_s"` // end, after the first arrival
	Failed  int       `json:"failed"`
	Parks   int64     `json:"parks"`
}

// turnJob is a job of a run.
type turnJob struct {
	name     string
	size     float64 // seconds of the card
	arrives  time.Duration
	rounds   int
	done     atomic.Int64 // rounds
	running  atomic.Bool
	finished atomic.Bool
	fair     policy.CPUSeconds
	took     float64
	failed   bool
}

func (b bench) turns(ctx context.Context, s turnSetting, way string, round int) (run turnsRun, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.within+60*b.length)
	defer cancel()
	run = turnsRun{Setting: s.name, Way: way, Round: round}
	// Copying a whole card takes a twentieth of a unit: a minute of 64 GiB, of jobs of 20 to 80 minutes.
	r, err := b.card(gputest.Card{Memory: jobsCard, Context: jobsContext, Kernel: turnsKernel, Copy: b.length / 20 / (jobsCard / mib), Serial: true})
	if err != nil {
		return run, err
	}
	e, end, err := r.Evictor(ctx, "", "")
	if err != nil {
		return run, err
	}
	defer end()
	counted := &counting{Evictor: e}
	g, err := r.Open("", jobsCard, func(o *gate.Options) { o.Evictor, o.Soft = counted, true })
	if err != nil {
		return run, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()

	lengths, arrivals := s.jobs(rand.New(rand.NewPCG(b.seed, uint64(round))))
	var all []*turnJob
	for i := range lengths {
		rounds := int(lengths[i] * float64(b.length) / float64(jobLaunches*turnsKernel))
		all = append(all, &turnJob{
			name: fmt.Sprint("job", i), rounds: rounds, size: float64(rounds) * (jobLaunches * turnsKernel).Seconds(),
			arrives: time.Duration(arrivals[i] * float64(b.length)),
		})
	}
	begun := time.Now()
	var wait sync.WaitGroup
	var before <-chan struct{} // the end of the job before, if one waits for it
	for i, j := range all {
		over, after := make(chan struct{}), before
		before = over
		wait.Go(func() {
			defer close(over)
			select {
			case <-time.After(j.arrives):
			case <-ctx.Done():
				return
			}
			if way == queueTurns && after != nil {
				<-after
			}
			j.failed = b.turn(ctx, r, g, s, j, uint64(round*100+i)) != nil
			j.took = time.Since(begun.Add(j.arrives)).Seconds()
		})
	}
	deciding, stop := context.WithCancel(ctx)
	decided := make(chan struct{})
	go func() { defer close(decided); b.decideTurns(deciding, g, way, all) }()
	wait.Wait()
	stop()
	<-decided
	for _, j := range all {
		run.Took = append(run.Took, j.took)
		run.Last = max(run.Last, j.took+j.arrives.Seconds())
		if j.failed {
			run.Failed++
		}
	}
	run.Parks = counted.parks.Load()
	return run, ctx.Err()
}

// turn runs a job to its end.
func (b bench) turn(ctx context.Context, r *gputest.Harness, g *gputest.Gate, s turnSetting, j *turnJob, seed uint64) error {
	p, err := r.Start(ctx, gputest.Job{
		Container: j.name, Gate: g,
		Args: []string{
			"--steps", "1", "--bytes", strconv.Itoa(s.memory), "--windows", strconv.Itoa(jobLaunches), "--count", strconv.Itoa(j.rounds),
			"--seed", strconv.FormatUint(b.seed*1_000_000+seed, 10),
		},
		Env: []string{"EBBTIDE_GATE_CREDIT=" + strconv.Itoa(mib), "EBBTIDE_GATE_WAIT_MS=" + strconv.FormatInt((b.within+60*b.length).Milliseconds(), 10)},
	})
	if err != nil {
		return err
	}
	j.running.Store(true)
	defer j.finished.Store(true)
	for {
		line, err := p.Next(ctx, "round")
		if err != nil {
			return p.Wait()
		}
		j.done.Store(line.Int("round"))
	}
}

// decideTurns decides until ctx ends, as the driver does, but with exact sizes and without its delays.
func (b bench) decideTurns(ctx context.Context, g *gputest.Gate, way string, all []*turnJob) {
	if way != roundTurns && way != fairTurns {
		return
	}
	every := b.length / 20
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		var here []*turnJob
		var tasks []policy.Task
		for _, j := range all {
			if !j.running.Load() {
				continue
			}
			done := policy.CPUSeconds(float64(j.done.Load()) / float64(j.rounds) * j.size)
			t := policy.Task{ID: j.name, Entitlement: 1, CPUS: done, FairCPUS: j.fair, Ended: j.finished.Load()}
			if !t.Ended {
				left := policy.CPUSeconds(j.size) - done + 1e-3
				t.RemainingCPUS = &left
			}
			here, tasks = append(here, j), append(tasks, t)
		}
		yields := make(map[string]bool)
		if way == fairTurns {
			twin.Advance(tasks, 1, now.Sub(last).Seconds())
			last = now
			on := make([]turns.Task, len(tasks))
			for i, t := range tasks {
				here[i].fair, on[i].Task = t.FairCPUS, t
			}
			for i, is := range turns.Decide(every.Seconds(), fsp.Completion, on) {
				yields[here[i].name] = is
			}
		} else {
			var alive []string
			for i, t := range tasks {
				if !t.Ended {
					alive = append(alive, here[i].name)
				}
			}
			for i, name := range alive {
				yields[name] = i != int(now.UnixNano()/int64(b.length/2))%len(alive)
			}
		}
		g.SetTurns(func(c identify.Container) bool { return yields[c.ID] })
	}
}

func measureTurns(ctx context.Context, b bench) (part, error) {
	var runs []turnsRun
	err := b.alternate(len(turnSettings)*len(turnWays), func(round, i int) error {
		run, err := b.turns(ctx, turnSettings[i/len(turnWays)], turnWays[i%len(turnWays)], round)
		runs = append(runs, run)
		return err
	})
	if err != nil {
		return part{}, err
	}
	return part{turnsTable(b.options, runs), runs}, nil
}

func turnsTable(o options, runs []turnsRun) result.Table {
	t := result.Table{
		Title:  fmt.Sprintf("Whose turn it is on a card that each job fills; a unit is %v of the card; %d rounds. Against all at once in the same round, median (least … most):", o.length, o.rounds),
		Header: []string{"jobs", "way", "failed", "parked", "mean time until the end", "last end", "worst job"},
	}
	for _, s := range turnSettings {
		plain := make(map[int]turnsRun) // by round
		for _, r := range runs {
			if r.Setting == s.name && r.Way == atOnceTurns {
				plain[r.Round] = r
			}
		}
		for _, way := range turnWays {
			var failed, parks, mean, last, worst []float64
			for _, r := range runs {
				p := plain[r.Round]
				if r.Setting != s.name || r.Way != way || len(p.Took) != len(r.Took) {
					continue
				}
				failed, parks = append(failed, float64(r.Failed)), append(parks, float64(r.Parks))
				sum, was, most := 0.0, 0.0, 0.0
				for i, took := range r.Took {
					sum, was, most = sum+took, was+p.Took[i], max(most, took/p.Took[i])
				}
				mean, last, worst = append(mean, sum/was-1), append(last, r.Last/p.Last-1), append(worst, most)
			}
			t.Rows = append(t.Rows, []string{s.name, way, spread(failed, whole), spread(parks, whole), spread(mean, tenths), spread(last, tenths), spread(worst, times)})
		}
	}
	t.Notes = append(t.Notes, "Copying a whole card takes a twentieth of a unit. Sizes are known exactly, and decisions take effect within a twentieth of a unit; the driver's take up to a second, and sizes are known after 20.")
	return t
}

func tenths(v float64) string { return fmt.Sprintf("%+.0f %%", 100*v) }
