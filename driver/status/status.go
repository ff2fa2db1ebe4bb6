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

	"github.com/ebbtide/ebbtide/device/seat"
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

// Unknown is the Number written as null.
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

// Status is what is known about a task now. Fractions are of the node's elastic CPU
// pool (1 = all of it).
type Status struct {
	Schema  int    `json:"schema"`  // set by the Writer
	Version string `json:"version"` // of the driver

	Task      string `json:"task"`
	Alloc     string `json:"alloc"`
	Job       string `json:"job"`
	Namespace string `json:"namespace,omitempty"`

	Engine    string `json:"engine"`    // docker, exec
	Policy    string `json:"policy"`    // auto, fsp, flowcon, tradl, dqoes, none
	Estimator string `json:"estimator"` // robust, published
	Mode      string `json:"mode"`      // weight, quota, none

	Kind     string    `json:"kind"`     // training, service
	Category string    `json:"category"` // NL growing, WL watching, CL converged, "" new or a service
	Class    string    `json:"class"`    // of a service: G better than asked, S satisfied, B worse; "" not measured
	Since    time.Time `json:"since"`    // start of this category or class

	Target Target `json:"target"`

	Metric   string `json:"metric"`         // the name of E, "" until one was seen
	Goal     string `json:"goal"`           // min, max
	Value    Number `json:"value"`          // E, the last report
	Step     Number `json:"step"`           // null: not reported
	Total    Number `json:"total"`          // total steps; null: not reported
	Progress Number `json:"progress_per_s"` // P (eq. 1), per second of wall time
	Growth   Number `json:"growth"`         // G = P/R (eq. 2), per second with the whole pool; null: unmeasured
	Reports  int64  `json:"reports"`        // values read so far
	Plateau  bool   `json:"plateau"`        // no growth beyond the noise
	Diverged bool   `json:"diverged"`       // the last value was NaN or infinite

	Fair      Fair      `json:"fair"`
	SpeCon    SpeCon    `json:"specon"`
	Move      Move      `json:"move"`
	Resources Resources `json:"resources"`

	// GPU is the task's state on a shared card; null without a seat or if unknown.
	GPU *seat.Report `json:"gpu,omitempty"`

	Use              Number `json:"use"`   // fraction of the pool, over the last interval
	CPUSeconds       Number `json:"cpu_s"` // used since the task started
	Periods          uint64 `json:"cfs_periods"`
	ThrottledPeriods uint64 `json:"cfs_throttled_periods"`
	Throttled        Number `json:"throttled_s"` // time throttled by the kernel

	Limit Limit  `json:"limit"`
	Rule  string `json:"rule"` // the rule applied, such as flowcon.alg1.nl
	Why   string `json:"why"`  // explains the decision

	Updated time.Time `json:"updated"`
	Node    Node      `json:"node"`
}

// Target holds the job's targets and the task's progress towards them.
type Target struct {
	State      string `json:"state"`      // training, acceptable, objective
	Acceptable Number `json:"acceptable"` // value of the metric; null: none
	Objective  Number `json:"objective"`  // value of the metric; null: none
	Hold       int    `json:"hold"`       // consecutive reports that must reach one
	QoE        Number `json:"qoe_s"`      // response time objective of a service, in seconds; null: no service
	Response   Number `json:"response_s"` // over the last interval; null: no requests
}

// Fair compares a training task with its twin, which runs as under plain Nomad. Null:
// unknown.
type Fair struct {
	RemainingCPUS Number    `json:"remaining_cpu_s"`      // until the task ends
	QualityCPUS   Number    `json:"quality_cpu_s"`        // until its model is good enough; 0: it is
	Source        string    `json:"remaining_from"`       // steps, epochs, meta, assumed, earlier, objective; "" unknown
	Why           string    `json:"remaining_why"`        // explains the estimate
	AheadCPUS     Number    `json:"ahead_cpu_s"`          // used in excess of its twin
	CapCores      Number    `json:"cap_cores"`            // the maximum it can use
	Finish        time.Time `json:"finish,omitzero"`      // expected end
	FairFinish    time.Time `json:"fair_finish,omitzero"` // expected end of the twin
	Late          bool      `json:"late"`                 // the twin has ended, the task has not
}

