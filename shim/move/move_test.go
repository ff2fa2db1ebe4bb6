// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
)

func ptr[T any](v T) *T { return &v }

const (
	oldID = "0a11ed00-0000-0000-0000-000000000001"
	newID = "0e30a110-0000-0000-0000-000000000002"
)

// world is a cluster of two nodes with one job. What the fields say happens to it.
type world struct {
	mu    sync.Mutex
	nodes map[string]*api.Node
	job   *api.Job
	old   *api.Allocation
	next  *api.Allocation // nil before it is placed
	calls []string

	planned    *api.AllocationMetric // what Plan says is missing
	planErr    error
	saves      status.Move   // what becomes of a checkpoint
	lease      time.Duration // for how long it stands still then
	asked      time.Time     // when it was asked to save last
	ends       string        // what is desired of it from then on
	signalErr  error
	noJob      error                        // why the job cannot be read
	dead       error                        // why the target cannot be reached
	registered func() error                 // asked before a registration
	evaluated  func() *api.AllocationMetric // what the evaluation says is missing
	other      string                       // the client status of another group's allocation
	otherAfter int                          // after so many calls
	placed     string                       // the new allocation's client status
	resumes    status.Number                // its step
	looks      func(w *world)               // called at each look at the allocations
}

func newWorld() *world {
	driver := map[string]*api.DriverInfo{driverName: {Detected: true, Healthy: true}}
	node := func(id string) *api.Node {
		return &api.Node{ID: id, Name: "node-" + id, Status: api.NodeStatusReady, SchedulingEligibility: api.NodeSchedulingEligible, Drivers: driver}
	}
	task := &api.Task{Name: "train", Driver: driverName, Config: map[string]any{"checkpoint": []map[string]any{{"path": "/alloc/data/c"}}}}
	job := &api.Job{
		ID: ptr("vae"), Namespace: ptr("ml"), Type: ptr(api.JobTypeBatch), Version: ptr(uint64(0)), JobModifyIndex: ptr(uint64(10)),
		TaskGroups: []*api.TaskGroup{{
			Name: ptr("train"), Count: ptr(1), Tasks: []*api.Task{task},
			EphemeralDisk: &api.EphemeralDisk{Sticky: ptr(true), Migrate: ptr(true)},
		}},
	}
	return &world{
		nodes: map[string]*api.Node{"a": node("a"), "b": node("b")},
		job:   job,
		old: &api.Allocation{
			ID: oldID, Namespace: "ml", JobID: "vae", TaskGroup: "train", NodeID: "a", Job: &api.Job{Version: ptr(uint64(0))},
			ClientStatus: api.AllocClientStatusRunning, DesiredStatus: api.AllocDesiredStatusRun, CreateIndex: 5, TaskStates: runs(),
		},
		saves:   status.Move{State: status.MoveReady, Path: "/alloc/data/c", Bytes: 7, Step: 100},
		lease:   time.Hour,
		placed:  api.AllocClientStatusRunning,
		resumes: 101,
	}
}

func runs() map[string]*api.TaskState { return map[string]*api.TaskState{"train": {State: "running"}} }

// stub is an allocation as it is listed.
func stub(a *api.Allocation) *api.AllocationListStub {
	return &api.AllocationListStub{
		ID: a.ID, Namespace: a.Namespace, JobID: a.JobID, TaskGroup: a.TaskGroup, NodeID: a.NodeID, CreateIndex: a.CreateIndex,
		ClientStatus: a.ClientStatus, ClientDescription: a.ClientDescription, DesiredStatus: a.DesiredStatus,
	}
}

func (w *world) call(format string, args ...any) {
	w.calls = append(w.calls, fmt.Sprintf(format, args...))
}

func (w *world) Allocation(ctx context.Context, id string) (*api.Allocation, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range []*api.Allocation{w.old, w.next} {
		if a != nil && a.ID == id {
			return ptr(*a), nil
		}
	}
	return nil, errors.New("no such allocation")
}

