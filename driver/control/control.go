// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package control is the control loop of a node: it collects the observers' measurements (package
// measure), takes a snapshot of the node (policy.Snapshot), evaluates the policy, plans limits
// (package plan), enforces them (package enforce) and publishes the result (package publish). Start
// with Controller.Run and decide.
//
// One goroutine owns all state; anything that may block (reading progress, the engine's daemon,
// drawing) runs in others. The loop never returns an error to Nomad: a task that cannot be measured
// or limited runs as under plain Nomad.
package control

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/measure"
	"github.com/ebbtide/ebbtide/driver/metrics"
	"github.com/ebbtide/ebbtide/driver/plan"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/fsp"
	"github.com/ebbtide/ebbtide/driver/policy/specon"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/publish"
	"github.com/ebbtide/ebbtide/driver/remaining"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/driver/target"
)

// Options configure a Controller. They must be valid.
type Options struct {
	Engine    string // for the status
	Policy    policy.Decider
	Policies  map[string]json.RawMessage
	Estimator string
	Mode      plan.Mode

	Interval    time.Duration
	MaxInterval time.Duration // maximum of Interval

	SpeCon         specon.Params
	SpeConInterval time.Duration // period of SpeCon's Algorithm 1

	PoolCores     policy.Cores
	PoolFixed     bool    // set by the operator: tasks' `cores` are not subtracted
	NodeMemory    float64 // bytes
	QuotaMinCores float64

	// SharedCPUs returns the CPUs that no task owns (limits.SharedCPUs). If nil, only Ebbtide's own
	// tasks are counted.
	SharedCPUs func() ([]int, error)

	// OwnQuota returns the plugin's current CPU quota in cores, 0 if none (limits.OwnQuota); nil to
	// ignore it.
	OwnQuota func() (float64, error)

	// Idle returns the idle time of each of the CPUs in seconds (limits.IdleTimes); nil if unknown.
	Idle func(cpus []int) (map[int]float64, error)

	// NoProgressAfter is the time without progress in a task's output after which an event reports
	// it.
	NoProgressAfter time.Duration

	// Turns is the order in which fair finish lets tasks on a shared card go first; "": all run at once.
	Turns fsp.Prefer

	// Node returns the Nomad node's ID, "" or nil if unknown.
	Node func() string

	// Emit sends an event to Nomad. It is called outside the loop.
	Emit func(publish.Event)

	Metrics *metrics.Metrics
}

// Cgroup is the part of limits.Cgroup that the loop uses.
type Cgroup interface {
	Usage() (limits.Usage, error)
	Resources() limits.Resources
	Threads() limits.Threads
	Read() (limits.Limits, error)
	Set(limits.Limits) error
	InForce(want, got limits.Limits) bool
	Conversion() limits.Conversion
	SetConversion(limits.Conversion)
}

// Task is a running task.
type Task struct {
	ID, AllocID, Name, JobID string

	SharedDir string // the allocation's shared directory (NOMAD_ALLOC_DIR), for output
	Private   private.Dir

	// Open opens the source of the task's progress. Where describes the source; "" means the task's
	// output.
	Open  func() (progress.Source, error)
	Where string
	// NoOutput means that Nomad does not collect the task's output.
	NoOutput bool

	// Work is the task's size as declared before it reports.
	Work remaining.Declared
	// OnEnd receives the last measurement. It is called outside the loop.
	OnEnd func(measure.Measurement)

	// Targets are the job's. With Targets.QoE the task is a service, and its reports are response
	// times.
	Targets target.Targets
	// Watcher detects the targets of a training task; nil without targets.
	Watcher *target.Watcher
	// OnTarget is called outside the loop when a target is first reached. After the objective, the
	// task gets no more decisions.
	OnTarget func(target.Reached)

	Limited bool    // false: never limited
	Movable bool    // the job allows moves to another node
	Pinned  float64 // number of cores the task owns (`cores`), outside the pool
	Shares  uint64  // requested from Nomad; used if the kernel's cannot be read

	// Recovered means that the task started before this loop.
	Recovered bool

	// Locate finds the task's cgroup; it may call a daemon.
	Locate func(context.Context) (Cgroup, error)
	// GPU reads the device plugin's report of the task; nil: it has no seat on a card. The error
	// wraps fs.ErrNotExist if there is no report.
	GPU func() (handoff.Report, error)
	// Turns is the directory in which the device plugin looks whose turn it is (handoff.WriteTurns); "":
	// the task has no seat.
	Turns string
}

