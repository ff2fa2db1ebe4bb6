// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
)

var start = time.Unix(1000, 0)

func job(id string) cluster.JobKey { return cluster.JobKey{Namespace: "ml", ID: id} }

func budget(change func(*config.Limits)) *Budget {
	limits := config.Limits{MovesPerMinute: 3, InFlight: 2, PerNode: 1, Cooldown: 10 * time.Minute, Backoff: time.Minute}
	if change != nil {
		change(&limits)
	}
	return NewBudget(limits)
}

func TestBudget_inFlight(t *testing.T) {
	b := budget(nil)
	must.Eq(t, "", b.Blocked(start, job("a"), 0, "n1", "n2"))
	endA := b.Begin(start, job("a"), "n1", "n2")
	must.Eq(t, "a move of the job is in flight", b.Blocked(start, job("a"), 0, "n3", "n4"))
	must.Eq(t, "1 moves involve node n2, the limit", b.Blocked(start, job("b"), 0, "n2", "n3"))
	must.Eq(t, "1 moves involve node n1, the limit", b.Blocked(start, job("b"), 0, "n3", "n1"))
	must.Eq(t, "", b.Blocked(start, job("b"), 0, "n3", "n4"))
	endB := b.Begin(start, job("b"), "n3", "n4")
	must.Eq(t, "2 moves are in flight, the limit", b.Blocked(start, job("c"), 0, "n5", "n6"))
	endA(start.Add(time.Second), Moved)
	must.Eq(t, "", b.Blocked(start, job("c"), 0, "n1", "n2"))
	endB(start.Add(time.Second), Moved)
	must.MapEmpty(t, b.byNode)
}

func TestBudget_perMinute(t *testing.T) {
	b := budget(nil)
	for i := range 3 {
		at := start.Add(time.Duration(i) * time.Second)
		must.Eq(t, "", b.Blocked(at, job(fmt.Sprint(i)), 0, "n1", "n2"))
		b.Begin(at, job(fmt.Sprint(i)), "n1", "n2")(at, Moved)
	}
	must.Eq(t, "3 moves started within a minute, the limit", b.Blocked(start.Add(30*time.Second), job("x"), 0, "n1", "n2"))
	must.Eq(t, "", b.Blocked(start.Add(time.Minute), job("x"), 0, "n1", "n2"))
	b.SetLimits(config.Limits{MovesPerMinute: 1, InFlight: 1, PerNode: 1})
	must.Eq(t, "2 moves started within a minute, the limit", b.Blocked(start.Add(time.Minute), job("x"), 0, "n1", "n2"))
}

func TestBudget_cooldown(t *testing.T) {
	b := budget(nil)
	b.Begin(start, job("a"), "n1", "n2")(start.Add(time.Minute), Moved)
	must.Eq(t, "cooldown until "+start.Add(11*time.Minute).UTC().Format(time.RFC3339), b.Blocked(start.Add(2*time.Minute), job("a"), 0, "n1", "n2"))
	must.Eq(t, "", b.Blocked(start.Add(11*time.Minute), job("a"), 0, "n1", "n2"))

	must.Eq(t, "cooldown until "+start.Add(61*time.Minute).UTC().Format(time.RFC3339), b.Blocked(start.Add(11*time.Minute), job("a"), time.Hour, "n1", "n2"), must.Sprint("its own"))

	// The back-off doubles, and a success resets it.
	b = budget(func(l *config.Limits) { l.Cooldown = 0 }) // for moves that did not fail
	at := start
	for i, want := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute} {
		b.Begin(at, job("a"), "n1", "n2")(at, Failed)
		must.Eq(t, fmt.Sprintf("back-off after %d failures until %s", i+1, at.Add(want).UTC().Format(time.RFC3339)), b.Blocked(at, job("a"), 0, "n1", "n2"))
		at = at.Add(time.Hour)
	}
	failures, last := b.Failures(job("a"))
	must.Eq(t, 4, failures)

	next := budget(func(l *config.Limits) { l.Cooldown = 0 })
	next.Restore(job("a"), last, failures)
	must.StrHasPrefix(t, "back-off after 4 failures until ", next.Blocked(last, job("a"), 0, "n1", "n2"))
	next.Forget(job("a"))
	must.Eq(t, "", next.Blocked(last, job("a"), 0, "n1", "n2"))

	b.Begin(at, job("a"), "n1", "n2")(at, Moved)
	must.Eq(t, "", b.Blocked(at, job("a"), 0, "n1", "n2"))
	failures, _ = b.Failures(job("unknown"))
	must.Eq(t, 0, failures)
}

