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
	"github.com/ebbtide/ebbtide/driver/publish"
	"github.com/ebbtide/ebbtide/driver/remaining/history"
	"github.com/ebbtide/ebbtide/driver/taskfs"
)

// task is a task that the plugin holds.
type task struct {
	setup    *setup // that it was started or recovered under
	handle   *drivers.TaskHandle
	stopping atomic.Bool // Nomad has asked for its end

	succeeded atomic.Bool // it has reached its objective

	checkpoint *checkpoint.Config // nil = it cannot be moved
	move       move
	run        history.Key // of its kind; zero = what it takes is not kept
	identity   string      // file that tells the GPU plugin what it is; "" = no seat

	records sync.Mutex // held while its record is changed

	mu    sync.Mutex
	inner drivers.DriverPlugin // the instance that holds it now

	refuge *refuge // that instance, after an outage; under Driver.mu

	logs []*os.File // the write ends of its log pipes, see holdLogs

	settleOnce sync.Once
	settled    chan struct{} // closed once result is known
	result     *drivers.ExitResult
	stopped    bool // Nomad had asked for its end by then
}

// instance is the decorated driver's instance that holds the task.
func (t *task) instance() drivers.DriverPlugin {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.inner
}

// track remembers a task.
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

// holdLogs keeps the write ends of the task's log pipes open. Nomad stops to read
// a pipe for good once its last writer is gone, and the docker driver's log helper
// goes with the connection to the daemon: without this, the task's output would
// end at the first restart of Docker. Pipes that cannot be opened are left alone. They
// lie in the allocation's directory of logs, which the task can write to.
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

// releaseLogs lets Nomad see the end of the task's output.
func (t *task) releaseLogs() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.logs {
		_ = f.Close()
	}
	t.logs = nil
}

// forget drops a task.
func (d *Driver) forget(t *task) {
	t.releaseLogs()
	t.setup.controller.Remove(t.handle.Config.ID)
	d.mu.Lock()
	delete(d.tasks, t.handle.Config.ID)
	from := t.refuge
	t.refuge = nil
	d.mu.Unlock()
	d.leaveRefuge(t.setup, from)
}

// task returns a task by its ID.
func (d *Driver) task(id string) (*task, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t, ok := d.tasks[id]; ok {
		return t, nil
	}
	return nil, drivers.ErrTaskNotFound
}

// WaitTask returns a channel that gets the task's result once. It may be called
// several times for one task, each call with its own context.
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

// settle waits for a task's end. The docker driver also reports the end of a task
// when it merely lost the connection on which it was waiting: the daemon was
// restarted. With live-restore the container runs on, so we look for ourselves
// before we let Nomad start it anew.
func (d *Driver) settle(t *task) {
	defer close(t.settled)
	for {
		res := d.waitInner(t)
		if res == nil { // the plugin is going down
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
			if t.succeeded.Load() {
				// However its process ended: that was at our wish.
				res = &drivers.ExitResult{}
			}
			t.result, t.stopped = res, t.stopping.Load()
			t.releaseLogs()
			d.farewell(t, t.setup.controller.Remove(t.handle.Config.ID))
			return
		}
	}
}

// farewell sends the last events of a task, and gives them time to reach Nomad, which
// takes none of a task that has ended.
func (d *Driver) farewell(t *task, ended <-chan control.Ended) {
	const within, travels = time.Second, 200 * time.Millisecond
	select {
	case e := <-ended:
		if d.sayRun(t, e.Run) || e.Said {
			time.Sleep(travels)
		}
	case <-time.After(within):
	case <-d.ctx.Done():
	}
}

// waitInner waits on the instance that holds the task.
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

