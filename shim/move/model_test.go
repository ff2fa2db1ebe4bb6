// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/checkpoint"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/document"
	"github.com/ebbtide/ebbtide/shim/document/documenttest"
)

// model is a cluster with one job of one task as Nomad and the driver treat it. Time is
// synctest's. These tests in e2e show its assumptions on a real Nomad:
//
//	in-place updates, their evaluations, stale indexes, tags   TestEdges/model
//	nothing is stopped that fits nowhere else                  TestEdges/model, target_full
//	a new version runs a completed batch job again             TestEdges/model
//	an allocation that never started is failed, then complete  TestEdges/model
//	a source killed while it migrates leaves an empty disk,
//	and its checkpoint is adopted after a rollback             TestEdges/source_killed_while_it_carries
//	a user stops, removes or changes the job; it completes     TestEdges/people
//	a lost answer, agents that are down, a dead target         TestEdges/server, source, target, target_for_good
//	alloc stop, drain, an election, a lapsed lease, a dead
//	source                                                     TestThree
//	freeze, renewal and thaw                                   TestTargetsAndSources, TestTwoNodes
//	a job with a max_run_duration stays where it is            TestEdges/time_limit, on Nomad 2.0.3 or later
//
// No test shows a registration that arrives late, allocations that are collected meanwhile, and
// clocks that differ.
type model struct {
	mu          sync.Mutex
	s           schedule
	nodes       []string
	dead        map[string]bool      // machines lost for good
	full        map[string]bool      // machines without room for new allocations
	filled      map[string]time.Time // since when machines' disks are over the client's threshold
	parted      map[string]bool      // machines that have missed their heartbeats
	drained     map[string]bool
	unreachable map[string]time.Time // agents unreachable until then
	job         *document.Job
	user        *document.Job // the user's latest specification
	specs       map[uint64]*document.Job
	all         []*modelAlloc
	evals       []*api.Evaluation
	index       uint64
	claim       map[string]Record

	best        int // highest step ever saved
	lost        bool
	completions map[int]int // by slot
	wanted      int         // runs the user asked for: one, plus one per version
	killed      int         // processes
	wrong       []string
	log         []string // registrations and signals, except renewals
	begun       time.Time
	took        time.Duration // until the mover returned
	over        bool
}

// schedule describes one run.
type schedule struct {
	Service bool

	Deployment  string        // status of the job's latest deployment; "" if there is none
	SaveTimeout time.Duration // of the options; 0 for the default
	Unasked     bool          // the task saves by itself
	// UnaskedTimeout is of the options; 0 for the default.
	UnaskedTimeout time.Duration

	Steps  int // of 100 ms each
	Lease  time.Duration
	Save   time.Duration
	Eval   time.Duration // delay of an evaluation
	Stop   time.Duration // delay of a client's stop
	Start  time.Duration // delay of the disk's migration and the start
	Room   bool          // on the target
	NoPlan bool
	// Limited jobs have a max_run_duration: Nomad 2.0.3 and later updates their allocations in
	// place, wherever they run.
	Limited bool
	// FailStart and EmptyDisk are the ordinals of the starts that fail, or find an empty disk.
	FailStart, EmptyDisk int // -1: none
	// Restart is when the agent is restarted after a failed start of a bound job; 0 for never.
	// Nomad then reports the allocation, which never started, as complete.
	Restart time.Duration
	Skew    time.Duration // of the source's clock
	Report  time.Duration // from a task's start to its first report
	Timeout time.Duration // checkpoint.timeout, 0 for the default
	// Disconnect gives the group a disconnect block, whose replace is Replace.
	Disconnect, Replace bool
	Shared              bool // the checkpoint
	// Suspend means that the job is suspended instead of moved, and resumes on its node.
	Suspend bool
	Faults  []fault
	Events  []event
	Crash   []int // number of calls after which the mover, then each process that recovers a record, is killed; 0 for never
	Mover   int   // start of a second move, in ms; 0 for none
}

// fault disturbs one call.
type fault struct {
	Process int    // 0 for movers, then the processes that recover a record
	Call    int    // firstRegister for the process's first registration
	Kind    string // before: the request is lost; after: the answer; late: a registration is delayed; stall: the whole process is
	Late    time.Duration
}

const firstRegister = 0

// event is an act of a user or a failure.
type event struct {
	At   time.Duration
	Kind string // change, stop, alloc-stop, collected, server, disconnect, scale-0 to -2; source- or target- dies, deaf, parts, full, filled or drained
	For  time.Duration
}

type modelAlloc struct {
	id, node        string
	slot            int // which of the group's count
	version, create uint64
	prev            *modelAlloc
	desired, client string
	runs            bool // the process exists
	begun, step     int  // first and current step
	saved           int  // highest step saved before its start
	begunAt, at     time.Time
	frozen          time.Time // until
	state           string    // status: saving, ready or frozen
	until           time.Time // in the status
	disk            int       // its checkpoint's step, 0 for none
	restored        private.Restored
	left, taken     bool
	collected       bool      // as garbage
	suspended       bool      // its disk is kept
	userStopped     time.Time // when a user asked for its stop
	cut             bool      // ran while its node was disconnected; Nomad may have replaced it
}

func (a *modelAlloc) started() bool { return a.restored != nil }

const (
	stepTime  = 100 * time.Millisecond
	ckpt      = "/alloc/data/c"
	heartbeat = 20 * time.Second
	lostAfter = 2 * time.Minute
	// rescheduled is how long Nomad waits before it replaces a failed allocation.
	rescheduled = 5 * time.Second
)

