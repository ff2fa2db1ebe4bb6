// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package result holds the measurements of e2e/bench, and renders their tables. It is pure.
//
// Figures are measured outside Ebbtide: values from the trainers' records, response times from the
// clients, CPU and limits from the kernel, so policy "none" is measured in the same way.
package result

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/sim/metrics"
)

// Number encodes non-finite values as null.
type Number = status.Number

func Unknown() Number { return Number(math.NaN()) }

// Values of -what.
const (
	Train   = "train"   // the FlowCon papers' training jobs
	Torch   = "torch"   // training jobs in PyTorch and containers
	Cluster = "cluster" // training jobs on four nodes
	TRADL   = "tradl"   // training jobs with targets
	DQoES   = "dqoes"   // services with response times
	Auto    = "auto"    // all kinds on one node
)

// All lists the experiments in the order of measurement.
func All() []string { return []string{Train, Torch, Cluster, TRADL, DQoES, Auto} }

// Variants other than policies.
const (
	NoTargets = "no targets" // policy none, and jobs without targets
	None      = "none"       // policy none, with targets
	Published = "published"  // policy dqoes with the published step
)

// Cases of DQoES.
const (
	Varied      = "varied"
	Reachable   = "reachable"
	Unreachable = "unreachable"
)

// Experiment is one file's results, of one commit, machine and setting.
type Experiment struct {
	Setting
	Commands []string  `json:"commands"`
	Version  string    `json:"version"` // of the driver
	Nomad    string    `json:"nomad"`
	Time     time.Time `json:"time"` // of its start
	// Calibration ensures that all runs do the same work.
	Calibration Calibration `json:"calibration"`
	Runs        []Run       `json:"runs"`
}

// Setting must be equal for runs to be comparable.
type Setting struct {
	What     string  `json:"what"`
	Commit   string  `json:"commit"`
	Machine  string  `json:"machine"`
	Cores    float64 `json:"cores"`      // the pool
	Interval float64 `json:"interval_s"` // of the policy, and of a window
	Scale    float64 `json:"scale"`      // of training jobs' lengths and intervals
	Threads  int     `json:"threads"`    // per training job
	Length   float64 `json:"length_s"`   // of a run of services
}

// Differs describes the differences, "" if there are none.
func (s Setting) Differs(other Setting) string {
	a, b := reflect.ValueOf(s), reflect.ValueOf(other)
	for i := range a.NumField() {
		if x, y := a.Field(i).Interface(), b.Field(i).Interface(); x != y {
			return fmt.Sprintf("%s is %v, not %v", a.Type().Field(i).Tag.Get("json"), x, y)
		}
	}
	return ""
}

// Calibration is the machine's measured speed.
type Calibration struct {
	// Speeds are each model's steps (PyTorch: epochs) per CPU-second.
	Speeds map[string]float64 `json:"speeds,omitempty"`
	// Work of a service's batch, and its duration alone, in seconds.
	Work  float64 `json:"work,omitempty"`
	Alone float64 `json:"alone_s,omitempty"`
	// Lengths are those of TRADL's training jobs.
	Lengths []Length `json:"lengths,omitempty"`
}

// Length is a training job's number of steps within its CPU time, and the values it reaches.
type Length struct {
	Model      string  `json:"model"`
	Seed       uint64  `json:"seed"`
	Pool       float64 `json:"pool_s"` // seconds of the whole pool
	Steps      int     `json:"steps"`
	Acceptable float64 `json:"acceptable"`
	Objective  float64 `json:"objective"`
	// Fractions of the steps at which the values are first reached.
	AcceptableAt float64 `json:"acceptable_at"`
	ObjectiveAt  float64 `json:"objective_at"`
}

// Encode writes JSON with a line per run.
func (e Experiment) Encode() ([]byte, error) {
	runs := e.Runs
	e.Runs = []Run{}
	head, err := json.MarshalIndent(e, "", " ")
	if err != nil {
		return nil, fmt.Errorf("encoding the results: %w", err)
	}
	var b bytes.Buffer
	b.Write(bytes.TrimSuffix(head, []byte("]\n}")))
	for i, r := range runs {
		line, err := json.Marshal(r)
		if err != nil {
			return nil, fmt.Errorf("encoding the results: %w", err)
		}
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString("\n")
		b.Write(line)
	}
	b.WriteString("]\n}\n")
	return b.Bytes(), nil
}

