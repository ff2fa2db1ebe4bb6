// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package move moves an allocation, with what it has saved, to another node.
//
// Nomad has no such operation: it stops an allocation and places a new one. With the steps
// below at most one copy of the job computes at any time, and it resumes from what it
// saved.
//
//	check ──► save ──► bind ──► wait ──► verify ──► unbind ──► done
//	  │         │       │        │         │          ▲
//	  ▼         ▼       ▼        ▼         ▼          │
//	refused   thaw    thaw    unbind,   rollback ─────┘
//	                          thaw; or
//	                          rollback
//
//	check     May it be moved, and would Nomad place it there? Nothing has changed yet.
//	          Then the Record is written, which claims the job: no other move of it can
//	          start, and any process can finish this one.
//	save      The driver asks the tasks to save, or awaits their own next save, and freezes
//	          them (signal EBBTIDE_CHECKPOINT): if they ended now, Nomad would run them again. The
//	          freeze is a lease, renewed (EBBTIDE_RENEW) until the old allocation ends.
//	bind      The job is registered with a constraint on the target that names the move,
//	          if it is unchanged since check. Nomad stops the old allocation only if
//	          it can place the new one. If the answer is lost, the outcome is resolved
//	          first (resolve).
//	wait      Nomad kills the frozen allocation, migrates its ephemeral disk and starts the
//	          new one.
//	verify    The target's driver has recorded what the new tasks found at their start;
//	          it is what the old ones saved.
//	unbind    The constraint is removed in place; it would keep the job on a dead target.
//	          The tasks of a batch job are frozen for that moment (EBBTIDE_FREEZE). A
//	          completed job is left as it is.
//	rollback  The target lacks what was saved and the source has it: the job is bound to
//	          the source, whose driver adopts the checkpoint, and unbound there.
//
// Binding makes two job versions. A constraint on dynamic node metadata that the job always has,
// with `alloc stop`, makes none, but Nomad then stops the allocation before it knows whether the new
// one fits.
//
// Below each step is what follows its failure. An unreachable server or agent is retried until
// the step's timeout. What cannot be completed stays claimed, for Recover.
package move

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-uuid"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/errgroup"

	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/document"
)

type Phase string

const (
	PhaseCheck    Phase = "check"
	PhaseSave     Phase = "save"
	PhaseBind     Phase = "bind"
	PhaseWait     Phase = "wait"
	PhaseVerify   Phase = "verify"
	PhaseUnbind   Phase = "unbind"
	PhaseRollback Phase = "rollback"
	PhaseDone     Phase = "done"
)

// The driver's signals (docs/reference.md, "Moving a task").
const (
	signalCheckpoint = "EBBTIDE_CHECKPOINT"
	signalFreeze     = "EBBTIDE_FREEZE"
	signalRenew      = "EBBTIDE_RENEW"
	signalThaw       = "EBBTIDE_RELEASE"
)

// Options configure a move.
type Options struct {
	// SaveTimeout bounds the wait for the tasks to save, in addition to their own timeouts;
	// UnaskedTimeout that for the next save of tasks that save by themselves.
	SaveTimeout, UnaskedTimeout time.Duration
	// PlaceTimeout bounds the time from the registration until the new allocation runs, which
	// includes the old one's end and the disk's migration.
	PlaceTimeout time.Duration
	// VerifyTimeout bounds the wait for the target's record of what the tasks found.
	VerifyTimeout time.Duration
	PollInterval  time.Duration
	// Report receives progress as sentences.
	Report func(Phase, string)
	// Claims stores the record. A dry run needs none.
	Claims Claims
	Owner  string
}

func DefaultOptions() Options {
	return Options{SaveTimeout: time.Hour, UnaskedTimeout: 24 * time.Hour, PlaceTimeout: 10 * time.Minute, VerifyTimeout: 5 * time.Minute, PollInterval: 100 * time.Millisecond, Report: func(Phase, string) {}}
}