func (t Task) kind() policy.Kind {
	if t.Targets.QoE > 0 {
		return policy.Service
	}
	return policy.Training
}

// Controller runs the loop.
type Controller struct {
	opts  Options
	log   hclog.Logger
	plots *publish.Plots

	mu     sync.Mutex
	posted []func(context.Context)
	wake   chan struct{}

	// The fields below are owned by the loop.
	tasks      []*task                 // by arrival
	late       map[run]<-chan struct{} // closed once the last lines of an ended task are read
	interval   time.Duration
	nextRun    time.Time
	decided    time.Time       // time of the last decision
	measuring  bool            // waiting for the observers
	pool       policy.Cores    // at the last decision
	cpus       []int           // that no task owned then; nil if unknown
	graceUntil time.Time       // no decisions before, while tasks are being recovered
	alpha      float64         // of the last decision; NaN if the policy has none
	state      json.RawMessage // of the policy
	floor      float64         // of the last decision
	guarded    bool            // the last decision guarantees its limits for one interval only
	nextSpeCon time.Time       // SpeCon's Algorithm 1 is due
	leftCores  policy.Cores    // CPU use of tasks that left since the last regular decision
	damper     *plan.Damper
	snapshot   snapshot
	twins      twins
	cards      cards
	ticked     time.Time
}

// New returns a Controller; call Run to start it.
func New(opts Options, logger hclog.Logger) *Controller {
	return &Controller{
		opts:     opts,
		log:      logger.Named("control"),
		plots:    publish.NewPlots(),
		wake:     make(chan struct{}, 1),
		late:     make(map[run]<-chan struct{}),
		interval: opts.Interval,
		alpha:    math.NaN(),
		pool:     opts.PoolCores,
		damper:   plan.NewDamper(opts.Interval),
		cards:    cards{ghosts: make(map[string][]policy.Task), told: make(map[string]handoff.Turns)},
	}
}

// Add adds a task. It does not block.
func (c *Controller) Add(t Task) {
	c.post(func(ctx context.Context) { c.add(ctx, t) })
}

// Ended is what the loop reports about a removed task.
type Ended struct {
	Reported bool          // an event was sent
	Run      remaining.Run // cost as last read
}

// Remove removes a task that has ended: by itself with success, or at its objective; or it failed or
// was stopped, and its end says nothing about the time that it would have needed. It does not block;
// the channel receives one value.
func (c *Controller) Remove(id string, succeeded bool) <-chan Ended {
	ended := make(chan Ended, 1)
	c.post(func(ctx context.Context) { ended <- c.remove(ctx, id, succeeded) })
	return ended
}

// LastLines waits until the last output of a task's earlier run in an allocation has been read: the
// log collector writes it after the run's end, and the next run would take it for its own.
func (c *Controller) LastLines(ctx context.Context, allocID, name string) {
	ctx, stop := context.WithTimeout(ctx, lastLinesWithin)
	defer stop()
	late := make(chan (<-chan struct{}), 1)
	c.post(func(context.Context) { late <- c.late[run{allocID, name}] })
	var read <-chan struct{}
	select {
	case read = <-late:
	case <-ctx.Done():
	}
	if read == nil {
		return
	}
	select {
	case <-read:
	case <-ctx.Done():
	}
}

// Earlier sets the cost of a task's earlier run. It does not block.
func (c *Controller) Earlier(id string, run remaining.Run) {
	c.post(func(context.Context) {
		if t := c.find(id); t != nil {
			t.observer.Earlier(run)
		}
	})
}

