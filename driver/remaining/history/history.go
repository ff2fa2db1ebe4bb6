// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package history keeps on a node what whole runs of jobs took, for the next run of the
// same job with the same arguments.
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

	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/remaining"
)

const (
	fileName = "runs.json"
	// Runs is how many are kept; the one that was added first goes.
	Runs = 1000
	// maxFile bounds the file, in bytes: Nomad's names have 128 characters at most.
	maxFile = 2 << 20
	longest = 256 // bytes of a name
)

// Key says which runs are alike.
type Key struct {
	Namespace string `json:"namespace"`
	Job       string `json:"job"` // without what Nomad adds for a dispatch or a period, see Job
	Group     string `json:"group"`
	Task      string `json:"task"`
	Arguments string `json:"arguments"` // see Arguments
}

// Arguments is a hash of what a task is started with. The arguments themselves, which may
// hold secrets, are stored nowhere.
func Arguments(with ...string) string {
	data, _ := json.Marshal(with) // of strings: never fails
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}

// child is what Nomad adds to the ID of a job that a parameterized or periodic one begins.
var child = regexp.MustCompile(`(/(dispatch-[0-9]+-[0-9a-f]+|periodic-[0-9]+))+$`)

// How a run gets to the node of the next one.
const (
	// Annotation is that of the event by which the driver says what a run took, as Text
	// writes it.
	Annotation = "ebbtide_run"
	// Signal tells the driver what an earlier run took; a space and that text follow.
	Signal = "EBBTIDE_EARLIER"
)

// Text writes a run of that kind: "cpu_s=50 steps=100 arguments=…".
func (k Key) Text(run remaining.Run) string {
	return fmt.Sprintf("cpu_s=%.6g steps=%.6g arguments=%s", run.CPUS, run.Steps, k.Arguments)
}

// ErrOther means that a run was one with other arguments.
var ErrOther = errors.New("a run with other arguments")

// Parse reads what Text has written. The error wraps ErrOther if that was no run of this
// kind.
func (k Key) Parse(text string) (run remaining.Run, err error) {
	var arguments string
	if _, err := fmt.Sscanf(text, "cpu_s=%g steps=%g arguments=%s", &run.CPUS, &run.Steps, &arguments); err != nil {
		return remaining.Run{}, fmt.Errorf("reading a run, such as %q, from %.200q: %w", "cpu_s=50 steps=100 arguments=0a1b", text, err)
	}
	if arguments != k.Arguments {
		return remaining.Run{}, fmt.Errorf("%w: %.200q", ErrOther, arguments)
	}
	return run, (record{k, run}).check()
}

// Job is a job's ID without what Nomad adds to it for each dispatch or period.
func Job(id string) string { return child.ReplaceAllString(id, "") }

// record is a run in the file.
type record struct {
	Key
	remaining.Run
}

// Find returns the last run of that kind. The error wraps fs.ErrNotExist if there is none.
// dir is the node's private directory.
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

// Add keeps a run in place of the one before of its kind. A file that cannot be read is
// replaced. The caller sees to it that nobody else adds at the same time.
func Add(dir private.Dir, k Key, run remaining.Run) error {
	r := record{k, run}
	if err := r.check(); err != nil {
		return fmt.Errorf("keeping a run of %s/%s: %w", k.Job, k.Task, err)
	}
	all, _ := read(dir)
	all = slices.DeleteFunc(all, func(r record) bool { return r.Key == k })
	all = append(all[max(0, len(all)-Runs+1):], r)
	data, err := json.Marshal(all)
	if err == nil {
		err = dir.WriteFile(fileName, data, true)
	}
	if err != nil {
		return fmt.Errorf("keeping a run of %s/%s: %w", k.Job, k.Task, err)
	}
	return nil
}

// read returns the runs that are kept, the newest last.
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
		return nil, fmt.Errorf("reading the runs of earlier jobs: %w", err)
	}
	all = slices.DeleteFunc(all, func(r record) bool { return r.check() != nil })
	return all[max(0, len(all)-Runs):], nil
}

// check says what is wrong with a run.
func (r record) check() error {
	for _, name := range []string{r.Namespace, r.Job, r.Group, r.Task, r.Key.Arguments} {
		if len(name) > longest {
			return fmt.Errorf("a name must have at most %d bytes, got %d", longest, len(name))
		}
	}
	if !(r.CPUS > 0) || math.IsInf(r.CPUS, 0) {
		return fmt.Errorf("cpu_s: must be > 0, got %v", r.CPUS)
	}
	if !(r.Steps >= 0) || math.IsInf(r.Steps, 0) {
		return fmt.Errorf("steps: must be ≥ 0, got %v", r.Steps)
	}
	return nil
}
