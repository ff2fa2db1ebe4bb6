// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
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
	"github.com/ebbtide/ebbtide/shim/store"
)

// site is a server and two nodes, in separate agents that can be killed independently.
type site struct {
	h      *harness.Harness
	server *harness.Agent
	a, b   *cluster // jobs start on a and move to b
	done   *api.Allocation
}

// newSite also runs a job to completion, which must not run again.
func newSite(t *testing.T, settings map[string]string) *site { return newSiteOf(t, 1, settings) }

// newSiteOf starts several servers, and uses the first.
func newSiteOf(t *testing.T, servers int, settings map[string]string) *site {
	t.Helper()
	s := &site{h: newHarness(t)}
	ctx := deadline(t, startDeadline+10*time.Minute) // the first run builds
	all, err := s.h.StartServers(ctx, servers, harness.AgentConfig{Name: "server", Silence: 8 * time.Second})
	must.NoError(t, err)
	s.server = all[0]
	node := func(name string) *cluster {
		return newCluster(t, s.h, "exec", clusterOptions{settings: settings, agent: harness.AgentConfig{Name: name, Join: s.server}})
	}
	s.a, s.b = node("a"), node("b")
	done := optIn(learner("completed"))
	done.tasks[0].args[1] = "exit 0"
	s.done = s.a.finish(t, done)
	return s
}

// completedOnce checks that the completed job has not run again.
func (s *site) completedOnce(t *testing.T) {
	t.Helper()
	stubs, err := s.a.agent.Allocs(deadline(t, stepDeadline), s.done.JobID)
	must.NoError(t, err)
	must.Len(t, 1, stubs, must.Sprint("allocations of the job that had completed"))
}

func (s *site) eligible(t *testing.T, c *cluster, yes bool) {
	t.Helper()
	eligible(t, s.server, c.agent.NodeID(), yes)
}

// learner learns slowly, takes two seconds to save, and appends each start's step to a file in the
// migrated disk.
func learner(id string, options ...string) job {
	k := shell(`d=$NOMAD_ALLOC_DIR/data; n=0; [ -e $d/ckpt ] && read n < $d/ckpt
echo $n >> $d/starts
trap 'sleep 2; echo $n > $d/tmp; mv $d/tmp $d/ckpt' USR1
v=-100
while :; do n=$((n+1)); v=$((v*105/100)); echo step=$n loss=$v; sleep 0.1; [ -e $d/end ] && exit 0; done`)
	if len(options) == 0 {
		options = []string{`lease = "20s"`}
	}
	k.config = "checkpoint {\n path = \"${NOMAD_ALLOC_DIR}/data/ckpt\"\n" + strings.Join(options, "\n") + "\n}"
	k.memory = 32
	return job{id: id, retry: true, group: retryPolicy + "\nephemeral_disk {\n sticky = true\n migrate = true\n}\n", tasks: []task{k}}
}

// moving is a job that is moved from a to b.
type moving struct {
	*site
	id         string
	alloc      *api.Allocation
	before     status.Status
	ended      chan struct{}
	result     move.Result
	err        error
	lost       bool // stopped before it had saved
	startsOver bool // its checkpoint was lost with its machine
}

// learn starts learners on a, and waits until they learn.
func (s *site) learn(t *testing.T, jobs ...job) []*moving {
	t.Helper()
	s.eligible(t, s.b, false)
	var all []*moving
	for _, j := range jobs {
		s.a.register(t, j)
		all = append(all, &moving{site: s, id: j.id})
	}
	for _, m := range all {
		var err error
		m.alloc, err = s.a.agent.WaitRunning(deadline(t, startDeadline), m.id)
		must.NoError(t, err)
		must.Eq(t, s.a.agent.NodeID(), m.alloc.NodeID)
	}
	s.eligible(t, s.b, true)
	for _, m := range all {
		m.before = s.a.waitStatus(t, m.alloc, "train", "learning", func(st status.Status) bool { return st.Step > 3 })
	}
	return all
}

// move starts the move through a proxy.
func (m *moving) move(t *testing.T, d *apiProxy, change ...func(*move.Options)) {
	m.begin(t, d, move.Move, move.Request{Alloc: m.alloc.ID, Node: m.b.agent.NodeID()}, change...)
}

