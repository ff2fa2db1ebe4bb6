// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/ebbtide/ebbtide/driver/checkpoint"
	"github.com/ebbtide/ebbtide/driver/control"
	"github.com/ebbtide/ebbtide/driver/engine"
	"github.com/ebbtide/ebbtide/driver/remaining/history"
	"github.com/ebbtide/ebbtide/driver/taskfs"
)

type task struct {
	setup    *setup // at its start or recovery
	handle   *drivers.TaskHandle
	stopping atomic.Bool // Nomad has requested a stop

	succeeded atomic.Bool // it has reached its objective
	suspended atomic.Bool // it goes on in another allocation

	checkpoint *checkpoint.Config // nil = it cannot be moved
	move       move
	run        history.Key // of comparable runs; zero = the cost is not stored
	identity   string      // the identity file for the GPU plugin; "" = no seat

	mu    sync.Mutex
	inner drivers.DriverPlugin // the instance that holds the task now

	spare *spareInstance // that instance, after an outage; guarded by Driver.mu

	logs []*os.File // write ends of its log pipes, see holdLogs

	settleOnce sync.Once
	settled    chan struct{} // closed once result is known
	result     *drivers.ExitResult
	stopped    bool // result followed a stop requested by Nomad
}

func (t *task) instance() drivers.DriverPlugin {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.inner
}

func (d *Driver) track(s *setup, handle *drivers.TaskHandle, inner drivers.DriverPlugin) *task {
	t := &task{setup: s, handle: handle, inner: inner, settled: make(chan struct{})}
	if s.engine.Reconnects() {
		t.holdLogs()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tasks[handle.Config.ID] = t
	return t
}

// holdLogs keeps the write ends of the task's log pipes open. Nomad stops reading a pipe once its
// last writer has closed it, and the docker driver's log helper exits with the connection to the
// daemon: the task's output would stop at the first restart of Docker. Pipes that cannot be opened
// are skipped, since the task can write to their directory.
func (t *task) holdLogs() {
	for _, path := range []string{t.handle.Config.StdoutPath, t.handle.Config.StderrPath} {
		dir, err := taskfs.Open(filepath.Split(filepath.Dir(path)))
		if err != nil {
			continue
		}
		if f, err := dir.FIFO(filepath.Base(path)); err == nil {
			t.logs = append(t.logs, f)
		}
		_ = dir.Close()
	}
}

func (t *task) releaseLogs() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.logs {
		_ = f.Close()
	}
	t.logs = nil
}

func (d *Driver) forget(t *task) {
	t.releaseLogs()
	t.setup.controller.Remove(t.handle.Config.ID, false) // as a rule settle has removed it
	d.mu.Lock()
	delete(d.tasks, t.handle.Config.ID)
	from := t.spare
	t.spare = nil
	d.mu.Unlock()
	d.releaseSpare(t.setup, from)
}

func (d *Driver) task(id string) (*task, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t, ok := d.tasks[id]; ok {
		return t, nil
	}
	return nil, drivers.ErrTaskNotFound
}

// WaitTask returns a channel that receives the task's result once. It may be called
// several times per task, each call with its own context.
func (d *Driver) WaitTask(ctx context.Context, taskID string) (<-chan *drivers.ExitResult, error) {
	t, err := d.task(taskID)
	if err != nil {
		return nil, err
	}
	t.settleOnce.Do(func() { go d.settle(t) })
	out := make(chan *drivers.ExitResult, 1)
	go func() {
		defer close(out)
		select {
		case <-t.settled:
			out <- t.result
		case <-ctx.Done():
			out <- &drivers.ExitResult{Err: ctx.Err()}
		case <-d.ctx.Done():
		}
	}()
	return out, nil
}

// settle waits for a task's end. The docker driver also reports an end when it loses its connection
// because the daemon restarts. With live-restore the container keeps running, so settle checks
// before Nomad restarts the task.
func (d *Driver) settle(t *task) {
	defer close(t.settled)
	for {
		res := d.waitInner(t)
		if res == nil { // the plugin is shutting down
			return
		}
		again := false
		if t.setup.engine.Reconnects() && !t.stopping.Load() && res.Err != nil {
			if res.ExitCode == 0 && !res.OOMKilled {
				again, res = d.afterOutage(t, res)
			} else if res.ExitCode == killedExit && !res.OOMKilled {
				res = d.afterKill(t, res)
			}
		}
		if !again {
			res = d.afterMove(t, res)
			if t.succeeded.Load() || t.suspended.Load() {
				// The driver ended it, whatever the exit code.
				res = &drivers.ExitResult{}
			}
			t.result, t.stopped = res, t.stopping.Load()
			t.releaseLogs()
			d.flushEvents(t, t.setup.controller.Remove(t.handle.Config.ID, t.success()))
			return
		}
	}
}

