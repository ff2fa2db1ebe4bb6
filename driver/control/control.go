// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package control is the loop beside a node's tasks: it collects the observers'
// measurements (package measure), takes a snapshot of the node (policy.Snapshot), asks
// the policy, plans limits (package plan), enforces them (package enforce) and
// publishes the result (package publish). Start with Controller.Run and decide.
//
// One goroutine owns all state; anything that may block (reading progress, the engine's
// daemon, drawing) runs in others. The loop never returns an error to Nomad: a task
// that cannot be measured or limited runs as under plain Nomad.
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
	"github.com/ebbtide/ebbtide/driver/policy/specon"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/publish"
	"github.com/ebbtide/ebbtide/driver/remaining"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/driver/target"
)

// Options configure a Controller; they must be valid.
type Options struct {
	Engine    string // for the status
	Policy    policy.Decider
	Policies  map[string]json.RawMessage
	Estimator string
	Mode      plan.Mode

	Interval    time.Duration
	MaxInterval time.Duration // its maximum

	SpeCon         specon.Params
	SpeConInterval time.Duration // over which a gain is measured

	PoolCores     policy.Cores
	PoolFixed     bool    // set by the operator: tasks' own cores are not subtracted
	NodeMemory    float64 // bytes
	QuotaMinCores float64
	IOWeight      bool // also set block I/O weights, if the kernel has them

	// SharedCores counts the CPUs that no task owns (limits.SharedCores); nil if only
	// Ebbtide's own tasks count.
	SharedCores func() (int, error)

	// OwnQuota reads the plugin's CPU quota in cores, 0 if none (limits.OwnQuota); nil
	// to ignore it. It may change at any time.
	OwnQuota func() (float64, error)

	// Idle reads the machine's idle time in core-seconds (limits.IdleTime); nil if
	// unknown.
	Idle func() (float64, error)

	// NoProgressAfter is how long a task's output may lack progress before an event
	// reports it.
	NoProgressAfter time.Duration

	// Node returns the Nomad node's ID, "" while unknown; nil if always unknown.
	Node func() string

	// Emit sends an event to Nomad, from another goroutine.
	Emit func(publish.Event)

	// Metrics are kept up to date.
	Metrics *metrics.Metrics
}

// Cgroup is the part of limits.Cgroup that the loop uses.
type Cgroup interface {
	Usage() (limits.Usage, error)
	Resources() limits.Resources
	Threads() limits.Threads
	Read() (limits.Limits, error)
	InForce(want, got limits.Limits) bool
	SetIOWeight(uint64) error
	Conversion() limits.Conversion
	SetConversion(limits.Conversion)
}

// Task is a running task.
type Task struct {
	ID, AllocID, Name, JobID string

	SharedDir string      // the allocation's shared directory (NOMAD_ALLOC_DIR): output
	Private   private.Dir // the allocation's private directory

	// Open opens the source of the task's progress. Where describes it; "" is the
	// task's output.
	Open  func() (progress.Source, error)
	Where string

	// Work is what is known of the task's size before it reports.
	Work remaining.Declared
	// OnEnd is called with the last measurement, outside the loop.
	OnEnd func(measure.Measurement)

	// Targets are the job's; with Targets.QoE the task is a service, and its reports
	// are response times.
	Targets target.Targets
	// Watcher detects the targets of a training task; nil without any.
	Watcher *target.Watcher
	// OnTarget is called, outside the loop, when a target is first reached. After the
	// objective there are no more decisions for the task.
	OnTarget func(target.Reached)

	Limited bool    // false: never limit it
	Movable bool    // its job allows moves to another node
	Pinned  float64 // cores that the task owns (`cores`), outside the pool
	Shares  uint64  // requested from Nomad, if the kernel's are unreadable

	// Recovered means that the task was running before this loop.
	Recovered bool

	// Locate finds the task's cgroup; it may call a daemon.
	Locate func(context.Context) (Cgroup, error)
	// GPU reads how the task fares on a shared card; nil: it has no seat on one. The error
	// wraps fs.ErrNotExist if nothing is reported.
	GPU func() (handoff.Report, error)

	// Apply sets the task's limits; it may call a daemon.
	Apply func(context.Context, Cgroup, limits.Limits) error
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

	// Owned by the loop.
	tasks      []*task // in order of arrival
	interval   time.Duration
	nextRun    time.Time
	decided    time.Time       // when the last decision was made
	measuring  bool            // a run waits for the observers
	pool       policy.Cores    // at the last decision
	graceUntil time.Time       // no decisions before: tasks are still being recovered
	alpha      float64         // of the last decision, NaN if the policy has none
	state      json.RawMessage // the policy's own
	floor      float64         // of the last decision
	guarded    bool            // the last decision guarantees its limits for an interval only
	nextSpeCon time.Time       // when SpeCon's Algorithm 1 is due
	leftCores  policy.Cores    // use of tasks that left since the last regular run
	damper     *plan.Damper
	snapshot   snapshot
	twins      twins
}

