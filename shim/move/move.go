// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package move takes an allocation to another node, with what it has saved.
//
// Nomad has no such operation: it only ever stops an allocation and places a new one. The
// steps below make of that a move in which the training runs once at any time, and goes
// on from what it saved.
//
//	check ──► save ──► bind ──► wait ──► verify ──► unbind ──► done
//	  │         │       │        │         │          ▲
//	  ▼         ▼       ▼        ▼         ▼          │
//	refused   thaw    thaw    unbind,    home ────────┘
//	                          thaw; or
//	                          home
//
//	check   Is it one that may be moved, and would Nomad place it there? Nothing has
//	        happened yet. Then the move is written down (Record), which claims the job: no
//	        other move of it begins, and any process can finish this one.
//	save    The driver asks the tasks to save, and freezes them (signal
//	        EBBTIDE_CHECKPOINT). From now on they cannot end while Nomad is told to move
//	        them: Nomad would run them a second time. The freeze has a lease; it is renewed
//	        (EBBTIDE_RENEW) until the old allocation has ended.
//	bind    The job is registered with a constraint on the target that carries the move's
//	        mark, if nobody has changed the job since check. Nomad does not stop the old
//	        allocation unless it can place the new one. What became of a registration whose
//	        answer was lost is found out before anything else happens (settle).
//	wait    Nomad stops the old allocation, which ends where it stands, carries the ephemeral
//	        disk over and starts the new one.
//	verify  The target's driver has written down what the new tasks found when they were
//	        started: it is what the old ones saved.
//	unbind  The constraint is taken off again, which changes nothing that runs: else the
//	        job could not leave the target when that one dies. The tasks of a batch job
//	        stand still for that moment (EBBTIDE_FREEZE); if it has completed, its job is
//	        left as it is.
//	home    The target has not what was saved, and the source has: the job is bound to the
//	        source instead, where the driver brings it its checkpoint, and is unbound there.
//
// Below each step stands what is done when it fails. That Nomad, or an agent, cannot be
// reached for a while is no failure: each step tries again until its time is over. What
// could not be brought to its end stays written down, for Recover.
package move

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/hashicorp/go-uuid"
	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/status"
)

// Phase is a step of a move.
type Phase string

// The steps.
const (
	PhaseCheck  Phase = "check"
	PhaseSave   Phase = "save"
	PhaseBind   Phase = "bind"
	PhaseWait   Phase = "wait"
	PhaseVerify Phase = "verify"
	PhaseUnbind Phase = "unbind"
	PhaseHome   Phase = "home"
	PhaseDone   Phase = "done"
)

// The signals of the driver (docs/reference.md, "Moving a task").
const (
	signalCheckpoint = "EBBTIDE_CHECKPOINT"
	signalFreeze     = "EBBTIDE_FREEZE"
	signalRenew      = "EBBTIDE_RENEW"
	signalThaw       = "EBBTIDE_RELEASE"
)

// Options say how long a move may take, and where it is written down.
type Options struct {
	// Place is for the new allocation to run, from the registration on: the old one has to
	// end, and its disk to be carried over.
	Place time.Duration
	// Verify is for the target to tell what the new tasks have found.
	Verify time.Duration
	// Poll is the time between two looks at the cluster.
	Poll time.Duration
	// Report is told what is done, a sentence for people.
	Report func(Phase, string)
	// Claims keeps the record of the move. A dry run needs none.
	Claims Claims
	// Owner names this process.
	Owner string
}

// DefaultOptions returns the usual times.
func DefaultOptions() Options {
	return Options{Place: 10 * time.Minute, Verify: 5 * time.Minute, Poll: 250 * time.Millisecond, Report: func(Phase, string) {}}
}

const (
	// cleanUp bounds what is done at the end, whatever has become of the context.
	cleanUp = time.Minute
	// savesWithin is how long a driver may take beyond a task's own checkpoint.timeout: for
	// the freeze, a process that ends, and the status that tells of it.
	savesWithin = 30 * time.Second
	// reportsWithin is how long the first step of a moved task is waited for, to tell it.
	reportsWithin = 10 * time.Second
)

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
	// Bound says that the job is still bound, for Nomad could not be told otherwise: its
	// record is left, and any process can finish the move (Recover).
	Bound bool `json:"bound,omitempty"`
	// Tasks are those that have saved.
	Tasks []Task `json:"tasks"`
	// SaveS is how long the tasks took to save and stand still, in seconds; null before.
	SaveS status.Number `json:"save_s"`
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