func (w *world) Allocations(context.Context, string, string) ([]*api.AllocationListStub, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.looks != nil {
		w.looks(w)
	}
	stubs := []*api.AllocationListStub{stub(w.old)}
	if w.other != "" && len(w.calls) >= w.otherAfter {
		stubs = append(stubs, &api.AllocationListStub{ID: "other", TaskGroup: "prepare", ClientStatus: w.other, DesiredStatus: api.AllocDesiredStatusRun})
	}
	if w.next != nil {
		s := stub(w.next)
		s.JobVersion = 1
		stubs = append(stubs, s)
	}
	return stubs, nil
}

func (w *world) Job(context.Context, string, string) (*api.Job, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.noJob != nil {
		return nil, w.noJob
	}
	return clone(w.job)
}

func (w *world) Node(_ context.Context, id string) (*api.Node, error) {
	if n := w.nodes[id]; n != nil {
		return n, nil
	}
	return nil, errors.New("no such node")
}

func (w *world) Reach(context.Context, string) error { return w.dead }

func (w *world) Plan(context.Context, *api.Job) (*api.JobPlanResponse, error) {
	if w.planErr != nil {
		return nil, w.planErr
	}
	plan := &api.JobPlanResponse{}
	if w.planned != nil {
		plan.FailedTGAllocs = map[string]*api.AllocationMetric{"train": w.planned}
	}
	return plan, nil
}

func (w *world) Register(_ context.Context, job *api.Job) (*api.JobRegisterResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	bound := ""
	for _, c := range job.TaskGroups[0].Constraints {
		bound = c.RTarget
	}
	w.call("register %q", bound)
	if w.registered != nil {
		if err := w.registered(); err != nil {
			return nil, err
		}
	}
	if *job.JobModifyIndex != *w.job.JobModifyIndex {
		return nil, errors.New("job modify index does not match")
	}
	w.job = job
	*w.job.JobModifyIndex++
	*w.job.Version++
	if bound != "" && w.placed != "" && (w.evaluated == nil || w.evaluated() == nil) {
		w.old.ClientStatus, w.old.DesiredStatus = api.AllocClientStatusComplete, api.AllocDesiredStatusStop
		w.next = &api.Allocation{
			ID: newID, Namespace: "ml", JobID: "vae", TaskGroup: "train", NodeID: bound, ClientStatus: w.placed, ClientDescription: "for a reason",
			DesiredStatus: api.AllocDesiredStatusRun, CreateIndex: 20, TaskStates: runs(),
		}
	}
	return &api.JobRegisterResponse{EvalID: "eval", JobModifyIndex: *w.job.JobModifyIndex}, nil
}

// bindUnseen binds the job although its registration seems to have failed, once.
func (w *world) bindUnseen() {
	w.registered = nil
	w.job.TaskGroups[0].Constraints = []*api.Constraint{api.NewConstraint(bound, "=", "b")}
	*w.job.JobModifyIndex++
}

func (w *world) Evaluation(context.Context, string, string) (*api.Evaluation, error) {
	eval := &api.Evaluation{Status: "complete"}
	if w.evaluated != nil {
		if m := w.evaluated(); m != nil {
			eval.FailedTGAllocs = map[string]*api.AllocationMetric{"train": m}
		}
	}
	return eval, nil
}

func (w *world) Signal(_ context.Context, alloc *api.Allocation, task, signal string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.call("%s %s %s", signal, short(alloc.ID), task)
	if signal == signalCheckpoint {
		w.asked = time.Now()
		if w.ends != "" {
			w.old.DesiredStatus = w.ends
		}
	}
	return w.signalErr
}

func (w *world) Status(_ context.Context, alloc *api.Allocation, task string) (status.Status, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	st := status.Status{Alloc: alloc.ID, Task: task, Updated: time.Now(), Reports: 3, Step: w.resumes}
	if alloc.ID == oldID {
		st.Step = 99
		if !w.asked.IsZero() {
			st.Move = w.saves
			st.Move.Until = w.asked.Add(w.lease)
		}
	}
	return st, nil
}

// quick are options for tests.
func quick() Options {
	o := DefaultOptions()
	o.Poll = time.Millisecond
	return o
}