func faultFree() schedule {
	return schedule{
		Lease: time.Minute, Save: 300 * time.Millisecond, Eval: 100 * time.Millisecond, Stop: 200 * time.Millisecond, Start: 400 * time.Millisecond,
		Room: true, FailStart: -1, EmptyDisk: -1,
	}
}

func ptr[T any](v T) *T { return &v }

func newModel(s schedule) *model {
	kind := api.JobTypeBatch
	if s.Service {
		kind = api.JobTypeService
	}
	block := map[string]any{"path": ckpt, "lease": s.Lease.String(), "shared": s.Shared}
	if s.Timeout > 0 {
		block["timeout"] = s.Timeout.String()
	}
	if s.Unasked {
		block["signal"] = checkpoint.NoSignal
	}
	task := &api.Task{Name: "train", Driver: driverName, Config: map[string]any{"checkpoint": []map[string]any{block}}}
	m := &model{
		s: s, nodes: []string{"a", "b", "c"}, dead: map[string]bool{}, drained: map[string]bool{}, full: map[string]bool{"b": !s.Room}, filled: map[string]time.Time{}, parted: map[string]bool{}, completions: map[int]int{}, unreachable: map[string]time.Time{}, specs: map[uint64]*document.Job{}, claim: map[string]Record{}, index: 10, wanted: 1, begun: time.Now(),
	}
	disk := &api.EphemeralDisk{Sticky: ptr(true), Migrate: ptr(true)}
	if s.Suspend {
		disk = nil // a suspended job needs none
	}
	text, err := json.Marshal(&api.Job{
		ID: ptr("vae"), Namespace: ptr("ml"), Type: ptr(kind), Version: ptr(uint64(0)), JobModifyIndex: ptr(uint64(10)), Priority: ptr(50),
		TaskGroups: []*api.TaskGroup{{Name: ptr("train"), Count: ptr(1), Tasks: []*api.Task{task}, EphemeralDisk: disk}},
	})
	if err != nil {
		panic(err)
	}
	first := documenttest.Parse(text)
	if s.Disconnect {
		first = documenttest.Change(first, m.disconnects)
	}
	m.written(documenttest.Change(first, func(root map[string]any) { // of a newer Nomad
		group(root)["MaxRunDuration"] = json.Number("3600000000000")
		root["Unknown"] = map[string]any{"List": []any{1, nil}, "Number": json.Number("1.50")}
	}))
	a := &modelAlloc{id: "0a11ed00-1", node: "a", create: 5, desired: "run", client: "running", runs: true, at: time.Now(), restored: private.Restored{}}
	m.all = []*modelAlloc{a}
	return m
}

// written sets the job as the user's file has it.
func (m *model) written(job *document.Job) {
	m.job, m.user = job, job
	m.specs[*job.Version] = job
}

// isUsers reports whether the job is as the user's file has it, except for metaAdopt.
func (m *model) isUsers() bool {
	same, err := document.Same(m.user, m.job, document.Own{Constraint: func(_, _ string) bool { return false }, Meta: []string{metaAdopt}})
	return err == nil && same
}

// group is the group in a job's JSON.
func group(root map[string]any) map[string]any {
	return root["TaskGroups"].([]any)[0].(map[string]any)
}

// disconnects adds a disconnect block to a job's JSON.
func (m *model) disconnects(root map[string]any) {
	group(root)["Disconnect"] = map[string]any{"LostAfter": lostAfter, "Replace": m.s.Replace}
}

// under runs do under the lock and then checks the invariants.
func (m *model) under(do func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advance()
	do()
	m.checkSingle()
}

func (m *model) say(format string, args ...any) {
	m.wrong = append(m.wrong, fmt.Sprintf("%v: ", time.Since(m.begun).Round(time.Millisecond))+fmt.Sprintf(format, args...))
}

// advance computes the tasks' steps until now.
func (m *model) advance() {
	now := time.Now()
	for _, a := range m.all {
		if !a.runs {
			continue
		}
		from := a.at
		if a.frozen.After(from) {
			if now.Before(a.frozen) {
				a.at = now
				continue
			}
			from = a.frozen
		}
		if !a.frozen.IsZero() && !now.Before(a.frozen) {
			a.state, a.frozen = "", time.Time{}
		}
		n := int(now.Sub(from) / stepTime)
		a.step, a.at = a.step+n, from.Add(time.Duration(n)*stepTime)
		if !m.s.Service && m.s.Steps > 0 && a.step >= m.s.Steps && a.state == "" {
			a.runs, a.client = false, "complete"
			if a.desired == "run" {
				m.completions[a.slot]++
				if len(m.s.Crash)+len(m.s.Faults)+len(m.s.Events) == 0 { // with faults a short task may end before it can be rolled back
					m.checkResumed(a)
				}
				m.evaluate(m.s.Eval, *m.job.JobModifyIndex)
			}
		}
	}
}

// checkResumed records an allocation that did not resume from the last checkpoint, unless a
// source without room prevents a rollback.
func (m *model) checkResumed(a *modelAlloc) {
	if a != m.all[0] && a.slot == 0 && !m.lost && !m.full["a"] && !m.drained["a"] && a.begun < a.saved {
		m.say("%s has begun at step %d, and %d was saved", a.id, a.begun, a.saved)
	}
}

// checkSingle records two copies that compute at once. A copy on a disconnected node keeps running
// although Nomad has replaced it.
func (m *model) checkSingle() {
	for slot := range 2 {
		var computing []string
		for _, a := range m.all {
			if a.slot == slot && a.runs && !a.cut && a.state != "ready" && a.state != "frozen" {
				computing = append(computing, a.id+" on "+a.node)
			}
		}
		if len(computing) > 1 {
			m.say("two copies run: %v", computing)
		}
		if m.completions[slot] > m.wanted {
			m.say("it has completed %d times", m.completions[slot])
			m.wanted = m.completions[slot]
		}
	}
}

