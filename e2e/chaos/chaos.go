// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/store"
)

type options struct {
	seed         uint64
	minutes      float64
	jobs, movers int
	queued       int // jobs of the queue
	keep         string
	logf         func(format string, args ...any)
}

// chaos is a cluster under test.
type chaos struct {
	options
	h       *harness.Harness
	command string // ebbtide
	server  *harness.Agent
	clients []*harness.Agent
	full    *harness.Agent // a client that collects ended allocations at once; nothing breaks it
	witness string         // directory of the witnesses
	shim    string         // its configuration

	mu     sync.Mutex
	shims  []*harness.Process
	movers map[*harness.Process]bool
	moves  map[string]int // by outcome
	broken map[string]int // by kind
	orders map[string]int // of the queue
	ids    int
}

// hcl is a job that does a step every 0.2 s, saves on request, and records every action. Some jobs
// complete. Its arguments are the ID, more meta, more of the group, and the number of steps.
const hcl = `
job %q {
  type = "batch"
  meta {
    ebbtide_migrate = "true"
    %s
  }
  group "train" {
    ephemeral_disk {
      sticky  = true
      migrate = true
      size    = 30
    }
    restart {
      attempts = 100
      delay    = "0s"
      interval = "10m"
      mode     = "delay"
    }
    reschedule {
      attempts       = 0
      delay          = "5s"
      delay_function = "constant"
      unlimited      = true
    }
    %s
    volume "witness" {
      type   = "host"
      source = "witness"
    }
    task "train" {
      driver = "ebbtide"
      volume_mount {
        volume      = "witness"
        destination = "/witness"
      }
      config {
        command = "/bin/sh"
        args    = ["-c", <<-EOS
          d=$NOMAD_ALLOC_DIR/data; w=/witness/$NOMAD_JOB_ID; a=$NOMAD_ALLOC_ID; n=0
          [ $NOMAD_ALLOC_INDEX = 0 ] || w=/witness/more # of a job that is scaled
          [ -e $d/ckpt ] && read n < $d/ckpt
          echo START $a $n >> $w
          trap 'sleep 0.5; echo $n > $d/tmp; mv $d/tmp $d/ckpt; echo SAVED $a $n >> $w' USR1
          trap 'exit 143' TERM
          while [ $n -ne %d ]; do
            n=$((n+1)); echo STEP $a $n >> $w; echo step=$n loss=$((1000000-n)); sleep 0.2
          done
          echo END $a $n >> $w
        EOS
        ]
        checkpoint {
          path  = "${NOMAD_ALLOC_DIR}/data/ckpt"
          lease = "60s" # a mover stalls for up to 45 seconds, and only the lease protects its job
        }
      }
      kill_timeout = "5s"
      logs {
        max_files     = 2
        max_file_size = 10
      }
      resources {
        cpu    = 50
        memory = 24
      }
    }
  }
}
`

// runChaos starts a cluster, causes failures for the given time, repairs it and checks the jobs.
func runChaos(ctx context.Context, o options) (r *report, err error) {
	c := &chaos{options: o, movers: make(map[*harness.Process]bool), moves: make(map[string]int), broken: make(map[string]int), orders: make(map[string]int)}
	if c.h, err = harness.New(harness.Options{Logf: o.logf}); err != nil {
		return nil, err
	}
	defer func() {
		if o.keep != "" {
			err = errors.Join(err, c.h.CopyLogs(o.keep), os.CopyFS(filepath.Join(o.keep, "witness"), os.DirFS(c.witness)))
		}
		err = errors.Join(err, c.h.Close())
	}()
	if err := c.build(ctx); err != nil {
		return nil, err
	}
	o.logf("Breaking things for %v minutes, seed %d.", o.minutes, o.seed)
	c.breakThings(ctx)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	left, err := c.repair(ctx)
	if err != nil {
		return nil, err
	}
	return c.report(left)
}

func job(i int) string    { return fmt.Sprintf("job-%02d", i) }
func queued(i int) string { return fmt.Sprintf("queue-%02d", i) }

// all are the IDs of the jobs, those of the queue last.
func (c *chaos) all() (ids []string) {
	for i := range c.jobs {
		ids = append(ids, job(i))
	}
	for i := range c.options.queued {
		ids = append(ids, queued(i))
	}
	return ids
}

