// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	moved "github.com/ebbtide/ebbtide/shim/cluster"
)

// observedJob observes how Nomad handles a job's registrations.
type observedJob struct {
	*site
	id string
}

func (s observedJob) read(t *testing.T) *api.Job {
	t.Helper()
	spec, _, err := s.server.API.Jobs().Info(s.id, nil)
	must.NoError(t, err)
	return spec
}

// change registers the changed job, and returns its last evaluation once that is complete.
func (s observedJob) change(t *testing.T, what func(*api.Job)) (spec *api.Job, eval *api.Evaluation) {
	t.Helper()
	spec = s.read(t)
	index := *spec.JobModifyIndex
	what(spec)
	resp, _, err := s.server.API.Jobs().RegisterOpts(spec, &api.RegisterOptions{EnforceIndex: true, ModifyIndex: index}, nil)
	must.NoError(t, err)
	eventually(t, "Nomad has evaluated the job", func() error {
		evals, _, err := s.server.API.Jobs().Evaluations(s.id, nil)
		if err != nil {
			return err
		}
		for _, e := range evals {
			if e.JobModifyIndex == resp.JobModifyIndex && e.TriggeredBy == "job-register" && e.Status == "complete" {
				eval = e
				return nil
			}
		}
		return errors.New("no evaluation of this registration is complete")
	})
	return s.read(t), eval
}

// allocs returns the allocations, newest first.
func (s observedJob) allocs(t *testing.T) []*api.AllocationListStub {
	t.Helper()
	stubs, err := s.a.agent.Allocs(deadline(t, stepDeadline), s.id)
	must.NoError(t, err)
	slices.SortFunc(stubs, func(a, b *api.AllocationListStub) int { return int(b.CreateIndex) - int(a.CreateIndex) })
	return stubs
}

func (s observedJob) constrain(operand, value string) func(*api.Job) {
	return func(j *api.Job) {
		j.TaskGroups[0].Constraints = []*api.Constraint{api.NewConstraint(moved.BoundBy, operand, value)}
	}
}

// testModel checks each claim of the move tests' model (shim/move/model_test.go) on a real
// Nomad.
func (s *site) testModel(t *testing.T) {
	s.eligible(t, s.b, false)
	runs := observedJob{s, "model"}
	first := s.a.start(t, learner(runs.id))
	s.eligible(t, s.b, true)

	// A new version with another satisfied constraint is an in-place update, and its evaluation
	// has the job's index.
	for _, c := range [][2]string{{"!=", moved.Mark + "1234"}, {api.ConstraintSetContainsAny, first.NodeID + "," + moved.Mark + "1234"}} {
		spec, eval := runs.change(t, runs.constrain(c[0], c[1]))
		must.MapEmpty(t, eval.FailedTGAllocs)
		must.Eq(t, eval.JobModifyIndex, *spec.JobModifyIndex)
		must.Len(t, 1, runs.allocs(t))
		must.Eq(t, *spec.Version, runs.allocs(t)[0].JobVersion, must.Sprint("in place"))
	}

	// A stale job is not registered.
	stale := runs.read(t)
	_, _, err := s.server.API.Jobs().RegisterOpts(stale, &api.RegisterOptions{EnforceIndex: true, ModifyIndex: *stale.JobModifyIndex - 1}, nil)
	must.ErrorContains(t, err, "job modify index")

	// A tag keeps a version and does not change the job's index.
	_, err = s.server.API.Jobs().TagVersion(runs.id, 0, "ebbtide-0", "", nil)
	must.NoError(t, err)
	_, err = s.server.API.Jobs().TagVersion(runs.id, *stale.Version, "current", "", nil)
	must.NoError(t, err)
	must.Eq(t, *stale.JobModifyIndex, *runs.read(t).JobModifyIndex)
	for range 7 {
		runs.change(t, func(j *api.Job) { j.Priority = new(*j.Priority + 1); j.VersionTag = nil })
	}
	versions, _, _, err := s.server.API.Jobs().Versions(runs.id, false, nil)
	must.NoError(t, err)
	must.Eq(t, uint64(0), *versions[len(versions)-1].Version)
	must.Len(t, 8, versions, must.Sprint("six, and the two that have a tag"))

	// An allocation that fits on no other node is not stopped.
	_, eval := runs.change(t, runs.constrain(api.ConstraintSetContainsAny, "nowhere,"+moved.Mark+"1234"))
	must.MapLen(t, 1, eval.FailedTGAllocs)
	must.Len(t, 1, runs.allocs(t))
	must.Eq(t, api.AllocDesiredStatusRun, runs.allocs(t)[0].DesiredStatus)

	// A change of the meta that a rollback sets replaces the allocation.
	runs.change(t, func(j *api.Job) {
		runs.constrain(api.ConstraintSetContainsAny, first.NodeID+","+moved.Mark+"1234")(j)
		j.TaskGroups[0].SetMeta("ebbtide_adopt", first.ID)
	})
	must.Len(t, 2, runs.allocs(t))
	must.Eq(t, api.AllocDesiredStatusStop, runs.allocs(t)[1].DesiredStatus)

	// Any new version re-runs a completed batch job.
	over := observedJob{s, "model-over"}
	done := learner(over.id)
	done.tasks[0].args[1] = "exit 0"
	s.a.finish(t, done)
	over.change(t, over.constrain("!=", moved.Mark+"1234"))
	must.Len(t, 2, over.allocs(t))

	s.testNeverStarted(t)
}

