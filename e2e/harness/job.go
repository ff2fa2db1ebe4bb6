// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package harness

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

func (a *Agent) Run(ctx context.Context, hcl string) (jobID string, err error) {
	job, err := a.servers().Jobs().ParseHCL(hcl, true)
	if err != nil {
		return "", fmt.Errorf("parsing the job: %w", err)
	}
	if _, _, err := a.servers().Jobs().Register(job, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
		return "", fmt.Errorf("registering job %q: %w", *job.ID, err)
	}
	return *job.ID, nil
}

func (a *Agent) RunFile(ctx context.Context, path string) (jobID string, err error) {
	hcl, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return a.Run(ctx, string(hcl))
}

// Allocs lists a job's allocations, newest first.
func (a *Agent) Allocs(ctx context.Context, jobID string) ([]*api.AllocationListStub, error) {
	return a.AllocsIn(ctx, "", jobID)
}

// AllocsIn is Allocs for a job in a namespace.
func (a *Agent) AllocsIn(ctx context.Context, namespace, jobID string) ([]*api.AllocationListStub, error) {
	stubs, _, err := a.servers().Jobs().Allocations(jobID, true, (&api.QueryOptions{Namespace: namespace}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("listing the allocations of %q: %w", jobID, err)
	}
	sort.Slice(stubs, func(i, j int) bool { return stubs[i].CreateIndex > stubs[j].CreateIndex })
	var ids []string
	for _, s := range stubs {
		ids = append(ids, s.ID)
	}
	// For the clean-up, as a directory may be removed before its cgroup.
	_, err = a.h.super.do(ctx, request{Op: "allocs", Args: ids})
	return stubs, err
}

// WaitAlloc waits for a condition on the job's newest allocation. It uses blocking queries, so it
// misses no state.
func (a *Agent) WaitAlloc(ctx context.Context, jobID, what string, want func(*api.Allocation) bool) (*api.Allocation, error) {
	var id string
	err := a.poll(ctx, fmt.Sprintf("job %q has an allocation", jobID), func() error {
		stubs, err := a.Allocs(ctx, jobID)
		if err != nil {
			return err
		}
		if len(stubs) == 0 {
			return fmt.Errorf("there is none%s", a.WhyNotPlaced(api.DefaultNamespace, jobID))
		}
		id = stubs[0].ID
		return nil
	})
	if err != nil {
		return nil, err
	}
	return a.WaitAllocID(ctx, id, what, want)
}

func (a *Agent) WaitAllocID(ctx context.Context, id, what string, want func(*api.Allocation) bool) (*api.Allocation, error) {
	var last *api.Allocation
	var index uint64
	for {
		q := (&api.QueryOptions{WaitIndex: index, WaitTime: 5 * time.Second}).WithContext(ctx)
		alloc, meta, err := a.servers().Allocations().Info(id, q)
		if err == nil {
			last, index = alloc, meta.LastIndex
			if want(alloc) {
				return alloc, nil
			}
		} else {
			index = 0
			if perr := a.proc.Err(); perr != nil {
				return last, fmt.Errorf("waiting until allocation %s is %s: %w", short(id), what, perr)
			}
			// The agent may be restarting.
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
		if ctx.Err() != nil {
			var now bytes.Buffer
			writeAlloc(&now, last)
			return last, fmt.Errorf("waiting until allocation %s is %s: %w\n%s", short(id), what, ctx.Err(), now.String())
		}
	}
}

// WaitRunning waits until all tasks of the newest allocation run.
func (a *Agent) WaitRunning(ctx context.Context, jobID string) (*api.Allocation, error) {
	ended := false
	alloc, err := a.WaitAlloc(ctx, jobID, "running", func(alloc *api.Allocation) bool {
		if ended = Terminal(alloc); ended {
			return true
		}
		if alloc.ClientStatus != api.AllocClientStatusRunning || len(alloc.TaskStates) == 0 {
			return false
		}
		for _, ts := range alloc.TaskStates {
			if ts.State != "running" {
				return false
			}
		}
		return true
	})
	if err == nil && ended {
		var now bytes.Buffer
		writeAlloc(&now, alloc)
		err = fmt.Errorf("waiting until allocation %s is running: it has ended\n%s", short(alloc.ID), now.String())
	}
	return alloc, err
}

// WaitTerminal waits until the newest allocation is client-terminal.
func (a *Agent) WaitTerminal(ctx context.Context, jobID string) (*api.Allocation, error) {
	return a.WaitAlloc(ctx, jobID, "ended", Terminal)
}

// Terminal reports whether an allocation is client-terminal.
func Terminal(alloc *api.Allocation) bool {
	switch alloc.ClientStatus {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return true
	}
	return false
}

func (a *Agent) WaitEvent(ctx context.Context, allocID, task, text string) (*api.TaskEvent, error) {
	var found *api.TaskEvent
	_, err := a.WaitAllocID(ctx, allocID, fmt.Sprintf("seen with an event of task %q that says %q", task, text), func(alloc *api.Allocation) bool {
		found = FindEvent(alloc, task, text)
		return found != nil
	})
	return found, err
}

func FindEvent(alloc *api.Allocation, task, text string) *api.TaskEvent {
	if ts := alloc.TaskStates[task]; ts != nil {
		for _, ev := range ts.Events {
			if strings.Contains(EventText(ev), text) {
				return ev
			}
		}
	}
	return nil
}

func EventText(ev *api.TaskEvent) string {
	text := ev.DisplayMessage
	for _, key := range []string{"driver_message", "driver_error", "setup_error", "validation_error"} {
		if v := ev.Details[key]; v != "" && !strings.Contains(text, v) {
			text += " " + v
		}
	}
	return text
}

// Events lists a task's events as text, oldest first.
func Events(alloc *api.Allocation, task string) []string {
	var all []string
	if ts := alloc.TaskStates[task]; ts != nil {
		for _, ev := range ts.Events {
			all = append(all, ev.Type+": "+EventText(ev))
		}
	}
	return all
}

// StopJob stops a job, waits for its allocations, and purges it.
func (a *Agent) StopJob(ctx context.Context, jobID string) error {
	w := (&api.WriteOptions{}).WithContext(ctx)
	if _, _, err := a.servers().Jobs().Deregister(jobID, false, w); err != nil {
		return fmt.Errorf("stopping job %q: %w", jobID, err)
	}
	err := a.poll(ctx, fmt.Sprintf("the allocations of %q have ended", jobID), func() error {
		stubs, err := a.Allocs(ctx, jobID)
		if err != nil {
			return err
		}
		for _, s := range stubs {
			if s.ClientStatus == api.AllocClientStatusRunning || s.ClientStatus == api.AllocClientStatusPending {
				return fmt.Errorf("allocation %s is %s", short(s.ID), s.ClientStatus)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if _, _, err := a.servers().Jobs().Deregister(jobID, true, w); err != nil {
		return fmt.Errorf("purging job %q: %w", jobID, err)
	}
	return nil
}

// Cat reads an allocation's file through the API, such as "alloc/data/ebbtide/train.json".
func (a *Agent) Cat(ctx context.Context, alloc *api.Allocation, path string) ([]byte, error) {
	// The API's AllocFS keeps a connection open per file.
	r, err := a.API.Raw().Response("/v1/client/fs/cat/"+alloc.ID+"?"+url.Values{"path": {path}}.Encode(), (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("reading %s of allocation %s: %w", path, short(alloc.ID), err)
	}
	defer r.Close()
	return io.ReadAll(r)
}

// Logs returns a task's "stdout" or "stderr" as of now.
func (a *Agent) Logs(ctx context.Context, alloc *api.Allocation, task, stream string) (string, error) {
	cancel := make(chan struct{})
	defer close(cancel)
	frames, errs := a.API.AllocFS().Logs(alloc, false, task, stream, api.OriginStart, 0, cancel, (&api.QueryOptions{}).WithContext(ctx))
	var text bytes.Buffer
	for {
		select {
		case <-ctx.Done():
			return text.String(), ctx.Err()
		case err := <-errs:
			return text.String(), fmt.Errorf("reading %s of task %q: %w", stream, task, err)
		case frame, open := <-frames:
			if !open {
				return text.String(), nil
			}
			text.Write(frame.Data)
		}
	}
}

// WaitLog waits until a task's output contains a text.
func (a *Agent) WaitLog(ctx context.Context, alloc *api.Allocation, task, stream, text string) (string, error) {
	var out string
	err := a.poll(ctx, fmt.Sprintf("the %s of task %q says %q", stream, task, text), func() error {
		var err error
		if out, err = a.Logs(ctx, alloc, task, stream); err != nil {
			return err
		}
		if !strings.Contains(out, text) {
			return fmt.Errorf("it ends with %q", out[max(0, len(out)-200):])
		}
		return nil
	})
	return out, err
}

func (a *Agent) Stats(ctx context.Context, alloc *api.Allocation) (*api.AllocResourceUsage, error) {
	return a.API.Allocations().Stats(alloc, (&api.QueryOptions{}).WithContext(ctx))
}

// Exec runs a command like `nomad alloc exec`.
func (a *Agent) Exec(ctx context.Context, alloc *api.Allocation, task string, tty bool, stdin io.Reader, argv ...string) (out, errOut string, code int, err error) {
	sizes := make(chan api.TerminalSize, 1)
	if stdin == nil {
		stdin = strings.NewReader("")
	}
	if tty {
		// The end of stdin would hang up the terminal, so it stays open.
		r, w := io.Pipe()
		defer w.Close()
		stdin = io.MultiReader(stdin, r)
		sizes <- api.TerminalSize{Height: 24, Width: 80}
	}
	var stdout, stderr bytes.Buffer
	code, err = a.API.Allocations().Exec(ctx, alloc, task, tty, argv, stdin, &stdout, &stderr, sizes, nil)
	if err != nil {
		err = fmt.Errorf("running %q in task %q: %w", argv, task, err)
	}
	return stdout.String(), stderr.String(), code, err
}

func (a *Agent) Signal(ctx context.Context, alloc *api.Allocation, task, signal string) error {
	return a.API.Allocations().Signal(alloc, (&api.QueryOptions{}).WithContext(ctx), task, signal)
}

func (a *Agent) RestartTask(ctx context.Context, alloc *api.Allocation, task string) error {
	return a.API.Allocations().Restart(alloc, task, (&api.QueryOptions{}).WithContext(ctx))
}

// TaskPIDs lists the processes in an exec task's cgroup, the oldest first: IDs start over at 32768.
func TaskPIDs(allocID, task string) ([]int, error) {
	var files []string
	for _, pattern := range []string{
		cgroupV2Root + "/freezer/nomad/" + allocID + "." + task + "/cgroup.procs",
		cgroupV2Root + "/nomad.slice/*/" + allocID + "." + task + ".scope/cgroup.procs",
	} {
		found, _ := filepath.Glob(pattern)
		files = append(files, found...)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("task %q of allocation %s has no cgroup", task, short(allocID))
	}
	var pids []int
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		for _, field := range strings.Fields(string(data)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				return nil, err
			}
			pids = append(pids, pid)
		}
	}
	slices.SortStableFunc(pids, func(a, b int) int { return cmp.Compare(started(a), started(b)) })
	if len(pids) == 0 {
		return nil, fmt.Errorf("task %q of allocation %s has no processes", task, short(allocID))
	}
	return pids, nil
}

// started is when a process started, in ticks since the boot; later than any for one that has ended.
func started(pid int) uint64 {
	st, err := statOf(pid)
	if err != nil {
		return math.MaxUint64
	}
	return st.Starttime
}

// WhyNotPlaced returns the scheduler's reasons.
func (a *Agent) WhyNotPlaced(namespace, jobID string) string {
	evals, _, err := a.servers().Jobs().Evaluations(jobID, &api.QueryOptions{Namespace: namespace})
	if err != nil {
		return ""
	}
	var why []string
	for _, e := range evals {
		for group, m := range e.FailedTGAllocs {
			for reason, n := range m.ConstraintFiltered {
				why = append(why, fmt.Sprintf("group %q: %q filtered %d nodes", group, reason, n))
			}
			for reason, n := range m.DimensionExhausted {
				why = append(why, fmt.Sprintf("group %q: %q exhausted on %d nodes", group, reason, n))
			}
		}
	}
	if len(why) == 0 {
		return ""
	}
	return " (" + strings.Join(why, "; ") + ")"
}

func (a *Agent) describeAllocs(w io.Writer) {
	if a.proc == nil || a.proc.Err() != nil || a.cfg.Join != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	q := (&api.QueryOptions{}).WithContext(ctx)
	stubs, _, err := a.API.Allocations().List(q)
	if err != nil {
		fmt.Fprintf(w, "--- allocations of %s: %v\n", a.Name, err)
		return
	}
	for _, s := range stubs {
		if alloc, _, err := a.API.Allocations().Info(s.ID, q); err == nil {
			writeAlloc(w, alloc)
		}
	}
}

func writeAlloc(w io.Writer, alloc *api.Allocation) {
	if alloc == nil {
		fmt.Fprintln(w, "nothing is known of the allocation")
		return
	}
	fmt.Fprintf(w, "--- allocation %s of job %q: %s (%s), desired %s\n",
		short(alloc.ID), alloc.JobID, alloc.ClientStatus, alloc.ClientDescription, alloc.DesiredStatus)
	for task, ts := range alloc.TaskStates {
		fmt.Fprintf(w, "    task %q is %s, failed %v, restarts %d\n", task, ts.State, ts.Failed, ts.Restarts)
		for _, ev := range ts.Events {
			fmt.Fprintf(w, "      %s %s: %s\n", time.Unix(0, ev.Time).Format("15:04:05.000"), ev.Type, EventText(ev))
		}
	}
}

func short(id string) string { return id[:min(8, len(id))] }
