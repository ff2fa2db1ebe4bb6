// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

const pluginFile = "ebbtide-driver"

type pluginRun struct {
	Policy  string  `json:"policy"`
	Round   int     `json:"round"`
	Seconds float64 `json:"seconds"`

	// CPU in % of one core: of the plugin, of the executors, which stock Nomad also has, and of the
	// agent.
	Plugin    float64 `json:"plugin_pct"`
	Executors float64 `json:"executors_pct"`
	Agent     float64 `json:"agent_pct"`

	RSS        float64        `json:"rss_mib"`      // of the plugin, at the end
	Busy       float64        `json:"busy_cores"`   // of the machine, in total
	Categories map[string]int `json:"categories"`   // tasks by category, at the end
	StatusAge  float64        `json:"status_age_s"` // of the oldest status, at the end
	Changes    int            `json:"changes"`      // events in the histories
	Pictures   int            `json:"pictures"`     // tasks with a new one
}

// measurePlugin measures both policies in turn.
func measurePlugin(ctx context.Context, h *harness.Harness, o options, r *results) error {
	f, err := newFleet(ctx, h, o)
	if err != nil {
		return err
	}
	for round := range o.rounds {
		// Alternating, so drift such as growing histories favours none.
		order := []string{"flowcon", "none"}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, policy := range order {
			if err := f.restart(ctx, policy); err != nil {
				return fmt.Errorf("restarting with policy %s: %w", policy, err)
			}
			o.logf("Round %d of %d, policy %s: measuring for %v.", round+1, o.rounds, policy, o.window)
			run, err := f.measure(ctx)
			if err != nil {
				return fmt.Errorf("measuring the plugin under policy %s: %w", policy, err)
			}
			run.Policy, run.Round = policy, round+1
			o.logf("The plugin used %.2f %% of a core.", run.Plugin)
			r.Plugin = append(r.Plugin, run)
		}
	}
	return nil
}

// fleet is an agent with many tasks that report but hardly compute.
type fleet struct {
	options
	agent *harness.Agent
	paths []string // of the tasks' files, without extension
}

// reporter prints a line per second. Every other task keeps growing, the rest converges to
// noise, so the policy has to decide at each interval.
const reporter = `n=0
while :; do
  n=$((n + 1))
  if [ $((NOMAD_ALLOC_INDEX % 2)) = 0 ]; then
    echo step=$n loss=$((1000000 - n))
  else
    echo step=$n loss=$((5000 + 5000 / n + n * 7919 % 13))
  fi
  sleep 1
done`

// fleetJob is the fleet's job; the scheduler counts the disk per task.
const fleetJob = `
job "fleet" {
  type = "batch"
  group "g" {
    count = %d
    ephemeral_disk {
      size = 20
    }
    task "train" {
      driver = "ebbtide"
      config {
        command = "/bin/sh"
        args    = ["-c", %q]
      }
      logs {
        max_files     = 2
        max_file_size = 1
      }
      resources {
        cpu    = 20
        memory = 20
      }
    }
  }
}
`

func newFleet(ctx context.Context, h *harness.Harness, o options) (*fleet, error) {
	// On two cores an executor starts in a second or two.
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute+time.Duration(o.tasks)*5*time.Second)
	defer cancel()
	f := &fleet{options: o}
	var err error
	f.agent, err = h.StartAgent(ctx, harness.AgentConfig{
		Name: "overhead", PluginName: pluginFile, Plugin: f.config("none"), LogLevel: "INFO",
	})
	if err != nil {
		return nil, fmt.Errorf("starting Nomad: %w", err)
	}
	if _, err := f.agent.WaitDriver(ctx, "ebbtide", true); err != nil {
		return nil, err
	}
	o.logf("Starting %d tasks.", o.tasks)
	job, err := f.agent.Run(ctx, fmt.Sprintf(fleetJob, o.tasks, reporter))
	if err != nil {
		return nil, err
	}
	err = harness.Poll(ctx, "all tasks run", func(ctx context.Context) error {
		allocs, err := f.agent.Allocs(ctx, job)
		if err != nil {
			return err
		}
		f.paths = nil
		for _, a := range allocs {
			if a.ClientStatus == api.AllocClientStatusRunning {
				f.paths = append(f.paths, filepath.Join(f.agent.AllocDir(a.ID), "alloc", status.Dir, "train"))
			}
		}
		if len(f.paths) != o.tasks {
			return fmt.Errorf("%d of %d do", len(f.paths), o.tasks)
		}
		return nil
	})
	return f, err
}