const (
	saveCall    = signalCheckpoint + " 0a11ed00 train"
	releaseCall = signalRelease + " 0a11ed00 train"
	pinCall     = `register "b"`
	unpinCall   = `register ""`

	freezeCall     = signalFreeze + " 0a11ed00 train"
	freezeNewCall  = signalFreeze + " 0e30a110 train"
	releaseNewCall = signalRelease + " 0e30a110 train"
)

func TestMove(t *testing.T) {
	w := newWorld()
	var told []Phase
	opts := quick()
	opts.Report = func(p Phase, text string) {
		told = append(told, p)
		must.NotEq(t, "", text)
	}
	res, err := Move(t.Context(), w, Request{Alloc: oldID, Node: "b"}, opts)
	must.NoError(t, err)
	must.Eq(t, []string{saveCall, pinCall, freezeNewCall, unpinCall, releaseNewCall}, w.calls)
	must.Eq(t, []Phase{PhaseCheck, PhaseSave, PhasePin, PhaseWait, PhaseVerify, PhaseUnpin, PhaseDone}, told)
	must.True(t, res.DownS.Known())
	res.DownS = 0
	must.Eq(t, Result{
		Namespace: "ml", Job: "vae", Alloc: oldID, From: "a", To: "b", Phase: PhaseDone, NewAlloc: newID,
		Tasks: []Task{{Name: "train", Path: "/alloc/data/c", Bytes: 7, Saved: 100, Step: 101}},
	}, res)
	must.Len(t, 0, w.job.TaskGroups[0].Constraints)
}

// Every edge of the machine: what is done when a step fails.
func TestMove_fails(t *testing.T) {
	full := &api.AllocationMetric{DimensionExhausted: map[string]int{"memory": 1}}
	for name, c := range map[string]struct {
		change func(*world)
		opts   func(*Options)
		calls  []string
		phase  Phase
		want   string
	}{
		"no such allocation": {func(w *world) { w.old.ID = "x" }, nil, nil, PhaseCheck, "check: no such allocation"},
		"refused":            {func(w *world) { w.job.TaskGroups[0].Count = ptr(2) }, nil, nil, PhaseCheck, "it cannot be moved: group train has a count of 2"},
		"no room":            {func(w *world) { w.planned = full }, nil, nil, PhaseCheck, "Nomad would not place it on node-b: no room: memory"},
		"no right to plan":   {func(w *world) { w.planErr = errors.New("no permission") }, nil, nil, PhaseCheck, "check: no permission"},
		"no signal": {func(w *world) { w.signalErr = errors.New("no permission") }, nil,
			[]string{saveCall, releaseCall}, PhaseSave, "save: task train: no permission"},
		"does not save": {func(w *world) { w.saves = status.Move{State: status.MoveFailed, Why: "nothing matches"} }, nil,
			[]string{saveCall, releaseCall}, PhaseSave, "save: task train: nothing matches"},
		"is stopped": {func(w *world) { w.saves, w.ends = status.Move{State: status.MoveSaving}, api.AllocDesiredStatusStop }, nil,
			[]string{saveCall}, PhaseSave, "save: it does not run any more: it is running, and is to stop"},
		"never saves": {func(w *world) { w.saves = status.Move{State: status.MoveSaving} }, func(o *Options) { o.Save = 50 * time.Millisecond },
			[]string{saveCall, releaseCall}, PhaseSave, "save: waiting until task train has saved: context deadline exceeded"},
		"changed since": {func(w *world) { w.registered = func() error { return errors.New("index 11, not 10") } }, nil,
			[]string{saveCall, pinCall, releaseCall}, PhasePin, "pin: index 11, not 10"},
		"another group completes": {func(w *world) { w.other, w.otherAfter = api.AllocClientStatusComplete, 1 }, nil,
			[]string{saveCall, releaseCall}, PhasePin, "pin: group prepare of its job has completed meanwhile, and Nomad would run it again"},
		"the target is dead": {func(w *world) { w.dead = errors.New("no path to node") }, nil,
			[]string{saveCall, releaseCall}, PhasePin, "pin: no path to node"},
		"the answer is lost": {func(w *world) {
			w.registered = func() error { w.bindUnseen(); return errors.New("connection reset") }
		}, nil, []string{saveCall, pinCall, freezeCall, unpinCall, releaseCall, releaseCall}, PhasePin, "pin: connection reset"},
		"full by now": {func(w *world) { w.evaluated = func() *api.AllocationMetric { return full } }, nil,
			[]string{saveCall, pinCall, freezeCall, unpinCall, releaseCall, releaseCall}, PhaseWait, "wait: it is not placed: no room: memory"},
		"never placed": {func(w *world) { w.placed = "" }, func(o *Options) { o.Place = 50 * time.Millisecond },
			[]string{saveCall, pinCall, freezeCall, unpinCall, releaseCall, releaseCall}, PhaseWait, "wait: waiting until the new allocation runs: context deadline exceeded"},
		"fails there": {func(w *world) { w.placed = api.AllocClientStatusFailed }, nil,
			[]string{saveCall, pinCall, unpinCall}, PhaseWait, "wait: the new allocation 0e30a110 is failed: for a reason"},
		"begins anew": {func(w *world) { w.resumes = 1 }, nil,
			[]string{saveCall, pinCall, freezeNewCall, unpinCall, releaseNewCall}, PhaseVerify, "the task has not gone on from what it saved: task train saved step 100 and is at step 1"},
		"cannot be unbound": {func(w *world) {
			n := 0
			w.registered = func() error {
				if n++; n == 2 {
					return errors.New("no leader")
				}
				return nil
			}
		}, nil, []string{saveCall, pinCall, freezeNewCall, unpinCall, releaseNewCall}, PhaseUnpin, "unpin: unbinding the job: no leader; the job stays bound"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			c.change(w)
			opts := quick()
			if c.opts != nil {
				c.opts(&opts)
			}
			res, err := Move(t.Context(), w, Request{Alloc: oldID, Node: "b"}, opts)
			must.ErrorContains(t, err, c.want)
			must.Eq(t, c.calls, w.calls)
			must.Eq(t, c.phase, res.Phase)
			must.Eq(t, name == "cannot be unbound", res.Bound)
		})
	}
}