// success reports whether a task has ended by itself with success, or at its objective. It is called
// once result is known.
func (t *task) success() bool {
	return t.result != nil && t.result.Successful() && !t.suspended.Load() && (!t.stopped || t.succeeded.Load())
}

// eventTravels is the time that an event takes to reach Nomad.
const eventTravels = 200 * time.Millisecond

// flushEvents sends the last events of a task and gives them time to reach Nomad, which rejects
// events of an ended task.
func (d *Driver) flushEvents(t *task, ended <-chan control.Ended) {
	const within = time.Second
	select {
	case e := <-ended:
		if d.reportRun(t, e.Run) || e.Reported {
			time.Sleep(eventTravels)
		}
	case <-time.After(within):
	case <-d.ctx.Done():
	}
}

func (d *Driver) waitInner(t *task) *drivers.ExitResult {
	ch, err := t.instance().WaitTask(d.ctx, t.handle.Config.ID)
	if err != nil {
		return &drivers.ExitResult{Err: err}
	}
	select {
	case res := <-ch:
		if d.ctx.Err() != nil {
			return nil
		}
		if res == nil {
			return &drivers.ExitResult{Err: errors.New("the driver ended its wait without a result")}
		}
		return res
	case <-d.ctx.Done():
		return nil
	}
}

// afterOutage interprets a lost wait: again is true if the task still runs, now held by a new
// instance; otherwise res is its actual result.
func (d *Driver) afterOutage(t *task, lost *drivers.ExitResult) (again bool, res *drivers.ExitResult) {
	cfg := t.handle.Config
	log := d.logger.With("task", cfg.Name, "alloc_id", cfg.AllocID)
	log.Warn("lost the connection to Docker while waiting for the task; looking for its container", "error", lost.Err)

	deadline := time.Now().Add(t.setup.DockerOutage)
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		st, err := t.setup.engine.Inspect(d.ctx, t.handle)
		switch {
		case errors.Is(err, engine.ErrGone):
			d.reportRemoved(t)
			return false, lost
		case err == nil && !st.Running && !t.setup.engine.OutlivesDaemon(d.ctx):
			// Docker stopped the task while shutting down. Exit code 0 does not mean success: many
			// trainers save on SIGTERM and exit.
			return false, lost
		case err == nil && !st.Running:
			exit := &drivers.ExitResult{ExitCode: st.ExitCode, OOMKilled: st.OOMKilled}
			if st.OOMKilled {
				exit.Err = errOOM
			} else if st.ExitCode != 0 {
				//lint:ignore ST1005 as Nomad's driver words it
				exit.Err = fmt.Errorf("Docker container exited with non-zero exit code: %d", st.ExitCode)
			}
			return false, exit
		case err == nil:
			if err := d.moveToSpare(t); err != nil {
				log.Error("cannot recover the running container", "error", err)
				return false, lost
			}
			log.Info("Docker is back and the container still runs; waiting for it again")
			d.say(t, "docker", "the connection to Docker was lost and is back; the task was not interrupted", nil)
			return true, nil
		}
		if t.stopping.Load() || time.Now().After(deadline) {
			log.Warn("Docker did not come back in time; leaving the task to Nomad", "waited", t.setup.DockerOutage, "error", err)
			return false, lost
		}
		select {
		case <-d.ctx.Done():
			return false, lost
		case <-time.After(wait):
		}
	}
}

const killedExit = 137

// afterKill determines why a task was killed. Nomad's driver checks once, immediately; but a forced
// removal kills first and removes later, and Docker learns of an OOM kill slightly after the exit.
func (d *Driver) afterKill(t *task, res *drivers.ExitResult) *drivers.ExitResult {
	for range 5 {
		st, err := t.setup.engine.Inspect(d.ctx, t.handle)
		switch {
		case errors.Is(err, engine.ErrGone) || err == nil && st.Removing:
			d.reportRemoved(t)
			return res
		case err == nil && st.OOMKilled:
			return &drivers.ExitResult{ExitCode: res.ExitCode, OOMKilled: true, Err: errOOM}
		}
		select {
		case <-d.ctx.Done():
			return res
		case <-time.After(200 * time.Millisecond):
		}
	}
	return res
}

// errOOM has the wording of Nomad's driver.
var errOOM = errors.New("OOM Killed")

func (d *Driver) reportRemoved(t *task) {
	cfg := t.handle.Config
	d.logger.Warn("the task's container was removed from outside", "task", cfg.Name, "alloc_id", cfg.AllocID)
	d.say(t, "removed", removedMessage, nil)
}