// New returns a Controller, to be started by Run.
func New(opts Options, logger hclog.Logger) *Controller {
	return &Controller{
		opts:     opts,
		log:      logger.Named("control"),
		plots:    publish.NewPlots(),
		wake:     make(chan struct{}, 1),
		interval: opts.Interval,
		alpha:    math.NaN(),
		pool:     opts.PoolCores,
		damper:   plan.NewDamper(opts.Interval),
	}
}

// Add adds a task. It does not block.
func (c *Controller) Add(t Task) {
	c.post(func(ctx context.Context) { c.add(ctx, t) })
}

// Ended is the loop's result for an ended task.
type Ended struct {
	Reported bool          // an event was sent
	Run      remaining.Run // its cost, as far as read by then
}

// Remove removes an ended task. It does not block; the channel receives the result.
func (c *Controller) Remove(id string) <-chan Ended {
	ended := make(chan Ended, 1)
	c.post(func(ctx context.Context) { ended <- c.remove(ctx, id) })
	return ended
}

// Earlier sets the cost of a task's earlier run. It does not block.
func (c *Controller) Earlier(id string, run remaining.Run) {
	c.post(func(context.Context) {
		if t := c.find(id); t != nil {
			t.observer.Earlier(run)
		}
	})
}

// Moving sets the state of a task's move. While it saves, the task has Nomad's limits,
// because ours would delay the move. It does not block.
func (c *Controller) Moving(id string, m status.Move) {
	c.post(func(ctx context.Context) {
		t := c.find(id)
		if t == nil {
			return
		}
		t.move = m
		t.show.Changed(false)
		if m.State == status.MoveSaving && t.limiter != nil && t.Limited {
			t.limiter.Set(ctx, t.base)
		}
	})
}

// Step returns the last step that a task has reported; NaN if unknown.
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

// tickEvery allows several reports per interval; at most once a second with the default
// interval.
func (c *Controller) tickEvery() time.Duration {
	return min(max(c.opts.Interval/10, 100*time.Millisecond), time.Second)
}

// Run runs the loop until ctx is done. Limits then stay, as tasks outlive the plugin.
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
	for _, t := range c.tasks {
		t.refresh(now)
		t.refreshGPU(now)
	}
	c.runWhenDue(ctx, now)
	for _, t := range c.tasks {
		if t.show.Due(now, c.showEvery()) {
			c.show(t, now, false)
		}
	}
	c.saveSnapshot()
	c.publishMetrics()
	c.opts.Metrics.Tick.Observe(time.Since(now).Seconds())
}

// measureWithin bounds the wait for observers. A slower one takes part with its last
// measurement.
func (c *Controller) measureWithin() time.Duration {
	return min(c.opts.Interval/10, time.Second)
}

// runWhenDue decides at the end of an interval, and categorises for the shim at the end
// of one of SpeCon's, after the observers have measured.
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
		// The driver recovers tasks one by one: deciding over the first few would
		// release limits only to set them again.
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
			c.decide(ctx, policy.EventJoin) // Algorithm 2: a join runs Algorithm 1 at once
		})
	}()
}

// remove removes a task, writes its last status and decides for the others.
func (c *Controller) remove(ctx context.Context, id string) (ended Ended) {
	t := c.find(id)
	if t == nil {
		return ended
	}
	t.gone = true
	now := time.Now()
	t.refresh(now)
	t.readUsage()
	ended = Ended{Reported: c.reportEnd(t, now), Run: t.m.Work.Run(t.usage.CPUSeconds)}
	c.show(t, now, true)
	c.count(t)
	c.opts.Metrics.EventsDropped.Add(float64(t.show.Waiting()))
	time.AfterFunc(lateOutput, func() {
		m := t.observer.Finish(ctx)
		if t.OnEnd != nil {
			t.OnEnd(m)
		}
		c.post(func(ctx context.Context) { c.finalStatus(t, m.Reports) })
	})
	c.tasks = slices.DeleteFunc(c.tasks, func(o *task) bool { return o == t })
	if t.Limited {
		c.leftCores += t.cores
	}
	if len(c.tasks) > 0 && !now.Before(c.graceUntil) {
		c.decide(ctx, policy.EventLeave) // Algorithm 2: so does a leave
	}
	return ended
}

// lateOutput is how long a task's last lines may take through Nomad's log collector.
const lateOutput = 500 * time.Millisecond

// finalStatus corrects the last status with late reports, unless the task has been
// restarted: the files are then the new one's.
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
