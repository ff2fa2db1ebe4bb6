// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/store"
)

// Each task that may be relocated has a reason.
func TestReasons_relocate(t *testing.T) {
	now := time.Now()
	sized := func(cpuS float64) Summary {
		return Summary{Node: status.Node{Tasks: 1, Counts: map[string]int{"NL": 1}, RemainingCPUS: status.Number(cpuS), Sized: 1}, At: now}
	}
	fair := status.Status{Updated: now, Fair: status.Fair{RemainingCPUS: 400, CapCores: 2, Finish: now.Add(150 * time.Second)}}
	for want, change := range map[string]func(s *fixture, a *cluster.Alloc, sums map[string]Summary){
		"not moved now: cooldown until ": func(s *fixture, a *cluster.Alloc, _ map[string]Summary) { s.budget.Restore(a.Job, now, 0) },
		"not moved now: no node with less than half as much work per core can take it": func(s *fixture, a *cluster.Alloc, _ map[string]Summary) {
			s.reject(a.Job, "b")
		},
		"not moved: cannot read its status: no such file": func(s *fixture, _ *cluster.Alloc, _ map[string]Summary) { s.nomad = says{} },
		"not moved: its remaining work is unknown": func(s *fixture, a *cluster.Alloc, _ map[string]Summary) {
			s.nomad = says{statuses: map[string]status.Status{a.ID: {Fair: status.Fair{RemainingCPUS: status.Unknown()}}}}
		},
		"not moved: it would not finish sufficiently sooner on another node": func(s *fixture, a *cluster.Alloc, _ map[string]Summary) {},
		"not moved: its node has no summary":                                 func(_ *fixture, _ *cluster.Alloc, sums map[string]Summary) { delete(sums, "a") },
		"not moved: its node is ignored: its driver reports impossible figures: sized:": func(s *fixture, _ *cluster.Alloc, sums map[string]Summary) {
			delete(sums, "a")
			s.planner.surveyor.ignored = map[string]string{"a": "sized: must be ≥ 0 and ≤ 1, got -5"}
		},
		"not moved: no node has less than half as much work per core as its own": func(_ *fixture, _ *cluster.Alloc, sums map[string]Summary) {
			sums["b"] = sums["a"]
		},
		"not moved: it has just started elsewhere": func(s *fixture, a *cluster.Alloc, _ map[string]Summary) {
			s.note(note{key: a.Job, reason: reason{text: "not moved: it has just started elsewhere", alloc: a.ID, failed: true}})
			s.budget.Restore(a.Job, now, 1)
		},
	} {
		s, a := small()
		a.Started = now.Add(-time.Minute)
		s.nomad = says{statuses: map[string]status.Status{a.ID: fair}}
		sums := map[string]Summary{"a": sized(700), "b": sized(100)}
		change(s, a, sums)
		snap := s.snap()
		snap.summaries, snap.ignored = sums, s.planner.surveyor.ignored
		s.carryOut(config.Default(), snap.relocations())
		s.drain()
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
		s.Reload(c)
		s.carryOut(c, s.snap().unmoved())
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
		s.writer.held = func() error { return errors.New("lost") }
		f.alloc, f.to, f.entry = a, "b", store.Entry{Policy: policies.Relocate, To: "node-b"}
		f.end = s.budget.Begin(time.Now(), a.Job, "a", "b")
		s.finish(config.Default(), f)
		s.drain()
		must.Eq(t, want, s.latest[a.Job].text)
		s.explainSkip(a, "back-off")
		if want != "" {
			must.Eq(t, want, s.latest[a.Job].text, must.Sprint("it says more than the back-off"))
		}
	}
}

// forgetReasons drops the reasons that hold no more.
func (f *fixture) forgetReasons() {
	state := f.listed()
	f.forget(state)
	s := f.snapshot(f.now(), state)
	s.explained = maps.Clone(f.latest)
	f.carryOut(f.now(), plan{forgotten: s.outdated()})
}

// A reason ends with its job, with its allocation, or with the job's version.
func TestReasons_forgotten(t *testing.T) {
	for name, tc := range map[string]struct {
		change  func(s *fixture, a *cluster.Alloc)
		of, job bool // whether the reason of the allocation and that of the job stay
	}{
		"unchanged": {func(*fixture, *cluster.Alloc) {}, true, true},
		"moved":     {func(s *fixture, a *cluster.Alloc) { delete(s.state.Allocs, a.ID) }, false, true},
		"changed":   {func(s *fixture, a *cluster.Alloc) { s.state.Jobs[a.Job].Index++ }, true, false},
		"stopped":   {func(s *fixture, a *cluster.Alloc) { s.state.Jobs[a.Job].Stopped = true }, false, false},
		"dead":      {func(s *fixture, a *cluster.Alloc) { s.state.Jobs[a.Job].Dead = true }, false, false},
		"completed": {func(s *fixture, a *cluster.Alloc) { s.complete(a) }, false, false},
		"purged":    {func(s *fixture, a *cluster.Alloc) { delete(s.state.Jobs, a.Job) }, false, false},
	} {
		for _, of := range []bool{true, false} {
			s, a := small()
			s.listed()
			if s.explain(a.Job, "held"); of {
				p := plan{}
				p.explainStay(s.snap(), a, "it is well where it is")
				s.carryOut(config.Default(), p)
			}
			tc.change(s, a)
			s.forgetReasons()
			_, there := s.latest[a.Job]
			must.Eq(t, of && tc.of || !of && tc.job, there, must.Sprint(name, of))
		}
	}

	// A new attempt drops the last one's error.
	s, a := small()
	s.explainFailure(a, "b", "the target failed")
	delete(s.state.Allocs, a.ID)
	s.forgetReasons()
	must.Eq(t, "not moved: the target failed", s.latest[a.Job].text, must.Sprint("it runs again on its source"))
	s.nomad, s.writer.held = says{}, func() error { return errors.New("lost") }
	s.state.Allocs[a.ID] = a
	s.listed()
	s.carryOut(config.Default(), moveTo(a, "b", store.Entry{Policy: policies.Relocate}))
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
