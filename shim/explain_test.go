// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/policies"
)

// decided runs the loop's steps until none is left.
func (t *term) decided() {
	for t.drain(); len(t.steps) > 0; t.drain() {
		step := t.steps[0]
		t.steps = t.steps[1:]
		step()
	}
}

// Each task that may be relocated has a reason.
func TestReasons_relocate(t *testing.T) {
	now := time.Now()
	sized := func(cpuS float64) Summary {
		return Summary{Node: status.Node{Tasks: 1, Counts: map[string]int{"NL": 1}, RemainingCPUS: status.Number(cpuS), Sized: 1}, At: now}
	}
	fair := status.Status{Updated: now, Fair: status.Fair{RemainingCPUS: 400, CapCores: 2, Finish: now.Add(150 * time.Second)}}
	for want, change := range map[string]func(s *term, a *cluster.Alloc, sums map[string]Summary){
		"not moved now: cooldown until ": func(s *term, a *cluster.Alloc, _ map[string]Summary) { s.gate.Restore(a.Job, now, 0) },
		"not moved now: no node with less than half as much work per core can take it": func(s *term, a *cluster.Alloc, _ map[string]Summary) {
			s.reject(a.Job, "b")
		},
		"not moved: cannot read its status: no such file": func(s *term, _ *cluster.Alloc, _ map[string]Summary) { s.nomad = says{} },
		"not moved: its remaining work is unknown": func(s *term, a *cluster.Alloc, _ map[string]Summary) {
			s.nomad = says{statuses: map[string]status.Status{a.ID: {Fair: status.Fair{RemainingCPUS: status.Unknown()}}}}
		},
		"not moved: it would not finish sufficiently sooner on another node": func(s *term, a *cluster.Alloc, _ map[string]Summary) {},
		"not moved: its node has no summary":                                 func(_ *term, _ *cluster.Alloc, sums map[string]Summary) { delete(sums, "a") },
		"not moved: its node is ignored: its driver reports impossible figures: sized:": func(s *term, _ *cluster.Alloc, sums map[string]Summary) {
			delete(sums, "a")
			s.surveyor.ignored = map[string]string{"a": "sized: must be ≥ 0 and ≤ 1, got -5"}
		},
		"not moved: no node has less than half as much work per core as its own": func(_ *term, _ *cluster.Alloc, sums map[string]Summary) {
			sums["b"] = sums["a"]
		},
		"not moved: it has just started elsewhere": func(s *term, a *cluster.Alloc, _ map[string]Summary) {
			s.set(0, a.Job, reason{text: "not moved: it has just started elsewhere", alloc: a.ID, failed: true})
			s.gate.Restore(a.Job, now, 1)
		},
	} {
		s, a := small()
		a.Started = now.Add(-time.Minute)
		s.state = cluster.FromListing(cluster.Listing{
			Nodes: slices.Collect(maps.Values(s.state.Nodes)), Jobs: slices.Collect(maps.Values(s.state.Jobs)), Allocs: []*cluster.Alloc{a},
		})
		s.synced, s.nomad = true, says{statuses: map[string]status.Status{a.ID: fair}}
		sums := map[string]Summary{"a": sized(700), "b": sized(100)}
		change(s, a, sums)
		s.relocator.relocate(config.Default(), sums)
		s.decided()
		must.StrHasPrefix(t, want, s.latest[a.Job].text)
	}
}

// A job that no policy proposes to move has a reason, too.
func TestReasons_jobs(t *testing.T) {
	for want, change := range map[string]func(*cluster.Job, *cluster.Group, *config.Config){
		"not moved: no policy proposes it": func(*cluster.Job, *cluster.Group, *config.Config) {},
		"not moved: no policy that may move it is enabled": func(j *cluster.Job, _ *cluster.Group, _ *config.Config) {
			j.Migrates = []string{policies.SpeConMigrate}
		},
		"not moved: group train has count 2, not 1":                            func(_ *cluster.Job, g *cluster.Group, _ *config.Config) { g.Count = 2 },
		"not moved: group train has a task without a checkpoint block":         func(_ *cluster.Job, g *cluster.Group, _ *config.Config) { g.Movable = false },
		"not moved: it is periodic or parameterized, or started by such a job": func(j *cluster.Job, _ *cluster.Group, _ *config.Config) { j.Child = true },
		"": func(j *cluster.Job, _ *cluster.Group, _ *config.Config) { j.Migrates = nil },
	} {
		s, a := small()
		c, j := config.Default(), s.state.Jobs[a.Job]
		g := j.Groups["train"]
		change(j, &g, &c)
		j.Groups["train"] = g
		s.explainJobs(c, []cluster.JobKey{a.Job, {ID: "gone"}})
		must.Eq(t, want, s.latest[a.Job].text)
	}
}

