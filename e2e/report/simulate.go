// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/ebbtide/ebbtide/cli"
	"github.com/ebbtide/ebbtide/e2e/origin"
	"github.com/ebbtide/ebbtide/sim/metrics"
)

// simulations are all simulated runs, of one commit.
type simulations struct {
	Commit  string       `json:"commit"`
	Machine string       `json:"machine"`
	Seeds   int          `json:"seeds"`
	Runs    []simulation `json:"runs"`
}

type simulation struct {
	Name      string            `json:"name"`
	Commit    string            `json:"commit,omitempty"` // "" for that of all
	Command   string            `json:"command"`
	Summaries []metrics.Summary `json:"summaries"`
}

// planned is a simulation to run.
type planned struct {
	name, scenario, sizes string
	jobs                  int // 0 for the scenario's
	policies              []string
	plot                  string // policies to plot, "" for none
}

// seeds per policy
const seeds = 30

// Knowledge of sizes only matters to fair finish, so other policies run once. Policies for jobs are
// omitted if there are services.
var (
	ours    = []string{"auto", "fsp-completion"}
	others  = []string{"flowcon", "flowcon-2022", "las", "equal", "srpt"}
	placed  = []string{"auto@relocate", "fsp-completion@relocate", "auto@alg4", "flowcon@alg4", "specon"}
	serving = []string{"auto", "flowcon", "flowcon-2022", "equal", "dqoes", "dqoes-published"}
)

func plan() []planned {
	var all []planned
	for _, name := range []string{"jobs", "papers", "threads", "targets", "adaptdl", "alibaba", "services", "failures", "cluster", "cluster-overhead", "mixed"} {
		exact, estimated := join(ours, []string{"srpt"}), join(ours, others)
		plot := ""
		switch name {
		case "jobs":
			plot = "auto,fsp-completion,flowcon,flowcon-2022"
		case "targets":
			estimated = join(estimated, []string{"tradl"})
		case "services":
			exact, estimated = []string{"auto"}, serving
		case "failures", "cluster", "cluster-overhead":
			exact, estimated = join(exact, placed[:2]), join(estimated, placed)
		}
		all = append(all,
			planned{name: name + " exact", scenario: name, sizes: "exact", policies: exact},
			planned{name: name + " estimated", scenario: name, sizes: "estimated", policies: estimated, plot: plot})
	}
	published := func(scenario, sizes string, jobs int, policies ...string) {
		all = append(all, planned{
			name: fmt.Sprintf("%s %d %s", scenario, jobs, sizes), scenario: scenario, sizes: sizes, jobs: jobs,
			policies: join([]string{"auto", "fsp-completion", "srpt"}, policies),
		})
	}
	for _, jobs := range []int{3, 5, 15} {
		published("papers", "exact", jobs)
		published("papers", "estimated", jobs, "flowcon", "flowcon-2019", "flowcon-2022")
	}
	published("targets", "exact", 5)
	published("targets", "estimated", 5, "tradl", "tradl-published")
	published("four", "estimated", 20, placed...)
	published("four", "estimated", 40, placed...)
	published("eight", "estimated", 50, placed...)
	published("eight", "estimated", 60, placed...)
	return all
}

func join(a, b []string) []string { return append(append([]string(nil), a...), b...) }

// simulate runs all simulations and writes their results. data has real curves and traces.
func simulate(ctx context.Context, root, data string, log io.Writer) error {
	commit, err := origin.Commit(ctx, root)
	if err != nil {
		return err
	}
	out := simulations{Commit: commit, Machine: origin.Machine(), Seeds: seeds}
	for _, p := range plan() {
		fmt.Fprintln(log, "Simulating", p.name)
		s := simulation{Name: p.name}
		args := []string{"sim", "-scenario", "sim/scenarios/" + p.scenario + ".hcl", "-sizes", p.sizes, "-seeds", fmt.Sprint(seeds)}
		if p.jobs > 0 {
			args = append(args, "-jobs", fmt.Sprint(p.jobs))
		}
		if p.scenario == "adaptdl" || p.scenario == "alibaba" {
			args = append(args, "-data", "DIR")
		}
		s.Command = "ebbtide " + strings.Join(append(args, "-policy", strings.Join(p.policies, ","), "-json"), " ")
		printed, err := ebbtide(s.Command, root, data)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(printed, &s.Summaries); err != nil {
			return fmt.Errorf("decoding what %q printed: %w", s.Command, err)
		}
		out.Runs = append(out.Runs, s)
		if p.plot != "" {
			picture := filepath.Join(root, results, "sim-"+p.scenario+".svg")
			if _, err := ebbtide("ebbtide "+strings.Join(append(args, "-policy", p.plot, "-plot", picture), " "), root, data); err != nil {
				return err
			}
		}
	}
	text, err := encode(out)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, results, "sim.json"), text, 0o644); err != nil {
		return fmt.Errorf("writing the simulations: %w", err)
	}
	return nil
}

// ebbtide runs a command as printed, with actual paths.
func ebbtide(command, root, data string) ([]byte, error) {
	args := strings.Fields(command)[1:]
	for i, a := range args {
		switch {
		case a == "DIR":
			args[i] = data
		case i > 0 && args[i-1] == "-scenario":
			args[i] = filepath.Join(root, a)
		}
	}
	var out, errs bytes.Buffer
	if status := cli.Run(args, nil, &out, &errs); status != 0 {
		return nil, fmt.Errorf("%q ended with status %d: %s", command, status, errs.String())
	}
	return out.Bytes(), nil
}

// digits exceed any table's precision.
var digits = regexp.MustCompile(`(\.\d{5})\d+`)

// encode writes a line per policy, with five decimals.
func encode(s simulations) ([]byte, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encoding the simulations: %w", err)
	}
	text = digits.ReplaceAll(text, []byte("$1"))
	text = bytes.ReplaceAll(text, []byte(`{"scenario"`), []byte("\n{\"scenario\""))
	return append(text, '\n'), nil
}
