// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package move takes an allocation to another node, with what it has saved.
//
// Nomad has no such operation: it only ever stops an allocation and places a new one. The
// steps below make of that a move in which the training runs once at any time, and goes
// on at the step that was saved, or a later one.
//
//	check ──► save ──► pin ──► wait ──► verify ──► unpin
//	  │         │       │        │         │         │
//	  ▼         ▼       ▼        ▼         ▼         ▼
//	refused  release  release  unpin     unpin    (told)
//	                           release
//
//	check   Is it one that may be moved, and would Nomad place it there? Nothing has
//	        happened yet.
//	save    The driver asks the task to save, and freezes it (signal EBBTIDE_CHECKPOINT).
//	        From now on it cannot end while Nomad is told to move it: Nomad would run it
//	        a second time. The freeze has a lease, so it ends also if we do.
//	pin     The job is registered with a constraint on the target, if nobody has changed
//	        it since check. Nomad does not stop the old allocation unless it can place
//	        the new one.
//	wait    Nomad stops the old one, which ends where it stands, carries the ephemeral
//	        disk over and starts the new one.
//	verify  The new one runs, and reports a step that is no earlier than the saved one.
//	unpin   The constraint is taken off again, which changes nothing that runs: else the
//	        job could not leave the target when that one dies. The task stands still for
//	        that moment (EBBTIDE_FREEZE), as it did before pin; if it has completed, its job
//	        is left as it is.
//
// Below each step stands what is done when it fails. Whoever loses its target for good
// between pin and unpin goes back to where it came from (back.go), for Nomad would look
// for what it has saved on the target alone. That Nomad, or an agent, cannot be
// reached for a while is no failure: each step tries again until its time is over.
package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/status"
)

// Phase is a step of a move.
type Phase string

// The steps.
const (
	PhaseCheck  Phase = "check"
	PhaseSave   Phase = "save"
	PhasePin    Phase = "pin"
	PhaseWait   Phase = "wait"
	PhaseVerify Phase = "verify"
	PhaseUnpin  Phase = "unpin"
	PhaseDone   Phase = "done"
)

// The signals of the driver (docs/driver.md, "Moving a task").
const (
	signalCheckpoint = "EBBTIDE_CHECKPOINT"
	signalFreeze     = "EBBTIDE_FREEZE"
	signalRelease    = "EBBTIDE_RELEASE"
)

// Options say how long a move may take.
type Options struct {
	// Save is for all tasks to save and stand still. The driver's own checkpoint.timeout
	// is mostly shorter.
	Save time.Duration
	// Place is for the new allocation to run, from the registration on: the old one has to
	// end, and its disk to be carried over.
	Place time.Duration
	// Resume is for the new allocation to report a step.
	Resume time.Duration
	// Poll is the time between two looks at the cluster.
	Poll time.Duration
	// Report is told what is done, a sentence for people.
	Report func(Phase, string)
	// Binds is told right before the job is bound to a node, and (nil) when it is not any
	// more: who remembers it can set the job free (Unbind) if this process dies in between.
	// With an error the job is not bound.
	Binds func(context.Context, *Binding) error
}

// Binding is a group of a job that is bound to a node.
type Binding struct{ Namespace, Job, Group, Node string }

// DefaultOptions returns the usual times.
func DefaultOptions() Options {
	return Options{
		Save: 2 * time.Minute, Place: 10 * time.Minute, Resume: 5 * time.Minute, Poll: 250 * time.Millisecond,
		Report: func(Phase, string) {},
		Binds:  func(context.Context, *Binding) error { return nil },
	}
}

// cleanUp bounds what is done at the end, whatever has become of the context.
const cleanUp = time.Minute

// Request names an allocation and the node to which it is to go, by their full IDs.
type Request struct {
	Alloc, Node string
	// DryRun ends after check.
	DryRun bool
}

// Result is what became of a move.
type Result struct {
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Alloc     string `json:"alloc"`
	From      string `json:"from"` // IDs of nodes
	To        string `json:"to"`
	// Phase is the last step that was done, or the one that failed.
	Phase Phase `json:"phase"`
	// NewAlloc is the allocation on the target; "" before there is one.
	NewAlloc string `json:"new_alloc,omitempty"`
	// Bound says that the job is still bound to the target, for Nomad could not be told
	// otherwise: somebody has to set it free (Unbind).
	Bound bool `json:"bound,omitempty"`
	// Tasks are those that have saved.
	Tasks []Task `json:"tasks"`
	// DownS is the time from the moment in which the last task stood still until the new
	// allocation ran, in seconds; null before.
	DownS status.Number `json:"down_s"`
}