func (m *model) live(node string) bool { return !m.dead[node] }
func (m *model) hears(node string) bool {
	return m.live(node) && !time.Now().Before(m.unreachable[node])
}

// --- server

func (m *model) evaluate(after time.Duration, index uint64) {
	m.index++
	e := &api.Evaluation{ID: fmt.Sprint("eval-", m.index), Status: api.EvalStatusPending, JobModifyIndex: index, CreateIndex: m.index}
	m.evals = append(m.evals, e)
	go func() {
		time.Sleep(after)
		m.under(func() { m.schedule(e) })
	}()
}

// meta is the part of a job that cannot be updated in place.
func (m *model) meta(j *document.Job) string { return fmt.Sprint(j.TaskGroups[0].Meta) }

// room reports whether the node accepts the job's allocation.
func (m *model) room(job *document.Job, node string) bool {
	return !m.drained[node] && m.fits(job, node)
}

func (m *model) fits(job *document.Job, node string) bool {
	if m.dead[node] || m.parted[node] || m.full[node] && m.last().node != node {
		return false
	}
	for _, all := range [][]*api.Constraint{job.Constraints, job.TaskGroups[0].Constraints} {
		if slices.ContainsFunc(all, func(c *api.Constraint) bool { return c.LTarget == cluster.Hold }) {
			return false
		}
	}
	for _, c := range job.TaskGroups[0].Constraints {
		switch c.Operand {
		case api.ConstraintSetContainsAny:
			if !slices.Contains(strings.Split(c.RTarget, ","), node) {
				return false
			}
		case "!=":
			if c.RTarget == node {
				return false
			}
		}
	}
	return true
}

func (m *model) inPlace(a *modelAlloc, job *document.Job) bool {
	return (m.s.Limited || m.fits(job, a.node)) && m.meta(m.specs[a.version]) == m.meta(job)
}

// last returns the newest allocation of the first slot.
func (m *model) last() *modelAlloc { return m.lastOf(0) }

func (m *model) lastOf(slot int) *modelAlloc {
	for _, a := range slices.Backward(m.all) {
		if a.slot == slot {
			return a
		}
	}
	return nil
}

func (m *model) schedule(e *api.Evaluation) {
	e.Status = api.EvalStatusComplete
	for slot := range 2 {
		m.scheduleSlot(e, slot)
	}
}

func (m *model) scheduleSlot(e *api.Evaluation, slot int) {
	a := m.lastOf(slot)
	alive := a != nil && (a.client == "running" || a.client == "pending" || a.client == "unknown")
	switch {
	case stopped(m.job), slot >= *m.job.TaskGroups[0].Count:
		if alive {
			m.stop(a)
		}
		return
	case a == nil:
	case a.client == "unknown" && a.desired == "run" && a.version == *m.job.Version && !*m.job.TaskGroups[0].Disconnect.Replace:
		return
	case alive && a.client != "unknown" && a.desired == "run":
		if a.version == *m.job.Version {
			return
		}
		if m.inPlace(a, m.job) {
			a.version = *m.job.Version
			return
		}
	case a.client == "complete" && a.desired == "run" && a.version == *m.job.Version && !m.s.Service:
		return
	}
	for _, node := range m.prefer(a) {
		if m.room(m.job, node) {
			if alive && a.client != "unknown" {
				m.stop(a)
			}
			m.place(node, a, slot)
			return
		}
	}
	e.FailedTGAllocs = map[string]*api.AllocationMetric{"train": {DimensionExhausted: map[string]int{"memory": 1}}}
}

// prefer returns the nodes in the order of Nomad's scheduler: a sticky disk's node first, but one on
// which it has failed last, since its driver may be what has failed.
func (m *model) prefer(a *modelAlloc) []string {
	all := []string{"c", "b", "a"}
	switch {
	case a == nil:
		return all
	case a.client == "failed":
		return append(slices.DeleteFunc(all, func(n string) bool { return n == a.node }), a.node)
	}
	return slices.Concat([]string{a.node}, all)
}

func (m *model) stop(a *modelAlloc) {
	if a.desired == "stop" {
		return
	}
	a.desired = "stop"
	go func() {
		for {
			time.Sleep(m.s.Stop)
			done := false
			m.under(func() {
				if done = m.over || m.hears(a.node) || m.dead[a.node]; done && m.live(a.node) {
					m.end(a, "complete")
				}
			})
			if done {
				return
			}
		}
	}()
}

func (m *model) end(a *modelAlloc, as string) {
	if terminal(a.client) {
		return
	}
	a.left = a.left || a.state == "ready"
	a.runs, a.state, a.client = false, "", as
	m.collect(a.node)
}

// collect deletes the directories of ended allocations on a node whose disk is full.
func (m *model) collect(node string) {
	for _, a := range m.all {
		if a.node == node && !m.filled[node].IsZero() && terminal(a.client) && a.disk > 0 && !a.suspended {
			a.disk, a.left, m.lost = 0, false, true // Register tells whether that is the move's doing
		}
	}
}

func (m *model) place(node string, prev *modelAlloc, slot int) {
	m.index++
	n := len(m.all)
	a := &modelAlloc{id: fmt.Sprintf("0e30a11%d-2", n), slot: slot, node: node, version: *m.job.Version, create: m.index, prev: prev, desired: "run", client: "pending"}
	m.all = append(m.all, a)
	go func() {
		for {
			time.Sleep(m.s.Start)
			done := false
			m.under(func() {
				switch {
				case m.over, m.dead[node]:
					done = true
				case a.desired == "stop":
					a.client, done = "complete", true
				case m.terminal(prev) && m.hears(node):
					m.start(a, n-1)
					done = true
				}
			})
			if done {
				return
			}
		}
	}()
}

