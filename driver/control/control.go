// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package control is the loop that runs beside a node's tasks: it reads their
// progress, measures growth, asks the policy and sets the limits, and writes
// down what it did.
//
// One goroutine owns all state. Whatever may hang (the engine's daemon, drawing)
// runs beside it and posts its result back. Nothing here ever returns an error to
// Nomad: a task about which nothing is known, or whose limit cannot be set, runs
// as plain Nomad would run it.
package control

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/device/seat"
	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/policy/auto"
	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
	"github.com/ebbtide/ebbtide/driver/policy/specon"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/driver/target"
)

// Options configures a Controller. All of them have been validated.
type Options struct {
	Engine    string // for the status
	Policy    string // one of policies.Names
	Estimator string
	Mode      limits.Mode
	Params    auto.Params // of all policies

	Interval    time.Duration // initial interval of Algorithm 1
	MaxInterval time.Duration // how far it may be doubled

	SpeCon         specon.Params
	SpeConInterval time.Duration // over which a gain is measured

	PoolCores     float64
	NodeMemory    float64 // bytes
	PoolFixed     bool    // the operator set it: cores that tasks own are not taken off
	QuotaMinCores float64
	IOWeight      bool // also set a weight for block I/O, where the kernel has one

	// SharedCores counts the CPUs that no task owns (limits.SharedCores); nil
	// when only our own tasks count.
	SharedCores func() (int, error)

	// NoProgressAfter is how long a task may write output that nothing matches
	// before an event says so.
	NoProgressAfter time.Duration

	// Emit sends an event to Nomad. It is called from a goroutine of its own.
	Emit func(Event)
}

// Event is a task event for people.
type Event struct {
	TaskID, AllocID, TaskName string
	Message                   string
	Annotations               map[string]string
}

// Cgroup is what the loop reads of a task's cgroup (limits.Cgroup).
type Cgroup interface {
	Usage() (limits.Usage, error)
	Resources() limits.Resources
	Read() (limits.Limits, error)
	InForce(want, got limits.Limits) bool
	SetIOWeight(uint64) error
	Conversion() limits.Conversion
	SetConversion(limits.Conversion)
}

// Task is a running task as the driver hands it over.
type Task struct {
	ID, AllocID, Name, JobID string

	AllocDir string // the allocation's shared directory (NOMAD_ALLOC_DIR)

	// Open opens what the task's progress is read from. Where names it for people;
	// "" is the task's output.
	Open  func() (progress.Source, error)
	Where string

	Targets target.Targets
	// Watch follows the targets of a training job; nil without any. It is the loop's.
	Watch *target.Watcher
	// Reached is what an earlier process saw of the targets.
	Reached target.State
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
	GPU func() (seat.Report, error)

	// Apply sets the task's limits; it may ask a daemon.
	Apply func(context.Context, Cgroup, limits.Limits) error
}

// Controller runs the loop.
type Controller struct {
	opts Options
	log  hclog.Logger
	now  func() time.Time

	mu     sync.Mutex
	posted []func(context.Context)
	wake   chan struct{}

	// Owned by the loop.
	tasks      []*state // in order of arrival
	interval   time.Duration
	nextRun    time.Time
	pool       float64   // cores, at the last decision
	quiet      time.Time // no decisions before: tasks are still being recovered
	alpha      float64
	services   dqoes.State // of the adaptive listener
	nextSpeCon time.Time   // when SpeCon's Algorithm 1 is due
	gone       float64     // what tasks used that have left since the last run on time, as a fraction of the pool
	damper     *limits.Damper
	artist     *artist
}

// New returns a Controller. Run must be called for anything to happen.
func New(opts Options, logger hclog.Logger) *Controller {
	return &Controller{
		opts:     opts,
		log:      logger.Named("control"),
		now:      time.Now,
		wake:     make(chan struct{}, 1),
		interval: opts.Interval,
		alpha:    noAlpha,
		pool:     opts.PoolCores,
		damper:   limits.NewDamper(opts.Interval),
		artist:   newArtist(),
	}
}

// noAlpha is shown while Algorithm 1 is off.
const noAlpha = -1

// Add hands over a task. It does not block.
func (c *Controller) Add(t Task) {
	c.post(func(ctx context.Context) { c.add(ctx, t) })
}

// Remove takes a task back: it has ended. It does not block.
func (c *Controller) Remove(id string) {
	c.post(func(ctx context.Context) { c.remove(ctx, id) })
}

// Moving says how far the preparation of a task's move is. While it saves, the task has
// what Nomad set: who holds it back then holds the move back. It does not block.
func (c *Controller) Moving(id string, m status.Move) {
	c.post(func(ctx context.Context) {
		s := c.find(id)
		if s == nil {
			return
		}
		s.move, s.dirty = m, true
		if m.State == status.MoveSaving && s.cgroup != nil && s.Limited {
			s.want = s.base
			c.apply(ctx, s, c.now())
		}
	})
}