// Task is one task that has moved.
type Task struct {
	Name  string        `json:"name"`
	Path  string        `json:"path"`
	Bytes int64         `json:"bytes"`
	Saved status.Number `json:"saved_step"`   // the checkpoint has this step or a later one; null: not known
	Step  status.Number `json:"resumed_step"` // the first one that was seen on the target
}

// Refused says why an allocation cannot be moved. Nothing has happened to it.
type Refused struct {
	Reasons []string
	// Target says that only this target is at fault: Nomad would not place it there.
	Target bool
}

func (e *Refused) Error() string { return "it cannot be moved: " + strings.Join(e.Reasons, "; ") }

// ErrNotResumed says that a task began before the step that was saved.
var ErrNotResumed = errors.New("the task has not gone on from what it saved")

// ErrNoPlan says that Nomad does not tell what it would do. A move does without: a target
// that cannot take the allocation is then only found out when its task stands still.
var ErrNoPlan = errors.New("Nomad does not tell what it would do")

// Nomad is what a move needs of a cluster (API).
type Nomad interface {
	Allocation(ctx context.Context, id string) (*api.Allocation, error)
	Allocations(ctx context.Context, namespace, job string) ([]*api.AllocationListStub, error)
	Job(ctx context.Context, namespace, id string) (*api.Job, error)
	Node(ctx context.Context, id string) (*api.Node, error)
	// Reach fails if a node's agent cannot be reached now. That its node is ready says only
	// that it could a while ago.
	Reach(ctx context.Context, node string) error
	// Plan says what Register would do. The error may be ErrNoPlan.
	Plan(ctx context.Context, job *api.Job) (*api.JobPlanResponse, error)
	// Register registers a job, if it has not been changed since it was read.
	Register(ctx context.Context, job *api.Job) (*api.JobRegisterResponse, error)
	Evaluation(ctx context.Context, namespace, id string) (*api.Evaluation, error)
	Signal(ctx context.Context, alloc *api.Allocation, task, signal string) error
	// Status reads a task's status, from where the task cannot write.
	Status(ctx context.Context, alloc *api.Allocation, task string) (status.Status, error)
}

// mover is one move.
type mover struct {
	nomad  Nomad
	opts   Options
	req    Request
	result Result

	alloc  *api.Allocation
	job    *api.Job
	index  uint64 // of the job as we have registered it
	eval   string
	stands time.Time // since when all tasks stand still
	sure   time.Time // until when they do, whatever the clocks of their node and ours are
	next   *api.Allocation
}

// Move moves an allocation. The result says how far it came, also with an error.
func Move(ctx context.Context, nomad Nomad, req Request, opts Options) (Result, error) {
	m := &mover{nomad: nomad, opts: opts, req: req}
	m.result = Result{Alloc: req.Alloc, To: req.Node, Tasks: []Task{}, DownS: status.Unknown()}
	err := m.run(ctx)
	return m.result, err
}

func (m *mover) run(ctx context.Context) error {
	if err := m.step(ctx, PhaseCheck, m.check); err != nil || m.req.DryRun {
		return err
	}
	if err := m.step(ctx, PhaseSave, m.save); err != nil {
		return errors.Join(err, m.after(ctx, m.release))
	}
	if err := m.step(ctx, PhasePin, m.pin); err != nil {
		return errors.Join(err, m.after(ctx, m.release))
	}
	if err := m.step(ctx, PhaseWait, m.wait); err != nil {
		// Without the constraint nothing is left to wait for, and the old one, if it still
		// stands, runs on.
		unbound := m.after(ctx, m.unpin)
		if errors.Is(unbound, errLost) {
			return errors.Join(err, m.back(ctx))
		}
		return errors.Join(err, unbound, m.after(ctx, m.release))
	}
	verified := m.step(ctx, PhaseVerify, m.verify)
	if err := m.after(ctx, m.unpin); errors.Is(err, errLost) {
		m.result.Phase = PhaseUnpin
		return errors.Join(verified, err, m.back(ctx))
	} else if err != nil {
		m.result.Phase = PhaseUnpin
		return errors.Join(verified, fmt.Errorf("%s: %w; the job stays bound to the node until it is registered again", PhaseUnpin, err))
	}
	if verified == nil {
		m.done(PhaseDone, "moved")
	}
	return verified
}

