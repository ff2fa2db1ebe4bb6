// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/move"
)

// TestSuspendEdges: whatever dies during a suspension, the job waits with its checkpoint, or runs.
func TestSuspendEdges(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	t.Run("alive", func(t *testing.T) { // both nodes
		for name, test := range map[string]func(*testing.T){"mover killed": s.testSuspenderKilled, "registered again": s.testSuspendedRegistered} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t)
			})
		}
	})
	t.Run("node killed", func(t *testing.T) { s.testSuspendedNodeKilled(t) })
	t.Run("hold opened", func(t *testing.T) { s.testSuspendedOpened(t) })
	s.completedOnce(t)
}

// heldLearner has no disk that Nomad would keep.
func heldLearner(id string, options ...string) job {
	j := learner(strings.ReplaceAll(id, " ", "-"), options...)
	j.group = retryPolicy
	j.tasks[0].body = "kill_timeout = \"1s\""
	j.body = "constraint {\n attribute = \"${meta.ebbtide_hold}\"\n value = \"released\"\n}"
	return j
}

// learnReleased releases held learners to a, and waits until they learn.
func (s *site) learnReleased(t *testing.T, jobs ...job) (all []*moving) {
	t.Helper()
	for _, j := range jobs {
		s.a.register(t, j)
		m := &moving{site: s, id: j.id}
		all = append(all, m)
		id := m.release(t, s.a)
		var err error
		m.alloc, _, err = s.server.API.Allocations().Info(id, nil)
		must.NoError(t, err)
	}
	for _, m := range all {
		m.before = s.a.waitStatus(t, m.alloc, "train", "learning", func(st status.Status) bool { return st.Step > 3 })
	}
	return all
}

// release releases the held job to a node.
func (m *moving) release(t *testing.T, to *cluster) (alloc string) {
	t.Helper()
	opts := move.DefaultOptions()
	opts.Claims, opts.Owner = claimsOf(m.server.API), "release"
	opts.Report = func(p move.Phase, what string) { t.Logf("%s: released: %s: %s", m.id, p, what) }
	alloc, err := move.Release(t.Context(), nomadOf(m.server.API), move.Place{Namespace: "default", Job: m.id, Group: "g", Node: to.agent.NodeID(), Saved: m.result.Tasks}, opts)
	must.NoError(t, err)
	must.NotEq(t, "", alloc)
	return alloc
}

func (m *moving) suspend(t *testing.T, d *apiProxy) {
	m.begin(t, d, move.Suspend, move.Request{Alloc: m.alloc.ID, Why: "for a test"})
}

// waits checks that the job is suspended: its only allocation was started once and is complete, and the
// job waits for its node with what it has saved.
func (m *moving) waits(t *testing.T) {
	t.Helper()
	eventually(t, m.id+" is suspended", func() error {
		stubs, err := m.a.agent.Allocs(deadline(t, stepDeadline), m.id)
		if err != nil {
			return err
		}
		must.Len(t, 1, stubs)
		if is := stubs[0].ClientStatus; is != api.AllocClientStatusComplete {
			return errors.New("its allocation is " + is)
		}
		must.Eq(t, 0, stubs[0].TaskStates["train"].Restarts)
		if pids, err := harness.TaskPIDs(m.alloc.ID, "train"); err == nil {
			return fmt.Errorf("it has processes %v", pids)
		}
		job, err := nomadOf(m.server.API).Job(t.Context(), "default", m.id)
		if err != nil {
			return err
		}
		alloc, node := move.Suspended(job, "g")
		if alloc != m.alloc.ID || node != m.a.agent.NodeID() || *job.Status != "pending" {
			return fmt.Errorf("it is %s, and waits on %q with the checkpoint of %q", *job.Status, node, alloc)
		}
		return nil
	})
	starts, err := os.ReadFile(filepath.Join(m.a.agent.AllocDir(m.alloc.ID), "alloc/data/starts"))
	must.NoError(t, err)
	must.Eq(t, "0\n", string(starts))
}

// resume checks that the job is suspended, and resumes it without its old allocation's disk.
func (m *moving) resume(t *testing.T) {
	t.Helper()
	m.waits(t)
	m.dropDisk(t)
	m.resumes(t, m.release(t, m.a))
	m.isUsers(t)
}