const (
	// cleanupTimeout bounds work that is done even if the context has ended.
	cleanupTimeout = time.Minute
	// startTimeout bounds the wait for Nomad to replace, on the source, an allocation that could not
	// be started there: five seconds for a batch job by default, 30 for a service.
	startTimeout = 45 * time.Second
	// saveGrace is what a driver may take beyond checkpoint.timeout: for the freeze, an exiting
	// process, and the status.
	saveGrace = 30 * time.Second
	// firstStepTimeout bounds the wait for a moved task's first step, which is only reported.
	firstStepTimeout = 10 * time.Second
)

// Request names an allocation and its target by their full IDs.
type Request struct {
	Alloc, Node string
	Why         string // for people, in the record
	// DryRun ends after check.
	DryRun bool
}

type Result struct {
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Alloc     string `json:"alloc"`
	From      string `json:"from"` // node IDs
	To        string `json:"to"`
	// Phase is the last completed step, or the failed one.
	Phase Phase `json:"phase"`
	// NewAlloc is the allocation on the target, "" before it exists.
	NewAlloc string `json:"new_alloc,omitempty"`
	// Bound means that the job could not be unbound: its claim is left for Recover.
	Bound bool `json:"bound,omitempty"`
	// Tasks are the tasks that have saved.
	Tasks []Task `json:"tasks"`
	// SaveS is how long the tasks took to save and freeze when asked, in seconds; null before.
	SaveS status.Number `json:"save_s"`
	// DownS is the time from the last task's freeze until the new allocation ran, in seconds;
	// null before.
	DownS status.Number `json:"down_s"`
}

type Task struct {
	Name  string        `json:"name"`
	Path  string        `json:"path"`
	Bytes int64         `json:"bytes"`
	Saved status.Number `json:"saved_step"`   // lower bound of the checkpoint's step, null if unknown
	Step  status.Number `json:"resumed_step"` // first one seen on the target
}

// Refused lists why an allocation cannot be moved, or suspended. Nothing has changed.
type Refused struct {
	Reasons []string
	// Target means that only this target is unsuitable: Nomad would not place it there.
	Target  bool
	suspend bool
}

func (e *Refused) Error() string {
	what := "moved"
	if e.suspend {
		what = "suspended"
	}
	return "cannot be " + what + ": " + strings.Join(e.Reasons, "; ")
}

// ErrNotResumed means that the target lacks what was saved.
var ErrNotResumed = errors.New("the new allocation lacks the checkpoint")

// ErrNoPlan means that Nomad returned no plan. The move proceeds; an unsuitable target is then
// noticed only once the tasks are frozen.
var ErrNoPlan = errors.New("Nomad returned no plan")

// errInPlace means that binding the job does not move it. For jobs with a max_run_duration
// Nomad's scheduler (2.0.3 to at least 2.0.5) omits the check whether the node still suits.
var errInPlace = errors.New("Nomad updates it in place instead of replacing it, as Nomad 2.0.3 and later do with a max_run_duration")

