// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/control"
	"github.com/ebbtide/ebbtide/driver/measure"
	"github.com/ebbtide/ebbtide/driver/options"
	"github.com/ebbtide/ebbtide/driver/remaining"
	"github.com/ebbtide/ebbtide/driver/remaining/history"
)

// The last complete run of a job estimates the next.
func TestRunsAreKept(t *testing.T) {
	d := newDriver(t, Name)
	allocs := t.TempDir()
	run := func(config map[string]any, meta map[string]string) *drivers.TaskConfig {
		cfg := taskConfig(t, config, meta)
		cfg.Namespace, cfg.JobID, cfg.TaskGroupName, cfg.AllocDir = "default", "mlp", "g", filepath.Join(allocs, "a")
		return cfg
	}
	earlier := func(cfg *drivers.TaskConfig) remaining.Run {
		key, err := runKey(cfg)
		must.NoError(t, err)
		opts := &options.Task{Run: key}
		d.recallRun(cfg, opts)
		return opts.Work.Earlier
	}
	last := measure.Measurement{CPU: 50, Work: remaining.State{Reported: true, Used: 40, At: remaining.Mark{Step: 100, CPU: 40}}}
	end := func(cfg *drivers.TaskConfig, result *drivers.ExitResult, change func(*task)) {
		held := &task{handle: &drivers.TaskHandle{Config: cfg}, settled: make(chan struct{}), result: result}
		close(held.settled)
		if change != nil {
			change(held)
		}
		var err error
		held.run, err = runKey(cfg)
		must.NoError(t, err)
		d.keepRun(held, last)
	}
	config := map[string]any{"image": "torch:1", "command": "python", "args": []string{"train.py", "--size", "3"}}
	cfg := run(config, nil)
	must.Eq(t, remaining.Run{}, earlier(cfg))

	stopped := func(k *task) { k.stopped = true }
	end(cfg, &drivers.ExitResult{ExitCode: 1}, nil)
	end(cfg, &drivers.ExitResult{Err: errors.New("lost")}, nil)
	end(cfg, &drivers.ExitResult{}, stopped)
	end(cfg, nil, nil)
	must.Eq(t, remaining.Run{}, earlier(cfg))

	want := remaining.Run{CPUS: 50, Steps: 100}
	end(cfg, &drivers.ExitResult{}, nil)
	must.Eq(t, want, earlier(cfg))
	again := run(config, map[string]string{"ebbtide_limit": "off"})
	again.JobID, again.ParentJobID = "mlp/dispatch-1784550000-0a1b2c3d", "mlp"
	must.Eq(t, want, earlier(again))

	config["args"] = []string{"train.py", "--size", "4"}
	must.Eq(t, remaining.Run{}, earlier(run(config, nil)))
	config["args"], config["image"] = []string{"train.py", "--size", "3"}, "torch:2"
	must.Eq(t, remaining.Run{}, earlier(run(config, nil)))
	config["image"] = "torch:1"
	must.Eq(t, remaining.Run{}, earlier(run(config, map[string]string{"data": "large"})))

	last.CPU = 30
	end(cfg, &drivers.ExitResult{}, func(k *task) { stopped(k); k.succeeded.Store(true) })
	must.Eq(t, remaining.Run{CPUS: 40, Steps: 100}, earlier(cfg))
}

// A signal reports a run on another node: one with the same arguments is adopted and stored, others
// are ignored, and an invalid one is an error.
func TestRunsAreTold(t *testing.T) {
	d := newDriver(t, Name)
	held := &task{setup: &setup{controller: control.New(control.Options{}, hclog.NewNullLogger())}}
	cfg := taskConfig(t, map[string]any{"command": "train"}, nil)
	cfg.Namespace, cfg.JobID, cfg.TaskGroupName, cfg.AllocDir = "default", "mlp", "g", filepath.Join(t.TempDir(), "a")
	held.handle = &drivers.TaskHandle{Config: cfg}
	var err error
	held.run, err = runKey(cfg)
	must.NoError(t, err)
	d.tasks[cfg.ID] = held
	kept := func() remaining.Run {
		opts := &options.Task{Run: held.run}
		d.recallRun(cfg, opts)
		return opts.Work.Earlier
	}
	other := held.run
	other.Arguments = "0a1b"
	must.NoError(t, d.SignalTask(cfg.ID, history.Signal+" "+other.Text(remaining.Run{CPUS: 9})))
	for _, bad := range []string{"", "cpu_s=50", "cpu_s=0 steps=1 arguments=" + held.run.Arguments, "cpu_s=NaN steps=1 arguments=" + held.run.Arguments,
		"cpu_s=5 steps=-1 arguments=" + held.run.Arguments} {
		must.ErrorContains(t, d.SignalTask(cfg.ID, history.Signal+" "+bad), "EBBTIDE_EARLIER", must.Sprint(bad))
	}
	must.Eq(t, remaining.Run{}, kept())
	want := remaining.Run{CPUS: 50.25, Steps: 100}
	must.NoError(t, d.SignalTask(cfg.ID, history.Signal+" "+held.run.Text(want)))
	must.Eq(t, want, kept())
}