// A job whose moves fail leaves the limits to others most of the time.
func TestBudget_waste(t *testing.T) {
	b := budget(nil)
	end := start.Add(10 * time.Minute)
	b.Begin(start, job("a"), "n1", "n2")(end, Failed)
	must.Eq(t, "back-off after 1 failures until "+end.Add(50*time.Minute).UTC().Format(time.RFC3339), b.Blocked(end, job("a"), 0, "n1", "n2"))
}

// A move that Nomad would not place is not charged.
func TestBudget_unplaceable(t *testing.T) {
	b := budget(nil)
	for range 10 {
		must.Eq(t, "", b.Blocked(start, job("a"), 0, "n1", "n2"))
		b.Begin(start, job("a"), "n1", "n2")(start, Unplaceable)
	}
	failures, last := b.Failures(job("a"))
	must.Eq(t, 0, failures)
	must.True(t, last.IsZero())

	// A refusal backs off the job only.
	b.Begin(start, job("a"), "n1", "n2")(start, Refused)
	must.StrHasPrefix(t, "back-off after 1 failures", b.Blocked(start, job("a"), 0, "n1", "n2"))
	_, begun := b.Usage(start)
	must.Eq(t, 0, begun)
}

// Limits hold under any sequence, and nothing is left at the end.
func TestBudget_limits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := config.Limits{
			MovesPerMinute: rapid.IntRange(1, 5).Draw(t, "rate"), InFlight: rapid.IntRange(1, 4).Draw(t, "in flight"),
			Cooldown: time.Duration(rapid.IntRange(0, 90).Draw(t, "cooldown")) * time.Second, Backoff: time.Second,
		}
		limits.PerNode = rapid.IntRange(1, limits.InFlight).Draw(t, "per node")
		b := NewBudget(limits)
		now := start
		type flight struct {
			job      cluster.JobKey
			from, to string
			begun    time.Time
			end      func(time.Time, Outcome)
		}
		var flights []flight
		var begun []time.Time
		for range rapid.IntRange(0, 40).Draw(t, "events") {
			now = now.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "wait")) * time.Second)
			if len(flights) > 0 && rapid.Bool().Draw(t, "end") {
				i := rapid.IntRange(0, len(flights)-1).Draw(t, "which")
				outcome := rapid.SampledFrom([]Outcome{Moved, Failed, Refused, Unplaceable}).Draw(t, "outcome")
				if flights[i].end(now, outcome); outcome == Refused || outcome == Unplaceable {
					k := slices.Index(begun, flights[i].begun)
					begun = slices.Delete(begun, k, k+1)
				}
				flights = append(flights[:i], flights[i+1:]...)
				continue
			}
			nodes := []string{"n1", "n2", "n3", "n4"}
			f := flight{
				job:  job(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "job")),
				from: rapid.SampledFrom(nodes[:2]).Draw(t, "from"), to: rapid.SampledFrom(nodes[2:]).Draw(t, "to"),
			}
			if b.Blocked(now, f.job, 0, f.from, f.to) != "" {
				continue
			}
			f.begun, f.end = now, b.Begin(now, f.job, f.from, f.to)
			flights, begun = append(flights, f), append(begun, now)

			must.LessEq(t, limits.InFlight, len(flights))
			touch := map[string]int{}
			seen := map[cluster.JobKey]bool{}
			for _, f := range flights {
				touch[f.from]++
				touch[f.to]++
				must.False(t, seen[f.job], must.Sprint("one move of a job at a time"))
				seen[f.job] = true
			}
			for node, n := range touch {
				must.LessEq(t, limits.PerNode, n, must.Sprint(node))
			}
			lately := 0
			for _, b := range begun {
				if now.Sub(b) < time.Minute {
					lately++
				}
			}
			must.LessEq(t, limits.MovesPerMinute, lately)
		}
		for _, f := range flights {
			f.end(now, Moved)
		}
		must.Eq(t, 0, b.inFlight)
		must.MapEmpty(t, b.byNode)
	})
}