// Without a plan the move goes on, and does not claim to know.
func TestMove_noPlan(t *testing.T) {
	w := newWorld()
	w.planErr = fmt.Errorf("%w: for a reason", ErrNoPlan)
	opts := quick()
	opts.Report = func(p Phase, text string) {
		if p == PhaseCheck {
			must.StrContains(t, text, "is not known")
		}
	}
	_, err := Move(t.Context(), w, Request{Alloc: oldID, Node: "b"}, opts)
	must.NoError(t, err)
	must.Eq(t, []string{saveCall, pinCall, freezeNewCall, unpinCall, releaseNewCall}, w.calls)
}

func TestMove_dryRun(t *testing.T) {
	w := newWorld()
	res, err := Move(t.Context(), w, Request{Alloc: oldID, Node: "b", DryRun: true}, quick())
	must.NoError(t, err)
	must.Eq(t, PhaseCheck, res.Phase)
	must.SliceEmpty(t, w.calls)
}

// A plugin that is restarted while a task saves knows nothing of it.
func TestMove_forgotten(t *testing.T) {
	w := newWorld()
	w.saves = status.Move{State: status.MoveSaving}
	time.AfterFunc(50*time.Millisecond, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.saves = status.Move{}
	})
	_, err := Move(t.Context(), w, Request{Alloc: oldID, Node: "b"}, quick())
	must.ErrorContains(t, err, "save: task train runs on: it was called off, or the driver's plugin was restarted")
	must.Eq(t, []string{saveCall, releaseCall}, w.calls)
}

// Whoever calls it off, the job is not left bound, nor the task frozen.
func TestMove_calledOff(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	w := newWorld()
	w.placed = ""
	w.looks = func(w *world) {
		if len(w.calls) == 2 {
			cancel()
		}
	}
	_, err := Move(ctx, w, Request{Alloc: oldID, Node: "b"}, quick())
	must.ErrorIs(t, err, context.Canceled)
	must.Eq(t, []string{saveCall, pinCall, freezeCall, unpinCall, releaseCall, releaseCall}, w.calls)
}