// Nomad is what a move needs of a cluster.
type Nomad interface {
	Allocation(ctx context.Context, id string) (*api.Allocation, error)
	Allocations(ctx context.Context, namespace, job string) ([]*api.AllocationListStub, error)
	// Job returns the job as the server gives it.
	Job(ctx context.Context, namespace, id string) (*document.Job, error)
	Evaluations(ctx context.Context, namespace, job string) ([]*api.Evaluation, error)
	// Deployment returns the job's latest deployment, nil if there is none.
	Deployment(ctx context.Context, namespace, job string) (*api.Deployment, error)
	Node(ctx context.Context, id string) (*api.Node, error)
	// Reach fails if the node's agent cannot be reached now; a node's status lags behind.
	Reach(ctx context.Context, node string) error
	// Disk reads what a node's garbage collection depends on. It fails if the agent cannot be
	// reached.
	Disk(ctx context.Context, node *api.Node) (Disk, error)
	// Plan dry-runs Register and includes the differences. The error may be ErrNoPlan.
	Plan(ctx context.Context, job *document.Job) (*api.JobPlanResponse, error)
	// Register registers the job if it is unchanged since it was read, and if nothing has been
	// edited but what is Ebbtide's.
	Register(ctx context.Context, job *document.Job) (*api.JobRegisterResponse, error)
	Signal(ctx context.Context, alloc *api.Allocation, task, signal string) error
	// Status reads a task's status from where the task cannot write.
	Status(ctx context.Context, alloc *api.Allocation, task string) (status.Status, error)
	// Versions returns the job's versions, newest first.
	Versions(ctx context.Context, namespace, job string) ([]*document.Job, error)
	Tag(ctx context.Context, namespace, job string, version uint64, name string) error
	Untag(ctx context.Context, namespace, job, name string) error
	// Restored reads what a task found at its start. The error wraps fs.ErrNotExist if that is
	// not recorded.
	Restored(ctx context.Context, alloc *api.Allocation, task string) (private.Restored, error)
}

type mover struct {
	nomad  Nomad
	opts   Options
	result Result

	claim    *claim
	alloc    *api.Allocation // the old allocation
	from, to *api.Node       // unset in Recover
	job      *document.Job   // as it was before
	frozen   *freeze
	frozenAt time.Time // when the last task was frozen
	next     *api.Allocation
}

func newMover(nomad Nomad, req Request, opts Options) *mover {
	r := Result{Alloc: req.Alloc, To: req.Node, Tasks: []Task{}, SaveS: status.Unknown(), DownS: status.Unknown()}
	return &mover{nomad: nomad, opts: opts, result: r}
}

func (m *mover) record() Record { return m.claim.now() }

// newRecord returns the record of what has been checked.
func (m *mover) newRecord(why string) Record {
	return Record{
		Namespace: m.alloc.Namespace, Job: m.alloc.JobID, Group: m.alloc.TaskGroup, Alloc: m.alloc.ID,
		Source: m.alloc.NodeID, Target: m.result.To, Why: why, Phase: PhaseSave, Tasks: slices.Clone(m.result.Tasks),
		Version: *m.job.Version, Before: *m.job.JobModifyIndex,
	}
}

// Move moves an allocation. The result says how far it came, also after an error.
func Move(ctx context.Context, nomad Nomad, req Request, opts Options) (Result, error) {
	m := newMover(nomad, req, opts)
	err := m.step(ctx, PhaseCheck, func(ctx context.Context) error { return m.check(ctx, req.Node) })
	if err != nil || req.DryRun {
		return m.result, err
	}
	err = m.execute(ctx, m.newRecord(req.Why), PhaseBind, m.bind, m.finish)
	return m.result, err
}

// execute has the tasks save, registers the job in a phase while they are frozen, and finishes.
func (m *mover) execute(ctx context.Context, r Record, phase Phase, register func(context.Context) error, finish func(context.Context) (over bool, err error)) error {
	return m.withClaim(ctx, r, func(ctx context.Context) (over bool, err error) {
		m.frozen = newFreeze(ctx, m.nomad, m.alloc)
		defer m.frozen.stop()
		if err := m.keepVersions(ctx); err != nil {
			m.opts.Report(PhaseCheck, "Nomad may garbage-collect the user's versions of the job: "+err.Error())
		}
		err = m.step(ctx, PhaseSave, m.save)
		if err == nil {
			err = m.step(ctx, phase, register)
		}
		if err != nil && !m.result.Bound {
			return true, errors.Join(err, m.detached(ctx, m.thaw))
		}
		if err != nil {
			return false, err
		}
		return finish(ctx)
	})
}

