// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package status writes a task's status (JSON), history (CSV) and picture (PNG) to
// data/ebbtide/<task>.{json,csv,png} in the allocation's shared directory.
//
// The task may write there and race with the driver, so nothing found there is trusted:
// no symlink beneath the shared directory is followed, files are replaced by renaming,
// hard links are never written through, and everything read back is bounded and may be
// invalid.
package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/ebbtide/ebbtide/device/handoff"
)

// Dir is the files' directory, relative to the allocation's shared one
// (NOMAD_ALLOC_DIR; "alloc" in Nomad's file API).
const Dir = "data/ebbtide"

// Schema is the version of the JSON's layout. New fields keep it; changed meanings
// raise it.
const Schema = 1

// Number is a float64 in JSON: NaN and ±Inf are written as null; null or a missing
// field is read as NaN.
type Number float64

// Unknown returns the Number written as null.
func Unknown() Number { return Number(math.NaN()) }

func (n Number) MarshalJSON() ([]byte, error) {
	f := float64(n)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return []byte("null"), nil
	}
	return json.Marshal(f)
}

func (n *Number) UnmarshalJSON(b []byte) error {
	if bytes.Equal(b, []byte("null")) {
		*n = Unknown()
		return nil
	}
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil {
		return fmt.Errorf("not a number or null: %.40s", b)
	}
	*n = Number(f)
	return nil
}

// Known reports whether n is finite.
func (n Number) Known() bool {
	return !math.IsNaN(float64(n)) && !math.IsInf(float64(n), 0)
}

// Status is what is known about one task now. Fractions are of the node's
// elastic CPU pool (1 = all of it). The comment at each field is also its row in
// docs/reference.md (make docs).
type Status struct {
	Schema  int    `json:"schema"`  // layout version, 1; unchanged by new fields
	Version string `json:"version"` // of the driver

	Task      string `json:"task"`                // in Nomad
	Alloc     string `json:"alloc"`               // in Nomad
	Job       string `json:"job"`                 // in Nomad
	Namespace string `json:"namespace,omitempty"` // in Nomad; absent if unknown

	Engine    string `json:"engine"`    // the agent's option
	Policy    string `json:"policy"`    // the agent's option
	Estimator string `json:"estimator"` // the agent's option
	Mode      string `json:"mode"`      // the agent's option

	Kind     string    `json:"kind"`     // `training`, or `service` (with `ebbtide_qoe_target`)
	Category string    `json:"category"` // `NL` growing, `WL` watching, `CL` completing; empty for services and exempt tasks
	Class    string    `json:"class"`    // of a service: `G` better than its target, `S` satisfied, `B` worse; empty if not measured
	Since    time.Time `json:"since"`    // start of this category or class

	Target Target `json:"target"`

	Metric   string `json:"metric"`         // name of the metric; empty before the first value
	Goal     string `json:"goal"`           // `min`, `max`
	Value    Number `json:"value"`          // last report; null also for NaN and infinity
	Step     Number `json:"step"`           // of the last report
	Total    Number `json:"total"`          // steps of the whole training
	Progress Number `json:"progress_per_s"` // gain per second of wall time
	Growth   Number `json:"growth"`         // gain per second with the whole pool, in units of the range of the values so far (`robust`) or of the metric (`published`)
	Reports  int64  `json:"reports"`        // reports read so far
	Plateau  bool   `json:"plateau"`        // growth cannot be told from noise (`robust`)
	Diverged bool   `json:"diverged"`       // the metric is NaN or infinite

	Fair      Fair      `json:"fair"`
	SpeCon    SpeCon    `json:"specon"`
	Move      Move      `json:"move"`
	Resources Resources `json:"resources"`

	// GPU is the task's use of shared cards; null if it has none, or nothing is known.
	GPU *handoff.Report `json:"gpu,omitempty"`
	// Turn is whether it runs on its card or yields; null if that is not decided.
	Turn *Turn `json:"gpu_time,omitempty"`

	Use              Number `json:"use"`                   // CPU over the last interval, a fraction of the pool
	CPUSeconds       Number `json:"cpu_s"`                 // CPU time since the task started
	Periods          uint64 `json:"cfs_periods"`           // quota periods so far
	ThrottledPeriods uint64 `json:"cfs_throttled_periods"` // throttled periods
	Throttled        Number `json:"throttled_s"`           // time throttled

	Limit Limit  `json:"limit"`
	Rule  string `json:"rule"` // the rule that decided
	Why   string `json:"why"`  // explanation of limit and category

	Updated time.Time `json:"updated"` // when the file was written
	Node    Node      `json:"node"`
}