// step does one step.
func (m *mover) step(ctx context.Context, phase Phase, do func(context.Context) error) error {
	m.result.Phase = phase
	if err := do(ctx); err != nil {
		return fmt.Errorf("%s: %w", phase, err)
	}
	return nil
}

// after does what has to be done whatever has become of ctx.
func (m *mover) after(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	return persist(ctx, m.opts.Poll, do)
}

func (m *mover) done(phase Phase, format string, args ...any) {
	m.result.Phase = phase
	m.opts.Report(phase, fmt.Sprintf(format, args...))
}

// check reads everything anew and looks for reasons against the move.
func (m *mover) check(ctx context.Context) error {
	alloc, err := m.nomad.Allocation(ctx, m.req.Alloc)
	if err != nil {
		return err
	}
	m.result.Namespace, m.result.Job, m.result.From = alloc.Namespace, alloc.JobID, alloc.NodeID
	job, err := m.nomad.Job(ctx, alloc.Namespace, alloc.JobID)
	if err != nil {
		return err
	}
	others, err := m.nomad.Allocations(ctx, alloc.Namespace, alloc.JobID)
	if err != nil {
		return err
	}
	from, err := m.nomad.Node(ctx, alloc.NodeID)
	if err != nil {
		return err
	}
	to, err := m.nomad.Node(ctx, m.req.Node)
	if err != nil {
		return err
	}
	tasks, reasons := movable(alloc, job, others, from, to)
	if len(reasons) > 0 {
		return &Refused{Reasons: reasons}
	}
	pinned, err := pin(job, alloc.TaskGroup, to.ID)
	if err != nil {
		return err
	}
	would := "Nomad would place it there"
	plan, err := m.nomad.Plan(ctx, pinned)
	switch {
	case errors.Is(err, ErrNoPlan):
		would = "whether Nomad would place it there is not known"
	case err != nil:
		return err
	case plan.FailedTGAllocs[alloc.TaskGroup] != nil:
		return &Refused{[]string{fmt.Sprintf("Nomad would not place it on %s: %s", to.Name, unplaced(plan.FailedTGAllocs[alloc.TaskGroup]))}, true}
	}
	m.alloc, m.job = alloc, job
	for _, name := range tasks {
		m.result.Tasks = append(m.result.Tasks, Task{Name: name, Saved: status.Unknown(), Step: status.Unknown()})
	}
	m.done(PhaseCheck, "%s of job %s may move from %s to %s, and %s", short(alloc.ID), alloc.JobID, from.Name, to.Name, would)
	return nil
}

// save asks all tasks to save and waits until they stand still.
func (m *mover) save(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.opts.Save)
	defer cancel()
	before := make(map[string]status.Status)
	for _, t := range m.result.Tasks {
		st, err := m.nomad.Status(ctx, m.alloc, t.Name)
		if err != nil {
			return fmt.Errorf("task %s: %w", t.Name, err)
		}
		before[t.Name] = st
		if err := m.nomad.Signal(ctx, m.alloc, t.Name, signalCheckpoint); err != nil {
			return fmt.Errorf("task %s: %w", t.Name, err)
		}
	}
	m.sure = time.Now().Add(m.opts.Save)
	for i := range m.result.Tasks {
		t := &m.result.Tasks[i]
		saves := false
		err := m.until(ctx, fmt.Sprintf("task %s has saved", t.Name), func() (bool, error) {
			seen := time.Now()
			st, err := m.nomad.Status(ctx, m.alloc, t.Name)
			if err != nil {
				return false, cmp.Or(m.here(ctx), err)
			}
			was := before[t.Name]
			if st.Move.State == status.MoveFailed && st.Updated.After(was.Updated) {
				return false, fmt.Errorf("task %s: %s", t.Name, st.Move.Why)
			}
			if saves && st.Move.State == "" {
				return false, fmt.Errorf("task %s runs on: it was called off, or the driver's plugin was restarted", t.Name)
			}
			saves = saves || st.Move.State == status.MoveSaving
			if st.Move.State != status.MoveReady || !st.Move.Until.After(was.Move.Until) {
				return false, m.here(ctx)
			}
			t.Path, t.Bytes, t.Saved = st.Move.Path, st.Move.Bytes, st.Move.Step
			// The half of what was left of the lease when its node wrote that.
			if sure := seen.Add(st.Move.Until.Sub(st.Updated) / 2); sure.Before(m.sure) {
				m.sure = sure
			}
			return true, nil
		})
		if err != nil {
			return err
		}
		m.done(PhaseSave, "task %s has saved %s, %d bytes, and stands still", t.Name, t.Path, t.Bytes)
	}
	m.stands = time.Now()
	return nil
}