// withClaim writes the claim, keeps it renewed during do, and drops it if the move is over.
func (m *mover) withClaim(ctx context.Context, r Record, do func(context.Context) (over bool, err error)) error {
	if r.ID == "" { // a new move
		id, err := uuid.GenerateUUID()
		if err != nil {
			return err
		}
		r.ID = short(id)
	}
	r.Owner = m.opts.Owner
	m.claim = newClaim(m.opts.Claims, r)
	if err := retry(ctx, m.opts.PollInterval, func(ctx context.Context) error { return m.claim.update(ctx, func(*Record) {}) }); err != nil {
		return err
	}
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	kept := make(chan struct{})
	go func() { defer close(kept); m.claim.renewLoop(keeping) }()
	over, err := do(ctx)
	stop()
	<-kept
	if !over {
		return err
	}
	return errors.Join(err, m.detached(ctx, m.claim.drop))
}

func (m *mover) step(ctx context.Context, phase Phase, do func(context.Context) error) error {
	m.result.Phase = phase
	if err := do(ctx); err != nil {
		return fmt.Errorf("%s: %w", phase, err)
	}
	return nil
}

// detached runs do, with retries, even if ctx has ended.
func (m *mover) detached(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	return retry(ctx, m.opts.PollInterval, do)
}

func (m *mover) done(phase Phase, format string, args ...any) {
	m.result.Phase = phase
	m.opts.Report(phase, fmt.Sprintf(format, args...))
}

// read reads the allocation, its job and its node.
func (m *mover) read(ctx context.Context) (alloc *api.Allocation, job *document.Job, from *api.Node, err error) {
	if alloc, err = m.nomad.Allocation(ctx, m.result.Alloc); err != nil {
		return nil, nil, nil, err
	}
	m.result.Namespace, m.result.Job, m.result.From = alloc.Namespace, alloc.JobID, alloc.NodeID
	if job, err = m.nomad.Job(ctx, alloc.Namespace, alloc.JobID); err == nil {
		from, err = m.nomad.Node(ctx, alloc.NodeID)
	}
	return alloc, job, from, err
}

// willSave sets the tasks that are to save.
func (m *mover) willSave(names []string) {
	for _, name := range names {
		m.result.Tasks = append(m.result.Tasks, Task{Name: name, Saved: status.Unknown(), Step: status.Unknown()})
	}
}

// check reads everything afresh and collects the reasons against the move.
func (m *mover) check(ctx context.Context, target string) error {
	alloc, job, from, err := m.read(ctx)
	if err != nil {
		return err
	}
	to, err := m.nomad.Node(ctx, target)
	if err != nil {
		return err
	}
	tasks, reasons := movable(alloc, job.Job, from, to)
	if text(job.Type) == api.JobTypeService { // others have no deployments
		d, err := m.nomad.Deployment(ctx, alloc.Namespace, alloc.JobID)
		if err != nil {
			return err
		}
		if deploying(d) {
			reasons = append(reasons, fmt.Sprintf("its job's deployment %s is %s, and Nomad would cancel it", short(d.ID), d.Status))
		}
	}
	if len(reasons) > 0 {
		return &Refused{Reasons: reasons}
	}
	m.alloc, m.job, m.from, m.to = alloc, job, from, to
	if err := m.keeps(ctx); err != nil {
		return err
	}
	would := "Nomad would place it there"
	missing, err := planned(ctx, m.nomad, job, alloc.TaskGroup, to.ID)
	switch {
	case errors.Is(err, ErrNoPlan):
		would = "Nomad returned no plan"
	case errors.Is(err, errInPlace):
		return &Refused{Reasons: []string{err.Error()}}
	case err != nil:
		return err
	case missing != nil:
		return &Refused{Reasons: []string{fmt.Sprintf("Nomad would not place it on %s: %s", to.Name, placementFailure(missing))}, Target: true}
	}
	m.willSave(tasks)
	m.done(PhaseCheck, "%s of job %s may move from %s to %s, and %s", short(alloc.ID), alloc.JobID, from.Name, to.Name, would)
	return nil
}