// The error of a move is its job's reason.
func TestReasons_finish(t *testing.T) {
	for want, f := range map[string]transfer{
		"":                     {},
		"not moved: no leader": {err: errors.New("no leader")},
		"not moved: cannot be moved: it would finish in 90 s": {noGain: true, err: &move.Refused{Reasons: []string{"it would finish in 90 s"}}},
		"not moved: to node-b: cannot be moved: no room":      {err: &move.Refused{Reasons: []string{"no room"}, Target: true}},
	} {
		s, a := small()
		s.journal.held = func() error { return errors.New("lost") }
		f.alloc, f.to, f.entry = a, "b", memory.Entry{Policy: policies.Relocate, To: "node-b"}
		f.end = s.gate.Begin(time.Now(), a.Job, "a", "b")
		s.finish(config.Default(), f)
		s.drain()
		must.Eq(t, want, s.latest[a.Job].text)
		s.explainSkip(a, "back-off")
		if want != "" {
			must.Eq(t, want, s.latest[a.Job].text, must.Sprint("it says more than the back-off"))
		}
	}
}

// A reason ends with its job, with its allocation, or with the job's version.
func TestReasons_forgotten(t *testing.T) {
	for name, tc := range map[string]struct {
		change  func(s *term, a *cluster.Alloc)
		of, job bool // whether the reason of the allocation and that of the job stay
	}{
		"unchanged": {func(*term, *cluster.Alloc) {}, true, true},
		"moved":     {func(s *term, a *cluster.Alloc) { delete(s.state.Allocs, a.ID) }, false, true},
		"changed":   {func(s *term, a *cluster.Alloc) { s.state.Jobs[a.Job].Index++ }, true, false},
		"stopped":   {func(s *term, a *cluster.Alloc) { s.state.Jobs[a.Job].Stopped = true }, false, false},
		"dead":      {func(s *term, a *cluster.Alloc) { s.state.Jobs[a.Job].Dead = true }, false, false},
		"completed": {func(s *term, a *cluster.Alloc) { s.state.Completed[a.Job] = true }, false, false},
		"purged":    {func(s *term, a *cluster.Alloc) { delete(s.state.Jobs, a.Job) }, false, false},
	} {
		for _, of := range []bool{true, false} {
			s, a := small()
			if s.explain(a.Job, "held"); of {
				s.explainStay(a, "it is well where it is")
			}
			tc.change(s, a)
			s.forget()
			s.forgetReasons([]cluster.JobKey{a.Job})
			_, there := s.latest[a.Job]
			must.Eq(t, of && tc.of || !of && tc.job, there, must.Sprint(name, of))
		}
	}

	// A new attempt drops the last one's error.
	s, a := small()
	s.explainFailure(transfer{alloc: a, result: move.Result{NewAlloc: "b"}}, "the target failed")
	delete(s.state.Allocs, a.ID)
	s.forgetReasons([]cluster.JobKey{a.Job})
	must.Eq(t, "not moved: the target failed", s.latest[a.Job].text, must.Sprint("it runs again on its source"))
	s.nomad, s.journal.held = says{}, func() error { return errors.New("lost") }
	s.startMove(config.Default(), a, "b", memory.Entry{Policy: policies.Relocate})
	must.MapEmpty(t, s.latest)
	s.drain()
}

func TestFirstJobs(t *testing.T) {
	all := make(map[cluster.JobKey]bool)
	for i := range 100 {
		all[cluster.JobKey{Namespace: "ml", ID: fmt.Sprintf("%02d", i)}] = true
	}
	first := firstJobs(maps.Keys(all), 3)
	must.Len(t, 3, first)
	for i, key := range first {
		must.Eq(t, fmt.Sprintf("%02d", i), key.ID)
	}
	must.Len(t, 100, firstJobs(maps.Keys(all), 200))
}
