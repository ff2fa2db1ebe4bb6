// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package control is the loop that runs beside a node's tasks. It takes over what their
// observers have measured (package measure), makes a snapshot of the node
// (policy.Snapshot), asks the policy, turns its outcome into limits (package plan), puts
// those into force (package enforce), and shows what it did (package publish).
//
// One goroutine owns all state. Whatever may hang (reading progress, the engine's
// daemon, drawing) runs beside it. Nothing here ever returns an error to Nomad: a task
// about which nothing is known, or whose limit cannot be set, runs as plain Nomad would
// run it.
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

// Options configures a Controller. All of them have been validated.
type Options struct {
	Engine    string // for the status
	Policy    policy.Decider
	Policies  map[string]json.RawMessage // the parameters of all policies, for the snapshot
	Estimator string
	Mode      plan.Mode

	Interval    time.Duration // initial interval of Algorithm 1
	MaxInterval time.Duration // how far it may be doubled

	SpeCon         specon.Params
	SpeConInterval time.Duration // over which a gain is measured

	PoolCores     policy.Cores
	PoolFixed     bool    // the operator set it: cores that tasks own are not taken off
	NodeMemory    float64 // bytes
	QuotaMinCores float64
	IOWeight      bool // also set a weight for block I/O, where the kernel has one

	// SharedCores counts the CPUs that no task owns (limits.SharedCores); nil
	// when only our own tasks count.
	SharedCores func() (int, error)

	// OwnQuota reads the CPU quota over the plugin, in cores, 0 if there is none
	// (limits.OwnQuota); nil when it does not count. It may change at any time.
	OwnQuota func() (float64, error)

	// Idle reads the machine's idle time, in core-seconds (limits.IdleTime); nil when it is
	// not known.
	Idle func() (float64, error)

	// NoProgressAfter is how long a task may write output that nothing matches
	// before an event says so.
	NoProgressAfter time.Duration

	// Node returns the ID of the Nomad node, "" while it is not known; nil if it never is.
	Node func() string

	// Emit sends an event to Nomad. It is called from a goroutine of its own.
	Emit func(publish.Event)

	// Metrics are kept up to date.
	Metrics *metrics.Metrics
}

// Cgroup is what the loop reads of a task's cgroup (limits.Cgroup).
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

// Task is a running task as the driver hands it over.
type Task struct {
	ID, AllocID, Name, JobID string

	SharedDir string      // the allocation's shared directory (NOMAD_ALLOC_DIR): output
	Private   private.Dir // the allocation's private directory

	// Open opens what the task's progress is read from. Where names it for people;
	// "" is the task's output.
	Open  func() (progress.Source, error)
	Where string

	// Work is what is known of the task's size before it reports.
	Work remaining.Declared
	// OnEnd is called, beside the loop, with the last measurement.
	OnEnd func(measure.Measurement)

	// Targets are what the job wants; with Targets.QoE it is a service, and its reports
	// are response times.
	Targets target.Targets
	// Watcher looks for the targets of a training task; nil without any.
	Watcher *target.Watcher
	// OnTarget is called, beside the loop, when a target is reached for the first
	// time. After the objective nothing more is decided for the task.
	OnTarget func(target.Reached)

	Limited bool    // false: never limit it
	Movable bool    // its job lets it be moved to another node
	Pinned  float64 // cores that the task owns (`cores`); they are not in the pool
	Shares  uint64  // what Nomad asked for, if the kernel cannot be read

	// Recovered says that the task was running before this loop began.
	Recovered bool

	// Locate finds the task's cgroup; it may ask a daemon.
	Locate func(context.Context) (Cgroup, error)
	// GPU reads how the task fares on a shared card; nil: it has no seat on one. The error
	// wraps fs.ErrNotExist if nothing is reported.
	GPU func() (handoff.Report, error)

	// Apply sets the task's limits; it may ask a daemon.
	Apply func(context.Context, Cgroup, limits.Limits) error
}

// kind is what the task is to a policy.
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
	quiet      time.Time       // no decisions before: tasks are still being recovered
	alpha      float64         // of the last decision, NaN if the policy has none
	state      json.RawMessage // the policy's own
	floor      float64         // of the last decision
	guarded    bool            // by the last decision, for an interval
	nextSpeCon time.Time       // when SpeCon's Algorithm 1 is due
	gone       policy.Cores    // what tasks used that have left since the last run on time
	damper     *plan.Damper
	snapshot   snapshot
	twins      twins
}

// New returns a Controller. Run must be called for anything to happen.
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

// Add hands over a task. It does not block.
func (c *Controller) Add(t Task) {
	c.post(func(ctx context.Context) { c.add(ctx, t) })
}

// Ended is what the loop knows of a task that has ended.
type Ended struct {
	Said bool          // an event was sent
	Run  remaining.Run // what it took, as far as it was read by then
}

// Remove takes a task back: it has ended. It does not block. The channel says when the
// loop knows.
func (c *Controller) Remove(id string) <-chan Ended {
	ended := make(chan Ended, 1)
	c.post(func(ctx context.Context) { ended <- c.remove(ctx, id) })
	return ended
}

