// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/shim/move"
)

// testUserActions tests actions of the job's user during a move.
func (s *site) testUserActions(t *testing.T) {
	type person struct {
		at  phase
		do  func(*testing.T, *moving, func())
		job job
	}
	people := map[string]person{"completes": {at: "", do: testCompletes}, "late": {at: "", do: testLate}, "reverts": {at: "", do: testUserReverts}}
	for _, p := range []phase{saving, frozen, bound} {
		people["stops "+string(p)] = person{at: p, do: testUserStops}
		people["removes "+string(p)] = person{at: p, do: testUserRemoves}
		people["registers "+string(p)] = person{at: p, do: testUserRegisters}
	}
	var jobs []job
	var names []string
	for name, p := range people {
		p.job = learner("user-" + strings.ReplaceAll(name, " ", "-"))
		if name == "late" {
			p.job = learner("user-late", `lease = "2s"`)
		}
		jobs, names = append(jobs, p.job), append(names, name)
	}
	moves := s.learn(t, jobs...)
	for i, m := range moves {
		p := people[names[i]]
		t.Run(names[i], func(t *testing.T) {
			t.Parallel()
			d := newAPIProxy(t, s.server.Addr)
			pass := func() {}
			if p.at != "" {
				first, in := m.holdIn(d, p.at)
				if first != nil {
					first.release()
				}
				m.move(t, d)
				in.await(t, string(p.at))
				pass = in.release
			}
			p.do(t, m, pass)
		})
	}
}

// version returns the job's version, and whether it is stopped.
func (m *moving) version(t *testing.T) (version uint64, stopped bool) {
	t.Helper()
	spec, _, err := m.server.API.Jobs().Info(m.id, nil)
	must.NoError(t, err)
	return *spec.Version, *spec.Stop
}

// waitQuiet waits until no allocation of the job runs or is pending.
func (m *moving) waitQuiet(t *testing.T) {
	t.Helper()
	eventually(t, m.id+" has ended", func() error {
		stubs, err := m.a.agent.Allocs(deadline(t, stepDeadline), m.id)
		must.NoError(t, err)
		for _, s := range stubs {
			if s.ClientStatus == api.AllocClientStatusRunning || s.ClientStatus == api.AllocClientStatusPending {
				return fmt.Errorf("allocation %s is %s", s.ID, s.ClientStatus)
			}
		}
		evals, _, err := m.server.API.Jobs().Evaluations(m.id, nil)
		must.NoError(t, err)
		for _, e := range evals {
			if e.Status == "pending" || e.Status == "blocked" {
				return fmt.Errorf("evaluation %s is %s", e.ID, e.Status)
			}
		}
		return nil
	})
}

// unbind does what the next shim would after a shim's death.
func (m *moving) unbind(t *testing.T) {
	t.Helper()
	opts := move.DefaultOptions()
	opts.Claims, opts.Owner = claimsOf(m.server.API), "unbind"
	_, err := move.Unbind(t.Context(), nomadOf(m.server.API), "default", m.id, "g", opts)
	must.NoError(t, err)
}

// testUserStops: a stopped job ends and stays stopped. When it is started again, it is not bound.
func testUserStops(t *testing.T, m *moving, pass func()) {
	_, _, err := m.server.API.Jobs().Deregister(m.id, false, nil)
	must.NoError(t, err)
	version, _ := m.version(t)
	pass()
	m.end(t)
	m.waitQuiet(t)
	m.unbind(t)
	m.waitQuiet(t)
	now, stopped := m.version(t)
	must.True(t, stopped)
	must.Eq(t, version, now, must.Sprint("it has not been registered since"))

	spec, _, err := m.server.API.Jobs().Info(m.id, nil)
	must.NoError(t, err)
	*spec.Stop = false
	_, _, err = m.server.API.Jobs().Register(spec, nil)
	must.NoError(t, err)
	m.unbind(t)
	m.lost = true // it may start from scratch, as without a move
	m.checkOnce(t)
}

// testUserReverts: reverting to a version that is bound to a node leaves the job unbound.
func testUserReverts(t *testing.T, m *moving, _ func()) {
	m.move(t, newAPIProxy(t, m.server.Addr))
	m.end(t)
	must.NoError(t, m.err)
	versions, _, _, err := m.server.API.Jobs().Versions(m.id, false, nil)
	must.NoError(t, err)
	i := slices.IndexFunc(versions, func(j *api.Job) bool { return len(j.TaskGroups[0].Constraints) > 0 })
	must.GreaterEq(t, 0, i)
	_, _, err = m.server.API.Jobs().Revert(m.id, *versions[i].Version, nil, nil, "", "")
	must.NoError(t, err)
	must.StrHasPrefix(t, m.b.agent.NodeID(), m.boundTo(t))
	m.unbind(t)
	_, starts := m.checkOnce(t)
	must.Len(t, 2, starts, must.Sprint("it runs on as after the move"))
}

func testUserRemoves(t *testing.T, m *moving, pass func()) {
	_, _, err := m.server.API.Jobs().Deregister(m.id, true, nil)
	must.NoError(t, err)
	pass()
	m.end(t)
	m.waitQuiet(t)
	m.unbind(t)
	m.waitQuiet(t)
	_, _, err = m.server.API.Jobs().Info(m.id, nil)
	must.ErrorContains(t, err, "404")
}