// begin starts a move or a suspension through a proxy.
func (m *moving) begin(t *testing.T, d *apiProxy, do func(context.Context, move.Nomad, move.Request, move.Options) (move.Result, error), r move.Request, change ...func(*move.Options)) {
	opts := move.DefaultOptions()
	opts.PlaceTimeout, opts.VerifyTimeout = time.Minute, time.Minute
	opts.Claims, opts.Owner = claimsOf(d.client()), "test"
	opts.Report = func(p move.Phase, what string) { t.Logf("%s: %s: %s", m.id, p, what) }
	for _, c := range change {
		c(&opts)
	}
	m.ended = make(chan struct{})
	ctx := t.Context()
	nomad := nomadOf(d.client())
	go func() {
		defer close(m.ended)
		m.result, m.err = do(ctx, nomad, r, opts)
	}()
	t.Cleanup(func() { <-m.ended })
}

// nomadOf asks nodes' agents for their limits, as `ebbtide move` does.
func nomadOf(client *api.Client) move.API {
	return move.API{Client: client, Agent: config.Nomad{}.Agent}
}

// claimsOf uses the variables of `ebbtide move`.
func claimsOf(client *api.Client) store.Claims {
	return store.Claims{Store: store.Store{Client: client, Namespace: "default", Path: "ebbtide/shim"}}
}

// end waits for the move's end, and recovers it as the next shim would.
func (m *moving) end(t *testing.T) {
	t.Helper()
	select {
	case <-m.ended:
		m.recover(t)
	case <-deadline(t, 2*startDeadline).Done():
		must.NoError(t, errors.New("the move of "+m.id+" does not end"))
	}
}

// recover finishes the move if its claim remains.
func (m *moving) recover(t *testing.T) {
	t.Helper()
	claims := claimsOf(m.server.API)
	eventually(t, "no move of "+m.id+" is left", func() error {
		r, err := claims.Read(t.Context(), "default", m.id)
		if err != nil || r.Index == 0 {
			return err
		}
		opts := move.DefaultOptions()
		opts.Claims, opts.Owner = claims, "next"
		opts.Report = func(p move.Phase, what string) { t.Logf("%s: recovered: %s: %s", m.id, p, what) }
		_, err = move.Recover(t.Context(), nomadOf(m.server.API), r, opts)
		return err
	})
}

// boundTo returns the node to which the job is bound; "" if unbound.
func (m *moving) boundTo(t *testing.T) string {
	t.Helper()
	spec, _, err := m.server.API.Jobs().Info(m.id, nil)
	must.NoError(t, err)
	for _, c := range spec.TaskGroups[0].Constraints {
		if c.LTarget == "${node.unique.id}" {
			return c.RTarget
		}
	}
	return ""
}

// checkOnce checks the invariants of any move: the job runs once, at no earlier step, and unbound.
// It returns the allocation and the step of each start.
func (m *moving) checkOnce(t *testing.T) (running *api.AllocationListStub, starts []string) {
	t.Helper()
	var st status.Status
	eventually(t, m.id+" runs once, and is free", func() (err error) {
		if running, err = m.only(t); err != nil {
			return err
		}
		alloc := &api.Allocation{ID: running.ID, NodeID: running.NodeID, Namespace: running.Namespace}
		if st, err = m.a.status(t, alloc, "train"); err != nil {
			return err
		}
		if st.Alloc != running.ID || st.Move.State != "" && st.Move.State != status.MoveFailed || !m.lost && st.Step < m.before.Step || st.Reports < 3 {
			return fmt.Errorf("its status is that of %s, at step %v, %q to be moved", st.Alloc, st.Step, st.Move.State)
		}
		if node := m.boundTo(t); node != "" {
			return errors.New("it is bound to " + node)
		}
		data, err := m.a.agent.Cat(deadline(t, stepDeadline), alloc, "alloc/data/starts")
		starts = strings.Fields(string(data))
		return err
	})
	if !m.lost {
		must.Eq(t, "0", starts[0])
		for _, step := range starts[1:] {
			n, err := strconv.Atoi(step)
			must.NoError(t, err)
			must.LessEq(t, float64(n), float64(m.before.Step))
		}
		if running.ID != m.alloc.ID && !m.startsOver {
			must.GreaterEq(t, 2, len(starts), must.Sprint("the task has restarted"))
		}
	}
	return running, starts
}

