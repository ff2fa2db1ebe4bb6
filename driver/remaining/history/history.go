// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package history stores the cost of whole runs of jobs on a node, for the next run of the same job
// with the same arguments.
package history

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/remaining"
	"github.com/ebbtide/ebbtide/internal/fields"
)

const (
	fileName = "runs.json"
	// Runs is the maximum number kept; the oldest is dropped.
	Runs = 1000
	// maxFile bounds the file, in bytes; Nomad's names have at most 128 characters.
	maxFile = 2 << 20
	maxName = 256 // bytes of a name
)

// Key identifies comparable runs.
type Key struct {
	Namespace string `json:"namespace"`
	Job       string `json:"job"` // without Nomad's suffix for dispatched and periodic jobs, see Job
	Group     string `json:"group"`
	Task      string `json:"task"`
	Arguments string `json:"arguments"` // see Arguments
}

// Arguments returns a hash of a task's arguments. The arguments themselves, which may be secret,
// are not stored.
func Arguments(with ...string) string {
	data, _ := json.Marshal(with) // never fails for strings
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}

// child is Nomad's suffix of the ID of a dispatched or periodic job.
var child = regexp.MustCompile(`(/(dispatch-[0-9]+-[0-9a-f]+|periodic-[0-9]+))+$`)

// Passing a run to the node of the next one.
const (
	// Annotation is the annotation of the driver's event with a run's cost, encoded by Text.
	Annotation = "ebbtide_run"
	// Signal, followed by a space and Text, passes an earlier run to the driver.
	Signal = "EBBTIDE_EARLIER"
)

// Text encodes a run: "cpu_s=50 steps=100 arguments=… overhead=0.3"; without the last part if that is
// unknown.
func (k Key) Text(run remaining.Run) string {
	text := fmt.Sprintf("cpu_s=%.6g steps=%.6g arguments=%s", run.CPUS, run.Steps, k.Arguments)
	if run.Overhead != nil {
		text += fmt.Sprintf(overhead+"%.3g", *run.Overhead)
	}
	return text
}

const overhead = " overhead="

// ErrOther means that a run had other arguments.
var ErrOther = errors.New("a run with other arguments")

// Parse decodes Text. The error wraps ErrOther if the run had another key.
func (k Key) Parse(text string) (run remaining.Run, err error) {
	var arguments string
	if _, after, ok := strings.Cut(text, overhead); ok {
		run.Overhead = new(float64)
		if *run.Overhead, err = strconv.ParseFloat(after, 64); err != nil {
			return remaining.Run{}, fmt.Errorf("overhead: must be a number, got %.200q", after)
		}
	}
	if _, err := fmt.Sscanf(text, "cpu_s=%g steps=%g arguments=%s", &run.CPUS, &run.Steps, &arguments); err != nil {
		return remaining.Run{}, fmt.Errorf("reading a run, such as %q, from %.200q: %w", "cpu_s=50 steps=100 arguments=0a1b", text, err)
	}
	if arguments != k.Arguments {
		return remaining.Run{}, fmt.Errorf("%w: %.200q", ErrOther, arguments)
	}
	return run, (record{k, run}).validate()
}

// Job returns a job's ID without Nomad's suffix for dispatched and periodic jobs.
func Job(id string) string { return child.ReplaceAllString(id, "") }

type record struct {
	Key
	remaining.Run
}

// Find returns the last run with the key from the node's private directory. The error
// wraps fs.ErrNotExist if there is none.
func Find(dir private.Dir, k Key) (remaining.Run, error) {
	all, err := read(dir)
	if err != nil {
		return remaining.Run{}, err
	}
	if i := slices.IndexFunc(all, func(r record) bool { return r.Key == k }); i >= 0 {
		return all[i].Run, nil
	}
	return remaining.Run{}, fmt.Errorf("a run of %s/%s: %w", k.Job, k.Task, fs.ErrNotExist)
}

// Add stores a run, replacing the previous one with its key. An unreadable file is
// replaced. The caller must serialise calls.
func Add(dir private.Dir, k Key, run remaining.Run) error {
	r := record{k, run}
	if err := r.validate(); err != nil {
		return fmt.Errorf("storing a run of %s/%s: %w", k.Job, k.Task, err)
	}
	all, _ := read(dir)
	all = slices.DeleteFunc(all, func(r record) bool { return r.Key == k })
	all = append(all[max(0, len(all)-Runs+1):], r)
	data, err := json.Marshal(all)
	if err == nil {
		err = dir.WriteFile(fileName, data, true)
	}
	if err != nil {
		return fmt.Errorf("storing a run of %s/%s: %w", k.Job, k.Task, err)
	}
	return nil
}

func read(dir private.Dir) ([]record, error) {
	data, err := dir.ReadFile(fileName, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []record
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the history of runs: %w", err)
	}
	all = slices.DeleteFunc(all, func(r record) bool { return r.validate() != nil })
	return all[max(0, len(all)-Runs):], nil
}

func (r record) validate() error {
	for _, name := range []string{r.Namespace, r.Job, r.Group, r.Task, r.Key.Arguments} {
		if len(name) > maxName {
			return fmt.Errorf("a name must have at most %d bytes, got %d", maxName, len(name))
		}
	}
	if !(r.CPUS > 0) || math.IsInf(r.CPUS, 0) {
		return fmt.Errorf("cpu_s: must be > 0, got %v", r.CPUS)
	}
	if !(r.Steps >= 0) || math.IsInf(r.Steps, 0) {
		return fmt.Errorf("steps: must be ≥ 0, got %v", r.Steps)
	}
	if r.Overhead != nil && !fields.NonNegative(*r.Overhead) {
		return fmt.Errorf("overhead: must be ≥ 0, got %v", *r.Overhead)
	}
	return nil
}
