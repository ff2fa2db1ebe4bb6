// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/e2e/mix"
)

// loneRun measures the only task on its node.
type loneRun struct {
	Way     string  `json:"way"` // stock, weight or quota
	Round   int     `json:"round"`
	Seconds float64 `json:"seconds"`
	Cores   float64 `json:"cores"`       // CPU-seconds of the task per second
	Left    float64 `json:"left_cores"`  // machine's cores less those used outside of this run
	Steps   float64 `json:"steps_per_s"` // of the training job
}

// share returns the task's fraction of the CPU available to the run; the rest was idle, or used by
// Nomad and the plugin. It is robust against other load.
func (r loneRun) share() float64 { return r.Cores / r.Left }

// ways have one client each, since stock Nomad has no plugin.
var ways = []string{"stock", "weight", "quota"}

// measureLone measures all ways in turn.
func measureLone(ctx context.Context, h *harness.Harness, o options, r *results) error {
	l, err := newLone(ctx, h, o)
	if err != nil {
		return err
	}
	for round := range o.loneRounds {
		// Rotated, so recurring load favours none.
		for i := range ways {
			way := ways[(i+round)%len(ways)]
			o.logf("Round %d of %d: a lone task, %s.", round+1, o.loneRounds, way)
			run, err := l.run(ctx, way)
			if err != nil {
				return fmt.Errorf("measuring a lone task, %s: %w", way, err)
			}
			run.Way, run.Round = way, round+1
			o.logf("It got %.3f cores of the %.2f that others left and did %.1f steps a second.", run.Cores, run.Left, run.Steps)
			r.Lone = append(r.Lone, run)
		}
	}
	return nil
}

// lone is a server with clients, of which at most one runs.
type lone struct {
	options
	h       *harness.Harness
	server  *harness.Agent
	clients map[string]*harness.Agent
}

// loneDeadline bounds a measurement in excess of its duration.
const loneDeadline = 5 * time.Minute

func newLone(ctx context.Context, h *harness.Harness, o options) (*lone, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute) // the first run builds
	defer cancel()
	l := &lone{options: o, h: h, clients: make(map[string]*harness.Agent)}
	var err error
	l.server, err = h.StartAgent(ctx, harness.AgentConfig{Name: "server", ServerOnly: true, LogLevel: "INFO"})
	if err != nil {
		return nil, fmt.Errorf("starting Nomad's server: %w", err)
	}
	return l, nil
}

func driver(way string) string {
	if way == "stock" {
		return "exec"
	}
	return "ebbtide"
}

// loneJob uses all CPU: its batch keeps all threads busy.
const loneJob = `
job %q {
  type = "batch"
  constraint {
    attribute = "${node.unique.name}"
    value     = %q
  }
  group "g" {
    task "train" {
      driver = %q
      config {
        command = "/bin/trainer"
        args    = ["-model", "logreg", "-batch", "4096", "-every", "20", "-steps", "0", "-threads", "%d", "-curve", "/alloc/data/curve.csv"]
      }
      resources {
        cpu    = 1000
        memory = 256
      }
    }
  }
}
`

// run starts a way's client, measures the task, and stops both.
func (l *lone) run(ctx context.Context, way string) (run loneRun, err error) {
	ctx, cancel := context.WithTimeout(ctx, loneDeadline+l.interval+l.loneWindow)
	defer cancel()
	client, err := l.start(ctx, way)
	if err != nil {
		return run, err
	}
	job, err := l.server.Run(ctx, fmt.Sprintf(loneJob, "lone-"+way, way, driver(way), runtime.NumCPU()))
	if err != nil {
		return run, err
	}
	alloc, err := l.server.WaitRunning(ctx, job)
	if err != nil {
		return run, err
	}
	// The same delay in all ways, as training costs may drift. By then the policy has decided.
	if err := sleep(ctx, l.interval+5*time.Second); err != nil {
		return run, err
	}
	pids, err := harness.TaskPIDs(alloc.ID, "train")
	if err != nil {
		return run, err
	}
	shared := filepath.Join(client.AllocDir(alloc.ID), "alloc")
	if way != "stock" {
		if err := unlimited(ctx, filepath.Join(shared, status.Dir, "train.json"), pids[0]); err != nil {
			return run, err
		}
	}
	if run, err = l.measure(ctx, pids[0], filepath.Join(shared, "data", "curve.csv")); err != nil {
		return run, err
	}
	return run, errors.Join(l.server.StopJob(ctx, job), client.Stop(ctx))
}

func (l *lone) start(ctx context.Context, way string) (*harness.Agent, error) {
	client := l.clients[way]
	if client != nil {
		if err := client.Restart(ctx); err != nil {
			return nil, err
		}
	} else {
		cfg := harness.AgentConfig{Name: way, Join: l.server, LogLevel: "INFO"}
		if way != "stock" {
			cfg.PluginName = pluginFile
			cfg.Plugin = fmt.Sprintf("engine = \"exec\"\npolicy = \"flowcon\"\nmode = %q\ninterval = %q\n", way, l.interval)
		}
		var err error
		if client, err = l.h.StartAgent(ctx, cfg); err != nil {
			return nil, err
		}
		l.clients[way] = client
	}
	_, err := client.WaitDriver(ctx, driver(way), true)
	return client, err
}

// unlimited waits until the policy has given the task all CPU, and checks the kernel.
func unlimited(ctx context.Context, file string, pid int) error {
	return harness.Poll(ctx, "the task is measured and has no limit", func(context.Context) error {
		st, err := status.ReadStatus(file)
		if err != nil {
			return err
		}
		k, err := harness.ReadKernel(pid)
		if err != nil {
			return err
		}
		if !st.Growth.Known() || st.Limit.Fraction != 1 || k.QuotaCores != 0 {
			return fmt.Errorf("growth %v, limit %v, %v cores in the kernel", st.Growth, st.Limit.Fraction, k.QuotaCores)
		}
		return nil
	})
}

func (l *lone) measure(ctx context.Context, pid int, curve string) (run loneRun, err error) {
	type moment struct {
		reading
		kernel harness.Kernel
		point  mix.Point
	}
	ours := [][]int{l.h.PIDs()}
	now := func() (m moment, err error) {
		var errs [3]error
		m.kernel, errs[0] = harness.ReadKernel(pid)
		m.reading, errs[1] = readCPU(ours)
		m.point, errs[2] = lastPoint(curve)
		return m, errors.Join(errs[:]...)
	}
	before, err := now()
	if err != nil {
		return run, err
	}
	if err := sleep(ctx, l.loneWindow); err != nil {
		return run, err
	}
	after, err := now()
	if err != nil {
		return run, err
	}
	run.Seconds = after.kernel.At.Sub(before.kernel.At).Seconds()
	run.Cores = after.kernel.Cores(before.kernel)
	others := after.busy(before.reading) - after.cores(before.reading)[0]
	run.Left = float64(runtime.NumCPU()) - max(0, others)
	if dt := after.point.T - before.point.T; dt > 0 {
		run.Steps = (after.point.Step - before.point.Step) / dt
	}
	return run, nil
}

func lastPoint(path string) (mix.Point, error) {
	f, err := os.Open(path)
	if err != nil {
		return mix.Point{}, err
	}
	defer f.Close()
	points, err := mix.ReadCurve(f, 0)
	if err != nil {
		return mix.Point{}, err
	}
	if len(points) == 0 {
		return mix.Point{}, fmt.Errorf("%s has no points yet", path)
	}
	return points[len(points)-1], nil
}