// Target is what the job asked for, and what it has reached.
type Target struct {
	State      string `json:"state"`      // `training`, `acceptable`, `objective`
	Acceptable Number `json:"acceptable"` // as in `meta`
	Objective  Number `json:"objective"`  // as in `meta`
	Hold       int    `json:"hold"`       // as in `meta`
	QoE        Number `json:"qoe_s"`      // as in `meta`
	Response   Number `json:"response_s"` // mean response time of the last interval
}

// Fair compares a training task with its twin, which runs as under plain Nomad.
type Fair struct {
	RemainingCPUS Number    `json:"remaining_cpu_s"`      // until the task ends
	RemainingS    Number    `json:"remaining_s"`          // how long that takes at its recent use of CPU
	QualityCPUS   Number    `json:"quality_cpu_s"`        // to the acceptable target, else to 75 % of the work; 0 once reached or on a plateau
	Source        string    `json:"remaining_from"`       // its basis: `steps`, `epochs`, `meta`, `assumed` (command or environment), `earlier` (a previous run), `objective` (the curve); empty if unknown
	Why           string    `json:"remaining_why"`        // the same in a sentence
	Overhead      Number    `json:"overhead"`             // how much more CPU time a step takes per further core, as a part of that on one
	AheadCPUS     Number    `json:"ahead_cpu_s"`          // used beyond its fair share; negative if less
	CapCores      Number    `json:"cap_cores"`            // most cores that it can use: its runnable threads
	Finish        time.Time `json:"finish,omitzero"`      // expected end
	FairFinish    time.Time `json:"fair_finish,omitzero"` // expected end with its fair share, if no task joins
	Late          bool      `json:"late"`                 // with its fair share it would have ended by now
}

// Turn compares a task with its twin on a shared card, where all run at once.
type Turn struct {
	Yields      bool   `json:"yields"`      // others come first on its card
	Why         string `json:"why"`         // explanation
	CardS       Number `json:"card_s"`      // time in which the task has kept the card busy
	RemainingS  Number `json:"remaining_s"` // how long it still has to
	AheadS      Number `json:"ahead_s"`     // beyond its fair share of the card's time; negative if less
	Utilisation Number `json:"utilisation"` // part of the time in which it keeps the card busy when nothing else runs there
}

// SpeCon is a training task's category in SpeCon (Algorithm 1), which decides whether the
// shim moves it to another node.
type SpeCon struct {
	Category     string    `json:"category"`      // `PC` progressing, `WC` watching, `CC` converged; empty until an interval has passed
	Since        time.Time `json:"since"`         // start of this category
	Gain         Number    `json:"gain"`          // change of the metric in the last interval, as a fraction of its range
	PreviousGain Number    `json:"previous_gain"` // the same, one interval earlier
	RequestMove  bool      `json:"request_move"`  // converged while more than one task on the node still learns
	Why          string    `json:"why"`           // explanation of the category
}

// Move is the state of a task's preparation to move to another node.
type Move struct {
	State string    `json:"state"`           // empty, `saving`, `ready`, `frozen`, `failed`
	Path  string    `json:"path,omitempty"`  // the checkpoint's path in the task
	Bytes int64     `json:"bytes,omitempty"` // its size
	Step  Number    `json:"step"`            // lower bound of the checkpoint's step
	Until time.Time `json:"until,omitzero"`  // end of the lease
	Why   string    `json:"why,omitempty"`   // why it failed
}

const (
	MoveSaving = "saving" // its checkpoint is awaited
	MoveReady  = "ready"  // it has saved and is frozen
	MoveFrozen = "frozen" // it is frozen for a moment, and continues on its node
	// MoveSuspended: it is being ended, to go on in another allocation.
	MoveSuspended = "suspended"
	MoveFailed    = "failed" // it has not saved in time, and runs on
)

// Resources are what the task uses in addition to CPU, and its growth efficiency for each
// (FlowCon, eq. 2): progress per second divided by R.
type Resources struct {
	MemoryMiB     Number `json:"memory_mib"`        // memory in use without inactive files
	MemoryGrowth  Number `json:"memory_growth"`     // progress per second divided by the fraction of the node's memory
	BlockMiBs     Number `json:"block_mib_per_s"`   // block I/O over the last interval
	BlockGrowth   Number `json:"block_growth"`      // progress per MiB of block I/O
	NetworkMiBs   Number `json:"network_mib_per_s"` // network I/O over the last interval; null in the host's network
	NetworkGrowth Number `json:"network_growth"`    // progress per MiB of network I/O
}