// resumes checks that the suspended job runs on a, from what it had saved.
func (m *moving) resumes(t *testing.T, alloc string) {
	t.Helper()
	now, starts := m.checkOnce(t)
	must.Eq(t, alloc, now.ID)
	must.Eq(t, m.a.agent.NodeID(), now.NodeID)
	must.Len(t, 2, starts)
	m.a.waitEvent(t, &api.Allocation{ID: alloc}, "train", "resumes from /alloc/data/ckpt, left by allocation "+m.alloc.ID)
}

// dropDisk removes what Nomad would, of an ended allocation.
func (m *moving) dropDisk(t *testing.T) {
	t.Helper()
	must.NoError(t, os.RemoveAll(filepath.Join(m.a.agent.AllocDir(m.alloc.ID), "alloc/data")))
}

// isUsers checks that the job is neither held nor bound.
func (m *moving) isUsers(t *testing.T) {
	t.Helper()
	spec, _, err := m.server.API.Jobs().Info(m.id, nil)
	must.NoError(t, err)
	must.SliceEmpty(t, spec.Constraints)
	must.SliceEmpty(t, spec.TaskGroups[0].Constraints)
}

// testSuspenderKilled kills the process that suspends a job, and another one finishes.
func (s *site) testSuspenderKilled(t *testing.T) {
	tests := map[string]struct {
		at   func(*moving) kind
		late bool // the next one comes when the lease has ended
	}{
		"held unanswered": {at: func(m *moving) kind { return binds(m.id, true) }},
		"held":            {at: func(m *moving) kind { return asksToSuspend(m.alloc.ID, false) }},
		"held late":       {at: func(m *moving) kind { return asksToSuspend(m.alloc.ID, false) }, late: true},
		"suspended":       {at: func(m *moving) kind { return asksToSuspend(m.alloc.ID, true) }},
	}
	var names []string
	var jobs []job
	for name, test := range tests {
		lease := `lease = "20s"`
		if test.late {
			lease = `lease = "2s"`
		}
		names, jobs = append(names, name), append(jobs, heldLearner(name, lease))
	}
	for i, m := range s.learnReleased(t, jobs...) {
		test := tests[names[i]]
		t.Run(names[i], func(t *testing.T) {
			t.Parallel()
			d := newAPIProxy(t, s.server.Addr)
			in := d.hold(test.at(m))
			m.suspend(t, d)
			in.await(t, names[i])
			d.kill()
			<-m.ended
			must.Error(t, m.err)
			job, err := nomadOf(s.server.API).Job(t.Context(), "default", m.id)
			must.NoError(t, err)
			left, _ := move.Suspended(job, "g")
			must.Eq(t, m.alloc.ID, left)
			if test.late {
				s.a.waitStatus(t, m.alloc, "train", "running again", func(st status.Status) bool { return st.Move.State != status.MoveReady })
				m.recover(t)
				now, starts := m.checkOnce(t)
				must.Eq(t, m.alloc.ID, now.ID)
				must.Len(t, 1, starts)
				m.isUsers(t)
				return
			}
			m.recover(t)
			m.resume(t)
		})
	}
}

// testSuspendedNodeKilled kills the plugin, and the agent with it, once a suspension is certain.
func (s *site) testSuspendedNodeKilled(t *testing.T) {
	a := s.a.agent
	killPlugin := func(t *testing.T) {
		pids := a.PluginPIDs("ebbtide-driver")
		must.Len(t, 1, pids)
		must.NoError(t, unix.Kill(pids[0], unix.SIGKILL))
	}
	for _, k := range []struct {
		name string
		kill func(*testing.T)
	}{
		{"plugin", killPlugin},
		{"agent", func(t *testing.T) {
			must.NoError(t, a.Process().Signal(unix.SIGSTOP)) // to see nothing of what follows
			killPlugin(t)
			must.NoError(t, a.Kill(deadline(t, stepDeadline)))
			must.NoError(t, a.Restart(deadline(t, startDeadline)))
		}},
	} {
		t.Run(k.name, func(t *testing.T) {
			m := s.learnReleased(t, heldLearner(k.name+" killed"))[0]
			d := newAPIProxy(t, s.server.Addr)
			in := d.hold(asksToSuspend(m.alloc.ID, true))
			m.suspend(t, d)
			in.await(t, "it is suspended")
			k.kill(t)
			in.release()
			_, err := a.WaitDriver(deadline(t, startDeadline), s.a.driver, true)
			must.NoError(t, err)
			<-m.ended
			must.NoError(t, m.err)
			m.resume(t)
		})
	}
}

