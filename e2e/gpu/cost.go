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
	"time"

	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gputest"
	"github.com/ebbtide/ebbtide/e2e/bench/result"
)

const (
	mib = 1 << 20
	gib = 1 << 30
	// unlimitedRate is an unreachable message rate, so the gate's rate limit is not measured.
	unlimitedRate = 1 << 40
)

// way is a way to run a program.
type way struct {
	name string
	// gate: with the library and a gate with this configuration.
	gate   bool
	change func(*gate.Options)
	env    []string
}

var plain = way{name: "driver alone"}

// allocationWays lists the ways, the reference first.
func allocationWays() []way {
	return []way{
		plain,
		{name: "within the credit", gate: true},
		{name: "a round trip each", gate: true, env: []string{"EBBTIDE_GATE_CREDIT=1"},
			change: func(o *gate.Options) { o.Bounds.Rate, o.Bounds.Burst = unlimitedRate, unlimitedRate }},
		{name: "a round trip each, bounded", gate: true, env: []string{"EBBTIDE_GATE_CREDIT=1"}},
	}
}

// allocationRun is one run of timed allocations. Times are in ns.
type allocationRun struct {
	Way    string  `json:"way"`
	Round  int     `json:"round"`
	P50    float64 `json:"p50_ns"`
	P99    float64 `json:"p99_ns"`
	Max    float64 `json:"max_ns"`
	Mean   float64 `json:"mean_with_free_ns"`
	Grants uint64  `json:"grants"` // of the gate
}

func measureAllocations(ctx context.Context, b bench) (part, error) {
	r, err := b.card(gputest.Card{Memory: 8 * gib, Context: 8 * mib})
	if err != nil {
		return part{}, err
	}
	ways := allocationWays()
	var runs []allocationRun
	err = b.alternate(len(ways), func(round, i int) error {
		w := ways[i]
		run := allocationRun{Way: w.name, Round: round}
		err := b.under(ctx, r, w, []string{"--mode", "many", "--bytes", "4096", "--count", strconv.Itoa(b.allocations), "--hold-ms", "-1"},
			func(p *gputest.Process, g *gputest.Gate) error {
				l, err := p.Next(ctx, "p50")
				if err != nil {
					return err
				}
				run.P50, run.P99, run.Max, run.Mean = l.Float("p50"), l.Float("p99"), l.Float("max"), l.Float("ns")
				if g != nil {
					s, ok := g.Of(container)
					if !ok || len(s.Usage) != 1 {
						return errors.New("the gate does not know the job")
					}
					run.Grants = s.Usage[0].Granted
				}
				return nil
			})
		if err != nil {
			return err
		}
		switch {
		case len(w.env) > 0 && run.Grants < uint64(b.allocations):
			return fmt.Errorf("%s: the gate has granted %d times, for %d allocations", w.name, run.Grants, b.allocations)
		case w.gate && len(w.env) == 0 && run.Grants > uint64(b.allocations/100+10):
			return fmt.Errorf("%s: the gate has granted %d times, so the credit is not used", w.name, run.Grants)
		}
		runs = append(runs, run)
		return nil
	})
	if err != nil {
		return part{}, err
	}
	return part{allocationTable(b.options, ways, runs), runs}, nil
}

// container is the name of a lone job's container.
const container = "alone"

// under runs the workload in a way; it waits for the end of stdin.
func (b bench) under(ctx context.Context, r *gputest.Harness, w way, args []string, watch func(*gputest.Process, *gputest.Gate) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, b.within)
	defer cancel()
	var g *gputest.Gate
	if w.gate {
		u, err := r.Usage(ctx)
		if err != nil {
			return err
		}
		if g, err = r.Open("", u.Total, w.change); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, g.Close()) }()
	}
	p, err := r.Start(ctx, gputest.Job{Container: container, Gate: g, Args: args, Env: w.env})
	if err != nil {
		return err
	}
	err = watch(p, g)
	return errors.Join(err, p.Wait())
}

// alternate calls turn for each of n in each round, in varying order.
func (o options) alternate(n int, turn func(round, i int) error) error {
	random := rand.New(rand.NewPCG(o.seed, 5))
	for round := range o.rounds {
		for _, i := range random.Perm(n) {
			if err := turn(round, i); err != nil {
				return err
			}
		}
	}
	return nil
}

func allocationTable(o options, ways []way, runs []allocationRun) result.Table {
	t := result.Table{
		Title:  fmt.Sprintf("What one of %d allocations of 4 KiB costs. Over %d rounds, median (least … most) of each round's figure:", o.allocations, o.rounds),
		Header: []string{"", "median of a round", "over the driver's", "p99", "longest", "with its free, mean", "grants of the gate"},
	}
	of := func(way string, f func(allocationRun) float64) []float64 {
		var out []float64
		for _, r := range runs {
			if r.Way == way {
				out = append(out, f(r))
			}
		}
		return out
	}
	median := func(r allocationRun) float64 { return r.P50 }
	alone := result.SpreadOf(of(plain.name, median)).Median
	for _, w := range ways {
		over := "–"
		if w.gate {
			over = spread(of(w.name, func(r allocationRun) float64 { return r.P50 - alone }), micro)
		}
		t.Rows = append(t.Rows, []string{
			w.name, spread(of(w.name, median), micro), over,
			spread(of(w.name, func(r allocationRun) float64 { return r.P99 }), micro),
			spread(of(w.name, func(r allocationRun) float64 { return r.Max }), micro),
			spread(of(w.name, func(r allocationRun) float64 { return r.Mean }), micro),
			spread(of(w.name, func(r allocationRun) float64 { return float64(r.Grants) }), whole),
		})
	}
	credit := result.SpreadOf(of(ways[1].name, median)).Median - alone
	trip := result.SpreadOf(of(ways[2].name, median)).Median - alone
	t.Notes = append(t.Notes,
		verdict("within the credit", "< 1 µs over the driver's own", credit < 1000, micro(credit)),
		verdict("with a round trip", "< 50 µs", trip < 50_000, micro(trip)),
		"*Bounded*: the gate reads no more than 50 000 messages a second of one container; a round trip takes two.")
	return t
}

// verdict compares a figure with its target.
func verdict(what, wanted string, met bool, got string) string {
	if met {
		return fmt.Sprintf("%s: %s (wanted: %s).", what, got, wanted)
	}
	return fmt.Sprintf("**Missed**: %s: %s, wanted %s.", what, got, wanted)
}

// spread renders median (min … max).
func spread(values []float64, format func(float64) string) string {
	s := result.SpreadOf(values)
	switch {
	case s.N == 0:
		return "–"
	case s.Min == s.Max:
		return format(s.Median)
	}
	return fmt.Sprintf("%s (%s … %s)", format(s.Median), format(s.Min), format(s.Max))
}

func micro(ns float64) string { return fmt.Sprintf("%.2f µs", ns/1000) }

func whole(v float64) string { return fmt.Sprintf("%.0f", v) }

func percent(v float64) string { return fmt.Sprintf("%+.2f %%", 100*v) }

func seconds(v float64) string { return fmt.Sprintf("%.2f s", v) }

func since(from, to time.Time) float64 { return to.Sub(from).Seconds() }
