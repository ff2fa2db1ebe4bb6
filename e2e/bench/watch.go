// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/bench/result"
	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/e2e/mix"
)

// watcher samples a run's tasks at each interval.
type watcher struct {
	node  *node
	start time.Time

	mu    sync.Mutex
	run   *result.Run
	tasks []*watched

	last machineCPU
}

// watched is one task, with its index in the run.
type watched struct {
	alloc, task string
	kernel      harness.Kernel // last reading, if At is set
	records     records
}

func newWatcher(n *node, s step, tasks []result.Task) *watcher {
	w := &watcher{node: n, start: time.Now()}
	w.run = &result.Run{What: n.what, Case: s.kase, Variant: s.name, Mode: s.mode, Seed: s.seed, Start: w.start.UTC(), Joined: result.Unknown(), Tasks: tasks}
	for i := range tasks {
		t := &w.run.Tasks[i]
		for _, unknown := range []*result.Number{&t.Submitted, &t.Started, &t.Finished, &t.AcceptableAt, &t.ObjectiveAt, &t.AcceptableMark, &t.ObjectiveMark, &t.CPU} {
			*unknown = result.Unknown()
		}
		t.Base = mix.Shares
		w.tasks = append(w.tasks, &watched{})
	}
	return w
}

// since returns the time in seconds since the run's start.
func (w *watcher) since(t time.Time) result.Number {
	return result.Number(round(t.Sub(w.start).Seconds()))
}

// round drops insignificant digits.
func round(v float64) float64 { return math.Round(v*1e4) / 1e4 }

func (w *watcher) follow(i int, alloc, task string, started time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.run.Tasks[i].Started = w.since(started)
	w.tasks[i].alloc, w.tasks[i].task = alloc, task
	w.tasks[i].records.path = w.node.file(alloc, loadFile)
}

func (w *watcher) change(i int, f func(*result.Task)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.run.Tasks[i])
}

// restart discards samples and resets the time.
func (w *watcher) restart() error {
	w.mu.Lock()
	w.run.Samples = nil
	w.start = time.Now()
	w.run.Start = w.start.UTC()
	w.mu.Unlock()
	if err := w.sample(); err != nil {
		return err
	}
	w.run.Samples = nil
	return nil
}

// watch samples until the given time has passed or the channel is closed.
func (w *watcher) watch(ctx context.Context, length time.Duration, done <-chan struct{}) error {
	tick := time.NewTicker(w.node.interval)
	defer tick.Stop()
	var end <-chan time.Time
	if length > 0 {
		end = time.After(length + w.node.interval/2)
	}
	for {
		select {
		case <-tick.C:
			if err := w.sample(); err != nil {
				return err
			}
		case <-end:
			return nil
		case <-done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *watcher) sample() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, err := readMachine()
	if err != nil {
		return err
	}
	s := result.Sample{T: round(now.at.Sub(w.start).Seconds())}
	if !w.last.at.IsZero() {
		s.Seconds = round(now.at.Sub(w.last.at).Seconds())
		s.Busy, s.Steal = round((now.busy-w.last.busy)/s.Seconds), round((now.steal-w.last.steal)/s.Seconds)
	}
	w.last = now
	for i, t := range w.tasks {
		r := result.Reading{Response: result.Unknown()}
		if t.alloc != "" {
			if err := w.read(t, &r, &w.run.Tasks[i]); err != nil {
				return err
			}
		}
		s.Tasks = append(s.Tasks, r)
	}
	w.run.Samples = append(w.run.Samples, s)
	return nil
}

// read reads one task; an ended one is not alive.
func (w *watcher) read(t *watched, r *result.Reading, task *result.Task) error {
	var err error
	if r.Answers, r.Response, err = t.records.read(); err != nil {
		return err
	}
	pids, err := harness.TaskPIDs(t.alloc, t.task)
	if err != nil {
		t.kernel = harness.Kernel{}
		return nil
	}
	k, err := harness.ReadKernel(pids[0])
	if err != nil {
		t.kernel = harness.Kernel{}
		return nil
	}
	r.Alive, r.Shares, r.Quota = true, k.Shares, k.QuotaCores
	if !t.kernel.At.IsZero() {
		r.Cores = round(k.Cores(t.kernel))
	}
	t.kernel = k
	task.CPU = result.Number(round(k.CPU.Seconds()))
	if st, err := status.ReadStatus(w.node.file(t.alloc, filepath.Join("alloc", status.Dir, t.task+".json"))); err == nil && st.Target.State != string(policy.InTraining) {
		r.State, r.Rule = st.Target.State, st.Rule
	}
	return nil
}

// records is the file of trainer load: a line per answer with t_s, response_s and error.
type records struct {
	path   string
	offset int64
	rest   []byte // an incomplete line
}

// read returns the number of answers since the last call, and their mean.
func (f *records) read() (answers int, mean result.Number, err error) {
	mean = result.Unknown()
	file, err := os.Open(f.path)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return 0, mean, nil
		}
		return 0, mean, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.NewSectionReader(file, f.offset, 16<<20))
	if err != nil {
		return 0, mean, fmt.Errorf("reading what a load has recorded: %w", err)
	}
	f.offset += int64(len(data))
	lines := bytes.Split(append(f.rest, data...), []byte("\n"))
	f.rest = bytes.Clone(lines[len(lines)-1])
	sum := 0.0
	for _, line := range lines[:len(lines)-1] {
		fields := strings.Split(string(line), ",")
		if len(fields) != 3 || fields[0] == "t_s" || fields[2] != "" {
			continue
		}
		v, err := strconv.ParseFloat(fields[1], 64)
		if err != nil {
			return 0, mean, fmt.Errorf("reading what a load has recorded: %w", err)
		}
		sum += v
		answers++
	}
	if answers > 0 {
		mean = result.Number(round(sum / float64(answers)))
	}
	return answers, mean, nil
}

// machineCPU is the CPU time of all CPUs, in seconds.
type machineCPU struct {
	at          time.Time
	busy, steal float64
}

func readMachine() (machineCPU, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return machineCPU{}, err
	}
	m, err := parseMachine(string(data))
	m.at = time.Now()
	return m, err
}

// parseMachine parses /proc/stat's first line: cpu user nice system idle iowait irq softirq
// steal …, in ticks of 10 ms. All but idle and iowait is busy.
func parseMachine(stat string) (machineCPU, error) {
	var m machineCPU
	line, _, _ := strings.Cut(stat, "\n")
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return m, fmt.Errorf("/proc/stat begins with %q", line)
	}
	for i, text := range f[1:9] {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return m, fmt.Errorf("/proc/stat begins with %q: %w", line, err)
		}
		switch seconds := float64(n) / 100; i {
		case 3, 4:
		case 7:
			m.steal = seconds
			fallthrough
		default:
			m.busy += seconds
		}
	}
	return m, nil
}
