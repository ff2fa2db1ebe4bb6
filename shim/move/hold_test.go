// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/document"
	"github.com/ebbtide/ebbtide/shim/document/documenttest"
)

var there = Place{Namespace: "ml", Job: "vae", Group: "train", Node: "b"}

// heldJob is the model's job, held.
func heldJob() *document.Job {
	return documenttest.Change(newModel(faultFree()).job, func(root map[string]any) {
		hold := api.NewConstraint(cluster.Hold, "=", "released")
		root["Constraints"] = []any{hold, api.NewConstraint("${attr.cpu.arch}", "=", "amd64")}
		group(root)["Tasks"].([]any)[0].(map[string]any)["Constraints"] = []any{hold}
	})
}

// runHeld releases a held job; each process is killed after its number of calls in s.Crash, and
// the next one recovers.
func runHeld(t *testing.T, change func(*schedule), job *document.Job) (m *model, alloc string, err error) {
	t.Helper()
	s := faultFree()
	change(&s)
	synctest.Test(t, func(t *testing.T) {
		s.NoPlan = true
		m = newModel(s)
		m.all[0].client, m.all[0].desired, m.all[0].runs = "complete", "stop", false // from an earlier run
		m.written(job)
		alloc, err = m.release(t)
	})
	return m, alloc, err
}

func (m *model) release(t *testing.T) (alloc string, err error) {
	p := m.process(0)
	opts := DefaultOptions()
	opts.PlaceTimeout, opts.Claims, opts.Owner = 20*time.Second, p, "shim"
	why, err := CheckPlacement(p.ctx, p, there)
	if err == nil {
		must.Eq(t, "", why) // this Nomad returns no plan
		alloc, err = Release(p.ctx, p, there, opts)
	}
	p.kill()
	var watch Watch
	for range 8 {
		p := m.process(undisturbed)
		opts.Claims = p
		records, _, err := p.List(p.ctx)
		must.NoError(t, err)
		for _, r := range watch.Abandoned(records) {
			_, err := Recover(p.ctx, p, r, opts)
			must.NoError(t, err)
		}
		p.kill()
		time.Sleep(10 * time.Second)
	}
	m.under(func() { m.over = true })
	time.Sleep(2 * time.Hour)
	_, _, bound := boundTo(m.job, "train")
	must.False(t, bound)
	must.MapEmpty(t, m.claim)
	must.SliceEmpty(t, m.wrong)
	return alloc, err
}

func TestRelease(t *testing.T) {
	m, alloc, err := runHeld(t, func(*schedule) {}, heldJob())
	must.NoError(t, err)
	must.Eq(t, m.last().id, alloc)
	must.Eq(t, []string{"register b", "register "}, m.log)
	must.Eq(t, "b", m.last().node)
	must.Eq(t, []*api.Constraint{api.NewConstraint("${attr.cpu.arch}", "=", "amd64")}, m.job.Constraints)
	must.SliceEmpty(t, m.job.TaskGroups[0].Tasks[0].Constraints)

	// Without room it may run anywhere.
	m, _, err = runHeld(t, func(s *schedule) { s.Room = false }, heldJob())
	must.ErrorContains(t, err, "not placed: exhausted: memory")
	must.Eq(t, "a", m.last().node)
}

// Whichever process is killed, the job runs unbound, or is still held.
func TestRelease_crashes(t *testing.T) {
	for call := 1; call < 40; call++ {
		m, _, _ := runHeld(t, func(s *schedule) { s.Crash = []int{call} }, heldJob())
		waits := len(m.job.Constraints) == 2
		must.Eq(t, waits, !m.last().runs, must.Sprintf("after call %d: %v", call, m.log))
	}
}

func TestRelease_notHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel(faultFree())
		p := m.process(undisturbed)
		defer p.kill()
		_, err := CheckPlacement(t.Context(), p, there)
		must.ErrorIs(t, err, ErrNotHeld)
		m.written(documenttest.Change(m.job, func(root map[string]any) { root["Stop"] = true }))
		_, err = Release(t.Context(), p, there, DefaultOptions())
		must.ErrorIs(t, err, ErrNotHeld)
	})
}

// Whatever a newer Nomad's job has, and whatever happens to it, it stays the user's: a hold is
// released, the job moves, is rolled back, or the user changes it meanwhile.
func TestJob_staysTheUsers(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		held := documenttest.WithUnknown(r, heldJob())
		m, _, _ := runHeld(t, func(s *schedule) {
			s.Room, s.Crash = rapid.Bool().Draw(r, "room"), []int{rapid.IntRange(0, 40).Draw(r, "crash")}
		}, held)
		if !slices.ContainsFunc(m.job.Constraints, func(c *api.Constraint) bool { return c.LTarget == cluster.Hold }) {
			m.user = documenttest.Change(held, func(root map[string]any) {
				root["Constraints"] = root["Constraints"].([]any)[1:]
				group(root)["Tasks"].([]any)[0].(map[string]any)["Constraints"] = nil
			})
		}
		must.True(r, m.isUsers(), must.Sprint(m.log))

		s := faultFree()
		s.Service, s.EmptyDisk, s.FailStart = rapid.Bool().Draw(r, "service"), rapid.IntRange(-3, 1).Draw(r, "empty"), rapid.IntRange(-3, 1).Draw(r, "fail")
		if rapid.Bool().Draw(r, "changed") {
			s.Events = []event{{At: time.Duration(rapid.IntRange(900, 4000).Draw(r, "at")) * time.Millisecond, Kind: "change"}}
		}
		s.Crash = []int{rapid.IntRange(0, 60).Draw(r, "crash")}
		job := documenttest.WithUnknown(r, newModel(s).job)
		synctest.Test(t, func(*testing.T) {
			m = newModel(s)
			m.written(job)
			_, _ = m.run() // checks the job at its end
		})
		must.SliceEmpty(r, m.wrong, must.Sprint(m.log))
	})
}