const removedMessage = "the container was removed from outside. The likely cause is the stock docker driver's reaper on this node: " +
	`set gc { dangling_containers { enabled = false } } in plugin "docker", or deny that driver, or install ebbtide-driver under the name docker ` +
	"(`ebbtide doctor` checks this)"

// spareInstance is another instance of the decorated driver, for tasks that have survived an
// outage. It ends with the last of them.
type spareInstance struct {
	drivers.DriverPlugin
	stop context.CancelFunc
	held int // tasks
}

// moveToSpare recovers a running task in another instance of the decorated driver, because the
// current one considers it ended. The tasks of an outage share one instance.
func (d *Driver) moveToSpare(t *task) error {
	to, err := d.acquireSpare(t)
	if err != nil {
		return err
	}
	if err := to.RecoverTask(t.handle); err != nil {
		d.releaseSpare(t.setup, to)
		return fmt.Errorf("recovering the task in a new instance: %w", err)
	}
	d.mu.Lock()
	from := t.spare
	if d.tasks[t.handle.Config.ID] == t {
		t.spare = to
	} else {
		from = to // meanwhile destroyed
	}
	d.mu.Unlock()
	t.mu.Lock()
	t.inner = to.DriverPlugin
	t.mu.Unlock()
	d.releaseSpare(t.setup, from)
	return nil
}

// acquireSpare adds a task to the newest spare instance, or to a new one if that is the instance
// whose connection the task has lost.
func (d *Driver) acquireSpare(t *task) (*spareInstance, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.spare == nil || d.spare == t.spare {
		ctx, stop := context.WithCancel(t.setup.ctx)
		inner, err := d.newInstance(ctx, t.setup)
		if err != nil {
			stop()
			return nil, err
		}
		d.spare = &spareInstance{DriverPlugin: inner, stop: stop}
	}
	d.spare.held++
	return d.spare, nil
}

// releaseSpare removes a task from a spare instance. Without tasks, the instance ends after it has
// had time to remove their images. r may be nil.
func (d *Driver) releaseSpare(s *setup, r *spareInstance) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r == nil {
		return
	}
	if r.held--; r.held > 0 {
		return
	}
	if d.spare == r {
		d.spare = nil
	}
	if wait := s.imageGC(); wait > 0 {
		time.AfterFunc(wait, r.stop)
	} else {
		r.stop()
	}
}

// reap periodically removes this node's untracked containers: Docker may have started one although
// its response was lost. Installed as "docker", the plugin reaps all of Nomad's.
func (d *Driver) reap(s *setup, e *engine.DockerEngine) {
	ticker := time.NewTicker(s.period)
	defer ticker.Stop()
	started := time.Now()
	seen := make(map[string]bool) // allocations that were on this node
	for {
		select {
		case <-s.ctx.Done():
			return
		case now := <-ticker.C:
			// After a restart of the plugin, tasks are recovered one by one.
			if now.Sub(started) < s.grace {
				continue
			}
			nodeID, allocs, tracked := d.tracked()
			removed, err := e.Reap(s.ctx, engine.ReapOptions{
				NodeID: nodeID, All: d.name == DockerName, Tracked: tracked,
				AllocEnded: func(id string) bool { return ended(allocs, id, seen) },
				Grace:      s.grace, DryRun: s.dryRun,
			}, now)
			for _, id := range removed {
				d.logger.Info("removed a container that no task tracks", "container_id", id, "dry_run", s.dryRun)
			}
			if err != nil {
				d.logger.Warn("looking for containers that no task tracks", "error", err)
			}
		}
	}
}

// ended reports whether an allocation has been removed from this node: its directory existed at an
// earlier call, as recorded in seen. Another client of the same Docker daemon has its allocations
// in another directory.
func ended(allocs, id string, seen map[string]bool) bool {
	if allocs == "" || id != filepath.Base(id) {
		return false
	}
	_, err := os.Stat(filepath.Join(allocs, id))
	if err == nil {
		seen[id] = true
	}
	return seen[id] && errors.Is(err, fs.ErrNotExist)
}

// launch has the reaper spare an allocation's containers until the returned function is called: on
// a busy node the docker driver may take longer to return from a start than the reaper's grace.
func (d *Driver) launch(alloc string) (started func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.launching[alloc]++
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.launching[alloc]--; d.launching[alloc] == 0 {
			delete(d.launching, alloc)
		}
	}
}

// tracked returns this node's ID, the directory of its allocations, and what Reap spares (see
// engine.ReapOptions).
func (d *Driver) tracked() (nodeID, allocs string, ids map[string]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ids = make(map[string]bool, len(d.tasks))
	for _, t := range d.tasks {
		if id, err := engine.ContainerID(t.handle); err == nil {
			ids[id] = true
		}
	}
	for alloc := range d.launching {
		ids[alloc] = true
	}
	return d.nodeID, d.allocs, ids
}
