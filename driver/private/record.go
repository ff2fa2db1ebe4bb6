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

// Record is the persistent state of one task of an allocation: reached targets and a freeze. Across
// restarts of plugin and agent, it determines whether a job succeeds.
type Record struct {
	// Run is the task's ID in Nomad when Acceptable was reached: a restarted task may no longer be
	// near it.
	Run        string          `json:"run,omitempty"`
	Acceptable *target.Reached `json:"acceptable,omitempty"`
	// Objective holds for the allocation: its task has succeeded.
	Objective *target.Reached `json:"objective,omitempty"`
	// Frozen is written before the task is frozen and removed after it is thawed.
	Frozen *Frozen `json:"frozen,omitempty"`
	// Left is the checkpoint of a task that was stopped to be moved, or suspended.
	Left *Left `json:"left,omitempty"`
	// Suspended means that the task ends, or has ended, to go on in another allocation.
	Suspended bool `json:"suspended,omitempty"`
}

// Left is a checkpoint and its job.
type Left struct {
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Group     string `json:"group"`
	Path      string `json:"path"` // as seen by the task
	// TakenBy is the allocation that has resumed from it; "" = none.
	TakenBy string `json:"taken,omitempty"`
}

// Frozen is a task that is or will be frozen. Package watchdog reads it, too.
type Frozen struct {
	Run    string    `json:"run"`    // the task's ID in Nomad
	Cgroup string    `json:"cgroup"` // directory of its freezer (limits.Thaw)
	State  string    `json:"state"`  // saving (may be frozen at any time), ready or frozen
	Until  time.Time `json:"until"`  // end of the lease; while saving, a later time
	// The checkpoint, for display.
	Path  string        `json:"path"`
	Bytes int64         `json:"bytes"`
	Step  status.Number `json:"step"`
}

const maxRecord = 64 << 10

// Load reads a task's record, empty if there is none.
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

// Update changes a task's record, atomically and durably: the machine may fail right after. It is the
// only way to write one, and serialised with others. A record that cannot be read stays as it is: what
// it holds is unknown. The error wraps fs.ErrNotExist if the allocation's directory is gone.
func Update(allocDir, task string, change func(*Record)) error {
	d := Open(allocDir)
	unlock, err := d.lock()
	if err != nil {
		return fmt.Errorf("the record of task %q: %w", task, err)
	}
	defer unlock()
	r, err := Load(allocDir, task)
	if err != nil {
		return err
	}
	change(&r)
	data, err := json.Marshal(r)
	if err == nil {
		err = d.WriteSealed(recordName(task), data, true)
	}
	if err != nil {
		return fmt.Errorf("the record of task %q: %w", task, err)
	}
	return nil
}