// terminal reports whether the allocation and all before it have ended. A client waits for the
// previous allocation only, also under plain Nomad.
func (m *model) terminal(a *modelAlloc) bool {
	return a == nil || (terminal(a.client) || a.client == "unknown") && m.terminal(a.prev)
}

// start models the client and driver; n counts the earlier starts.
func (m *model) start(a *modelAlloc, n int) {
	p := a.prev
	if p == nil {
		p = a // nothing to copy
	}
	empty := m.s.EmptyDisk == n || m.s.FailStart == n
	if (p.node == a.node || m.hears(p.node) && !empty) && !p.suspended { // a suspended one is not replaced, so it has no successor
		a.disk = p.disk
	}
	if m.s.Shared {
		a.disk = m.best
	}
	to, _, _ := boundTo(m.job, "train")
	if (empty || !m.hears(p.node)) && (to == "" || !p.userStopped.IsZero() && p != m.all[0]) {
		m.lost = true // the loss is not the move's, or the move had come too far
	}
	if m.s.FailStart == n {
		a.client, a.disk = "failed", 0
		m.evaluate(rescheduled, *m.job.JobModifyIndex)
		if to != "" && m.s.Restart > 0 {
			go func() {
				time.Sleep(m.s.Restart)
				m.under(func() { a.client = "complete" })
			}()
		}
		return
	}
	if from := m.job.TaskGroups[0].Meta[metaAdopt]; from != "" {
		if i := slices.IndexFunc(m.all, func(o *modelAlloc) bool { return o.id == from }); i >= 0 && m.all[i].node == a.node && m.all[i].left && !m.all[i].taken {
			a.disk, m.all[i].taken = m.all[i].disk, true
		}
	}
	a.restored = private.Restored{}
	if a.disk > 0 {
		a.restored[ckpt] = int64(a.disk)
	}
	a.client, a.runs, a.begun, a.step, a.saved, a.begunAt, a.at = "running", true, a.disk, a.disk, m.best, time.Now(), time.Now()
}

// replace stops an allocation for a user and places another one.
func (m *model) replace(a *modelAlloc) {
	// The successor of an allocation that never started has an empty disk, also under plain
	// Nomad.
	m.lost = m.lost || a.client == "pending"
	a.userStopped = time.Now()
	m.stop(a)
	m.index++
	for _, node := range m.prefer(&modelAlloc{node: "c"}) {
		if m.room(m.job, node) {
			m.place(node, a, a.slot)
			break
		}
	}
}

func (m *model) inject(e event) {
	nodeOf := map[string]string{}
	for _, what := range []string{"dies", "deaf", "parts", "full", "filled", "drained"} {
		nodeOf["source-"+what], nodeOf["target-"+what] = "a", "b"
	}
	a := m.last()
	switch e.Kind {
	case "change":
		if _, _, bound := boundTo(m.job, "train"); bound || a.client != "running" {
			m.lost = true // not the move's doing; metaAdopt goes, too
		}
		// The user's file has nothing of ours.
		m.commit(documenttest.Change(m.user, func(root map[string]any) {
			root["Priority"], root["Stop"] = *m.user.Priority+1, nil
			group(root)["Renamed"] = m.index
		}))
		m.user, m.wanted = m.job, m.wanted+1
	case "stop":
		stop := func(root map[string]any) { root["Stop"] = true }
		m.commit(documenttest.Change(m.job, stop))
		m.user = documenttest.Change(m.user, stop)
	case "alloc-stop":
		if !terminal(a.client) {
			m.replace(a)
		}
	case "target-drained", "source-drained":
		// A drain stops the tasks of a batch job at its deadline only.
		node := nodeOf[e.Kind]
		m.drained[node] = true
		if a.node == node && m.s.Service && !terminal(a.client) {
			m.replace(a)
		}
	case "collected":
		// Also the clients' directories of ended allocations go.
		to, _, _ := boundTo(m.job, "train")
		for _, c := range m.all[:len(m.all)-1] {
			if terminal(c.client) && !c.collected {
				if c.collected = true; c.suspended {
					continue
				}
				c.disk, c.left = 0, false
				m.lost = m.lost || to != "" || m.last().client != "running"
			}
		}
	case "target-dies", "source-dies":
		node := nodeOf[e.Kind]
		m.dead[node] = true
		for _, c := range m.all {
			if c.node == node {
				c.runs = false
				m.lost = m.lost || c.disk > a.disk || c.disk > 0 && c == a
			}
		}
		go func() {
			time.Sleep(heartbeat)
			m.under(func() {
				for _, c := range m.all {
					if c.node == node && !terminal(c.client) {
						c.client = "lost"
						m.evaluate(m.s.Eval, *m.job.JobModifyIndex)
					}
				}
			})
		}()
	case "target-deaf", "source-deaf":
		m.unreachable[nodeOf[e.Kind]] = time.Now().Add(e.For)
	case "source-parts", "target-parts":
		m.part(nodeOf[e.Kind], heartbeat+e.For)
	case "source-full", "target-full":
		m.full[nodeOf[e.Kind]] = true
	case "source-filled", "target-filled":
		m.filled[nodeOf[e.Kind]] = time.Now()
		m.collect(nodeOf[e.Kind])
	case "scale-0", "scale-1", "scale-2", "disconnect":
		// A user changes the job as it is, perhaps bound: it is no longer the move's.
		_, _, bound := boundTo(m.job, "train")
		m.lost = m.lost || bound || a.client != "running" || e.Kind == "scale-0"
		edit := m.disconnects
		if e.Kind != "disconnect" {
			edit = func(root map[string]any) { group(root)["Count"] = int(e.Kind[len(e.Kind)-1] - '0') }
		}
		m.commit(documenttest.Change(m.job, edit))
		m.user, m.wanted = documenttest.Change(m.user, edit), m.wanted+2 // and one for the unbinding
	case "server":
		m.unreachable["server"] = time.Now().Add(e.For)
	}
}

