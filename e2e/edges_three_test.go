// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/e2e/harness"
)

// TestThree: with three nodes Nomad may place a job on a node unknown to the move; the job runs
// once, from its checkpoint.
func TestThree(t *testing.T) {
	t.Parallel()
	s := newSiteOf(t, 3, nil)
	third := newCluster(t, s.h, "exec", clusterOptions{agent: harness.AgentConfig{Name: "c", Join: s.server}})
	_, _, err := s.server.API.Operator().SchedulerSetConfiguration(&api.SchedulerConfiguration{
		PreemptionConfig: api.PreemptionConfig{BatchSchedulerEnabled: true},
	}, nil)
	must.NoError(t, err)
	for _, p := range []phase{frozen, bound} {
		for name, meanwhile := range map[string]func(*testing.T, *moving) (after func()){
			"source drained":     testThreeDrained,
			"allocation stopped": testThreeStopped,
			"election":           testThreeElection,
			"lease over":         testThreeLeaseOver,
		} {
			t.Run(name+" "+string(p), func(t *testing.T) {
				id := "three-" + strings.ReplaceAll(name, " ", "-") + "-" + string(p)
				s.three(t, third, learner(id, `lease = "5s"`), p, meanwhile)
			})
		}
	}
	for _, p := range []phase{frozen, bound} {
		t.Run("preempted "+string(p), func(t *testing.T) { s.three(t, third, learner("three-preempted-"+string(p)), p, testThreePreempted) })
	}
	t.Run("source dead bound", func(t *testing.T) { s.three(t, third, learner("three-dead"), bound, testThreeDead) })
	s.completedOnce(t)
}

// three moves a job from the first node to the second, with a failure in a phase.
func (s *site) three(t *testing.T, third *cluster, j job, p phase, meanwhile func(*testing.T, *moving) (after func())) {
	s.eligible(t, third, false)
	m := s.learn(t, j)[0]
	s.eligible(t, third, true)
	d := newAPIProxy(t, s.server.Addr)
	first, in := m.holdIn(d, p)
	m.move(t, d)
	if first != nil {
		first.await(t, "about to be "+string(p))
		first.release()
	}
	in.await(t, string(p))
	after := meanwhile(t, m)
	in.release()
	m.end(t)
	now, starts := m.checkOnce(t)
	t.Logf("it runs on %s, started at steps %v; the move came to %s: %v", now.NodeName, starts, m.result.Phase, m.err)
	after()
	m.a.stop(t, m.id)
}

func testThreeDrained(t *testing.T, m *moving) (after func()) {
	m.drain(t, m.a, true)
	return func() { m.drain(t, m.a, false) }
}

func testThreeStopped(t *testing.T, m *moving) (after func()) {
	_, err := m.server.API.Allocations().Stop(&api.Allocation{ID: m.alloc.ID, Namespace: m.alloc.Namespace}, nil)
	must.NoError(t, err)
	return func() {}
}

// testThreePreempted: a job of higher priority takes the source's resources. Nomad may give the
// preempted job an empty disk, and rollback is impossible.
func testThreePreempted(t *testing.T, m *moving) (after func()) {
	m.startsOver = true
	node, err := m.a.agent.Node(deadline(t, stepDeadline))
	must.NoError(t, err)
	greedy := shell("while :; do sleep 1; done")
	greedy.memory = int(node.NodeResources.Memory.MemoryMB) - 16
	m.a.register(t, job{id: "greedy", tasks: []task{greedy}, body: "priority = 90\nconstraint {\n attribute = \"${node.unique.name}\"\n value = \"a\"\n}"})
	return func() { m.a.stop(t, "greedy") }
}

// testThreeElection transfers leadership to another server.
func testThreeElection(t *testing.T, m *moving) (after func()) {
	raft, err := m.server.API.Operator().RaftGetConfiguration(nil)
	must.NoError(t, err)
	i := slices.IndexFunc(raft.Servers, func(s *api.RaftServer) bool { return !s.Leader })
	must.NoError(t, m.server.API.Operator().RaftTransferLeadershipByID(raft.Servers[i].ID, nil))
	eventually(t, "another server leads", func() error {
		leader, err := m.server.API.Status().Leader()
		if err == nil && leader != raft.Servers[i].Address {
			err = errors.New("it is " + leader)
		}
		return err
	})
	return func() {}
}

// testThreeLeaseOver suspends Nomad for longer than the lease, so the task is thawed.
func testThreeLeaseOver(t *testing.T, m *moving) (after func()) {
	must.NoError(t, m.server.Process().Signal(unix.SIGSTOP))
	time.Sleep(7 * time.Second)
	must.NoError(t, m.server.Process().Signal(unix.SIGCONT))
	return func() {}
}

// testThreeDead keeps the source's agent down until its node is lost. The checkpoint survives, and
// the move rolls back when the agent returns.
func testThreeDead(t *testing.T, m *moving) (after func()) {
	must.NoError(t, m.a.agent.Kill(deadline(t, stepDeadline)))
	eventually(t, "the source is down", func() error {
		node, _, err := m.server.API.Nodes().Info(m.a.agent.NodeID(), nil)
		if err == nil && node.Status != api.NodeStatusDown {
			err = errors.New("it is " + node.Status)
		}
		return err
	})
	must.NoError(t, m.a.agent.Restart(deadline(t, startDeadline)))
	m.startsOver = true
	return func() {}
}
