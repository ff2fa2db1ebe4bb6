// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package result holds what the runs of e2e/bench measured, and makes the tables
// of it. It is pure: no clock, no files.
//
// What is compared comes from outside Ebbtide: values from the trainers' own
// records, response times from the clients, CPU and limits from the kernel. So runs
// under policy "none" are measured in exactly the same way as the others.
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

// Number is a float64 that JSON can carry: what is not finite is null.
type Number = status.Number

// Unknown is a Number that is not known.
func Unknown() Number { return Number(math.NaN()) }

// What can be measured.
const (
	Train   = "train"   // the FlowCon papers' training jobs
	Torch   = "torch"   // training jobs written in PyTorch, in containers
	Cluster = "cluster" // training jobs on four nodes
	TRADL   = "tradl"   // training jobs with targets
	DQoES   = "dqoes"   // services with response times
	Auto    = "auto"    // one node, all kinds
)

// All is what can be measured, in the order in which it is.
func All() []string { return []string{Train, Torch, Cluster, TRADL, DQoES, Auto} }

// Variants: how the node is run.
const (
	NoTargets = "no targets" // policy none, and the jobs say nothing of what is good enough
	None      = "none"       // policy none, with targets
	Published = "published"  // policy dqoes with the published step
)

// Cases of DQoES.
const (
	Varied      = "varied"
	Reachable   = "reachable"
	Unreachable = "unreachable"
)

// Experiment is all that was measured in one file. All of it is of one commit, machine
// and setting.
type Experiment struct {
	Setting
	Commands []string  `json:"commands"` // that measured it, without repeats
	Version  string    `json:"version"`  // of the driver
	Nomad    string    `json:"nomad"`
	Time     time.Time `json:"time"` // when it was begun
	// Calibration is what was found out about the machine before the first run, so that
	// all runs do the same work.
	Calibration Calibration `json:"calibration"`
	Runs        []Run       `json:"runs"`
}

// Setting is what two runs must share to be compared.
type Setting struct {
	What     string  `json:"what"`
	Commit   string  `json:"commit"`
	Machine  string  `json:"machine"`
	Cores    float64 `json:"cores"`      // the pool
	Interval float64 `json:"interval_s"` // of the policy, and the length of a window
	Scale    float64 `json:"scale"`      // of lengths of training jobs, and of the times between them
	Threads  int     `json:"threads"`    // of each training job
	Length   float64 `json:"length_s"`   // of a run of services
}

// Differs says in what a setting differs from another; "" in nothing.
func (s Setting) Differs(other Setting) string {
	a, b := reflect.ValueOf(s), reflect.ValueOf(other)
	for i := range a.NumField() {
		if x, y := a.Field(i).Interface(), b.Field(i).Interface(); x != y {
			return fmt.Sprintf("%s is %v, not %v", a.Type().Field(i).Tag.Get("json"), x, y)
		}
	}
	return ""
}

// Calibration is what a machine does.
type Calibration struct {
	// Speeds are the steps that each model does per CPU-second, and of PyTorch the epochs.
	Speeds map[string]float64 `json:"speeds,omitempty"`
	// Work of a service's batch, and what it takes alone, in seconds.
	Work  float64 `json:"work,omitempty"`
	Alone float64 `json:"alone_s,omitempty"`
	// Lengths are those of TRADL's trainings.
	Lengths []Length `json:"lengths,omitempty"`
}

// Length is what was found out about a training: how many steps it does in the CPU time
// that it is to have, and what it has reached on its way.
type Length struct {
	Model      string  `json:"model"`
	Seed       uint64  `json:"seed"`
	Pool       float64 `json:"pool_s"` // seconds of the whole pool
	Steps      int     `json:"steps"`
	Acceptable float64 `json:"acceptable"`
	Objective  float64 `json:"objective"`
	// Parts of the steps at which the values are first reached.
	AcceptableAt float64 `json:"acceptable_at"`
	ObjectiveAt  float64 `json:"objective_at"`
}

// Encode writes an experiment as JSON with a line for each run.
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