// part disconnects a node, whose processes run on, for longer than its heartbeats may be missed.
func (m *model) part(node string, d time.Duration) {
	m.unreachable[node] = time.Now().Add(d)
	go func() {
		time.Sleep(heartbeat)
		m.under(func() {
			if m.over || m.dead[node] {
				return
			}
			m.parted[node], m.lost = true, true // Nomad finds no disk there
			for _, a := range m.all {
				if a.node != node || terminal(a.client) {
					continue
				}
				switch block := m.specs[a.version].TaskGroups[0].Disconnect; {
				case block == nil || a.client == "pending":
					a.client, a.desired = "lost", "stop"
				case a.desired == "run":
					a.client = "unknown"
					go func() {
						time.Sleep(lostAfter)
						m.under(func() {
							if a.client == "unknown" {
								a.client, a.desired = "lost", "stop"
								m.evaluate(m.s.Eval, *m.job.JobModifyIndex)
							}
						})
					}()
				}
				a.cut = true
				m.evaluate(m.s.Eval, *m.job.JobModifyIndex)
			}
		})
		time.Sleep(d - heartbeat)
		m.under(func() {
			if m.over || m.dead[node] {
				return
			}
			m.parted[node] = false
			for _, a := range m.all {
				if a.node != node || !a.cut {
					continue
				}
				switch {
				case a.client == "unknown" && m.lastOf(a.slot) == a: // it has not been replaced
					a.client, a.cut = "running", false
					if !a.runs {
						a.client = "complete"
					}
				default:
					a.runs, a.desired, a.client, a.state = false, "stop", "complete", ""
				}
			}
			m.evaluate(m.s.Eval, *m.job.JobModifyIndex)
		})
	}()
}

// commit applies a registration.
func (m *model) commit(job *document.Job) {
	m.index++
	m.job = documenttest.Change(job, func(root map[string]any) {
		root["Version"], root["JobModifyIndex"] = *m.job.Version+1, m.index
	})
	m.specs[*m.job.Version] = m.job
	m.evaluate(m.s.Eval, m.index)
}

// --- processes

// answer responds to every request with a status code.
type answer int

func (a answer) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: int(a), Body: http.NoBody}, nil
}

// apiError returns the error of a response with that status code.
func apiError(code int) error {
	client, err := api.NewClient(&api.Config{Address: "http://nomad", HttpClient: &http.Client{Transport: answer(code)}})
	if err != nil {
		return err
	}
	_, err = API{Client: client}.Job(context.Background(), "ml", "vae")
	return err
}

var errNotFound = apiError(http.StatusNotFound)

var errKilled = errors.New("the process was killed")

// process executes or recovers a move. Its calls can fail and it can be killed.
type process struct {
	*model
	crash      int // after that many calls; 0 for never
	faults     []fault
	disks      map[string]time.Time // when it read a node's disk
	calls      int
	registered bool
	stalled    time.Time // no call ends before
	now        fault     // for the current call
	given      []Task    // the last claim's, as it was handed over
	ctx        context.Context
	kill       context.CancelFunc
}

// undisturbed numbers processes without crashes and faults.
const undisturbed = -1

func (m *model) process(n int) *process {
	p := &process{model: m, disks: map[string]time.Time{}}
	if n >= 0 && n < len(m.s.Crash) {
		p.crash = m.s.Crash[n]
	}
	for _, f := range m.s.Faults {
		if f.Process == n {
			p.faults = append(p.faults, f)
		}
	}
	p.ctx, p.kill = context.WithCancel(context.Background())
	return p
}

var (
	_ Nomad  = &process{}
	_ Claims = &process{}
)

// call executes one call, of 5 ms.
func (p *process) call(ctx context.Context, do func() error) error {
	torn := &url.Error{Op: "Get", URL: "nomad", Err: io.ErrUnexpectedEOF}
	took := 5 * time.Millisecond
	p.mu.Lock()
	for i, f := range p.faults {
		if f.Kind == "stall" && f.Call == p.calls+1 {
			p.stalled = time.Now().Add(f.Late)
			p.faults = slices.Delete(p.faults, i, i+1)
			break
		}
	}
	took = max(took, time.Until(p.stalled))
	p.mu.Unlock()
	select {
	case <-time.After(took):
	case <-ctx.Done():
		return ctx.Err()
	}
	var err error
	p.under(func() {
		p.calls++
		switch {
		case p.crash > 0 && p.calls > p.crash:
			if p.ctx.Err() == nil {
				p.killed++
			}
			p.kill()
			err = errKilled
			return
		case time.Now().Before(p.unreachable["server"]):
			err = torn
			return
		}
		p.now = fault{}
		for _, f := range p.faults {
			if f.Call == p.calls {
				p.now = f
			}
		}
		if p.now.Kind == "before" {
			err = torn
			return
		}
		if err = do(); p.now.Kind == "after" {
			err = torn
		}
	})
	return err
}

func (p *process) find(id string) (*modelAlloc, error) {
	for _, a := range p.all {
		if a.id == id && !a.collected {
			return a, nil
		}
	}
	return nil, errNotFound
}

