// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package record remembers which targets a task has reached, and that it is frozen to
// be moved, where the task cannot write: a job ends as a success because of it, or runs
// on, also after a restart of the plugin or the agent at any moment.
//
// A record lies in the allocation's own directory on the host, beside the
// directories that Nomad shows to tasks, and goes with it.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"

	"github.com/ebbtide/ebbtide/driver/control"
	"github.com/ebbtide/ebbtide/driver/status"
)

// Record is what is remembered of one task of an allocation.
type Record struct {
	// Run is the task's ID in Nomad when Acceptable was reached: a task that is
	// started anew may be far from it again.
	Run        string           `json:"run,omitempty"`
	Acceptable *control.Reached `json:"acceptable,omitempty"`
	// Objective holds for the allocation: its task has succeeded.
	Objective *control.Reached `json:"objective,omitempty"`
	// Frozen is written before the task is frozen, and taken back after it was thawed.
	Frozen *Frozen `json:"frozen,omitempty"`
	// Left is what a task has left behind that was stopped to be moved.
	Left *Left `json:"left,omitempty"`
}

// Left is a checkpoint, and whose it is.
type Left struct {
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Group     string `json:"group"`
	Path      string `json:"path"` // as the task names it
}

// Frozen is a task that is frozen, or will be in a moment. Package watchdog reads it, too.
type Frozen struct {
	Run    string    `json:"run"`    // the task's ID in Nomad
	Cgroup string    `json:"cgroup"` // directory of its freezer (limits.Thaw)
	State  string    `json:"state"`  // saving: it may be frozen in a moment; ready; frozen
	Until  time.Time `json:"until"`  // end of the lease; while it is saving, a later time
	// The checkpoint, as it is shown.
	Path  string        `json:"path"`
	Bytes int64         `json:"bytes"`
	Step  status.Number `json:"step"`
}

// dir is the directory with the records in an allocation's directory.
const dir = ".ebbtide"

// Path is the file with the record of a task.
func Path(allocDir, task string) string { return filepath.Join(allocDir, dir, task+".json") }

// Load reads the record of a task, an empty one when there is none.
func Load(allocDir, task string) (Record, error) {
	var r Record
	data, err := os.ReadFile(Path(allocDir, task))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return Record{}, fmt.Errorf("reading the targets that task %q has reached: %w", task, err)
	}
	return r, nil
}

// Save writes a record, whole or not at all, and to the disk: the machine may
// fail the moment after.
func (r Record) Save(allocDir, task string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encoding the targets that task %q has reached: %w", task, err)
	}
	if err := os.MkdirAll(filepath.Join(allocDir, dir), 0o700); err != nil {
		return fmt.Errorf("keeping the targets that task %q has reached: %w", task, err)
	}
	if err := renameio.WriteFile(Path(allocDir, task), data, 0o600); err != nil {
		return fmt.Errorf("keeping the targets that task %q has reached: %w", task, err)
	}
	return nil
}