// SpeCon is a training task's phase (SpeCon, Algorithm 1), by which the shim moves it
// to another node.
type SpeCon struct {
	Category     string    `json:"category"`      // PC progressing, WC watching, CC converged, "" not categorised yet
	Since        time.Time `json:"since"`         // start of this category
	Gain         Number    `json:"gain"`          // change of E in the last interval, as a part of its range so far
	PreviousGain Number    `json:"previous_gain"` // of the interval before
	RequestMove  bool      `json:"request_move"`  // converged, while others on the node are still learning
	Why          string    `json:"why"`
}

// Move is the state of a task's preparation to move to another node.
type Move struct {
	State string    `json:"state"`           // "" none, saving, ready, frozen, failed
	Path  string    `json:"path,omitempty"`  // the checkpoint, as the task names it
	Bytes int64     `json:"bytes,omitempty"` // its size
	Step  Number    `json:"step"`            // the last one reported before the save; the checkpoint's is the same or later
	Until time.Time `json:"until,omitzero"`  // the latest end of the freeze
	Why   string    `json:"why,omitempty"`   // why it failed
}

const (
	MoveSaving = "saving" // asked to save
	MoveReady  = "ready"  // saved and frozen
	MoveFrozen = "frozen" // frozen for a moment, without a move
	MoveFailed = "failed" // not saved in time; runs on
)

// Resources are the task's other resources and its growth efficiency for each (FlowCon,
// eq. 2): progress per second divided by R. For memory R is the fraction of the node's,
// for block and network I/O MiB/s. Null: unknown.
type Resources struct {
	MemoryMiB     Number `json:"memory_mib"` // working set
	MemoryGrowth  Number `json:"memory_growth"`
	BlockMiBs     Number `json:"block_mib_per_s"` // both directions, over the last interval
	BlockGrowth   Number `json:"block_growth"`
	NetworkMiBs   Number `json:"network_mib_per_s"` // both directions, over the last interval
	NetworkGrowth Number `json:"network_growth"`
}

// Limit is a task's CPU limit: as decided, as translated for the kernel, and as read
// back.
type Limit struct {
	Fraction Number `json:"fraction"` // (0, 1]; 1 = no limit
	Kernel
	InForce Kernel `json:"in_force"` // read back
	Error   string `json:"error,omitempty"`
}

// Kernel is a limit in the kernel's terms.
type Kernel struct {
	Shares     uint64 `json:"shares"`      // cpu.shares units, 2..262144
	QuotaCores Number `json:"quota_cores"` // 0 = none
}

// Node summarises the tasks of the node.
type Node struct {
	PoolCores Number            `json:"pool_cores"`
	Tasks     int               `json:"tasks"`
	Use       Number            `json:"use"`        // fraction of the pool, of all tasks
	Counts    map[string]int    `json:"counts"`     // training tasks per category
	Classes   map[string]int    `json:"classes"`    // services per class
	GrowthSum map[string]Number `json:"growth_sum"` // ΣG per category
	SpeCon    map[string]int    `json:"specon"`     // training tasks per category of SpeCon
	// RemainingCPUS is the remaining work of the Sized tasks, those of known size.
	RemainingCPUS Number `json:"remaining_cpu_s"`
	Sized         int    `json:"sized"`
	SavedS        Number `json:"saved_s"` // total time by which earlier tasks have ended before their twins
	Alpha         Number `json:"alpha"`   // −1 = Algorithm 1 is off
	IntervalS     Number `json:"interval_s"`
}

func blank() Status {
	u := Unknown()
	s := Status{Value: u, Step: u, Total: u, Progress: u, Growth: u, Use: u, CPUSeconds: u, Throttled: u}
	s.Target = Target{Acceptable: u, Objective: u, QoE: u, Response: u}
	s.Fair = Fair{RemainingCPUS: u, QualityCPUS: u, AheadCPUS: u, CapCores: u}
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