// here is an error that stays when the old allocation has ended, or is to.
func (m *mover) here(ctx context.Context) error {
	now, err := m.nomad.Allocation(ctx, m.alloc.ID)
	switch {
	case gone(err):
		return errors.New("it was removed meanwhile")
	case err != nil:
		return err
	case !stays(now):
		return fmt.Errorf("it does not run any more: it is %s, and is to %s", now.ClientStatus, now.DesiredStatus)
	}
	return nil
}

// stand sees to it that all tasks stand still now. The lease of one may have ended while
// another saved, or while it was written down what is going to be bound.
func (m *mover) stand(ctx context.Context) error {
	if time.Now().Before(m.sure) {
		return nil
	}
	if err := m.save(ctx); err != nil {
		return err
	}
	if !time.Now().Before(m.sure) {
		return errors.New("a task stands still for less time than it takes to move it: its checkpoint.lease is too short")
	}
	return nil
}

// release lets the tasks run on where they are.
func (m *mover) release(ctx context.Context) error {
	var tasks []string
	for _, t := range m.result.Tasks {
		tasks = append(tasks, t.Name)
	}
	runs, err := release(ctx, m.nomad, m.alloc.ID, tasks)
	if runs {
		m.opts.Report(m.result.Phase, "it runs on where it is")
	}
	return err
}

// pin binds the job to the target.
func (m *mover) pin(ctx context.Context) error {
	pinned, err := pin(m.job, m.alloc.TaskGroup, m.req.Node)
	if err != nil {
		return err
	}
	b := m.binding()
	if err := m.opts.Binds(ctx, &b); err != nil {
		return err
	}
	m.result.Bound = true // perhaps
	resp, err := m.register(ctx, pinned)
	if err != nil {
		// It may have been registered, and only the answer was lost.
		return errors.Join(err, m.after(ctx, m.unpin))
	}
	m.index, m.eval = resp.JobModifyIndex, resp.EvalID
	m.done(PhasePin, "the job is bound to the target")
	return nil
}

// register registers the job as it is to be bound, if all is well until then.
func (m *mover) register(ctx context.Context, pinned *api.Job) (*api.JobRegisterResponse, error) {
	// Nomad would stop the old allocation for a target that is dead, and give up what it
	// has saved.
	if err := m.nomad.Reach(ctx, m.req.Node); err != nil {
		return nil, err
	}
	if err := m.alone(ctx); err != nil {
		return nil, err
	}
	if err := m.stand(ctx); err != nil {
		return nil, err
	}
	return m.nomad.Register(ctx, pinned)
}

// alone is an error if another group of a batch job has completed since check.
func (m *mover) alone(ctx context.Context) error {
	stubs, err := m.nomad.Allocations(ctx, m.alloc.Namespace, m.alloc.JobID)
	if err != nil {
		return err
	}
	if other := completed(m.job, m.alloc.TaskGroup, stubs); other != "" {
		return fmt.Errorf("group %s of its job has completed meanwhile, and Nomad would run it again", other)
	}
	return nil
}

// binding is what pin binds.
func (m *mover) binding() Binding {
	return Binding{Namespace: m.alloc.Namespace, Job: m.alloc.JobID, Group: m.alloc.TaskGroup, Node: m.req.Node}
}

// wait waits until the new allocation runs.
func (m *mover) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.opts.Place)
	defer cancel()
	eval, err := decided(ctx, m.nomad, m.opts.Poll, m.alloc.Namespace, m.eval)
	if err != nil {
		return err
	}
	if metric := eval.FailedTGAllocs[m.alloc.TaskGroup]; metric != nil {
		return fmt.Errorf("it is not placed: %s", unplaced(metric))
	}
	err = m.until(ctx, "the new allocation runs", func() (bool, error) {
		stub, err := m.newest(ctx)
		if err != nil {
			return false, err
		}
		if stub != nil {
			m.result.NewAlloc = stub.ID
			switch stub.ClientStatus {
			case api.AllocClientStatusRunning, api.AllocClientStatusComplete:
				return true, nil
			case api.AllocClientStatusFailed, api.AllocClientStatusLost:
				return false, fmt.Errorf("the new allocation %s is %s: %s", short(stub.ID), stub.ClientStatus, stub.ClientDescription)
			}
		}
		return false, m.ours(ctx)
	})
	if err != nil {
		return err
	}
	m.result.DownS = status.Number(time.Since(m.stands).Seconds())
	if m.next, err = m.nomad.Allocation(ctx, m.result.NewAlloc); err != nil {
		return err
	}
	m.done(PhaseWait, "%s runs on the target", short(m.result.NewAlloc))
	return nil
}