// Moving sets the state of a task's move. While the task saves it has Nomad's limits, because
// Ebbtide's would delay the move. It does not block.
func (c *Controller) Moving(id string, m status.Move) {
	c.post(func(ctx context.Context) {
		t := c.find(id)
		if t == nil {
			return
		}
		t.move = m
		c.cards.changed = true
		if m.State == status.MoveSaving && t.limiter != nil && t.Limited {
			t.limiter.Set(ctx, t.base)
		}
		c.show(t, time.Now(), false) // a move waits for it while the task is frozen
	})
}

// Step returns the last step reported by a task; NaN if unknown or ctx is done.
func (c *Controller) Step(ctx context.Context, id string) float64 {
	step := make(chan float64, 1)
	c.post(func(context.Context) {
		if t := c.find(id); t != nil {
			step <- t.observer.Latest().Report.Step
			return
		}
		step <- math.NaN()
	})
	select {
	case v := <-step:
		return v
	case <-ctx.Done():
		return math.NaN()
	}
}

func (c *Controller) post(f func(context.Context)) {
	c.mu.Lock()
	c.posted = append(c.posted, f)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *Controller) takePosted() []func(context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fs := c.posted
	c.posted = nil
	return fs
}

// tickEvery allows several reports per interval: with the default interval, one second.
func (c *Controller) tickEvery() time.Duration {
	return min(max(c.opts.Interval/10, 100*time.Millisecond), time.Second)
}

// Run runs the loop until ctx is done. It leaves the limits, as tasks outlive the plugin.
func (c *Controller) Run(ctx context.Context) {
	go c.plots.Run(ctx)
	c.loop(ctx)
}

func (c *Controller) loop(ctx context.Context) {
	ticker := time.NewTicker(c.tickEvery())
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
			for _, f := range c.takePosted() {
				f(ctx)
			}
		case <-ticker.C:
			c.tick(ctx)
		}
	}
}

func (c *Controller) tick(ctx context.Context) {
	now := time.Now()
	reached, since := false, now.Sub(c.ticked)
	if c.ticked.IsZero() {
		since = 0
	}
	c.ticked = now
	for _, t := range c.tasks {
		was := t.reached
		t.refresh(now)
		t.refreshGPU(now, since)
		reached = reached || t.reached != was
	}
	if reached && !now.Before(c.graceUntil) {
		c.decide(ctx, policy.EventTarget) // TRADL: its allocator runs when a tracker reports a target
	}
	c.runWhenDue(ctx, now)
	c.decideTurns(now)
	for _, t := range c.tasks {
		if t.show.Due(now, c.showEvery()) {
			c.show(t, now, false)
		}
	}
	c.saveSnapshot()
	c.publishMetrics()
	c.opts.Metrics.Tick.Observe(time.Since(now).Seconds())
}

// measureWithin bounds the wait for observers. The last measurement of a slower one is used.
func (c *Controller) measureWithin() time.Duration {
	return min(c.opts.Interval/10, time.Second)
}

// runWhenDue decides at the end of an interval and, at the end of one of SpeCon's, categorises for
// the shim, after the observers have measured.
func (c *Controller) runWhenDue(ctx context.Context, now time.Time) {
	if c.nextSpeCon.IsZero() {
		c.nextSpeCon = now.Add(c.opts.SpeConInterval)
	}
	run := !now.Before(c.nextRun) && !now.Before(c.graceUntil)
	sort := !now.Before(c.nextSpeCon)
	if c.measuring || len(c.tasks) == 0 || !run && !sort {
		return
	}
	c.measuring = true
	var asked []<-chan struct{}
	for _, t := range c.tasks {
		asked = append(asked, t.observer.Measure(sort))
	}
	go func() {
		late := time.NewTimer(c.measureWithin())
		defer late.Stop()
	wait:
		for _, done := range asked {
			select {
			case <-done:
			case <-late.C:
				break wait
			case <-ctx.Done():
				return
			}
		}
		c.post(func(ctx context.Context) {
			c.measuring = false
			if run {
				c.decide(ctx, policy.EventNone)
			}
			if sort {
				c.categorise(time.Now())
			}
		})
	}()
}