// testNeverStarted: an allocation that its client could not create without the plugin has failed;
// after a restart of the agent it is complete, although none of it has run.
func (s *site) testNeverStarted(t *testing.T) {
	const id = "never-started"
	s.eligible(t, s.a, false)
	defer s.eligible(t, s.a, true)
	plugin := filepath.Join(s.b.agent.Dir, "plugins", "ebbtide-driver")
	pids := s.b.agent.PluginPIDs("ebbtide-driver")
	must.NoError(t, s.b.agent.Process().Signal(unix.SIGSTOP)) // the driver stays healthy for the servers
	s.a.register(t, job{id: id, tasks: []task{shell("sleep 300")}})
	s.status(t, id, func(string) bool { return true })
	must.NoError(t, os.Rename(plugin, plugin+".gone"))
	for _, pid := range pids {
		must.NoError(t, unix.Kill(pid, unix.SIGKILL))
	}
	must.NoError(t, s.b.agent.Process().Signal(unix.SIGCONT))
	s.status(t, id, func(status string) bool { return status == api.AllocClientStatusFailed })

	must.NoError(t, s.b.agent.Kill(deadline(t, stepDeadline)))
	must.NoError(t, os.Rename(plugin+".gone", plugin))
	must.NoError(t, s.b.agent.Restart(deadline(t, startDeadline)))
	stub := s.status(t, id, func(status string) bool { return status == api.AllocClientStatusComplete })
	must.Eq(t, api.AllocDesiredStatusRun, stub.DesiredStatus)
	for _, task := range stub.TaskStates {
		must.False(t, task.Failed)
		must.True(t, task.StartedAt.IsZero())
	}
}

// status waits for the status of a job's only allocation.
func (s *site) status(t *testing.T, id string, is func(status string) bool) (stub *api.AllocationListStub) {
	t.Helper()
	eventually(t, id+" has that status", func() error {
		stubs, err := s.a.agent.Allocs(deadline(t, stepDeadline), id)
		switch {
		case err != nil:
			return err
		case len(stubs) != 1:
			return fmt.Errorf("%d allocations", len(stubs))
		case !is(stubs[0].ClientStatus):
			return errors.New(stubs[0].ClientStatus)
		}
		stub = stubs[0]
		return nil
	})
	return stub
}

// testTimeLimit: Nomad 2.0.3 and later update a job with a max_run_duration in place, although its
// node violates the constraint, so the move is refused. Older servers drop the limit.
func testTimeLimit(t *testing.T, m *moving, d *apiProxy) {
	limited := observedJob{m.site, m.id}
	spec, _ := limited.change(t, func(j *api.Job) {
		j.TaskGroups[0].MaxRunDuration = new(time.Hour)
		j.Priority = new(*j.Priority + 1) // a change for older servers, too
	})
	m.move(t, d)
	m.end(t)
	now, starts := m.checkOnce(t)
	if spec.TaskGroups[0].MaxRunDuration == nil {
		must.NoError(t, m.err)
		must.Eq(t, "b", now.NodeName)
		return
	}
	must.ErrorContains(t, m.err, "cannot be moved: Nomad updates it in place")
	must.Eq(t, m.alloc.ID, now.ID)
	must.Len(t, 1, starts)

	spec, eval := limited.change(t, limited.constrain(api.ConstraintSetContainsAny, m.b.agent.NodeID()+","+moved.Mark+"1234"))
	must.MapEmpty(t, eval.FailedTGAllocs)
	must.Len(t, 1, limited.allocs(t))
	must.Eq(t, *spec.Version, limited.allocs(t)[0].JobVersion)
}