// testUserRegisters: a new version of the job runs once.
func testUserRegisters(t *testing.T, m *moving, pass func()) {
	changed := learner(m.id)
	changed.body = "meta {\n changed = \"yes\"\n}"
	_, err := m.a.agent.Run(deadline(t, stepDeadline), m.a.hcl(changed))
	must.NoError(t, err)
	version, _ := m.version(t)
	pass()
	m.end(t)
	m.unbind(t)
	m.lost = m.result.Phase == move.PhaseSave // stopped before it had saved, as without a move
	eventually(t, "the new version runs", func() error {
		now, err := m.only(t)
		if err == nil && now.JobVersion != version {
			err = fmt.Errorf("version %d runs", now.JobVersion)
		}
		return err
	})
	// Nomad carries no disk over from an allocation that it stopped before it had received its own.
	m.startsOver = m.result.Phase == move.PhaseWait
	m.checkOnce(t)
	spec, _, err := m.server.API.Jobs().Info(m.id, nil)
	must.NoError(t, err)
	must.Eq(t, "yes", spec.Meta["changed"])
	must.Eq(t, version, *spec.Version, must.Sprint("it has not been registered since"))
}

// testCompletes: a job completes after its move and before it is unbound, when any new version
// would run it again.
func testCompletes(t *testing.T, m *moving, _ func()) {
	m.move(t, newAPIProxy(t, m.server.Addr), func(o *move.Options) {
		told := o.Report
		o.Report = func(p move.Phase, what string) {
			told(p, what)
			if p == move.PhaseVerify {
				m.complete(t)
			}
		}
	})
	m.end(t)
	must.NoError(t, m.err)
	m.unbind(t)
	m.waitQuiet(t)
	stubs, err := m.a.agent.Allocs(deadline(t, stepDeadline), m.id)
	must.NoError(t, err)
	must.Len(t, 2, stubs, must.Sprint("the old one and the new one"))
}

// complete ends the training job on the target.
func (m *moving) complete(t *testing.T) {
	stubs, err := m.a.agent.Allocs(deadline(t, stepDeadline), m.id)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(filepath.Join(m.b.agent.AllocDir(stubs[0].ID), "alloc", "data", "end"), nil, 0o644))
	_, err = m.b.agent.WaitTerminal(deadline(t, stepDeadline), m.id)
	must.NoError(t, err)
}

// late writes claims, and takes longer than the lease.
type late struct{ move.Claims }

func (l late) Write(ctx context.Context, r move.Record) (uint64, error) {
	if r.Phase == move.PhaseBind {
		time.Sleep(5 * time.Second)
	}
	return l.Claims.Write(ctx, r)
}

// testLate: the freeze is renewed while writing the claim takes longer than the lease.
func testLate(t *testing.T, m *moving, _ func()) {
	m.move(t, newAPIProxy(t, m.server.Addr), func(o *move.Options) { o.Claims = late{o.Claims} })
	m.end(t)
	must.NoError(t, m.err)
	now, starts := m.checkOnce(t)
	must.Eq(t, "b", now.NodeName)
	must.Len(t, 2, starts)
}

// inFrozen calls do while the task is frozen, then continues the move.
func (m *moving) inFrozen(t *testing.T, d *apiProxy, do func()) {
	t.Helper()
	_, in := m.holdIn(d, frozen)
	m.move(t, d)
	in.await(t, string(frozen))
	do()
	in.release()
	m.end(t)
}

// stays checks that the job was not moved and runs on its source.
func (m *moving) stays(t *testing.T, why string) {
	t.Helper()
	must.ErrorContains(t, m.err, why)
	must.Eq(t, move.PhaseWait, m.result.Phase)
	now, starts := m.checkOnce(t)
	must.Eq(t, m.alloc.ID, now.ID)
	must.Eq(t, []string{"0"}, starts)
}

func (s *site) drain(t *testing.T, c *cluster, yes bool) {
	t.Helper()
	opts := &api.DrainOptions{MarkEligible: true}
	if yes {
		opts = &api.DrainOptions{DrainSpec: &api.DrainSpec{Deadline: -1 * time.Second}}
	}
	_, err := s.server.API.Nodes().UpdateDrainOpts(c.agent.NodeID(), opts, nil)
	must.NoError(t, err)
}

func testSourceDrained(t *testing.T, m *moving, d *apiProxy) {
	m.inFrozen(t, d, func() { m.drain(t, m.a, true) })
	now, starts := m.checkOnce(t)
	must.Eq(t, "b", now.NodeName)
	must.Len(t, 2, starts)
	t.Logf("the move came to %s: %v", m.result.Phase, m.err)
	m.drain(t, m.a, false)
}

func testTargetDrained(t *testing.T, m *moving, d *apiProxy) {
	m.inFrozen(t, d, func() { m.drain(t, m.b, true) })
	m.stays(t, "not placed")
	m.drain(t, m.b, false)
}

func testTargetIneligible(t *testing.T, m *moving, d *apiProxy) {
	m.inFrozen(t, d, func() { m.eligible(t, m.b, false) })
	m.stays(t, "not placed")
	m.eligible(t, m.b, true)
}

// testTargetFull: another job takes the target's resources.
func testTargetFull(t *testing.T, m *moving, d *apiProxy) {
	m.inFrozen(t, d, func() {
		node, err := m.b.agent.Node(deadline(t, stepDeadline))
		must.NoError(t, err)
		filler := shell("while :; do sleep 1; done")
		filler.memory = int(node.NodeResources.Memory.MemoryMB) - 16
		m.b.start(t, job{id: "filler", tasks: []task{filler}, body: "constraint {\n attribute = \"${node.unique.name}\"\n value = \"b\"\n}"})
	})
	m.stays(t, "not placed: exhausted: memory")
	m.b.stop(t, "filler")
}