// build starts the cluster and its jobs.
func (c *chaos) build(ctx context.Context) (err error) {
	if c.command, err = c.h.Tools.CLI(ctx); err != nil {
		return err
	}
	c.witness = filepath.Join(c.h.Dir, "witness")
	if err := os.Mkdir(c.witness, 0o777); err != nil {
		return err
	}
	if err := os.Chmod(c.witness, 0o777); err != nil { // for tasks, which run unprivileged
		return err
	}
	c.shim = filepath.Join(c.h.Dir, "shim.hcl")
	settings := "interval = \"1s\"\nweb {\n  address = \"\"\n}\nleader {\n  ttl = \"10s\"\n  delay = \"1s\"\n}\nrebalance {\n  enabled = true\n  interval = \"5s\"\n}\nlimits {\n  cooldown = \"10s\"\n  backoff = \"1s\"\n  moves_per_minute = 60\n}\n"
	if err := os.WriteFile(c.shim, []byte(settings), 0o644); err != nil {
		return err
	}
	if c.server, err = c.h.StartAgent(ctx, harness.AgentConfig{Name: "server", ServerOnly: true, LogLevel: "INFO"}); err != nil {
		return err
	}
	for _, name := range []string{"a", "b", "c", "full"} {
		gcDisk := 0.0
		if name == "full" {
			gcDisk = 0.01
		}
		a, err := c.h.StartAgent(ctx, harness.AgentConfig{
			Name: name, Join: c.server, PluginName: "ebbtide-driver", Plugin: `engine = "exec"`, LogLevel: "INFO",
			HostVolumes: map[string]string{"witness": c.witness},
			GCDisk:      gcDisk,
		})
		if err != nil {
			return err
		}
		if _, err := a.WaitDriver(ctx, "ebbtide", true); err != nil {
			return err
		}
		if name == "full" {
			c.full = a
		} else {
			c.clients = append(c.clients, a)
		}
	}
	for i := range c.jobs {
		steps := -1
		if i%3 == 0 {
			steps = int(60 * c.minutes * 5 * float64(i+1) / float64(c.jobs)) // five per second
		}
		more := ""
		if i%6 == 5 {
			more = "disconnect {\n lost_after = \"1h\"\n replace = false\n}" // never moved
		}
		if _, err := c.server.Run(ctx, fmt.Sprintf(hcl, job(i), "", more, steps)); err != nil {
			return err
		}
	}
	const hold = "constraint {\n attribute = \"${meta.ebbtide_hold}\"\n value = \"released\"\n}"
	for i := range c.options.queued {
		if _, err := c.server.Run(ctx, fmt.Sprintf(hcl, queued(i), `ebbtide_queue = "true"`, hold, -1)); err != nil {
			return err
		}
	}
	for range 2 {
		if err := c.startShim(ctx); err != nil {
			return err
		}
	}
	for _, id := range c.all() {
		if _, err := c.server.WaitRunning(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// start starts a numbered process.
func (c *chaos) start(ctx context.Context, name string, args ...string) (*harness.Process, error) {
	c.mu.Lock()
	c.ids++
	name = fmt.Sprintf("%s-%03d", name, c.ids)
	c.mu.Unlock()
	return c.h.Start(ctx, name, append([]string{c.command}, args...), nil)
}

func (c *chaos) startShim(ctx context.Context) error {
	p, err := c.start(ctx, "shim", "shim", "-address", c.server.Addr, "-config", c.shim)
	if err == nil {
		c.shims = append(c.shims, p)
	}
	return err
}

// breakThings causes random failures while moving jobs.
func (c *chaos) breakThings(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(c.minutes*float64(time.Minute)))
	defer cancel()
	var wait sync.WaitGroup
	defer wait.Wait()
	for i := range c.options.movers {
		random := rand.New(rand.NewPCG(c.seed, uint64(i+1)))
		wait.Go(func() {
			for sleep(ctx, time.Duration(random.IntN(2000))*time.Millisecond) {
				if err := c.move(ctx, random); err != nil && ctx.Err() == nil {
					c.count(c.moves, "could not be begun")
				}
			}
		})
	}
	if c.options.queued > 0 {
		random := rand.New(rand.NewPCG(c.seed, 1000))
		wait.Go(func() {
			for sleep(ctx, time.Duration(500+random.IntN(4000))*time.Millisecond) {
				order := []string{"stop", "release"}[random.IntN(2)]
				_ = c.order(ctx, order, queued(random.IntN(c.options.queued))) // counted
			}
		})
	}
	random := rand.New(rand.NewPCG(c.seed, 0))
	for sleep(ctx, time.Duration(500+random.IntN(4000))*time.Millisecond) {
		b := breakages[random.IntN(len(breakages))]
		c.count(c.broken, b.name)
		// Repair even after the time has expired.
		if err := b.do(c, context.WithoutCancel(ctx), random); err != nil {
			c.logf("%s: %v", b.name, err)
		}
	}
}

func (c *chaos) count(what map[string]int, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	what[name]++
}

// sleep reports whether it slept for the whole duration.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *chaos) running(ctx context.Context) (all []*api.AllocationListStub, err error) {
	stubs, _, err := c.server.API.Allocations().List((&api.QueryOptions{}).WithContext(ctx))
	for _, s := range stubs {
		if s.ClientStatus == api.AllocClientStatusRunning && s.DesiredStatus == api.AllocDesiredStatusRun {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *api.AllocationListStub) int { return strings.Compare(a.JobID, b.JobID) })
	return all, err
}

// move moves a random job, as a user would.
func (c *chaos) move(ctx context.Context, random *rand.Rand) error {
	all, err := c.running(ctx)
	if err != nil || len(all) == 0 {
		return err
	}
	targets := append(slices.Clone(c.clients), c.full)
	alloc, to := all[random.IntN(len(all))], targets[random.IntN(len(targets))]
	if to.NodeID() == alloc.NodeID {
		return nil
	}
	p, err := c.start(ctx, "move", "move", "-address", c.server.Addr, alloc.ID, to.NodeID())
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.movers[p] = true
	c.mu.Unlock()
	err = p.Wait(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.movers, p)
	if err == nil {
		_, how, _ := strings.Cut(p.Err().Error(), " ended: ")
		c.moves[how]++
	}
	return nil
}

// order suspends a job of the queue, or lets it go on, as an operator would.
func (c *chaos) order(ctx context.Context, order, id string) error {
	p, err := c.start(ctx, "queue", "queue", order, "-address", c.server.Addr, id)
	if err != nil {
		return err
	}
	if err := p.Wait(ctx); err != nil {
		return err
	}
	_, how, _ := strings.Cut(p.Err().Error(), " ended: ")
	c.count(c.orders, order+": "+how)
	if how != "exit status 0" {
		return p.Err()
	}
	return nil
}

// breakage is a kind of failure, including its repair.
type breakage struct {
	name string
	do   func(c *chaos, ctx context.Context, random *rand.Rand) error
}

var breakages = []breakage{
	// Not tested: after a restart of the agent, Nomad fails a recovered allocation while the driver
	// plugin is down, although its process runs.
	{"plugin killed", func(c *chaos, _ context.Context, random *rand.Rand) error {
		time.Sleep(5 * time.Second)
		for _, pid := range c.client(random).PluginPIDs("ebbtide-driver") {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		return nil
	}},
	{"agent killed", func(c *chaos, ctx context.Context, random *rand.Rand) error {
		return restart(ctx, c.client(random), (*harness.Agent).Kill, random)
	}},
	{"agent stopped", func(c *chaos, ctx context.Context, random *rand.Rand) error {
		return restart(ctx, c.client(random), (*harness.Agent).Stop, random)
	}},
	{"agent stalled", func(c *chaos, _ context.Context, random *rand.Rand) error { return stall(c.client(random), random) }},
	{"server killed", func(c *chaos, ctx context.Context, random *rand.Rand) error {
		return restart(ctx, c.server, (*harness.Agent).Kill, random)
	}},
	{"server stopped", func(c *chaos, ctx context.Context, random *rand.Rand) error {
		return restart(ctx, c.server, (*harness.Agent).Stop, random)
	}},
	{"server stalled", func(c *chaos, _ context.Context, random *rand.Rand) error { return stall(c.server, random) }},
	{"shim killed", func(c *chaos, ctx context.Context, random *rand.Rand) error {
		i := random.IntN(len(c.shims))
		_ = c.shims[i].Signal(unix.SIGKILL)
		c.shims = slices.Delete(c.shims, i, i+1)
		return c.startShim(ctx)
	}},
	{"mover killed", func(c *chaos, _ context.Context, _ *rand.Rand) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		for p := range c.movers {
			return p.Signal(unix.SIGKILL)
		}
		return nil
	}},
	{"mover stalled", func(c *chaos, _ context.Context, random *rand.Rand) error {
		c.mu.Lock()
		var one *harness.Process
		for p := range c.movers {
			one = p
		}
		c.mu.Unlock()
		if one == nil || one.Signal(unix.SIGSTOP) != nil {
			return nil
		}
		time.AfterFunc(time.Duration(1+random.IntN(45))*time.Second, func() { _ = one.Signal(unix.SIGCONT) })
		return nil
	}},
	// Nomad lets a batch job run until the deadline, and then stops it permanently.
	{"node drained", func(c *chaos, ctx context.Context, random *rand.Rand) error {
		id := c.client(random).NodeID()
		w := (&api.WriteOptions{}).WithContext(ctx)
		if _, err := c.server.API.Nodes().UpdateDrainOpts(id, &api.DrainOptions{DrainSpec: &api.DrainSpec{}}, w); err != nil {
			return err
		}
		time.Sleep(time.Duration(1+random.IntN(15)) * time.Second)
		_, err := c.server.API.Nodes().UpdateDrainOpts(id, &api.DrainOptions{MarkEligible: true}, w)
		return err
	}},
	{"allocation stopped", func(c *chaos, ctx context.Context, random *rand.Rand) error {
		all, err := c.running(ctx)
		all = slices.DeleteFunc(all, func(s *api.AllocationListStub) bool { return s.NodeID == c.full.NodeID() }) // Nomad loses its disk
		if err != nil || len(all) == 0 {
			return err
		}
		alloc := all[random.IntN(len(all))]
		if _, err := c.server.API.Allocations().Stop(&api.Allocation{ID: alloc.ID, Namespace: alloc.Namespace}, (&api.QueryOptions{}).WithContext(ctx)); err != nil {
			return err
		}
		return c.settled(ctx, func(s *api.AllocationListStub) bool { return s.ID == alloc.ID })
	}},
	// Not to none, since what starts then has no disk; and no job that may complete meanwhile.
	{"job scaled", func(c *chaos, ctx context.Context, random *rand.Rand) error {
		i := random.IntN(c.jobs)
		if i%3 == 0 {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		w := (&api.WriteOptions{}).WithContext(ctx)
		for _, count := range []int{2, 1} {
			// A move that registers the job at the same time is in the way.
			err := harness.Poll(ctx, "the job is scaled", func(context.Context) error {
				_, _, err := c.server.API.Jobs().Scale(job(i), "train", &count, "", false, nil, w)
				return err
			})
			if err != nil {
				return err
			}
			time.Sleep(time.Duration(500+random.IntN(4000)) * time.Millisecond)
		}
		return nil
	}},
}

func (c *chaos) client(random *rand.Rand) *harness.Agent {
	return c.clients[random.IntN(len(c.clients))]
}

// restart restarts an agent before its node counts as down.
func restart(ctx context.Context, a *harness.Agent, end func(*harness.Agent, context.Context) error, random *rand.Rand) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := end(a, ctx); err != nil {
		return err
	}
	time.Sleep(time.Duration(random.IntN(3000)) * time.Millisecond)
	return a.Restart(ctx)
}

// stall suspends an agent briefly.
func stall(a *harness.Agent, random *rand.Rand) error {
	if err := a.Process().Signal(unix.SIGSTOP); err != nil {
		return err
	}
	time.Sleep(time.Duration(500+random.IntN(7000)) * time.Millisecond)
	return a.Process().Signal(unix.SIGCONT)
}

// settled waits until Nomad's own migrations are complete. An agent that dies during one loses the
// disk, also without Ebbtide.
func (c *chaos) settled(ctx context.Context, of func(*api.AllocationListStub) bool) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	return harness.Poll(ctx, "what was stopped runs elsewhere", func(ctx context.Context) error {
		stubs, _, err := c.server.API.Allocations().List((&api.QueryOptions{}).WithContext(ctx))
		if err != nil {
			return err
		}
		concerned, last := make(map[string]bool), make(map[string]*api.AllocationListStub)
		for _, s := range stubs {
			concerned[s.JobID] = concerned[s.JobID] || of(s) && s.DesiredStatus != api.AllocDesiredStatusRun
			if l := last[s.JobID]; l == nil || s.CreateIndex > l.CreateIndex {
				last[s.JobID] = s
			}
			if of(s) && s.ClientStatus == api.AllocClientStatusRunning {
				return fmt.Errorf("%s runs there", s.JobID)
			}
		}
		for id, s := range last {
			if concerned[id] && s.ClientStatus != api.AllocClientStatusRunning && s.ClientStatus != api.AllocClientStatusComplete {
				return fmt.Errorf("%s is %s", id, s.ClientStatus)
			}
		}
		return nil
	})
}