// ErrNotResumed says that the target has not what was saved.
var ErrNotResumed = errors.New("the new allocation has not what was saved")

// ErrNoPlan says that Nomad does not tell what it would do. A move does without: a target
// that cannot take the allocation is then only found out when its task stands still.
var ErrNoPlan = errors.New("Nomad does not tell what it would do")

// Nomad is what a move needs of a cluster (API).
type Nomad interface {
	Allocation(ctx context.Context, id string) (*api.Allocation, error)
	Allocations(ctx context.Context, namespace, job string) ([]*api.AllocationListStub, error)
	Job(ctx context.Context, namespace, id string) (*api.Job, error)
	Evaluations(ctx context.Context, namespace, job string) ([]*api.Evaluation, error)
	Node(ctx context.Context, id string) (*api.Node, error)
	// Reach fails if a node's agent cannot be reached now. That its node is ready says only
	// that it could a while ago.
	Reach(ctx context.Context, node string) error
	// Plan says what Register would do. The error may be ErrNoPlan.
	Plan(ctx context.Context, job *api.Job) (*api.JobPlanResponse, error)
	// Register registers a job, if it has not been changed since it was read.
	Register(ctx context.Context, job *api.Job) (*api.JobRegisterResponse, error)
	Signal(ctx context.Context, alloc *api.Allocation, task, signal string) error
	// Status reads a task's status, from where the task cannot write.
	Status(ctx context.Context, alloc *api.Allocation, task string) (status.Status, error)
	// Versions are those that Nomad has of a job, the newest first; Tag and Untag a version's
	// tag.
	Versions(ctx context.Context, namespace, job string) ([]*api.Job, error)
	Tag(ctx context.Context, namespace, job string, version uint64, name string) error
	Untag(ctx context.Context, namespace, job, name string) error
	// Restored reads what a task found when it was started. The error wraps fs.ErrNotExist
	// if that is not written down.
	Restored(ctx context.Context, alloc *api.Allocation, task string) (private.Restored, error)
}

// mover is one move.
type mover struct {
	nomad  Nomad
	opts   Options
	result Result

	claim  *claim
	alloc  *api.Allocation // the old one
	job    *api.Job        // as it was before
	frozen *freeze
	stood  time.Time // since when all tasks stand still
	next   *api.Allocation
}

// record is what is written down.
func (m *mover) record() Record { return m.claim.now() }

// Move moves an allocation. The result says how far it came, also with an error.
func Move(ctx context.Context, nomad Nomad, req Request, opts Options) (Result, error) {
	m := &mover{nomad: nomad, opts: opts}
	m.result = Result{Alloc: req.Alloc, To: req.Node, Tasks: []Task{}, SaveS: status.Unknown(), DownS: status.Unknown()}
	err := m.step(ctx, PhaseCheck, func(ctx context.Context) error { return m.check(ctx, req.Node) })
	if err != nil || req.DryRun {
		return m.result, err
	}
	r := Record{
		Namespace: m.alloc.Namespace, Job: m.alloc.JobID, Group: m.alloc.TaskGroup, Alloc: m.alloc.ID,
		Source: m.alloc.NodeID, Target: req.Node, Phase: PhaseSave, Tasks: m.result.Tasks,
	}
	err = m.claimed(ctx, r, func(ctx context.Context) (over bool, err error) {
		m.frozen = newFreeze(ctx, m.nomad, m.alloc)
		defer m.frozen.end()
		if err := m.keepVersions(ctx); err != nil {
			m.opts.Report(PhaseCheck, "versions of the job may be forgotten: "+err.Error())
		}
		err = m.step(ctx, PhaseSave, m.save)
		if err == nil {
			err = m.step(ctx, PhaseBind, m.bind)
		}
		if err != nil && !m.result.Bound {
			return true, errors.Join(err, m.after(ctx, m.thaw))
		}
		if err != nil {
			return false, err
		}
		return m.finish(ctx)
	})
	return m.result, err
}

