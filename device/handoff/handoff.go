// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package handoff defines what device plugin and ebbtide driver pass each other about a task that
// shares a card: its needs (Handoff), what it is (Identity) and how it fares (Report).
//
// In Nomad a device's mounts replace the task's volumes, and are lost when the agent
// restarts; its variables are neither. So one variable has the mounts, and the driver adds them
// at each start of the task.
package handoff

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Variable begins the names of the environment variables that carry Handoffs, one for each device
// block of the task. The driver removes them from the task's environment.
const Variable = "EBBTIDE_GPU_HANDOFF"

// Paths in the container.
const (
	TaskPreload = "/usr/lib/ebbtide/libebbtide-cuda.so"
	TaskGate    = "/run/ebbtide"
	// Socket is the name of the gate's socket in its directory.
	Socket = "gate.sock"
	// taskLoader is read by the dynamic loader; loader is its source in the gate's directory.
	taskLoader = "/etc/ld.so.preload"
	loader     = "ld.so.preload"
)

// Variables that the preload library reads, and the one that loads it.
const (
	EnvPreload = "LD_PRELOAD"
	EnvGate    = "EBBTIDE_GATE"
	EnvWaitMS  = "EBBTIDE_GATE_WAIT_MS"
)

// Handoff is what a container needs to use its cards. Paths are on the host.
type Handoff struct {
	// Preload is the preload library, Gate the directory of the gate's socket; "" without a
	// memory share.
	Preload string `json:"preload,omitempty"`
	Gate    string `json:"gate,omitempty"`
	// MemoryMiB is the memory of the card, of the largest if several; 0 = unknown.
	MemoryMiB int64 `json:"memory_mib,omitempty"`
	// WaitMS is how long a request for memory may wait, in ms; 0: the library's default.
	WaitMS int64 `json:"wait_ms,omitempty"`
	// Reports is the directory of reports (ReportPath).
	Reports string `json:"reports,omitempty"`
	// Tasks is the directory of task identities. Cards are the UUIDs of the container's cards,
	// Seats are its device instances, by Nomad's ID: a seat's, or the UUID of a whole card.
	Tasks string   `json:"tasks,omitempty"`
	Cards []string `json:"cards,omitempty"`
	Seats []string `json:"seats,omitempty"`
	// Whole: the container has its cards alone, and needs no share.
	Whole bool `json:"whole,omitempty"`
	// Notice is why the container has no memory share; "" = it has one.
	Notice string `json:"notice,omitempty"`
	// Unparked is why this node cannot park containers; "" = it can, or parking is off.
	Unparked string `json:"not_parked,omitempty"`
}

// Shares reports whether the container has a memory share.
func (h Handoff) Shares() bool { return h.Preload != "" }

// Encode returns the value of Variable.
func (h Handoff) Encode() (string, error) {
	if err := h.validate(); err != nil {
		return "", err
	}
	data, err := json.Marshal(h)
	return string(data), err
}

// Take removes the variables from a task's environment, and returns their values merged: the cards
// are all that the task has. The error is that of the first value that is invalid.
func Take(env map[string]string) (h Handoff, given bool, err error) {
	first := true
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !strings.HasPrefix(name, Variable) {
			continue
		}
		next, bad := Decode(env[name])
		delete(env, name)
		given = true
		switch {
		case bad != nil:
			err = cmp.Or(err, bad)
		case first:
			h, first = next, false
		default:
			h = h.with(next)
		}
	}
	return h, given, err
}

// SharedCards returns the cards that the container does not have alone: of those the ID is a card's.
func (h Handoff) SharedCards() []string {
	return slices.DeleteFunc(slices.Clone(h.Cards), func(c string) bool { return slices.Contains(h.Seats, c) })
}