// Who registers the job meanwhile has the last word.
func TestMove_registeredMeanwhile(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*api.Job)
		want   string // of a move that has not come to its target
		more   []string
	}{
		"anew": {func(j *api.Job) { j.TaskGroups[0].Constraints = nil }, "somebody has changed the job meanwhile", []string{releaseCall}},
		"as it is bound": {func(j *api.Job) { j.Meta = map[string]string{"a": "b"} }, "somebody has changed the job meanwhile",
			[]string{freezeCall, unpinCall, releaseCall, releaseCall}},
		"stopped": {func(j *api.Job) { j.Stop = ptr(true) }, "the job was stopped meanwhile", []string{releaseCall}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, placed := range []string{"", api.AllocClientStatusRunning} {
				w := newWorld()
				w.placed = placed
				w.looks = func(w *world) {
					if len(w.calls) == 2 && *w.job.JobModifyIndex != 99 {
						*w.job.JobModifyIndex = 99
						c.change(w.job)
					}
				}
				_, err := Move(t.Context(), w, Request{Alloc: oldID, Node: "b"}, quick())
				if placed == "" {
					must.ErrorContains(t, err, c.want)
					must.Eq(t, append([]string{saveCall, pinCall}, c.more...), w.calls)
				} else {
					must.NoError(t, err)
				}
				if w.job.Stop == nil {
					must.Len(t, 0, w.job.TaskGroups[0].Constraints)
				}
			}
		})
	}
}

// What completes on the target before its job is free is not told of a new version: Nomad
// would run it again. Nor is one that does so before the next process sets it free.
func TestMove_completes(t *testing.T) {
	w := newWorld()
	w.placed = api.AllocClientStatusComplete
	_, err := Move(t.Context(), w, Request{Alloc: oldID, Node: "b"}, quick())
	must.NoError(t, err)
	must.Eq(t, []string{saveCall, pinCall}, w.calls)
	must.NoError(t, Unbind(t.Context(), w, Binding{"ml", "vae", "train", "b"}))
	must.Eq(t, []string{saveCall, pinCall}, w.calls)

	// Another group of the job that completes is not run again either.
	w = newWorld()
	w.other, w.otherAfter = api.AllocClientStatusComplete, 2
	_, err = Move(t.Context(), w, Request{Alloc: oldID, Node: "b"}, quick())
	must.NoError(t, err)
	must.Eq(t, []string{saveCall, pinCall}, w.calls)
}

// outage is a world that cannot be reached for some calls, once another one was made.
type outage struct {
	*world
	since string
	lasts int
}

func (o *outage) err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lasts == 0 || !slices.Contains(o.calls, o.since) {
		return nil
	}
	o.lasts--
	return &url.Error{Op: "Get", URL: "http://nomad", Err: errors.New("connection refused")}
}

func (o *outage) Allocation(ctx context.Context, id string) (*api.Allocation, error) {
	if err := o.err(); err != nil {
		return nil, err
	}
	return o.world.Allocation(ctx, id)
}

func (o *outage) Allocations(ctx context.Context, namespace, job string) ([]*api.AllocationListStub, error) {
	if err := o.err(); err != nil {
		return nil, err
	}
	return o.world.Allocations(ctx, namespace, job)
}

func (o *outage) Job(ctx context.Context, namespace, id string) (*api.Job, error) {
	if err := o.err(); err != nil {
		return nil, err
	}
	return o.world.Job(ctx, namespace, id)
}

func (o *outage) Register(ctx context.Context, job *api.Job) (*api.JobRegisterResponse, error) {
	resp, err := o.world.Register(ctx, job)
	if lost := o.err(); lost != nil {
		return nil, lost // it was done, and nobody heard of it
	}
	return resp, err
}

func (o *outage) Evaluation(ctx context.Context, namespace, id string) (*api.Evaluation, error) {
	if err := o.err(); err != nil {
		return nil, err
	}
	return o.world.Evaluation(ctx, namespace, id)
}

func (o *outage) Signal(ctx context.Context, alloc *api.Allocation, task, signal string) error {
	if err := o.err(); err != nil && signal != signalCheckpoint {
		return err
	}
	return o.world.Signal(ctx, alloc, task, signal)
}