// Run is one run of tasks on a node. Times are in seconds since its start.
type Run struct {
	What    string    `json:"what"`
	Case    string    `json:"case,omitempty"`
	Variant string    `json:"variant"` // a policy, or a constant above
	Mode    string    `json:"mode"`    // weight, quota; "" without limits
	Seed    uint64    `json:"seed"`
	Start   time.Time `json:"start"`
	Joined  Number    `json:"joined_s"` // with Auto: when all joiners are running
	Tasks   []Task    `json:"tasks,omitempty"`
	Samples []Sample  `json:"samples,omitempty"`
	// Jobs are for Train, Torch and Cluster.
	Jobs []metrics.Job `json:"jobs,omitempty"`
	// Idle is unused CPU of the pool while jobs were present, Other that used by other
	// processes, in CPU-seconds.
	Idle  float64 `json:"idle_cpu_s,omitempty"`
	Other float64 `json:"other_cpu_s,omitempty"`
}

// Kinds of tasks.
const (
	Training = "training"
	Service  = "service"
	Quiet    = "quiet" // silent
)

type Task struct {
	Name       string `json:"name"`
	Kind       string `json:"kind"`
	About      string `json:"about,omitempty"`
	Steps      int    `json:"steps,omitempty"` // of a training task
	Acceptable Number `json:"acceptable"`      // of its metric
	Objective  Number `json:"objective"`       // of its metric, or a service's seconds

	Submitted Number `json:"submitted_s"`
	Started   Number `json:"started_s"`
	Finished  Number `json:"finished_s"`
	// When the targets were reached, by the trainer's record.
	AcceptableAt Number `json:"acceptable_s"`
	ObjectiveAt  Number `json:"objective_s"`
	// When they were, by Ebbtide's markers.
	AcceptableMark Number `json:"acceptable_mark_s"`
	ObjectiveMark  Number `json:"objective_mark_s"`

	CPU  Number `json:"cpu_s"`
	Base uint64 `json:"base_shares"` // set by Nomad
}

type Sample struct {
	T       float64   `json:"t_s"` // its end
	Seconds float64   `json:"seconds"`
	Busy    float64   `json:"busy"`            // cores in use on the machine
	Steal   float64   `json:"steal,omitempty"` // cores taken by the hypervisor, part of Busy
	Tasks   []Reading `json:"tasks"`           // in the run's order; later joiners are missing
}

// Reading is one task in one window.
type Reading struct {
	Alive bool    `json:"alive,omitempty"`
	Cores float64 `json:"cores"`
	// The kernel's limits at the window's end.
	Shares uint64  `json:"shares"`
	Quota  float64 `json:"quota_cores,omitempty"` // 0 for none
	// The clients' responses in the window.
	Answers  int    `json:"answers,omitempty"`
	Response Number `json:"response_s"` // mean
	// Ebbtide's state of a task that has reached a target.
	State string `json:"state,omitempty"`
	Rule  string `json:"rule,omitempty"`
}

// Limited reports whether the kernel's shares are below Nomad's.
func (r Reading) Limited(base uint64) bool {
	return r.Alive && (r.Shares < base || r.Quota > 0)
}

// Seeds lists the sorted seeds of the runs kept.
func Seeds(runs []Run, keep func(Run) bool) []uint64 {
	var seeds []uint64
	for _, r := range runs {
		if keep(r) && !slices.Contains(seeds, r.Seed) {
			seeds = append(seeds, r.Seed)
		}
	}
	slices.Sort(seeds)
	return seeds
}

// find returns a seed's run; unlimited runs serve both modes.
func find(runs []Run, what, kase, variant, mode string, seed uint64) (Run, bool) {
	for _, r := range runs {
		if r.What == what && r.Case == kase && r.Variant == variant && r.Seed == seed && (r.Mode == mode || r.Mode == "") {
			return r, true
		}
	}
	return Run{}, false
}

// variants lists the variants in order of appearance.
func variants(runs []Run, what, kase, mode string) []string {
	var names []string
	for _, r := range runs {
		if r.What == what && r.Case == kase && (r.Mode == mode || r.Mode == "") && !slices.Contains(names, r.Variant) {
			names = append(names, r.Variant)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	return names
}

// rank orders variants in tables, baselines first.
func rank(variant string) int {
	return slices.Index([]string{NoTargets, None, "flowcon", "flowcon-2019", "flowcon-2022", "specon", "tradl", Published, "dqoes", "auto"}, variant)
}

// Modes lists the modes of one kind.
func Modes(runs []Run, what string) []string {
	var modes []string
	for _, m := range []string{"weight", "quota"} {
		if slices.ContainsFunc(runs, func(r Run) bool { return r.What == what && r.Mode == m }) {
			modes = append(modes, m)
		}
	}
	return modes
}