// only returns the only running allocation; all others must have ended.
func (m *moving) only(t *testing.T) (*api.AllocationListStub, error) {
	t.Helper()
	stubs, err := m.a.agent.Allocs(deadline(t, stepDeadline), m.id)
	if err != nil {
		return nil, err
	}
	var running []*api.AllocationListStub
	for _, s := range stubs {
		if s.ClientStatus == api.AllocClientStatusRunning && s.DesiredStatus == api.AllocDesiredStatusRun {
			running = append(running, s)
			continue
		}
		if s.ClientStatus == api.AllocClientStatusRunning || s.ClientStatus == api.AllocClientStatusPending {
			return nil, fmt.Errorf("allocation %s on %s is %s, to %s", s.ID, s.NodeName, s.ClientStatus, s.DesiredStatus)
		}
		if _, err := harness.TaskPIDs(s.ID, "train"); err == nil {
			return nil, fmt.Errorf("allocation %s has ended, and has processes", s.ID)
		}
	}
	if len(running) != 1 {
		return nil, fmt.Errorf("%d allocations run", len(running))
	}
	return running[0], nil
}

type phase string

const (
	saving  phase = "saving"
	frozen  phase = "frozen"
	bound   phase = "bound"
	running phase = "running" // on the target, and bound
)

var phases = []phase{saving, frozen, bound, running}

// holdIn stops a move in a phase, and before that in an earlier one if necessary.
func (m *moving) holdIn(d *apiProxy, p phase) (first, in *hold) {
	switch p {
	case saving:
		return d.hold(asksToSave(m.alloc.ID, false)), d.hold(asksToSave(m.alloc.ID, true))
	case frozen:
		return nil, d.hold(binds(m.id, false))
	case bound:
		return d.hold(binds(m.id, false)), d.hold(binds(m.id, true))
	}
	return nil, d.hold(unbinds(m.id))
}

// fourMoves are moves in four different phases.
type fourMoves struct {
	moves     []*moving
	first, in map[phase]*hold
}

func holdFour(moves []*moving, d *apiProxy) *fourMoves {
	f := &fourMoves{moves, make(map[phase]*hold), make(map[phase]*hold)}
	for i, p := range phases {
		f.first[p], f.in[p] = moves[i].holdIn(d, p)
	}
	return f
}

// reached waits until each move is in its phase. before runs just before the last two reach theirs.
func (f *fourMoves) reached(t *testing.T, before func()) {
	t.Helper()
	for _, p := range phases {
		if f.first[p] != nil {
			f.first[p].await(t, "about to be "+string(p))
		} else {
			f.in[p].await(t, string(p))
		}
	}
	f.first[saving].release()
	f.in[saving].await(t, string(saving))
	before()
	f.first[bound].release()
	f.in[bound].await(t, string(bound))
}

func (f *fourMoves) pass() {
	for _, s := range f.in {
		s.release()
	}
}

// victim is killed during moves.
type victim struct {
	name string
	// pause is suspended while a job is bound, so that it does not notice the failure.
	pause  *harness.Agent
	kill   func(t *testing.T)
	revive func(t *testing.T) // run once the moves continue; if nil, once the jobs run
}

// TestEdges tests user actions during moves and the mover's failures, TestEdgesKilled failures of
// the others.
func TestEdges(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	t.Run("model", func(t *testing.T) { s.testModel(t) })
	t.Run("people", func(t *testing.T) { s.testUserActions(t) })
	for name, test := range map[string]func(*testing.T, *moving, *apiProxy){
		"source drained":                 testSourceDrained,
		"target drained":                 testTargetDrained,
		"target ineligible":              testTargetIneligible,
		"target full":                    testTargetFull,
		"mover killed":                   testMoverKilled,
		"two movers":                     testTwoMovers,
		"source killed while it carries": testSourceKilledCarrying,
		"time limit":                     testTimeLimit,
	} {
		t.Run(name, func(t *testing.T) {
			m := s.learn(t, learner(strings.ReplaceAll(name, " ", "-")))[0]
			test(t, m, newAPIProxy(t, s.server.Addr))
		})
	}
	s.completedOnce(t)
}