// claimed writes a move down, does it, and removes its record when it is over.
func (m *mover) claimed(ctx context.Context, r Record, do func(context.Context) (over bool, err error)) error {
	if r.ID == "" { // a new one
		id, err := uuid.GenerateUUID()
		if err != nil {
			return err
		}
		r.ID = short(id)
		r.Version, r.Before = *m.job.Version, *m.job.JobModifyIndex
	}
	r.Owner = m.opts.Owner
	m.claim = newClaim(m.opts.Claims, r)
	if err := persist(ctx, m.opts.Poll, func(ctx context.Context) error { return m.claim.put(ctx, func(*Record) {}) }); err != nil {
		return err
	}
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	kept := make(chan struct{})
	go func() { defer close(kept); m.claim.keep(keeping) }()
	over, err := do(ctx)
	stop()
	<-kept
	if !over {
		return err
	}
	return errors.Join(err, m.after(ctx, m.claim.drop))
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
func (m *mover) check(ctx context.Context, target string) error {
	alloc, err := m.nomad.Allocation(ctx, m.result.Alloc)
	if err != nil {
		return err
	}
	m.result.Namespace, m.result.Job, m.result.From = alloc.Namespace, alloc.JobID, alloc.NodeID
	job, err := m.nomad.Job(ctx, alloc.Namespace, alloc.JobID)
	if err != nil {
		return err
	}
	from, err := m.nomad.Node(ctx, alloc.NodeID)
	if err != nil {
		return err
	}
	to, err := m.nomad.Node(ctx, target)
	if err != nil {
		return err
	}
	tasks, reasons := movable(alloc, job, from, to)
	if len(reasons) > 0 {
		return &Refused{Reasons: reasons}
	}
	would := "Nomad would place it there"
	missing, err := planned(ctx, m.nomad, job, alloc.TaskGroup, to.ID)
	switch {
	case errors.Is(err, ErrNoPlan):
		would = "whether Nomad would place it there is not known"
	case err != nil:
		return err
	case missing != nil:
		return &Refused{[]string{fmt.Sprintf("Nomad would not place it on %s: %s", to.Name, unplaced(missing))}, true}
	}
	m.alloc, m.job = alloc, job
	for _, name := range tasks {
		m.result.Tasks = append(m.result.Tasks, Task{Name: name, Saved: status.Unknown(), Step: status.Unknown()})
	}
	m.done(PhaseCheck, "%s of job %s may move from %s to %s, and %s", short(alloc.ID), alloc.JobID, from.Name, to.Name, would)
	return nil
}

// planned is why Nomad would not place a group on a node; nil if it would. The error may be
// ErrNoPlan.
func planned(ctx context.Context, nomad Nomad, job *api.Job, group, node string) (*api.AllocationMetric, error) {
	bound, err := bind(job, group, node, "")
	if err != nil {
		return nil, err
	}
	plan, err := nomad.Plan(ctx, bound)
	if err != nil {
		return nil, err
	}
	return plan.FailedTGAllocs[group], nil
}

// save asks all tasks to save and waits until they stand still.
func (m *mover) save(ctx context.Context) error {
	begun := time.Now()
	before := make(map[string]status.Status)
	sent := make(map[string]time.Time)
	for _, t := range m.result.Tasks {
		st, err := m.nomad.Status(ctx, m.alloc, t.Name)
		if err != nil {
			return fmt.Errorf("task %s: %w", t.Name, err)
		}
		before[t.Name], sent[t.Name] = st, time.Now()
		if err := m.nomad.Signal(ctx, m.alloc, t.Name, signalCheckpoint); err != nil {
			return fmt.Errorf("task %s: %w", t.Name, err)
		}
	}
	for i := range m.result.Tasks {
		t := &m.result.Tasks[i]
		saving := savingOf(taskOf(m.job.LookupTaskGroup(m.alloc.TaskGroup), t.Name))
		if err := m.saved(ctx, t, before[t.Name], sent[t.Name].Add(saving.timeout+savesWithin)); err != nil {
			return err
		}
		// The driver froze it after the signal was sent; how much later is not known here.
		if err := m.frozen.renew(ctx, t.Name, saving.lease); err != nil {
			return err
		}
		m.frozen.add(t.Name, saving.lease)
		m.done(PhaseSave, "task %s has saved %s, %d bytes, and stands still", t.Name, t.Path, t.Bytes)
	}
	m.stood = time.Now()
	m.result.SaveS = status.Number(m.stood.Sub(begun).Seconds())
	return nil
}

// saved waits until a task has saved and stands still.
func (m *mover) saved(ctx context.Context, t *Task, before status.Status, deadline time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	saves := false
	return m.until(ctx, fmt.Sprintf("task %s has saved", t.Name), func() (bool, error) {
		st, err := m.nomad.Status(ctx, m.alloc, t.Name)
		if err != nil {
			if here := m.here(ctx); here != nil {
				err = here
			}
			return false, err
		}
		if st.Move.State == status.MoveFailed && st.Updated.After(before.Updated) {
			return false, fmt.Errorf("task %s: %s", t.Name, st.Move.Why)
		}
		if saves && st.Move.State == "" {
			return false, fmt.Errorf("task %s runs on: it was called off, or the driver's plugin was restarted", t.Name)
		}
		saves = saves || st.Move.State == status.MoveSaving
		if st.Move.State != status.MoveReady || !st.Move.Until.After(before.Move.Until) {
			return false, m.here(ctx)
		}
		t.Path, t.Bytes, t.Saved = st.Move.Path, st.Move.Bytes, st.Move.Step
		return true, nil
	})
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

// thaw lets the tasks run on where they are.
func (m *mover) thaw(ctx context.Context) error {
	if m.alloc.ID == "" { // the job has waited
		return nil
	}
	var tasks []string
	for _, t := range m.result.Tasks {
		tasks = append(tasks, t.Name)
	}
	return m.owned(ctx, func(ctx context.Context) error {
		runs, err := m.frozen.thaw(ctx, tasks)
		if runs {
			m.opts.Report(m.result.Phase, "it runs on where it is")
		}
		return err
	})
}

// owned does something while the record is surely ours: another process that has taken it over
// may have frozen the tasks, and they must stay so. It is done again when the record had to be
// renewed meanwhile.
func (m *mover) owned(ctx context.Context, do func(context.Context) error) error {
	for {
		if m.claim.held() != nil {
			if err := m.claim.put(ctx, func(*Record) {}); err != nil {
				return err
			}
		}
		within, cancel := context.WithDeadline(ctx, m.claim.ends())
		err := do(within)
		again := err != nil && within.Err() != nil && ctx.Err() == nil
		cancel()
		if !again {
			return err
		}
	}
}

// bind binds the job to the target.
func (m *mover) bind(ctx context.Context) error {
	bound, err := bind(m.job, m.alloc.TaskGroup, m.record().Target, m.record().ID)
	if err != nil {
		return err
	}
	adopt(bound.LookupTaskGroup(m.alloc.TaskGroup), "") // of an earlier move
	err = m.claim.put(ctx, func(r *Record) { r.Phase, r.Tasks = PhaseBind, m.result.Tasks })
	if err != nil {
		return err
	}
	// All is read once more. For a target that is dead Nomad would stop the old allocation
	// and give up what it has saved; from a source that is, it cannot carry the disk over.
	for _, node := range []string{m.record().Target, m.record().Source} {
		if err := m.nomad.Reach(ctx, node); err != nil {
			return err
		}
	}
	if err := m.here(ctx); err != nil {
		return err
	}
	within, cancel := m.frozen.within(ctx)
	defer cancel()
	index, err := m.registerBound(within, bound)
	if err != nil {
		return err
	}
	m.done(PhaseBind, "the job is bound to the target")
	return m.after(ctx, func(ctx context.Context) error {
		return m.claim.put(ctx, func(r *Record) { r.Phase, r.After = PhaseWait, index })
	})
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

// taskOf is a task of a group, by its name.
func taskOf(g *api.TaskGroup, name string) *api.Task {
	for _, t := range g.Tasks {
		if t.Name == name {
			return t
		}
	}
	return new(api.Task)
}

// short is an ID as Nomad shows it.
func short(id string) string {
	if len(id) > 8 {
		return id[:8]
	}
	return id
}