func (p *process) alloc(a *modelAlloc) *api.Allocation {
	out := &api.Allocation{
		ID: a.id, Namespace: "ml", JobID: "vae", TaskGroup: "train", NodeID: a.node, Job: p.specs[a.version].Job,
		ClientStatus: a.client, DesiredStatus: a.desired, CreateIndex: a.create,
	}
	switch {
	case a.client == "running":
		out.TaskStates = map[string]*api.TaskState{"train": {State: "running", StartedAt: a.at}}
	case a.started():
		out.TaskStates = map[string]*api.TaskState{"train": {State: "dead", StartedAt: a.at}}
	case terminal(a.client):
		out.TaskStates = map[string]*api.TaskState{"train": {State: "dead"}}
	}
	return out
}

func (p *process) Allocation(ctx context.Context, id string) (out *api.Allocation, err error) {
	err = p.call(ctx, func() error {
		a, err := p.find(id)
		if err == nil {
			out = p.alloc(a)
		}
		return err
	})
	return out, err
}

func (p *process) Allocations(ctx context.Context, _, _ string) (out []*api.AllocationListStub, err error) {
	err = p.call(ctx, func() error {
		for _, a := range p.all {
			if a.collected {
				continue
			}
			s := p.alloc(a)
			out = append(out, &api.AllocationListStub{
				ID: s.ID, TaskGroup: s.TaskGroup, NodeID: s.NodeID, CreateIndex: s.CreateIndex, ClientStatus: s.ClientStatus, DesiredStatus: s.DesiredStatus, JobVersion: a.version,
				TaskStates: s.TaskStates,
			})
		}
		return nil
	})
	return out, err
}

func (p *process) Job(ctx context.Context, _, _ string) (out *document.Job, err error) {
	err = p.call(ctx, func() error { out = p.job; return nil })
	return out, err
}

func (p *process) Versions(ctx context.Context, _, _ string) (out []*document.Job, err error) {
	err = p.call(ctx, func() error { out = []*document.Job{p.job}; return nil })
	return out, err
}

func (p *process) Tag(ctx context.Context, _, _ string, _ uint64, _ string) error {
	return p.call(ctx, func() error { return nil })
}

func (p *process) Untag(ctx context.Context, _, _, _ string) error {
	return p.call(ctx, func() error { return nil })
}

func (p *process) Deployment(context.Context, string, string) (*api.Deployment, error) {
	if p.s.Deployment == "" {
		return nil, nil
	}
	return &api.Deployment{ID: "d", Status: p.s.Deployment}, nil
}

func (p *process) Evaluations(ctx context.Context, _, _ string) (out []*api.Evaluation, err error) {
	err = p.call(ctx, func() error {
		for _, e := range p.evals {
			out = append(out, ptr(*e))
		}
		return nil
	})
	return out, err
}

func (p *process) Node(ctx context.Context, id string) (out *api.Node, err error) {
	err = p.call(ctx, func() error {
		out = &api.Node{
			ID: id, Name: "node-" + id, Status: api.NodeStatusReady, SchedulingEligibility: api.NodeSchedulingEligible,
			Drivers: map[string]*api.DriverInfo{driverName: {Detected: true, Healthy: true}},
		}
		if p.dead[id] || p.parted[id] {
			out.Status = api.NodeStatusDown
		}
		return nil
	})
	return out, err
}

func (p *process) agent(ctx context.Context, node string, do func() error) error {
	return p.call(ctx, func() error {
		if !p.hears(node) {
			return &url.Error{Op: "Get", URL: "node " + node, Err: io.EOF}
		}
		return do()
	})
}

func (p *process) Reach(ctx context.Context, node string) error {
	return p.agent(ctx, node, func() error { return nil })
}

func (p *process) Disk(ctx context.Context, node *api.Node) (d Disk, err error) {
	err = p.agent(ctx, node.ID, func() error {
		p.disks[node.ID] = time.Now()
		d = Disk{Used: 50 << 30, Free: 50 << 30, Limits: DefaultGCLimits}
		if !p.filled[node.ID].IsZero() {
			d.Used = 1000 << 30
		}
		return nil
	})
	return d, err
}

func (p *process) Plan(ctx context.Context, job *document.Job) (out *api.JobPlanResponse, err error) {
	err = p.call(ctx, func() error {
		if p.s.NoPlan {
			return ErrNoPlan
		}
		out = &api.JobPlanResponse{}
		a := p.last()
		runs := a.desired == "run" && !terminal(a.client)
		if *job.TaskGroups[0].Count == 0 {
			return nil
		}
		if runs && p.inPlace(a, job) {
			out.Annotations = &api.PlanAnnotations{DesiredTGUpdates: map[string]*api.DesiredUpdates{"train": {InPlaceUpdate: 1}}}
			return nil
		}
		if !slices.ContainsFunc(p.nodes, func(node string) bool { return p.room(job, node) }) {
			out.FailedTGAllocs = map[string]*api.AllocationMetric{"train": {DimensionExhausted: map[string]int{"memory": 1}}}
		}
		if runs {
			out.Annotations = &api.PlanAnnotations{DesiredTGUpdates: map[string]*api.DesiredUpdates{"train": {DestructiveUpdate: 1}}}
		}
		return nil
	})
	return out, err
}

