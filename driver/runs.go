// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/hashicorp/nomad/client/taskenv"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/ebbtide/ebbtide/driver/measure"
	"github.com/ebbtide/ebbtide/driver/options"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/remaining"
	"github.com/ebbtide/ebbtide/driver/remaining/history"
)

// The cost of a job's run is stored on the node, next to the allocations' directories, and serves
// as an estimate for the next run until that reports a total. An event passes it to the shim, which
// signals it to the next run's node (history.Signal).

// runKey identifies comparable runs: same image, command, arguments and meta, except Ebbtide's own
// meta.
func runKey(cfg *drivers.TaskConfig) (history.Key, error) {
	var config struct {
		Image   string   `codec:"image"`
		Command string   `codec:"command"`
		Args    []string `codec:"args"`
	}
	if err := cfg.DecodeDriverConfig(&config); err != nil {
		return history.Key{}, err
	}
	with := append([]string{config.Image, config.Command}, config.Args...)
	for _, name := range sortedKeys(cfg.Env) {
		key, ok := strings.CutPrefix(name, taskenv.MetaPrefix)
		if _, ours := options.Key(key); ok && !ours {
			with = append(with, key+"="+cfg.Env[name])
		}
	}
	return history.Key{
		Namespace: cfg.Namespace, Job: history.Job(cmp.Or(cfg.ParentJobID, cfg.JobID)), Group: cfg.TaskGroupName, Task: cfg.Name,
		Arguments: history.Arguments(with...),
	}, nil
}

func nodePrivate(cfg *drivers.TaskConfig) private.Dir {
	return private.Open(filepath.Dir(cfg.AllocDir))
}

func (d *Driver) recallRun(cfg *drivers.TaskConfig, opts *options.Task) {
	if opts.Run == (history.Key{}) {
		return
	}
	d.runs.Lock()
	defer d.runs.Unlock()
	var err error
	if opts.Work.Earlier, err = history.Find(nodePrivate(cfg), opts.Run); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.logger.Warn("cannot read the cost of an earlier run", "task", cfg.Name, "alloc_id", cfg.AllocID, "error", err)
	}
}

func (d *Driver) receiveRun(t *task, text string) error {
	run, err := t.run.Parse(text)
	switch {
	case t.run == (history.Key{}) || errors.Is(err, history.ErrOther):
		return nil // not comparable
	case err != nil:
		return fmt.Errorf("ebbtide: signal %s: %w", history.Signal, err)
	}
	t.setup.controller.Earlier(t.handle.Config.ID, run)
	return d.addRun(t, run)
}

func (d *Driver) keepRun(t *task, last measure.Measurement) {
	select {
	case <-t.settled:
	case <-d.ctx.Done():
		return
	}
	run := last.Run(last.CPU)
	if !t.complete(run) {
		return
	}
	if err := d.addRun(t, run); err != nil {
		d.logger.Warn("cannot store the cost of the run", "task", t.handle.Config.Name, "alloc_id", t.handle.Config.AllocID, "error", err)
	}
}

// minReportedCPUS is the minimum cost reported to the shim, in CPU-seconds: the event delays the
// task's result (flushEvents), and short runs gain nothing.
const minReportedCPUS = 5

// reportRun reports the cost of an ended task to the shim, which forwards it to other nodes. It
// returns whether an event was sent.
func (d *Driver) reportRun(t *task, run remaining.Run) (said bool) {
	if !t.complete(run) || run.CPUS < minReportedCPUS {
		return false
	}
	message := fmt.Sprintf("used %.4g CPU-seconds", run.CPUS)
	if run.Steps > 0 {
		message += fmt.Sprintf(" for %.6g steps", run.Steps)
	}
	d.say(t, "size", message+"; the next run is expected to use as much", map[string]string{history.Annotation: t.run.Text(run)})
	return true
}

// complete reports whether a task's cost predicts the next run's.
func (t *task) complete(run remaining.Run) bool {
	return t.run != (history.Key{}) && t.success() && run.CPUS > 0
}

func (d *Driver) addRun(t *task, run remaining.Run) error {
	d.runs.Lock()
	defer d.runs.Unlock()
	return history.Add(nodePrivate(t.handle.Config), t.run, run)
}