func (o *outage) Status(ctx context.Context, alloc *api.Allocation, task string) (status.Status, error) {
	if err := o.err(); err != nil {
		return status.Status{}, err
	}
	return o.world.Status(ctx, alloc, task)
}

// A restart of the server, or of an agent, is waited for.
func TestMove_outage(t *testing.T) {
	for since, failed := range map[string]bool{saveCall: false, pinCall: true, freezeNewCall: false, unpinCall: false} {
		for lasts := range 8 {
			w := newWorld()
			_, err := Move(t.Context(), &outage{w, since, lasts}, Request{Alloc: oldID, Node: "b"}, quick())
			// When the answer to pin is lost it is not known that it was done: that is taken back.
			must.Eq(t, failed && lasts > 0, err != nil, must.Sprintf("%d after %s: %v", lasts, since, err))
			must.Len(t, 0, w.job.TaskGroups[0].Constraints)
			last := w.calls[len(w.calls)-1]
			must.True(t, last == releaseNewCall || last == releaseCall, must.Sprint(w.calls))
		}
	}
}

// It ends all the same when nothing comes back.
func TestMove_outageForGood(t *testing.T) {
	opts := quick()
	opts.Save = 50 * time.Millisecond
	w := newWorld()
	w.saves = status.Move{State: status.MoveSaving}
	_, err := Move(t.Context(), &outage{w, saveCall, 20}, Request{Alloc: oldID, Node: "b"}, opts)
	must.ErrorContains(t, err, "save: waiting until task train has saved: context deadline exceeded")
	must.Eq(t, []string{saveCall, releaseCall}, w.calls)
}

// The lease ends while it is written down what is going to be bound: it has to stand still
// again before that is done.
func TestMove_leaseEnds(t *testing.T) {
	w := newWorld()
	w.lease = time.Second
	opts := quick()
	opts.Binds = func(_ context.Context, b *Binding) error {
		if b != nil {
			time.Sleep(600 * time.Millisecond)
		}
		return nil
	}
	_, err := Move(t.Context(), w, Request{Alloc: oldID, Node: "b"}, opts)
	must.NoError(t, err)
	must.Eq(t, []string{saveCall, saveCall, pinCall, freezeNewCall, unpinCall, releaseNewCall}, w.calls)
}

// Who remembers is told before the job is bound, and when it is free again.
func TestMove_binds(t *testing.T) {
	w := newWorld()
	opts := quick()
	opts.Binds = func(_ context.Context, b *Binding) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if b == nil {
			w.call("free")
			return nil
		}
		w.call("binds %s", b.Node)
		must.Eq(t, Binding{"ml", "vae", "train", "b"}, *b)
		return nil
	}
	_, err := Move(t.Context(), w, Request{Alloc: oldID, Node: "b"}, opts)
	must.NoError(t, err)
	must.Eq(t, []string{saveCall, "binds b", pinCall, freezeNewCall, unpinCall, releaseNewCall, "free"}, w.calls)

	w = newWorld()
	opts.Binds = func(context.Context, *Binding) error { return errors.New("no variables") }
	_, err = Move(t.Context(), w, Request{Alloc: oldID, Node: "b"}, opts)
	must.ErrorContains(t, err, "pin: no variables")
	must.Eq(t, []string{saveCall, releaseCall}, w.calls)
}

// What a process has left that died in the middle of a move.
func TestUnbind(t *testing.T) {
	w := newWorld()
	b := Binding{"ml", "vae", "train", "b"}
	must.NoError(t, Unbind(t.Context(), w, b), must.Sprint("it is free"))
	must.SliceEmpty(t, w.calls)
	w.job.TaskGroups[0].Constraints = []*api.Constraint{api.NewConstraint(bound, "=", "c")}
	must.NoError(t, Unbind(t.Context(), w, b), must.Sprint("somebody has bound it to another one"))
	must.SliceEmpty(t, w.calls)
	w.job.TaskGroups[0].Constraints = []*api.Constraint{api.NewConstraint(bound, "=", "b")}
	must.NoError(t, Unbind(t.Context(), w, b))
	must.Eq(t, []string{freezeCall, unpinCall, releaseCall}, w.calls)
	must.Len(t, 0, w.job.TaskGroups[0].Constraints)
	b.Group = "other"
	must.NoError(t, Unbind(t.Context(), w, b))
}