func (p *process) Register(ctx context.Context, job *document.Job) (*api.JobRegisterResponse, error) {
	var index uint64
	sent := time.Now()
	register := func() error {
		if *job.JobModifyIndex != *p.job.JobModifyIndex {
			return errors.New("enforcing job modify index: it does not match")
		}
		if err := checkEdits(job); err != nil {
			p.say("%v", err)
		}
		if slices.ContainsFunc(p.all, func(a *modelAlloc) bool { return a.userStopped.After(sent) }) {
			p.wanted++ // Nomad does not compare allocations: the successor may have completed
		}
		node, _, _ := boundTo(job, "train")
		_, waited := Suspended(p.job, "train")
		if node != "" && job.TaskGroups[0].Meta[metaAdopt] == "" && !p.s.Shared && waited == "" { // not a rollback
			for _, n := range []string{node, p.last().node} {
				if at := p.filled[n]; !at.IsZero() && (p.disks[n].IsZero() || at.Before(p.disks[n])) {
					p.say("it is moved although the disk of %s was full", n)
				}
			}
		}
		p.commit(job)
		p.log = append(p.log, "register "+node)
		return nil
	}
	err := p.call(ctx, func() error {
		for _, f := range p.faults {
			if f.Call == firstRegister && !p.registered {
				p.now = f
			}
		}
		p.registered = true
		if late := p.now.Late; p.now.Kind == "late" {
			go func() {
				time.Sleep(late)
				p.under(func() { _ = register() })
			}()
			return &url.Error{Op: "Put", URL: "job", Err: context.DeadlineExceeded}
		}
		err := register()
		index = *p.job.JobModifyIndex
		return err
	})
	return &api.JobRegisterResponse{JobModifyIndex: index}, err
}

func (p *process) Signal(ctx context.Context, alloc *api.Allocation, _, signal string) error {
	return p.agent(ctx, alloc.NodeID, func() error {
		a, err := p.find(alloc.ID)
		if err != nil {
			return err
		}
		now := time.Now()
		if signal != signalRenew {
			p.log = append(p.log, strings.TrimPrefix(signal, "EBBTIDE_")+" "+a.node)
		}
		ready := func(state string) {
			a.state, a.frozen = state, now.Add(p.s.Lease)
			a.until = a.frozen.Add(p.skew(a))
		}
		switch {
		case !a.runs:
			return errors.New("it does not run")
		case strings.HasPrefix(signal, signalSuspend) && a.state != "ready":
			return errors.New("it is not frozen with a checkpoint")
		case strings.HasPrefix(signal, signalSuspend):
			a.state, a.runs, a.suspended, a.left = status.MoveSuspended, false, true, true
			p.ends(a)
		case signal == signalThaw:
			a.state, a.frozen = "", time.Time{}
		case signal == signalRenew && a.state != "ready" && a.state != "frozen":
			return errors.New("it is not frozen")
		case signal == signalRenew, signal == signalFreeze && a.state == "ready", signal == signalCheckpoint && a.state == "ready":
			ready(a.state)
		case signal == signalFreeze:
			ready("frozen")
		case a.state == "":
			a.state = "saving"
			go func() {
				time.Sleep(p.s.Save)
				p.under(func() {
					if a.runs && a.state == "saving" {
						now = time.Now()
						a.disk, p.best = a.step, max(p.best, a.step)
						ready("ready")
					}
				})
			}()
		}
		return nil
	})
}

// ends has the client report the end of a suspended allocation.
func (m *model) ends(a *modelAlloc) {
	go func() {
		for {
			time.Sleep(m.s.Stop)
			done := false
			m.under(func() {
				if done = m.over || m.hears(a.node) || m.dead[a.node]; done && m.live(a.node) && !terminal(a.client) {
					a.client = "complete"
				}
			})
			if done {
				return
			}
		}
	}()
}

func (m *model) skew(a *modelAlloc) time.Duration {
	if a.node == "a" {
		return m.s.Skew
	}
	return 0
}

func (p *process) Status(ctx context.Context, alloc *api.Allocation, _ string) (st status.Status, err error) {
	err = p.agent(ctx, alloc.NodeID, func() error {
		a, err := p.find(alloc.ID)
		if err != nil {
			return err
		}
		st = status.Status{Alloc: a.id, Updated: time.Now().Add(p.skew(a)), Step: status.Unknown()}
		if time.Since(a.begunAt) >= p.s.Report {
			st.Reports, st.Step = 1, status.Number(a.step)
		}
		st.Move = status.Move{State: a.state, Until: a.until, Path: ckpt, Bytes: int64(a.disk), Step: status.Number(a.step)}
		return nil
	})
	return st, err
}

func (p *process) Restored(ctx context.Context, alloc *api.Allocation, _ string) (out private.Restored, err error) {
	err = p.agent(ctx, alloc.NodeID, func() error {
		a, err := p.find(alloc.ID)
		if err != nil {
			return err
		}
		if a.restored == nil {
			return fs.ErrNotExist
		}
		out = maps.Clone(a.restored)
		return nil
	})
	return out, err
}

func (p *process) Write(ctx context.Context, r Record) (index uint64, err error) {
	err = p.call(ctx, func() error {
		if p.claim[r.Job].Index != r.Index {
			return ErrClaimed
		}
		if was := p.claim[r.Job].Tasks; p.given != nil && p.claim[r.Job].ID == r.ID && fmt.Sprint(p.given) != fmt.Sprint(was) {
			p.say("a record's tasks were %v when written, and are %v", was, p.given)
		}
		p.given = r.Tasks
		p.index++
		r.Index, r.Tasks = p.index, slices.Clone(r.Tasks)
		p.claim[r.Job], index = r, p.index
		return nil
	})
	return index, err
}

func (p *process) Read(ctx context.Context, _, job string) (r Record, err error) {
	err = p.call(ctx, func() error { r = p.claim[job]; return nil })
	return r, err
}

func (p *process) Remove(ctx context.Context, r Record) error {
	return p.call(ctx, func() error {
		if p.claim[r.Job].Index != r.Index {
			return ErrClaimed
		}
		delete(p.claim, r.Job)
		return nil
	})
}

