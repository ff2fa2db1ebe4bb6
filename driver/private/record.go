// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package private

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/driver/target"
)

// Record is what is remembered of one task of an allocation: which targets it has reached,
// and that it is frozen to be moved. A job ends as a success because of it, or runs on, also
// after a restart of the plugin or the agent at any moment.
type Record struct {
	// Run is the task's ID in Nomad when Acceptable was reached: a task that is
	// started anew may be far from it again.
	Run        string          `json:"run,omitempty"`
	Acceptable *target.Reached `json:"acceptable,omitempty"`
	// Objective holds for the allocation: its task has succeeded.
	Objective *target.Reached `json:"objective,omitempty"`
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
	// Taken is the allocation that has gone on from it; "" = none yet.
	Taken string `json:"taken,omitempty"`
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

// maxRecord bounds a record, in bytes.
const maxRecord = 64 << 10

// Load reads the record of a task, an empty one when there is none.
func Load(allocDir, task string) (Record, error) {
	var r Record
	data, err := Open(allocDir).ReadSealed(recordName(task), maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return Record{}, fmt.Errorf("the record of task %q: %w", task, err)
	}
	return r, nil
}

// Save writes a record, whole or not at all, and to the disk: the machine may fail the
// moment after.
func (r Record) Save(allocDir, task string) error {
	data, err := json.Marshal(r)
	if err == nil {
		err = Open(allocDir).WriteSealed(recordName(task), data, true)
	}
	if err != nil {
		return fmt.Errorf("the record of task %q: %w", task, err)
	}
	return nil
}