// Step returns the last step that a task has reported; NaN if it is not known.
func (c *Controller) Step(ctx context.Context, id string) float64 {
	step := make(chan float64, 1)
	c.post(func(context.Context) {
		if s := c.find(id); s != nil {
			step <- s.last.Step
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

// pollEvery is how often logs and usage are read: often enough for several
// reports an interval, at most once a second with the default interval.
func (c *Controller) pollEvery() time.Duration {
	return min(max(c.opts.Interval/10, 100*time.Millisecond), time.Second)
}

// Run runs the loop until ctx is done. Limits stay as they are then: the tasks
// outlive the plugin.
func (c *Controller) Run(ctx context.Context) {
	go c.artist.run(ctx)
	ticker := time.NewTicker(c.pollEvery())
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

// tick reads what is new, decides when it is time, and writes what has changed.
func (c *Controller) tick(ctx context.Context) {
	now := c.now()
	for _, s := range c.tasks {
		s.poll(ctx, now)
		s.pollGPU(now)
	}
	if !now.Before(c.nextRun) && !now.Before(c.quiet) && len(c.tasks) > 0 {
		c.decide(ctx, flowcon.EventNone)
	}
	c.categorise(now)
	for _, s := range c.tasks {
		c.publish(s, now)
	}
}

// add takes a task up and starts to look for its cgroup.
func (c *Controller) add(ctx context.Context, t Task) {
	if c.find(t.ID) != nil {
		return
	}
	s := newState(t, c.opts, c.log, c.now())
	s.emit = func(ev Event) { go c.opts.Emit(ev) }
	c.tasks = append(c.tasks, s)
	if t.Recovered {
		// The driver recovers a node's tasks one by one. A decision over the
		// first few would release limits only to set them again.
		c.quiet = c.now().Add(min(c.opts.Interval, 3*time.Second))
	}
	c.locate(ctx, s, 100*time.Millisecond)
}

// locate finds a task's cgroup beside the loop and tries again when that fails.
func (c *Controller) locate(ctx context.Context, s *state, retry time.Duration) {
	go func() {
		cg, err := s.Locate(ctx)
		c.post(func(ctx context.Context) {
			if s.gone {
				return
			}
			if err != nil {
				if !s.locateWarned {
					s.locateWarned = true
					s.log.Warn("cannot find the task's cgroup yet; it is not limited", "error", err)
				}
				time.AfterFunc(retry, func() {
					c.post(func(ctx context.Context) {
						if !s.gone {
							c.locate(ctx, s, min(2*retry, 30*time.Second))
						}
					})
				})
				return
			}
			s.attach(cg, c.now())
			if c.now().Before(c.quiet) {
				c.nextRun = c.quiet
				return
			}
			c.decide(ctx, flowcon.EventJoin) // Algorithm 2: a join runs Algorithm 1 at once
		})
	}()
}

// remove drops a task, writes its last status and decides anew for the others.
func (c *Controller) remove(ctx context.Context, id string) {
	s := c.find(id)
	if s == nil {
		return
	}
	s.gone = true
	now := c.now()
	s.poll(ctx, now)
	s.final = true
	c.publish(s, now)
	time.AfterFunc(lateOutput, func() {
		c.post(func(ctx context.Context) { c.lastLook(ctx, s) })
	})
	rest := c.tasks[:0:0]
	for _, o := range c.tasks {
		if o != s {
			rest = append(rest, o)
		}
	}
	c.tasks = rest
	if s.Limited {
		c.gone += s.use
	}
	if len(rest) > 0 && !now.Before(c.quiet) {
		c.decide(ctx, flowcon.EventLeave) // Algorithm 2: so does a leave
	}
}

// lateOutput is how long after a task's end its last lines may still be on their
// way through Nomad's log collector to the files that we read.
const lateOutput = 500 * time.Millisecond

// lastLook reads what a task wrote just before its end and corrects its last
// status, unless the task has been started anew meanwhile.
func (c *Controller) lastLook(ctx context.Context, s *state) {
	if s.source == nil {
		return
	}
	defer s.source.Close()
	for _, o := range c.tasks {
		if o.AllocID == s.AllocID && o.Name == s.Name {
			return // the lines are its to read, and the files to write
		}
	}
	before, now := s.reports, c.now()
	s.poll(ctx, now)
	if s.reports > before {
		c.publish(s, now)
	}
}

// find returns a task by its ID, or nil.
func (c *Controller) find(id string) *state {
	for _, s := range c.tasks {
		if s.ID == id {
			return s
		}
	}
	return nil
}