// What is stopped, or no more, is left alone.
func TestUnbind_over(t *testing.T) {
	b := Binding{"ml", "vae", "train", "b"}
	w := newWorld()
	w.job.TaskGroups[0].Constraints = []*api.Constraint{api.NewConstraint(bound, "=", "b")}
	w.job.Stop = ptr(true)
	must.NoError(t, Unbind(t.Context(), w, b))
	w.noJob = answered(t, 404)
	must.NoError(t, Unbind(t.Context(), w, b))
	w.noJob = answered(t, 403)
	must.ErrorContains(t, Unbind(t.Context(), w, b), "Unexpected response code: 403")
	must.SliceEmpty(t, w.calls)
}

// answered is the error of a request that the API answers with a status.
func answered(t *testing.T, code int) error {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }))
	defer server.Close()
	client, err := api.NewClient(&api.Config{Address: server.URL})
	must.NoError(t, err)
	_, err = API{client}.Job(t.Context(), "ml", "vae")
	must.Error(t, err)
	return err
}

func TestTransient(t *testing.T) {
	for _, err := range []error{answered(t, 500), answered(t, 404), &url.Error{Op: "Get", Err: io.EOF}, io.ErrUnexpectedEOF, json.Unmarshal([]byte("No path to node"), new(int))} {
		must.True(t, transient(fmt.Errorf("reading: %w", err)), must.Sprint(err))
	}
	for _, err := range []error{answered(t, 403), answered(t, 400), errors.New("the lock is lost")} {
		must.False(t, transient(err), must.Sprint(err))
	}
}

// A step that is not known is no failure.
func TestMove_unknownStep(t *testing.T) {
	w := newWorld()
	w.resumes = status.Unknown()
	_, err := Move(t.Context(), w, Request{Alloc: oldID, Node: "b"}, quick())
	must.NoError(t, err)
}