func (c *Controller) add(ctx context.Context, t Task) {
	if c.find(t.ID) != nil {
		return
	}
	s := c.newTask(ctx, t)
	c.tasks = append(c.tasks, s)
	c.restoreTwins(s)
	if t.Recovered {
		// The driver recovers tasks one by one: a decision over the first few would lift limits
		// that are soon set again.
		c.graceUntil = time.Now().Add(min(c.opts.Interval, 3*time.Second))
	}
	c.locate(ctx, s, 100*time.Millisecond)
}

func (c *Controller) locate(ctx context.Context, t *task, retry time.Duration) {
	go func() {
		cg, err := t.Locate(ctx)
		c.post(func(ctx context.Context) {
			if t.gone {
				return
			}
			if err != nil {
				t.notLocated(err)
				time.AfterFunc(retry, func() {
					c.post(func(ctx context.Context) {
						if !t.gone {
							c.locate(ctx, t, min(2*retry, 30*time.Second))
						}
					})
				})
				return
			}
			c.attach(t, cg)
			if time.Now().Before(c.graceUntil) {
				c.nextRun = c.graceUntil
				return
			}
			c.decide(ctx, policy.EventJoin) // Algorithm 2: a join runs Algorithm 1
		})
	}()
}

// remove removes a task, writes its last status and decides for the remaining ones.
func (c *Controller) remove(ctx context.Context, id string, succeeded bool) (ended Ended) {
	t := c.find(id)
	if t == nil {
		return ended
	}
	t.gone = true
	now := time.Now()
	t.refresh(now)
	t.readUsage()
	ended = Ended{Reported: c.reportEnd(t, now, succeeded), Run: t.m.Run(t.usage.CPUSeconds)}
	c.show(t, now, true)
	c.count(t)
	c.opts.Metrics.EventsDropped.Add(float64(t.show.Waiting()))
	read, of := make(chan struct{}), run{t.AllocID, t.Name}
	c.late[of] = read
	time.AfterFunc(lateOutput, func() {
		m := t.observer.Finish(ctx)
		if t.OnEnd != nil {
			t.OnEnd(m)
		}
		c.post(func(ctx context.Context) {
			c.finalStatus(t, m.Reports)
			if c.late[of] == read {
				delete(c.late, of)
			}
			close(read)
		})
	})
	c.tasks = slices.DeleteFunc(c.tasks, func(o *task) bool { return o == t })
	if t.Limited {
		c.leftCores += t.cores
	}
	c.leaveCard(t)
	c.decideTurns(now)
	if len(c.tasks) > 0 && !now.Before(c.graceUntil) {
		c.decide(ctx, policy.EventLeave) // Algorithm 2: as does a leave
	}
	return ended
}

// lateOutput bounds the delay of a task's last lines in Nomad's log collector.
const lateOutput = 500 * time.Millisecond

// lastLinesWithin bounds the delay of a run by its predecessor's last lines.
const lastLinesWithin = lateOutput + 2*time.Second

// run identifies a task in an allocation, whose runs have the same log files.
type run struct{ allocID, name string }

// finalStatus corrects the last status by late reports, unless the task has been restarted: then
// the files are the new run's.
func (c *Controller) finalStatus(t *task, reports int64) {
	for _, o := range c.tasks {
		if o.AllocID == t.AllocID && o.Name == t.Name {
			return
		}
	}
	if reports > t.m.Reports {
		now := time.Now()
		t.refresh(now)
		c.show(t, now, true)
	}
}

func (c *Controller) find(id string) *task {
	for _, t := range c.tasks {
		if t.ID == id {
			return t
		}
	}
	return nil
}
