// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"errors"
	"fmt"
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
	newID = "0a11ed00-0000-0000-0000-000000000002"
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
	saves      status.Move // what becomes of a checkpoint
	signalErr  error
	registered func() error                 // asked before a registration
	evaluated  func() *api.AllocationMetric // what the evaluation says is missing
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
			ClientStatus: api.AllocClientStatusRunning, DesiredStatus: api.AllocDesiredStatusRun, CreateIndex: 5,
		},
		saves:   status.Move{State: status.MoveReady, Path: "/alloc/data/c", Bytes: 7, Step: 100},
		placed:  api.AllocClientStatusRunning,
		resumes: 101,
	}
}

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
	return clone(w.job)
}

func (w *world) Node(_ context.Context, id string) (*api.Node, error) {
	if n := w.nodes[id]; n != nil {
		return n, nil
	}
	return nil, errors.New("no such node")
}

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
			DesiredStatus: api.AllocDesiredStatusRun, CreateIndex: 20,
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
	return w.signalErr
}

func (w *world) Status(_ context.Context, alloc *api.Allocation, task string) (status.Status, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	st := status.Status{Alloc: alloc.ID, Task: task, Updated: time.Now(), Reports: 3, Step: w.resumes}
	if alloc.ID == oldID {
		st.Step = 99
		for _, c := range w.calls {
			if c == signalCheckpoint+" 0a11ed00 train" {
				st.Move = w.saves
			}
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
	must.Eq(t, []string{saveCall, pinCall, unpinCall}, w.calls)
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
		"never saves": {func(w *world) { w.saves = status.Move{State: status.MoveSaving} }, func(o *Options) { o.Save = 50 * time.Millisecond },
			[]string{saveCall, releaseCall}, PhaseSave, "save: waiting until task train has saved: context deadline exceeded"},
		"changed since": {func(w *world) { w.registered = func() error { return errors.New("index 11, not 10") } }, nil,
			[]string{saveCall, pinCall, releaseCall}, PhasePin, "pin: index 11, not 10"},
		"the answer is lost": {func(w *world) {
			w.registered = func() error { w.bindUnseen(); return errors.New("connection reset") }
		}, nil, []string{saveCall, pinCall, unpinCall, releaseCall}, PhasePin, "pin: connection reset"},
		"full by now": {func(w *world) { w.evaluated = func() *api.AllocationMetric { return full } }, nil,
			[]string{saveCall, pinCall, unpinCall, releaseCall}, PhaseWait, "wait: it is not placed: no room: memory"},
		"never placed": {func(w *world) { w.placed = "" }, func(o *Options) { o.Place = 50 * time.Millisecond },
			[]string{saveCall, pinCall, unpinCall, releaseCall}, PhaseWait, "wait: waiting until the new allocation runs: context deadline exceeded"},
		"fails there": {func(w *world) { w.placed = api.AllocClientStatusFailed }, nil,
			[]string{saveCall, pinCall, unpinCall}, PhaseWait, "wait: the new allocation 0a11ed00 is failed: for a reason"},
		"begins anew": {func(w *world) { w.resumes = 1 }, nil,
			[]string{saveCall, pinCall, unpinCall}, PhaseVerify, "the task has not gone on from what it saved: task train saved step 100 and is at step 1"},
		"cannot be unbound": {func(w *world) {
			n := 0
			w.registered = func() error {
				if n++; n == 2 {
					return errors.New("no leader")
				}
				return nil
			}
		}, nil, []string{saveCall, pinCall, unpinCall}, PhaseUnpin, "unpin: unbinding the job: no leader; the job stays bound"},
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
	must.Eq(t, []string{saveCall, pinCall, unpinCall}, w.calls)
}

func TestMove_dryRun(t *testing.T) {
	w := newWorld()
	res, err := Move(t.Context(), w, Request{Alloc: oldID, Node: "b", DryRun: true}, quick())
	must.NoError(t, err)
	must.Eq(t, PhaseCheck, res.Phase)
	must.SliceEmpty(t, w.calls)
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
	must.Eq(t, []string{saveCall, pinCall, unpinCall, releaseCall}, w.calls)
}

// Who registers the job meanwhile has the last word.
func TestMove_registeredMeanwhile(t *testing.T) {
	w := newWorld()
	w.looks = func(w *world) {
		if len(w.calls) == 2 {
			*w.job.JobModifyIndex = 99
		}
	}
	_, err := Move(t.Context(), w, Request{Alloc: oldID, Node: "b"}, quick())
	must.NoError(t, err)
	must.Eq(t, []string{saveCall, pinCall}, w.calls)
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
	must.Eq(t, []string{saveCall, "binds b", pinCall, unpinCall, "free"}, w.calls)

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
	must.Eq(t, []string{unpinCall}, w.calls)
	must.Len(t, 0, w.job.TaskGroups[0].Constraints)
	b.Group = "other"
	must.NoError(t, Unbind(t.Context(), w, b))
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
		"group train leaves its disk behind: set ephemeral_disk { sticky = true, migrate = true }": func(w *world) {
			w.job.TaskGroups[0].EphemeralDisk.Migrate = ptr(false)
		},
		"it is updated with canaries: old and new would run together": func(w *world) { w.job.TaskGroups[0].Update = &api.UpdateStrategy{Canary: ptr(1)} },
		"its job binds it to a node: ${node.unique.name} = x": func(w *world) {
			w.job.Constraints = []*api.Constraint{api.NewConstraint("${node.unique.name}", "=", "x")}
		},
		"task train does not say how it saves its state (checkpoint)": func(w *world) { delete(w.job.TaskGroups[0].Tasks[0].Config, "checkpoint") },
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