func TestEdgesKilled(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	kill := func(a *harness.Agent) func(*testing.T) {
		return func(t *testing.T) { must.NoError(t, a.Kill(deadline(t, stepDeadline))) }
	}
	restart := func(a *harness.Agent) func(*testing.T) {
		return func(t *testing.T) { must.NoError(t, a.Restart(deadline(t, startDeadline))) }
	}
	killPlugin := func(c *cluster) func(*testing.T) {
		return func(t *testing.T) {
			for _, pid := range c.agent.PluginPIDs("ebbtide-driver") {
				must.NoError(t, unix.Kill(pid, unix.SIGKILL))
			}
			must.NoError(t, c.agent.Process().Signal(unix.SIGCONT))
		}
	}
	nothing := func(*testing.T) {}
	a, b := s.a.agent, s.b.agent
	for _, v := range []victim{
		{"plugin of the source", a, killPlugin(s.a), nothing},
		{"plugin of the target", b, killPlugin(s.b), nothing},
		{"source", a, kill(a), restart(a)},
		{"target", b, kill(b), restart(b)},
		// Nomad has reattached to it at the restart; an allocation may then fail with "plugin is
		// shut down" before it is created. Nomad may start it all the same, and then ignores its
		// updates until the agent restarts.
		{"recovered plugin of the target", b, killPlugin(s.b), func(t *testing.T) {
			_, err := b.WaitDriver(deadline(t, startDeadline), s.b.driver, true)
			must.NoError(t, err)
			kill(b)(t)
			restart(b)(t)
		}},
		{"server", nil, kill(s.server), restart(s.server)},
		{"target for good", b, func(t *testing.T) { s.killMachine(t, s.b) }, nil},
	} {
		t.Run(v.name, func(t *testing.T) { s.testKilled(t, v) })
	}
	s.completedOnce(t)
}

// killMachine kills a node with all its processes.
func (s *site) killMachine(t *testing.T, c *cluster) {
	t.Helper()
	must.NoError(t, c.agent.Kill(deadline(t, stepDeadline)))
	allocs, _, err := s.server.API.Nodes().Allocations(c.agent.NodeID(), nil)
	must.NoError(t, err)
	for _, a := range allocs {
		pids, _ := harness.TaskPIDs(a.ID, "train") // none if it has exited
		for _, pid := range pids {
			must.NoError(t, unix.Kill(pid, unix.SIGKILL))
		}
	}
}

// testKilled kills the victim during four moves in four phases.
func (s *site) testKilled(t *testing.T, v victim) {
	var jobs []job
	for _, p := range phases {
		jobs = append(jobs, learner(strings.ReplaceAll(v.name, " ", "-")+"-"+string(p)))
	}
	moves := s.learn(t, jobs...)
	d := newAPIProxy(t, s.server.Addr)
	f := holdFour(moves, d)
	for _, m := range moves {
		m.move(t, d)
	}
	f.reached(t, func() {
		if v.pause != nil {
			must.NoError(t, v.pause.Process().Signal(unix.SIGSTOP))
		}
	})
	v.kill(t)
	f.pass()
	if v.revive != nil {
		v.revive(t)
	}
	runs := func(t *testing.T) {
		for i, m := range moves {
			t.Run(string(phases[i]), func(t *testing.T) {
				t.Parallel()
				m.end(t)
				m.startsOver = v.revive == nil && phases[i] == running
				now, starts := m.checkOnce(t)
				if back := []phase{frozen, bound}; v.revive == nil && slices.Contains(back, phases[i]) {
					must.Len(t, 2, starts, must.Sprint("it went back to what it has left"))
				}
				t.Logf("%s runs on %s, started at steps %v; the move came to %s: %v", m.id, now.NodeName, starts, m.result.Phase, m.err)
			})
		}
	}
	t.Run("then", runs)
	if v.revive == nil {
		must.NoError(t, v.pause.Restart(deadline(t, startDeadline)))
		t.Run("it comes back", runs)
	}
}