// planned returns why Nomad would not place the group on the node, nil if it would. The error
// may be ErrNoPlan or errInPlace.
func planned(ctx context.Context, nomad Nomad, job *document.Job, group, node string) (*api.AllocationMetric, error) {
	bound, err := bind(job, group, node, "", "")
	if err != nil {
		return nil, err
	}
	plan, err := nomad.Plan(ctx, bound)
	if err != nil {
		return nil, err
	}
	if updates(plan, group).InPlaceUpdate > 0 {
		return nil, errInPlace
	}
	return plan.FailedTGAllocs[group], foreign(plan)
}

// save has all tasks save and waits until they are frozen. Those that save by themselves come first:
// meanwhile the others would be frozen.
func (m *mover) save(ctx context.Context) error {
	group := m.job.LookupTaskGroup(m.alloc.TaskGroup)
	tasks := make(map[bool][]*Task) // by whether they are asked
	for i := range m.result.Tasks {
		t := &m.result.Tasks[i]
		asked := savingOf(taskOf(group, t.Name)).asked
		tasks[asked] = append(tasks[asked], t)
	}
	if err := m.saveTasks(ctx, group, tasks[false]); err != nil {
		return err
	}
	begun := time.Now()
	if err := m.saveTasks(ctx, group, tasks[true]); err != nil {
		return err
	}
	m.frozenAt = time.Now()
	m.result.SaveS = status.Number(m.frozenAt.Sub(begun).Seconds())
	return nil
}