// repair waits, with one shim, until all jobs are at rest, and returns those that are not.
func (c *chaos) repair(ctx context.Context) (left []string, err error) {
	c.logf("Letting it come to rest.")
	c.mu.Lock()
	for p := range c.movers {
		_ = p.Signal(unix.SIGKILL)
	}
	c.mu.Unlock()
	within, cancel := context.WithTimeout(ctx, 8*time.Minute)
	defer cancel()
	for i := range c.options.queued {
		if err := harness.Poll(within, queued(i)+" may go on", func(ctx context.Context) error { return c.order(ctx, "release", queued(i)) }); err != nil {
			return nil, err
		}
	}
	steps := make(map[string]int64) // of each job, at the previous check
	err = harness.Poll(within, "all is at rest", func(ctx context.Context) error {
		var now []string
		records, unreadable, err := store.Claims{Store: store.Store{Client: c.server.API, Namespace: "default", Path: "ebbtide/shim"}}.List(ctx)
		if err != nil {
			return err
		}
		for _, u := range unreadable {
			now = append(now, u.String())
		}
		for _, r := range records {
			now = append(now, fmt.Sprintf("%s has a move that is not over: %s, at %s", r.Job, r.Owner, r.Phase))
		}
		time.Sleep(2 * time.Second) // ten steps
		for _, id := range c.all() {
			why, err := c.notAtRest(ctx, id, steps)
			if err != nil {
				return err
			}
			if why != "" {
				now = append(now, id+" "+why)
			}
		}
		if left = now; len(left) > 0 {
			return errors.New(left[0])
		}
		return nil
	})
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if len(left) == 0 && err != nil {
		return nil, err
	}
	return left, nil
}