// Run is some tasks on one node under one variant. Times are seconds since its start.
type Run struct {
	What    string    `json:"what"`
	Case    string    `json:"case,omitempty"`
	Variant string    `json:"variant"` // a policy, or one of the names above
	Mode    string    `json:"mode"`    // weight, quota; "" where there are no limits
	Seed    uint64    `json:"seed"`
	Start   time.Time `json:"start"`
	Joined  Number    `json:"joined_s"` // with Auto: all of those that come later are there
	Tasks   []Task    `json:"tasks,omitempty"`
	Samples []Sample  `json:"samples,omitempty"`
	// Jobs are those of Train, Torch and Cluster.
	Jobs []metrics.Job `json:"jobs,omitempty"`
	// Idle are the CPU-seconds of the pool that nothing on the machine used while a job was
	// there; Other those that something else used.
	Idle  float64 `json:"idle_cpu_s,omitempty"`
	Other float64 `json:"other_cpu_s,omitempty"`
}

// Kinds of tasks.
const (
	Training = "training"
	Service  = "service"
	Quiet    = "quiet" // reports nothing
)

// Task is one task of a run.
type Task struct {
	Name       string `json:"name"`
	Kind       string `json:"kind"`
	About      string `json:"about,omitempty"`
	Steps      int    `json:"steps,omitempty"` // of a training
	Acceptable Number `json:"acceptable"`      // values of its metric
	Objective  Number `json:"objective"`       // likewise; of a service: seconds

	Submitted Number `json:"submitted_s"`
	Started   Number `json:"started_s"`
	Finished  Number `json:"finished_s"`
	// When the targets were reached, by the trainer's own record.
	AcceptableAt Number `json:"acceptable_s"`
	ObjectiveAt  Number `json:"objective_s"`
	// When Ebbtide's markers say so.
	AcceptableMark Number `json:"acceptable_mark_s"`
	ObjectiveMark  Number `json:"objective_mark_s"`

	CPU  Number `json:"cpu_s"`       // used in all
	Base uint64 `json:"base_shares"` // what Nomad set
}

// Sample is one window.
type Sample struct {
	T       float64   `json:"t_s"` // its end
	Seconds float64   `json:"seconds"`
	Busy    float64   `json:"busy"`            // cores in use on the machine, by whatever
	Steal   float64   `json:"steal,omitempty"` // cores that the machine's own host took, part of Busy
	Tasks   []Reading `json:"tasks"`           // in the order of the run's; those that came later are missing
}

// Reading is one task in one window.
type Reading struct {
	Alive bool    `json:"alive,omitempty"`
	Cores float64 `json:"cores"` // used
	// What the kernel had at the window's end.
	Shares uint64  `json:"shares"`
	Quota  float64 `json:"quota_cores,omitempty"` // 0 = none
	// What the clients saw: answers that came in the window.
	Answers  int    `json:"answers,omitempty"`
	Response Number `json:"response_s"` // their mean
	// What Ebbtide's status says of a task that has reached a target.
	State string `json:"state,omitempty"`
	Rule  string `json:"rule,omitempty"`
}

// Limited says whether the kernel has less for the task than Nomad asked for.
func (r Reading) Limited(base uint64) bool {
	return r.Alive && (r.Shares < base || r.Quota > 0)
}

// Seeds lists the seeds of the runs that a filter keeps, in order.
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

// find returns the run of a seed under a variant. A run without limits serves both
// modes.
func find(runs []Run, what, kase, variant, mode string, seed uint64) (Run, bool) {
	for _, r := range runs {
		if r.What == what && r.Case == kase && r.Variant == variant && r.Seed == seed && (r.Mode == mode || r.Mode == "") {
			return r, true
		}
	}
	return Run{}, false
}

// variants lists the variants of the runs of one kind, in order of appearance.
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

// rank is the order of variants in tables: what is compared with comes first.
func rank(variant string) int {
	return slices.Index([]string{NoTargets, None, "flowcon", "tradl", Published, "dqoes", "auto"}, variant)
}

// Modes lists the modes of the runs of one kind.
func Modes(runs []Run, what string) []string {
	var modes []string
	for _, m := range []string{"weight", "quota"} {
		if slices.ContainsFunc(runs, func(r Run) bool { return r.What == what && r.Mode == m }) {
			modes = append(modes, m)
		}
	}
	return modes
}