// Earlier tells what an earlier run of a task took. It does not block.
func (c *Controller) Earlier(id string, run remaining.Run) {
	c.post(func(context.Context) {
		if t := c.find(id); t != nil {
			t.observer.Earlier(run)
		}
	})
}

// Moving says how far the preparation of a task's move is. While it saves, the task has
// what Nomad set: a limit would hold the move back. It does not block.
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

// Step returns the last step that a task has reported; NaN if it is not known.
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

// post queues work for the loop.
func (c *Controller) post(f func(context.Context)) {
	c.mu.Lock()
	c.posted = append(c.posted, f)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// takePosted empties the queue.
func (c *Controller) takePosted() []func(context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fs := c.posted
	c.posted = nil
	return fs
}

// tickEvery is how often tasks are looked at: often enough for several reports an
// interval, at most once a second with the default interval.
func (c *Controller) tickEvery() time.Duration {
	return min(max(c.opts.Interval/10, 100*time.Millisecond), time.Second)
}

// Run runs the loop until ctx is done. Limits stay as they are then: the tasks
// outlive the plugin.
func (c *Controller) Run(ctx context.Context) {
	go c.plots.Run(ctx)
	c.loop(ctx)
}

// loop is Run without drawing.
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

// tick takes over what is new, decides when it is time, and shows what has changed.
func (c *Controller) tick(ctx context.Context) {
	now := time.Now()
	for _, t := range c.tasks {
		t.look(now)
		t.lookGPU(now)
	}
	c.runWhenDue(ctx, now)
	for _, t := range c.tasks {
		if t.show.Due(now, c.showEvery()) {
			c.show(t, now, false)
		}
	}
	c.keepSnapshot()
	c.publishMetrics()
	c.opts.Metrics.Tick.Observe(time.Since(now).Seconds())
}

// measureWithin is how long a run waits for the observers: as long as nobody notices. One
// that is slower takes part with its last measurement.
func (c *Controller) measureWithin() time.Duration {
	return min(c.opts.Interval/10, time.Second)
}

// runWhenDue decides at the end of an interval, and sorts the tasks for the shim at the
// end of one of SpeCon's, when the observers have made their measurements.
func (c *Controller) runWhenDue(ctx context.Context, now time.Time) {
	if c.nextSpeCon.IsZero() {
		c.nextSpeCon = now.Add(c.opts.SpeConInterval)
	}
	run := !now.Before(c.nextRun) && !now.Before(c.quiet)
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
				c.sortForMoves(time.Now())
			}
		})
	}()
}

// add takes a task up and starts to look for its cgroup.
func (c *Controller) add(ctx context.Context, t Task) {
	if c.find(t.ID) != nil {
		return
	}
	s := c.newTask(ctx, t)
	c.tasks = append(c.tasks, s)
	c.restoreTwins(s)
	if t.Recovered {
		// The driver recovers a node's tasks one by one. A decision over the
		// first few would release limits only to set them again.
		c.quiet = time.Now().Add(min(c.opts.Interval, 3*time.Second))
	}
	c.locate(ctx, s, 100*time.Millisecond)
}

// locate finds a task's cgroup beside the loop and tries again when that fails.
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
			if time.Now().Before(c.quiet) {
				c.nextRun = c.quiet
				return
			}
			c.decide(ctx, policy.EventJoin) // Algorithm 2: a join runs Algorithm 1 at once
		})
	}()
}

// remove drops a task, writes its last status and decides anew for the others.
func (c *Controller) remove(ctx context.Context, id string) (ended Ended) {
	t := c.find(id)
	if t == nil {
		return ended
	}
	t.gone = true
	now := time.Now()
	t.look(now)
	t.readUsage()
	ended = Ended{Said: c.sayEnd(t, now), Run: t.m.Work.Run(t.usage.CPUSeconds)}
	c.show(t, now, true)
	c.count(t)
	c.opts.Metrics.EventsDropped.Add(float64(t.show.Waiting()))
	time.AfterFunc(lateOutput, func() {
		m := t.observer.Finish(ctx)
		if t.OnEnd != nil {
			t.OnEnd(m)
		}
		c.post(func(ctx context.Context) { c.lastLook(t, m.Reports) })
	})
	c.tasks = slices.DeleteFunc(c.tasks, func(o *task) bool { return o == t })
	if t.Limited {
		c.gone += t.cores
	}
	if len(c.tasks) > 0 && !now.Before(c.quiet) {
		c.decide(ctx, policy.EventLeave) // Algorithm 2: so does a leave
	}
	return ended
}

// lateOutput is how long after a task's end its last lines may still be on their
// way through Nomad's log collector to the files that we read.
const lateOutput = 500 * time.Millisecond

// lastLook takes over what a task wrote just before its end and corrects its last
// status, unless the task has been started anew: the files are the new one's then.
func (c *Controller) lastLook(t *task, reports int64) {
	for _, o := range c.tasks {
		if o.AllocID == t.AllocID && o.Name == t.Name {
			return
		}
	}
	if reports > t.m.Reports {
		now := time.Now()
		t.look(now)
		c.show(t, now, true)
	}
}

// find returns a task by its ID, or nil.
func (c *Controller) find(id string) *task {
	for _, t := range c.tasks {
		if t.ID == id {
			return t
		}
	}
	return nil
}