func TestMovable(t *testing.T) {
	for want, change := range map[string]func(*world){
		"it does not run: it is complete, and is to run":            func(w *world) { w.old.ClientStatus = api.AllocClientStatusComplete },
		"node node-b takes no allocations: it is ready, ineligible": func(w *world) { w.nodes["b"].SchedulingEligibility = api.NodeSchedulingIneligible },
		"node node-b takes no allocations: it is down, eligible":    func(w *world) { w.nodes["b"].Status = api.NodeStatusDown },
		"its job is stopped":                                             func(w *world) { w.job.Stop = ptr(true) },
		"its job has been changed since it was placed":                   func(w *world) { w.job.Version = ptr(uint64(3)) },
		"its job is of type system, not batch or service":                func(w *world) { w.job.Type = ptr(api.JobTypeSystem) },
		"its job was made by another one, and cannot be registered anew": func(w *world) { w.job.ParentID = ptr("parent") },
		"its job has no group train any more":                            func(w *world) { w.job.TaskGroups[0].Name = ptr("other") },
		"group train leaves its disk behind: set ephemeral_disk { sticky = true, migrate = true }, or save to a volume that is the same on every node (checkpoint { shared = true })": func(w *world) {
			w.job.TaskGroups[0].EphemeralDisk.Migrate = ptr(false)
		},
		"it is updated with canaries: old and new would run together": func(w *world) { w.job.TaskGroups[0].Update = &api.UpdateStrategy{Canary: ptr(1)} },
		"its job binds it to a node: ${node.unique.name} = x": func(w *world) {
			w.job.Constraints = []*api.Constraint{api.NewConstraint("${node.unique.name}", "=", "x")}
		},
		"task train does not say how it saves its state (checkpoint)": func(w *world) { delete(w.job.TaskGroups[0].Tasks[0].Config, "checkpoint") },
		"driver ebbtide runs tasks with engine exec on node-a, and with docker on node-b": func(w *world) {
			for id, engine := range map[string]string{"a": "exec", "b": "docker"} {
				w.nodes[id].Drivers = map[string]*api.DriverInfo{driverName: {Detected: true, Healthy: true, Attributes: map[string]string{"driver.ebbtide.engine": engine}}}
			}
		},
		"task train runs under driver docker on node-a, which is not ours": func(w *world) {
			w.job.TaskGroups[0].Tasks[0].Driver = "docker"
			w.nodes["a"].Drivers["docker"] = &api.DriverInfo{Detected: true, Healthy: true}
		},
	} {
		w := newWorld()
		change(w)
		_, reasons := movable(w.old, w.job, []*api.AllocationListStub{stub(w.old)}, w.nodes["a"], w.nodes["b"])
		must.Eq(t, []string{want}, reasons)
	}

	w := newWorld()
	tasks, reasons := movable(w.old, w.job, nil, w.nodes["a"], w.nodes["a"])
	must.Eq(t, []string{"it is on node-a already"}, reasons)
	must.Eq(t, []string{"train"}, tasks)

	// What is saved where every node finds it need not move.
	s := newWorld()
	s.job.TaskGroups[0].EphemeralDisk = nil
	s.job.TaskGroups[0].Tasks[0].Config["checkpoint"] = []any{map[string]any{"path": "/models/*", "shared": true}}
	_, reasons = movable(s.old, s.job, nil, s.nodes["a"], s.nodes["b"])
	must.SliceEmpty(t, reasons)

	// What comes before or beside the task need not be saved.
	w.job.TaskGroups[0].Tasks = append(w.job.TaskGroups[0].Tasks, &api.Task{Name: "fetch", Driver: "raw_exec", Lifecycle: &api.TaskLifecycle{Hook: "prestart"}})
	tasks, reasons = movable(w.old, w.job, nil, w.nodes["a"], w.nodes["b"])
	must.SliceEmpty(t, reasons)
	must.Eq(t, []string{"train"}, tasks)

	// Installed as docker it is ours.
	w.job.TaskGroups[0].Tasks[0].Driver = "docker"
	for _, n := range w.nodes {
		n.Drivers["docker"] = &api.DriverInfo{Detected: true, Healthy: true}
		n.Attributes = map[string]string{"driver.docker.ebbtide.version": "1"}
	}
	_, reasons = movable(w.old, w.job, nil, w.nodes["a"], w.nodes["b"])
	must.SliceEmpty(t, reasons)

	done := stub(w.old)
	done.TaskGroup, done.ClientStatus = "prepare", api.AllocClientStatusComplete
	_, reasons = movable(w.old, w.job, []*api.AllocationListStub{done}, w.nodes["a"], w.nodes["b"])
	must.Eq(t, []string{"group prepare of its job has completed, and Nomad would run it again"}, reasons)
}

func TestPin(t *testing.T) {
	job := newWorld().job
	own := api.NewConstraint("${attr.cpu.arch}", "=", "amd64")
	job.TaskGroups[0].Constraints = []*api.Constraint{own}
	pinned, err := pin(job, "train", "b")
	must.NoError(t, err)
	must.Len(t, 1, job.TaskGroups[0].Constraints, must.Sprint("the original does not change"))
	must.Eq(t, []*api.Constraint{own, api.NewConstraint("${node.unique.id}", "=", "b")}, pinned.TaskGroups[0].Constraints)
	free, err := unpin(pinned, "train", "b")
	must.NoError(t, err)
	must.Eq(t, []*api.Constraint{own}, free.TaskGroups[0].Constraints)
	_, err = unpin(pinned, "other", "b")
	must.ErrorContains(t, err, "no group other")
}

func TestUnplaced(t *testing.T) {
	must.Eq(t, "no room: cpu, no room: memory, constraint ${attr.kernel.name} = windows", unplaced(&api.AllocationMetric{
		DimensionExhausted: map[string]int{"memory": 1, "cpu": 1},
		ConstraintFiltered: map[string]int{"${node.unique.id} = b": 4, "${attr.kernel.name} = windows": 1},
	}))
	must.Eq(t, "the node is not among those that it may use", unplaced(&api.AllocationMetric{}))
}