// testSuspendedRegistered: the user registers a suspended job again. His file does not know of the
// suspension, so the job is held, and starts anew on any node.
func (s *site) testSuspendedRegistered(t *testing.T) {
	file := heldLearner("registered")
	m := s.learnReleased(t, file)[0]
	m.suspend(t, newAPIProxy(t, s.server.Addr))
	<-m.ended
	must.NoError(t, m.err)
	m.waits(t)
	_, err := s.a.agent.Run(deadline(t, stepDeadline), s.a.hcl(file))
	must.NoError(t, err)
	job, err := nomadOf(s.server.API).Job(t.Context(), "default", m.id)
	must.NoError(t, err)
	alloc, node := move.Suspended(job, "g")
	must.Eq(t, "", alloc+node)
	m.waitBlocked(t)

	m.lost = true
	id := m.release(t, s.b)
	now, starts := m.checkOnce(t)
	must.Eq(t, id, now.ID)
	must.Eq(t, []string{"0"}, starts)
	m.isUsers(t)
}

// waitBlocked waits until Nomad has found no place for the job's last version.
func (m *moving) waitBlocked(t *testing.T) {
	t.Helper()
	spec, _, err := m.server.API.Jobs().Info(m.id, nil)
	must.NoError(t, err)
	eventually(t, m.id+" is blocked", func() error {
		evals, _, err := m.server.API.Jobs().Evaluations(m.id, nil)
		if err != nil {
			return err
		}
		for _, e := range evals {
			if e.JobModifyIndex == *spec.JobModifyIndex && e.Status == api.EvalStatusBlocked {
				return nil
			}
		}
		return errors.New("it is not")
	})
	stubs, err := m.a.agent.Allocs(deadline(t, stepDeadline), m.id)
	must.NoError(t, err)
	must.Len(t, 1, stubs)
}

// testSuspendedOpened: without a shim, an operator opens the hold, first on a node on which the job does
// not wait. A shim that comes later gives the running job back to its user.
func (s *site) testSuspendedOpened(t *testing.T) {
	open := func(c *cluster, value *string) {
		_, err := s.server.API.Nodes().Meta().Apply(&api.NodeMetaApplyRequest{NodeID: c.agent.NodeID(), Meta: map[string]*string{"ebbtide_hold": value}}, nil)
		must.NoError(t, err)
	}
	released := "released"
	open(s.b, &released)
	defer open(s.b, nil)
	beside := heldLearner("beside")
	s.a.register(t, beside)
	queued := heldLearner("opened")
	queued.body += "\nmeta {\n ebbtide_queue = \"true\"\n}"
	m := s.learnReleased(t, queued)[0]
	fresh, err := s.a.agent.WaitRunning(deadline(t, startDeadline), beside.id)
	must.NoError(t, err)
	must.Eq(t, s.b.agent.NodeID(), fresh.NodeID)
	m.suspend(t, newAPIProxy(t, s.server.Addr))
	<-m.ended
	must.NoError(t, m.err)
	m.waits(t)
	m.dropDisk(t)
	m.waitBlocked(t)

	open(s.a, &released)
	defer open(s.a, nil)
	var now *api.AllocationListStub
	eventually(t, "it runs", func() (err error) {
		now, err = m.only(t)
		return err
	})
	must.Eq(t, s.a.agent.NodeID(), now.NodeID)
	alloc := &api.Allocation{ID: now.ID, NodeID: now.NodeID, Namespace: now.Namespace}
	s.a.waitEvent(t, alloc, "train", "resumes from /alloc/data/ckpt, left by allocation "+m.alloc.ID)
	s.a.waitStatus(t, alloc, "train", "learning on", func(st status.Status) bool { return st.Alloc == now.ID && st.Step > m.before.Step && st.Reports > 3 })
	c := config.Default()
	c.Interval, c.Web.Address, c.Nomad.Address = time.Second, "", s.server.Addr
	stop := runShims(t, c, "later")
	m.resumes(t, now.ID) // unbound by the shim
	m.isUsers(t)
	stop()
}