// Limit is a task's CPU limit: as decided, as translated for the kernel, and as read
// back.
type Limit struct {
	Fraction Number `json:"fraction"` // the policy's limit, a fraction of the pool; 1 = no limit
	Kernel
	InForce Kernel `json:"in_force"`        // read back from the kernel
	Error   string `json:"error,omitempty"` // why the limit could not be set
}

// Kernel is a limit in the kernel's terms.
type Kernel struct {
	Shares     uint64 `json:"shares"`      // `cpu.shares`, 2 to 262144
	QuotaCores Number `json:"quota_cores"` // cores; 0 = no quota
}

// Node summarises the tasks of the node.
type Node struct {
	PoolCores     Number            `json:"pool_cores"`      // cores of the pool now
	Tasks         int               `json:"tasks"`           // Ebbtide's tasks, including unlimited ones
	Use           Number            `json:"use"`             // their CPU over the last interval, a fraction of the pool
	Counts        map[string]int    `json:"counts"`          // training tasks by category
	Classes       map[string]int    `json:"classes"`         // services by class
	GrowthSum     map[string]Number `json:"growth_sum"`      // sum of `growth` by category
	SpeCon        map[string]int    `json:"specon"`          // training tasks by SpeCon category
	RemainingCPUS Number            `json:"remaining_cpu_s"` // remaining work of training tasks of known size
	Sized         int               `json:"sized"`           // number of those tasks
	SavedS        Number            `json:"saved_s"`         // gained by tasks that succeeded over their fair shares
	Alpha         Number            `json:"alpha"`           // FlowCon's threshold in use; −1 = categories do not change
	IntervalS     Number            `json:"interval_s"`      // until the next decision
}

// NoFair is what is known of a task without a twin: nothing.
func NoFair() Fair {
	u := Unknown()
	return Fair{RemainingCPUS: u, RemainingS: u, QualityCPUS: u, Overhead: u, AheadCPUS: u, CapCores: u}
}

func blank() Status {
	u := Unknown()
	s := Status{Value: u, Step: u, Total: u, Progress: u, Growth: u, Use: u, CPUSeconds: u, Throttled: u}
	s.Target = Target{Acceptable: u, Objective: u, QoE: u, Response: u}
	s.Fair = NoFair()
	s.SpeCon.Gain, s.SpeCon.PreviousGain = u, u
	s.Move.Step = u
	s.Resources = Resources{u, u, u, u, u, u}
	s.Limit.Fraction = u
	s.Node.PoolCores, s.Node.SavedS, s.Node.Alpha, s.Node.IntervalS = u, u, u, u
	return s
}

const maxText = 2048

func (s Status) bounded() Status {
	for _, p := range []*string{&s.Version, &s.Task, &s.Alloc, &s.Job, &s.Namespace, &s.Engine, &s.Policy, &s.Estimator,
		&s.Mode, &s.Kind, &s.Category, &s.Class, &s.Fair.Source, &s.Fair.Why, &s.SpeCon.Category, &s.SpeCon.Why,
		&s.Move.State, &s.Move.Path, &s.Move.Why, &s.Target.State, &s.Metric, &s.Goal, &s.Rule, &s.Why, &s.Limit.Error} {
		*p = cut(*p, maxText)
	}
	s.Schema = Schema
	return s
}

// cut shortens s to at most n bytes without splitting a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	n -= len("…")
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n] + "…"
}

// MaxStatus bounds a status file, in bytes. Texts of maximum length take three quarters
// of it.
const MaxStatus = 256 << 10

// Encode returns the JSON file of s, as written by Writer.Status.
func (s Status) Encode() ([]byte, error) {
	b, err := json.MarshalIndent(s.bounded(), "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	b = append(b, '\n')
	if len(b) > MaxStatus {
		return nil, fmt.Errorf("encode status: %d bytes: at most %d can be read back", len(b), MaxStatus)
	}
	return b, nil
}

// Decode reads a status file from elsewhere, such as Nomad's file API. Missing numbers
// are unknown, not zero.
func Decode(data []byte) (Status, error) { return decode("the status", data) }

func decode(path string, b []byte) (Status, error) {
	s := blank()
	if err := json.Unmarshal(b, &s); err != nil {
		return Status{}, fmt.Errorf("decode %s: %w", path, err)
	}
	return s, nil
}