// with adds another handoff of the same task. Cards that are shared decide how it runs.
func (h Handoff) with(other Handoff) Handoff {
	if !h.Shares() && other.Shares() {
		h, other = other, h
	}
	h.MemoryMiB = max(h.MemoryMiB, other.MemoryMiB)
	for _, c := range other.Cards {
		if !slices.Contains(h.Cards, c) { // it may have two seats of one
			h.Cards = append(h.Cards, c)
		}
	}
	h.Seats = append(h.Seats, other.Seats...)
	h.Whole = h.Whole && other.Whole
	h.Notice, h.Unparked = cmp.Or(h.Notice, other.Notice), cmp.Or(h.Unparked, other.Unparked)
	return h
}

// Decode parses the value of a Variable. It ignores unknown fields: during an upgrade plugin and
// driver may differ in version.
func Decode(text string) (Handoff, error) {
	var h Handoff
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		return Handoff{}, fmt.Errorf("reading %s: %w", Variable, err)
	}
	if err := h.validate(); err != nil {
		return Handoff{}, fmt.Errorf("reading %s: %w", Variable, err)
	}
	return h, nil
}

func (h Handoff) validate() error {
	var errs []error
	for _, f := range []struct{ name, path string }{{"preload", h.Preload}, {"gate", h.Gate}, {"reports", h.Reports}, {"tasks", h.Tasks}} {
		if f.path != "" && (!filepath.IsAbs(f.path) || filepath.Clean(f.path) != f.path) {
			errs = append(errs, fmt.Errorf("%s: must be an absolute path, without . and .. in it, got %q", f.name, f.path))
		}
	}
	for _, f := range []struct {
		name string
		n    int64
	}{{"memory_mib", h.MemoryMiB}, {"wait_ms", h.WaitMS}} {
		if f.n < 0 {
			errs = append(errs, fmt.Errorf("%s: must be ≥ 0, got %d", f.name, f.n))
		}
	}
	switch {
	case (h.Preload == "") != (h.Gate == ""):
		errs = append(errs, fmt.Errorf("preload, gate: must be set together, got %q and %q", h.Preload, h.Gate))
	case h.Preload == "" && h.Notice == "" && !h.Whole:
		errs = append(errs, errors.New("notice: must say why there is neither preload nor gate, got none"))
	}
	return errors.Join(errs...)
}

// Mount is a host path that a container sees read-only.
type Mount struct{ Host, Task string }

// Mounts returns the mounts of library and gate.
func (h Handoff) Mounts() []Mount {
	if !h.Shares() {
		return nil
	}
	return []Mount{{Host: h.Preload, Task: TaskPreload}, {Host: h.Gate, Task: TaskGate}}
}

// Loader returns the mount of /etc/ld.so.preload, which names the library. Unlike LD_PRELOAD it
// also works in setuid programs and those with a cleared environment. It hides the image's own
// file.
func (h Handoff) Loader() Mount {
	return Mount{Host: filepath.Join(h.Gate, loader), Task: taskLoader}
}

// WriteLoader writes the source of Loader into the gate's directory.
func WriteLoader(gate string) error {
	if err := os.WriteFile(filepath.Join(gate, loader), []byte(TaskPreload+"\n"), 0o644); err != nil {
		return fmt.Errorf("writing the file for containers' loaders: %w", err)
	}
	return nil
}

// Environment returns the variables to add to the container's environment. With Loader mounted,
// EnvPreload stays the job's or the image's; else the library precedes those that the job preloads.
// The job may set EnvWaitMS itself.
func (h Handoff) Environment(there map[string]string, loader bool) map[string]string {
	if !h.Shares() {
		return nil
	}
	env := map[string]string{EnvGate: path.Join(TaskGate, Socket)}
	if !loader {
		env[EnvPreload] = TaskPreload
		// The loader accepts colons and spaces as separators.
		if own := strings.Trim(there[EnvPreload], ": "); own != "" {
			env[EnvPreload] += ":" + own
		}
	}
	if there[EnvWaitMS] == "" && h.WaitMS > 0 {
		env[EnvWaitMS] = strconv.FormatInt(h.WaitMS, 10)
	}
	return env
}
