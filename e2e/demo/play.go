// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/e2e/demo/result"
	"github.com/ebbtide/ebbtide/e2e/demo/view"
	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/e2e/mix"
)

type demo struct {
	options
	screen  *view.Screen
	h       *harness.Harness
	agent   *harness.Agent
	running string             // of the running agent
	speeds  map[string]float64 // steps per CPU-second, by model
	found   found
	begun   time.Time
	outcome string // of the last report
}

// none is plain Nomad.
const none = "none"

// cores is the node's size, the same on larger machines.
const cores = 2

// The jobs are the benchmark's ten (e2e/bench), shorter: both runs take about six minutes.
const (
	jobCount = 10
	factor   = 1.2
)

func (o options) jobs(seed uint64) []mix.Job { return mix.Papers(jobCount, seed, factor*o.scale) }

// found holds the versions reported by agent and plugin.
type found struct{ version, nomad string }

// Deadlines, several times a healthy run's duration.
const (
	startDeadline = 90 * time.Second
	runDeadline   = 10 * time.Minute
)

// play runs the demo. It cleans up unless told to keep everything running.
func (d *demo) play(ctx context.Context) (err error) {
	if err := check(); err != nil {
		return err
	}
	d.h, err = harness.New(harness.Options{Logf: d.screen.Logf})
	if err != nil {
		return err
	}
	defer func() { err = d.end(ctx, err) }()
	if useBuilt(d.h.Tools.Root) {
		d.screen.Logf("Using the plugin and the trainer in bin/.")
	}

	d.begun = time.Now()
	about := time.Duration(d.scale * float64(d.seeds) * float64(6*time.Minute)).Round(time.Second)
	d.screen.Logf("The same %d jobs run under Ebbtide's policy %s and under none, which is plain Nomad: about %v in all.", jobCount, d.policy, about)
	d.screen.Logf("ahead: CPU time beyond the job's fair share; limit, CPU: parts of the pool of %d cores.", pool())
	d.screen.Logf("Finding out how fast this machine is.")
	if d.speeds, err = mix.Speeds(ctx, d.h, pool()); err != nil {
		return err
	}
	e := result.Experiment{Time: time.Now().UTC().Truncate(time.Second), Cores: float64(pool()), Mode: d.mode}
	interval, err := time.ParseDuration(d.interval)
	if err != nil {
		return fmt.Errorf("-interval: %w", err)
	}
	e.Interval = interval.Seconds()
	for i := range d.seeds {
		seed := d.seed + uint64(i)
		// Alternate the order against drift of the machine.
		order := []string{d.policy, none}
		if i%2 == 1 {
			order = []string{none, d.policy}
		}
		pair := result.Pair{Seed: seed}
		for n, policy := range order {
			if d.seeds > 1 {
				d.screen.Logf("\nSeed %d (%d of %d), policy %s", seed, i+1, d.seeds, policy)
			} else {
				d.screen.Logf("\nRun %d of 2: policy %s", n+1, policy)
			}
			if err := d.startWith(ctx, policy); err != nil {
				return err
			}
			run, err := d.run(ctx, policy, seed)
			if err != nil {
				return err
			}
			if policy == none {
				pair.None = run
			} else {
				pair.With = run
			}
		}
		e.Pairs = append(e.Pairs, pair)
		e.Version, e.Nomad = d.found.version, d.found.nomad
		if err := d.report(e); err != nil {
			return err
		}
	}
	return nil
}

// startWith starts or reconfigures the agent, as an operator would.
func (d *demo) startWith(ctx context.Context, policy string) error {
	if d.running == policy {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	config := fmt.Sprintf("engine = \"exec\"\n    policy = %q\n    mode = %q\n    interval = %q\n    pool_cores = %d", policy, d.mode, d.interval, pool())
	if d.prefer != "" {
		config += fmt.Sprintf("\n    fsp_prefer = %q", d.prefer)
	}
	if d.agent == nil {
		d.screen.Logf("Starting Nomad with the Ebbtide plugin: engine exec, %d cores, policy %s, limits by %s.", pool(), policy, d.mode)
		agent, err := d.h.StartAgent(ctx, harness.AgentConfig{
			Name: "ebbtide-demo", PluginName: "ebbtide-driver", Plugin: config,
			ClientHCL: fmt.Sprintf("reservable_cores = \"0-%d\"", pool()-1),
			HTTPPort:  d.port, LogLevel: "INFO",
		})
		d.agent = agent
		if err != nil {
			return fmt.Errorf("starting Nomad: %w%s", err, d.agentLog())
		}
	} else {
		d.screen.Logf("Restarting Nomad with policy %s.", policy)
		if err := d.agent.Reconfigure(ctx, config); err != nil {
			return fmt.Errorf("%w%s", err, d.agentLog())
		}
	}
	d.running = policy
	node, err := d.agent.WaitPolicy(ctx, policy, d.mode)
	if err != nil {
		return fmt.Errorf("%w%s", err, d.agentLog())
	}
	d.found = found{version: node.Attributes["driver.ebbtide.version"], nomad: node.Attributes["nomad.version"]}
	d.screen.Logf("Nomad %s and the plugin %s are ready; the UI is at %s while this runs.", d.found.nomad, d.found.version, d.agent.Addr)
	return nil
}

func (d *demo) agentLog() string {
	if d.agent == nil {
		return ""
	}
	text, err := d.agent.Log()
	if err != nil {
		return ""
	}
	return relevant(text, 15)
}

// relevant returns a log's last warnings, errors and lines about the plugin.
func relevant(log string, most int) string {
	var lines []string
	for _, l := range strings.Split(log, "\n") {
		has := func(text string) bool { return strings.Contains(l, text) }
		switch {
		case has("fingerprint_mgr"), has("driver=docker"), has("WARNING: "), has("==> Nomad agent"):
			// expected without Consul, CNI or Docker
		case has("[ERROR]"), has("[WARN]"), has("ebbtide"), strings.HasPrefix(l, "==>"):
			lines = append(lines, "  "+l)
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return "\nfrom the agent's log:\n" + strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// end prints locations, and cleans up or leaves everything running.
func (d *demo) end(ctx context.Context, err error) error {
	if d.keep && d.agent != nil && d.agent.Process() != nil && d.agent.Process().Err() == nil && ctx.Err() == nil {
		if err == nil {
			err = d.startWith(ctx, d.policy) // for the user to try
		}
		pid, derr := d.h.Detach(context.WithoutCancel(ctx))
		if derr == nil {
			d.screen.Logf("\nNomad keeps running: %s\nTo use it: export NOMAD_ADDR=%s; its files are in %s.\nTo end it and remove everything: %skill %d",
				d.agent.Addr, d.agent.Addr, d.h.Dir, sudo(), pid)
			return err
		}
		err = errors.Join(err, fmt.Errorf("leaving Nomad running: %w", derr))
	}
	if err != nil && ctx.Err() == nil {
		logs := filepath.Join(d.out, "demo-logs")
		if cerr := d.h.CopyLogs(logs); cerr == nil {
			d.screen.Logf("\nIt failed; all logs of the run are in %s.", logs)
		}
	}
	if cerr := d.h.Close(); cerr != nil {
		return errors.Join(err, cerr)
	}
	if err == nil {
		d.screen.Logf("The demo is done after %v: %s. Nomad has ended and left nothing behind; KEEP=1 make demo leaves it running.",
			time.Since(d.begun).Round(time.Second), d.outcome)
	}
	return err
}

// sudo returns the prefix for root commands.
func sudo() string {
	if os.Getenv("SUDO_USER") != "" {
		return "sudo "
	}
	return ""
}