// ours is an error when the job is not the one that we have registered any more: what
// its user wants now may never run on the target.
func (m *mover) ours(ctx context.Context) error {
	job, err := m.nomad.Job(ctx, m.alloc.Namespace, m.alloc.JobID)
	switch {
	case gone(err):
		return errors.New("the job was removed meanwhile")
	case err != nil:
		return err
	case stopped(job):
		return errors.New("the job was stopped meanwhile")
	case job.JobModifyIndex == nil || *job.JobModifyIndex != m.index:
		return errors.New("somebody has changed the job meanwhile")
	}
	return nil
}

// newest is the allocation of the group on the target that came after the old one.
func (m *mover) newest(ctx context.Context) (*api.AllocationListStub, error) {
	stubs, err := m.nomad.Allocations(ctx, m.alloc.Namespace, m.alloc.JobID)
	if err != nil {
		return nil, err
	}
	var newest *api.AllocationListStub
	for _, s := range stubs {
		if s.TaskGroup == m.alloc.TaskGroup && s.NodeID == m.req.Node && s.CreateIndex > m.alloc.CreateIndex && s.JobVersion > m.version() {
			if newest == nil || s.CreateIndex > newest.CreateIndex {
				newest = s
			}
		}
	}
	return newest, nil
}

func (m *mover) version() uint64 {
	if m.job.Version == nil {
		return 0
	}
	return *m.job.Version
}

// verify waits until the tasks report a step that is no earlier than the saved one.
func (m *mover) verify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.opts.Resume)
	defer cancel()
	for i := range m.result.Tasks {
		t := &m.result.Tasks[i]
		err := m.until(ctx, fmt.Sprintf("task %s reports on the target", t.Name), func() (bool, error) {
			st, err := m.nomad.Status(ctx, m.next, t.Name)
			if err == nil && st.Reports > 0 {
				t.Step = st.Step
				return true, nil
			}
			now, aerr := m.nomad.Allocation(ctx, m.next.ID)
			if aerr != nil {
				return false, aerr
			}
			switch now.ClientStatus {
			case api.AllocClientStatusComplete:
				return true, nil // it had little left to do
			case api.AllocClientStatusFailed, api.AllocClientStatusLost:
				return false, fmt.Errorf("the new allocation %s is %s: %s", short(now.ID), now.ClientStatus, now.ClientDescription)
			}
			return false, nil
		})
		if err != nil {
			return err
		}
		if t.Step < t.Saved { // false if one of them is not known
			return fmt.Errorf("%w: task %s saved step %.0f and is at step %.0f. Nomad gives a task an empty disk when it cannot carry the old one over", ErrNotResumed, t.Name, float64(t.Saved), float64(t.Step))
		}
		m.done(PhaseVerify, "task %s %s", t.Name, resumed(*t))
	}
	return nil
}

// unpin takes the constraint off again, if it is still there. The error is errLost if the
// target is lost.
func (m *mover) unpin(ctx context.Context) error {
	if err := m.lost(ctx); err != nil {
		return err
	}
	if m.next != nil {
		// That a target is lost Nomad says only after a while: until then the job stays bound.
		if err := m.nomad.Reach(ctx, m.req.Node); err != nil {
			return err
		}
	}
	said, err := free(ctx, m.nomad, m.binding(), m.opts.Poll)
	if err != nil {
		return err
	}
	m.result.Bound = false
	m.opts.Report(PhaseUnpin, said)
	return m.opts.Binds(ctx, nil)
}

// until looks again and again.
func (m *mover) until(ctx context.Context, what string, ok func() (bool, error)) error {
	return until(ctx, m.opts.Poll, what, ok)
}

// resumed says where a task has gone on.
func resumed(t Task) string {
	if math.IsNaN(float64(t.Step)) || math.IsNaN(float64(t.Saved)) {
		return "goes on; at which step is not known"
	}
	return fmt.Sprintf("goes on: it saved step %.0f or later, and is at step %.0f", float64(t.Saved), float64(t.Step))
}

// short is an ID as Nomad shows it.
func short(id string) string {
	if len(id) > 8 {
		return id[:8]
	}
	return id
}