// afterOutage decides what a lost wait means. It returns again = true when the
// task still runs and is held by a new instance, and the true result otherwise.
func (d *Driver) afterOutage(t *task, lost *drivers.ExitResult) (again bool, res *drivers.ExitResult) {
	cfg := t.handle.Config
	log := d.logger.With("task", cfg.Name, "alloc_id", cfg.AllocID)
	log.Warn("lost the connection to Docker while waiting for the task; looking for its container", "error", lost.Err)

	deadline := time.Now().Add(t.setup.DockerOutage)
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		st, err := t.setup.engine.Inspect(d.ctx, t.handle)
		switch {
		case errors.Is(err, engine.ErrGone):
			d.sayRemoved(t)
			return false, lost
		case err == nil && !st.Running && !t.setup.engine.OutlivesDaemon(d.ctx):
			// Docker has ended the task when it went down. Even an exit code of 0
			// is no success then: many trainers save on SIGTERM and exit.
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
			if err := d.takeRefuge(t); err != nil {
				log.Error("the container runs on, but cannot be taken up again", "error", err)
				return false, lost
			}
			log.Info("Docker is back and the container runs on; waiting for it again")
			d.emit(publish.Event{TaskID: cfg.ID, AllocID: cfg.AllocID, TaskName: cfg.Name,
				Message: "the connection to Docker was lost and is back; the task was not interrupted"})
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

// killedExit is the exit code of a process that SIGKILL has ended.
const killedExit = 137

// afterKill finds out why a task was killed. Nomad's driver looks once, right at
// the end; but a forced removal kills first and removes then, and Docker learns of
// an end for want of memory a moment later than of the end itself.
func (d *Driver) afterKill(t *task, res *drivers.ExitResult) *drivers.ExitResult {
	for range 5 {
		st, err := t.setup.engine.Inspect(d.ctx, t.handle)
		switch {
		case errors.Is(err, engine.ErrGone) || err == nil && st.Removing:
			d.sayRemoved(t)
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

// errOOM words the end for want of memory as Nomad's driver does.
var errOOM = errors.New("OOM Killed")

// sayRemoved explains a container that vanished under a running task.
func (d *Driver) sayRemoved(t *task) {
	cfg := t.handle.Config
	d.logger.Warn("the task's container was removed by somebody else", "task", cfg.Name, "alloc_id", cfg.AllocID)
	d.emit(publish.Event{TaskID: cfg.ID, AllocID: cfg.AllocID, TaskName: cfg.Name, Message: removedMessage})
}

const removedMessage = "the container was removed by somebody else. The likely cause is the stock docker driver's reaper on this node: " +
	`set gc { dangling_containers { enabled = false } } in plugin "docker", or deny that driver, or install ebbtide-driver under the name docker ` +
	"(`ebbtide doctor` checks this)"

// refuge is a further instance of the decorated driver. It holds tasks that have outlived
// an outage, and ends with the last of them.
type refuge struct {
	drivers.DriverPlugin
	stop context.CancelFunc
	held int // tasks
}

// takeRefuge takes a running task up in a further instance of the decorated driver,
// because the present one has closed the book on it. The tasks of an outage share one.
func (d *Driver) takeRefuge(t *task) error {
	to, err := d.enterRefuge(t)
	if err != nil {
		return err
	}
	if err := to.RecoverTask(t.handle); err != nil {
		d.leaveRefuge(t.setup, to)
		return fmt.Errorf("recovering the task in a new instance: %w", err)
	}
	d.mu.Lock()
	from := t.refuge
	if d.tasks[t.handle.Config.ID] == t {
		t.refuge = to
	} else {
		from = to // the task has been forgotten meanwhile
	}
	d.mu.Unlock()
	t.mu.Lock()
	t.inner = to.DriverPlugin
	t.mu.Unlock()
	d.leaveRefuge(t.setup, from)
	return nil
}

// enterRefuge counts a task in the newest refuge. A task that has lost that one needs a
// new one; any older instance it cannot have been in after this.
func (d *Driver) enterRefuge(t *task) (*refuge, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refuge == nil || d.refuge == t.refuge {
		ctx, stop := context.WithCancel(t.setup.ctx)
		inner, err := d.newInstance(ctx, t.setup)
		if err != nil {
			stop()
			return nil, err
		}
		d.refuge = &refuge{DriverPlugin: inner, stop: stop}
	}
	d.refuge.held++
	return d.refuge, nil
}

// leaveRefuge ends a refuge that no task is in any more, when it has had the time to
// remove their images; nil is none.
func (d *Driver) leaveRefuge(s *setup, r *refuge) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r == nil {
		return
	}
	if r.held--; r.held > 0 {
		return
	}
	if d.refuge == r {
		d.refuge = nil
	}
	if wait := s.imageGC(); wait > 0 {
		time.AfterFunc(wait, r.stop)
	} else {
		r.stop()
	}
}

// reap removes, now and then, containers that this node started and that nothing
// tracks: Docker may have started one although the answer got lost. Installed
// as "docker" we are the node's docker driver and look after all of Nomad's.
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
			// Tasks are recovered one by one after a start of the plugin.
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

// ended says whether an allocation was on this node and is no more: its directory has been
// there at an earlier call, and Nomad has removed it. seen remembers that. Another client
// at the same Docker daemon has its allocations elsewhere.
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

// tracked returns the node's ID, the directory of its allocations, and the containers of
// the tasks that we hold.
func (d *Driver) tracked() (nodeID, allocs string, ids map[string]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ids = make(map[string]bool, len(d.tasks))
	for _, t := range d.tasks {
		if id, err := engine.ContainerID(t.handle); err == nil {
			ids[id] = true
		}
	}
	return d.nodeID, d.allocs, ids
}