func (m *mover) saveTasks(ctx context.Context, group *api.TaskGroup, tasks []*Task) error {
	before := make(map[string]status.Status)
	sent := make(map[string]time.Time)
	for _, t := range tasks {
		st, err := m.nomad.Status(ctx, m.alloc, t.Name)
		if err != nil {
			return fmt.Errorf("task %s: %w", t.Name, err)
		}
		before[t.Name], sent[t.Name] = st, time.Now()
		if err := m.nomad.Signal(ctx, m.alloc, t.Name, signalCheckpoint); err != nil {
			return fmt.Errorf("task %s: %w", t.Name, err)
		}
	}
	// At once, as each lease must be renewed as soon as its task is frozen.
	all, ctx := errgroup.WithContext(ctx)
	for _, t := range tasks {
		all.Go(func() error {
			saving := savingOf(taskOf(group, t.Name))
			if err := m.waitSaved(ctx, t, before[t.Name], sent[t.Name], saving); err != nil {
				return err
			}
			// The status does not say when the driver froze it; a renewal starts a known lease.
			return m.frozen.keep(ctx, t.Name, signalRenew, saving.lease)
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	for _, t := range tasks {
		m.done(PhaseSave, "task %s has saved %s, %d bytes, and is frozen", t.Name, t.Path, t.Bytes)
	}
	return nil
}

func (m *mover) waitSaved(ctx context.Context, t *Task, before status.Status, sent time.Time, saving saving) error {
	most, poll := min(saving.timeout, m.opts.SaveTimeout), m.opts.PollInterval
	if !saving.asked { // for long
		most, poll = min(saving.timeout, m.opts.UnaskedTimeout), max(poll, min(time.Second, saving.lease/10))
	}
	ctx, cancel := context.WithDeadline(ctx, sent.Add(most+saveGrace))
	defer cancel()
	saves := false
	return until(ctx, poll, fmt.Sprintf("task %s has saved", t.Name), func() (bool, error) {
		st, err := m.nomad.Status(ctx, m.alloc, t.Name)
		if err != nil {
			if here := m.stillRunning(ctx); here != nil {
				err = here
			}
			return false, err
		}
		if st.Move.State == status.MoveFailed && st.Updated.After(before.Updated) {
			return false, fmt.Errorf("task %s: %s", t.Name, st.Move.Why)
		}
		if saves && st.Move.State == "" {
			return false, fmt.Errorf("task %s is running again: the save was cancelled, or the driver's plugin restarted", t.Name)
		}
		saves = saves || st.Move.State == status.MoveSaving
		if st.Move.State != status.MoveReady || !st.Move.Until.After(before.Move.Until) {
			return false, m.stillRunning(ctx)
		}
		t.Path, t.Bytes, t.Saved = st.Move.Path, st.Move.Bytes, st.Move.Step
		return true, nil
	})
}

// stillRunning returns a permanent error once the old allocation has ended or is to end.
func (m *mover) stillRunning(ctx context.Context) error {
	now, err := m.nomad.Allocation(ctx, m.alloc.ID)
	switch {
	case notFound(err):
		return errors.New("the allocation was removed")
	case err != nil:
		return err
	case !running(now):
		return fmt.Errorf("the allocation is not running: client status %s, desired status %s", now.ClientStatus, now.DesiredStatus)
	}
	return nil
}

func (m *mover) thaw(ctx context.Context) error {
	if m.alloc.ID == "" { // a held job
		return nil
	}
	var tasks []string
	for _, t := range m.result.Tasks {
		tasks = append(tasks, t.Name)
	}
	return m.whileClaimed(ctx, func(ctx context.Context) error {
		runs, err := m.frozen.thaw(ctx, tasks)
		if runs {
			m.opts.Report(m.result.Phase, "it keeps running on its source")
		}
		return err
	})
}

// whileClaimed runs do while the claim is certainly valid, as another owner may have frozen the
// tasks and needs them frozen. do is repeated if the claim had to be renewed.
func (m *mover) whileClaimed(ctx context.Context, do func(context.Context) error) error {
	for {
		if m.claim.valid() != nil {
			if err := m.claim.update(ctx, func(*Record) {}); err != nil {
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

func (m *mover) bind(ctx context.Context) error {
	bound, err := bind(m.job, m.alloc.TaskGroup, m.record().Target, m.record().ID, "")
	if err != nil {
		return err
	}
	// The disks once more: the tasks have saved, and time has passed.
	index, err := m.registerSaved(ctx, PhaseBind, bound, m.keeps)
	if err != nil {
		return err
	}
	m.done(PhaseBind, "the job is bound to the target")
	return m.detached(ctx, func(ctx context.Context) error {
		return m.claim.update(ctx, func(r *Record) { r.Phase, r.After = PhaseWait, index })
	})
}

// registerSaved records what the tasks have saved, and registers the job while they are frozen and
// the last check holds. It returns as registerBound does.
func (m *mover) registerSaved(ctx context.Context, phase Phase, job *document.Job, check func(context.Context) error) (index uint64, err error) {
	err = m.claim.update(ctx, func(r *Record) { r.Phase, r.Tasks = phase, slices.Clone(m.result.Tasks) })
	if err == nil {
		err = check(ctx)
	}
	if err == nil {
		err = m.frozen.renew(ctx) // Nomad's stop must not outlast the lease
	}
	if err == nil {
		err = m.stillRunning(ctx)
	}
	if err != nil {
		return 0, err
	}
	within, cancel := m.frozen.within(ctx)
	defer cancel()
	return m.registerBound(within, job)
}

func (m *mover) until(ctx context.Context, what string, ok func() (bool, error)) error {
	return until(ctx, m.opts.PollInterval, what, ok)
}

func resumed(t Task) string {
	if math.IsNaN(float64(t.Step)) || math.IsNaN(float64(t.Saved)) {
		return "resumed at an unknown step"
	}
	return fmt.Sprintf("resumed: it saved step %.0f or later and is at step %.0f", float64(t.Saved), float64(t.Step))
}

func taskOf(g *api.TaskGroup, name string) *api.Task {
	for _, t := range g.Tasks {
		if t.Name == name {
			return t
		}
	}
	return new(api.Task)
}

// short truncates an ID as Nomad's CLI does.
func short(id string) string {
	if len(id) > 8 {
		return id[:8]
	}
	return id
}