func (p *process) List(ctx context.Context) (out []Record, _ []Unreadable, err error) {
	err = p.call(ctx, func() error { out = slices.Collect(maps.Values(p.claim)); return nil })
	return out, nil, err
}

// --- a run

// run moves the job from a to b under the schedule, with recovery, and records violations.
func (m *model) run() (res Result, err error) {
	var wait sync.WaitGroup
	for _, e := range m.s.Events {
		wait.Go(func() {
			time.Sleep(e.At)
			m.under(func() { m.inject(e) })
		})
	}
	ticks, stop := context.WithCancel(context.Background())
	var ticker sync.WaitGroup
	ticker.Go(func() { every(ticks, time.Second, func() { m.under(func() {}) }) })
	opts := DefaultOptions()
	opts.SaveTimeout = cmp.Or(m.s.SaveTimeout, opts.SaveTimeout)
	opts.UnaskedTimeout = cmp.Or(m.s.UnaskedTimeout, opts.UnaskedTimeout)
	var running atomic.Int64
	start := func(p *process, owner string, do func(opts Options)) {
		running.Add(1)
		wait.Go(func() {
			defer running.Add(-1)
			defer p.kill()
			opts := opts
			opts.Claims, opts.Owner = p, owner
			do(opts)
		})
	}
	move := func(p *process, opts Options) (Result, error) {
		var alloc string
		m.under(func() { alloc = m.last().id })
		if !m.s.Suspend {
			return Move(p.ctx, p, Request{Alloc: alloc, Node: "b"}, opts)
		}
		res, err := Suspend(p.ctx, p, Request{Alloc: alloc}, opts)
		if err == nil {
			time.Sleep(3 * time.Second)
			_, err = m.resume(p, opts, res.Tasks...)
		}
		return res, err
	}
	time.Sleep(time.Second)
	mover := m.process(0)
	start(mover, "mover", func(opts Options) {
		res, err = move(mover, opts)
		m.took = time.Since(m.begun)
	})
	if m.s.Mover > 0 {
		other := m.process(0)
		other.crash = 0
		start(other, "other", func(opts Options) {
			time.Sleep(time.Duration(m.s.Mover) * time.Millisecond)
			_, _ = move(other, opts)
		})
	}
	// Others recover until nothing is left.
	var watch Watch
	recoveries := 0
	for i, quiet := 0, 0; i < 200 && quiet < 6+int(max(m.s.Lease, time.Minute)/(10*time.Second)); i++ {
		p := m.process(undisturbed)
		opts := opts
		opts.Claims, opts.Owner = p, "unbind"
		var orphan bool
		m.under(func() { _, _, orphan = boundTo(m.job, "train") })
		if records, _, err := p.List(p.ctx); err == nil {
			for _, r := range watch.Abandoned(records) {
				recoveries++
				quiet = 0
				p := m.process(recoveries)
				start(p, fmt.Sprint("recover-", recoveries), func(opts Options) { _, _ = Recover(p.ctx, p, r, opts) })
			}
			if orphan && len(records) == 0 {
				_, _ = Unbind(p.ctx, p, "ml", "vae", "train", opts)
				var waits string
				m.under(func() { _, waits = Suspended(m.job, "train") })
				if waits != "" && running.Load() == 0 {
					if stopped, err := m.resume(p, opts); err != nil || !stopped {
						quiet = 0
					}
				}
			}
		}
		p.kill()
		time.Sleep(10 * time.Second)
		if quiet++; running.Load() > 0 {
			quiet = 0
		}
	}
	wait.Wait()
	synctest.Wait()
	stop()
	ticker.Wait()
	m.under(m.checkEnd)
	m.under(func() { m.over = true })
	time.Sleep(2 * time.Hour) // any orphaned call fails by then
	return res, err
}

// resume gives a suspended job its place again: on its node, or without its checkpoint on another.
func (m *model) resume(p *process, opts Options, saved ...Task) (stop bool, err error) {
	node := ""
	m.under(func() {
		_, node = Suspended(m.job, "train")
		if stop = node == "" || stopped(m.job); !stop && *m.job.TaskGroups[0].Count != 1 {
			node = "" // it is Nomad's
			return
		}
		room := func(node string) bool { return !m.dead[node] && !m.drained[node] && !m.full[node] }
		if !stop && !room(node) {
			m.lost = true
			m.wanted++ // as any held job, it may complete before its unbinding is evaluated
			node = m.nodes[max(0, slices.IndexFunc(m.nodes, room))]
		}
	})
	if stop {
		return true, nil
	}
	_, err = Release(p.ctx, p, Place{Namespace: "ml", Job: "vae", Group: "train", Node: node, Saved: saved}, opts)
	return false, err
}

// checkEnd records violations in the final state.
func (m *model) checkEnd() {
	a := m.last()
	complete := a.client == "complete" && a.desired == "run" && a.started() && !a.suspended
	if _, _, bound := boundTo(m.job, "train"); bound && !complete && !stopped(m.job) {
		m.say("the job stays bound")
	} else if !bound && !m.isUsers() {
		wrote, _ := json.Marshal(m.user)
		is, _ := json.Marshal(m.job)
		m.say("the user wrote %s, and it is %s", wrote, is)
	}
	if len(m.claim) > 0 {
		m.say("a record is left: %v", m.claim)
	}
	if complete || stopped(m.job) || *m.job.TaskGroups[0].Count == 0 {
		return
	}
	if !a.runs || a.client != "running" {
		m.say("it does not run: %s is %s, to %s", a.id, a.client, a.desired)
	}
	if a.state != "" {
		m.say("it is %s", a.state)
	}
	m.checkResumed(a)
}