// describe lists allocations, earliest first.
func (c *chaos) describe(stubs []*api.AllocationListStub) string {
	slices.SortFunc(stubs, func(a, b *api.AllocationListStub) int { return cmp.Compare(a.CreateIndex, b.CreateIndex) })
	var b strings.Builder
	for _, s := range stubs {
		fmt.Fprintf(&b, "\n    %s version %d on %s, created at %d, is to %s and is %s (%s; %s), modified at %d",
			s.ID, s.JobVersion, s.NodeName, s.CreateIndex, s.DesiredStatus, s.ClientStatus, s.DesiredDescription, s.ClientDescription, s.ModifyIndex)
		for name, state := range s.TaskStates {
			fmt.Fprintf(&b, "; %s %s, failed: %t", name, state.State, state.Failed)
			for _, e := range state.Events {
				fmt.Fprintf(&b, "; %s %s", e.Type, e.DisplayMessage)
			}
		}
	}
	return b.String()
}

// notAtRest reports why a job is not at rest: it must be complete, or run once, unbound and with
// progress.
func (c *chaos) notAtRest(ctx context.Context, id string, steps map[string]int64) (why string, err error) {
	spec, _, err := c.server.API.Jobs().Info(id, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return "", err
	}
	stubs, err := c.server.Allocs(ctx, id)
	if err != nil {
		return "", err
	}
	// The newest allocation decides: an older one that its client could not create, and that has
	// been replaced, counts as complete once the client's agent has been restarted.
	runs, completed, youngest := 0, false, uint64(0)
	for _, s := range stubs {
		if s.ClientStatus == api.AllocClientStatusRunning || s.ClientStatus == api.AllocClientStatusPending {
			runs++
		}
		if s.CreateIndex >= youngest {
			youngest = s.CreateIndex
			completed = s.ClientStatus == api.AllocClientStatusComplete && s.DesiredStatus == api.AllocDesiredStatusRun
		}
	}
	path := filepath.Join(c.witness, id)
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	grown := info.Size() > steps[id]
	steps[id] = info.Size()
	switch {
	case completed && runs == 0: // bound or not
		wrote, err := os.ReadFile(path)
		if err == nil && !bytes.Contains(wrote, []byte("END")) {
			why = "has completed for Nomad, but not by its witness:" + c.describe(stubs)
		}
		return why, err
	case completed:
		return "has completed, and runs:" + c.describe(stubs), nil
	case runs != 1:
		return fmt.Sprintf("runs %d times", runs), nil
	case !grown:
		return "does no steps", nil
	}
	for _, g := range spec.TaskGroups {
		for _, k := range g.Constraints {
			if cluster.HasMark(k.LTarget, k.RTarget) {
				return "is bound: " + k.RTarget, nil
			}
		}
	}
	return "", nil
}