// config sets only the necessary options.
func (f *fleet) config(policy string) string {
	return fmt.Sprintf("engine = \"exec\"\npolicy = %q\ninterval = %q\n", policy, f.interval)
}

// restart restarts the agent with a policy, and waits until all tasks are recovered and initial
// work is done.
func (f *fleet) restart(ctx context.Context, policy string) error {
	deadline, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	f.logf("Restarting Nomad with policy %s.", policy)
	if err := f.agent.Stop(deadline); err != nil {
		return err
	}
	stopped := time.Now()
	if err := f.agent.Configure(f.config(policy)); err != nil {
		return err
	}
	if err := f.agent.Restart(deadline); err != nil {
		return err
	}
	err := harness.Poll(deadline, "the plugin has taken up all tasks", func(context.Context) error {
		for i, task := range f.paths {
			st, err := status.ReadStatus(task + ".json")
			switch {
			case err != nil:
				return err
			case st.Policy != policy || st.Updated.Before(stopped) || st.Reports == 0 || st.Node.Tasks != f.tasks:
				return fmt.Errorf("task %d of %d: policy %s of %v, %d reports, one of %d tasks",
					i+1, len(f.paths), st.Policy, st.Updated, st.Reports, st.Node.Tasks)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	f.logf("All %d tasks are taken up after %v.", f.tasks, time.Since(stopped).Round(time.Second))
	return sleep(ctx, f.settle)
}

func (f *fleet) measure(ctx context.Context) (pluginRun, error) {
	plugins := f.agent.PluginPIDs(pluginFile)
	if len(plugins) != 1 {
		return pluginRun{}, fmt.Errorf("there are %d plugin processes", len(plugins))
	}
	plugin, executors, agent := plugins[0], f.agent.ExecutorPIDs(pluginFile), f.agent.Process().PID
	if len(executors) != f.tasks {
		return pluginRun{}, fmt.Errorf("there are %d executors for %d tasks", len(executors), f.tasks)
	}
	groups := [][]int{{plugin}, executors, {agent}}
	before, err := readCPU(groups)
	if err != nil {
		return pluginRun{}, err
	}
	if err := sleep(ctx, f.window); err != nil {
		return pluginRun{}, err
	}
	after, err := readCPU(groups)
	if err != nil {
		return pluginRun{}, err
	}
	cores := after.cores(before)
	run := pluginRun{
		Seconds: after.at.Sub(before.at).Seconds(),
		Plugin:  100 * cores[0], Executors: 100 * cores[1], Agent: 100 * cores[2],
		Busy: after.busy(before), Categories: make(map[string]int),
	}
	if run.RSS, err = rss(plugin); err != nil {
		return run, err
	}
	for _, task := range f.paths {
		if err := run.look(task, before.at); err != nil {
			return run, err
		}
	}
	return run, nil
}

// look counts a task's writes and decisions since a given time.
func (r *pluginRun) look(task string, since time.Time) error {
	st, err := status.ReadStatus(task + ".json")
	if err != nil {
		return err
	}
	r.Categories[st.Category]++
	r.StatusAge = max(r.StatusAge, time.Since(st.Updated).Seconds())
	rows, err := status.ReadHistory(task + ".csv")
	if err != nil {
		return err
	}
	for _, row := range rows {
		if row.Event != "" && row.Time.After(since) {
			r.Changes++
		}
	}
	if picture, err := os.Stat(task + ".png"); err == nil && picture.ModTime().After(since) {
		r.Pictures++
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
