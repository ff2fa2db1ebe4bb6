// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package seat is what the device plugin tells the ebbtide driver of a container's seat on a
// card, and what the container is given for it.
//
// The plugin could give mounts itself, and does for other drivers. But Nomad 1.11 lets the
// mounts of a device take the place of a task's volumes. So they go through one variable,
// from which the driver makes them beside the volumes, and anew at each start of the task:
// after a restart of the agent Nomad forgets a device's mounts, but not its variables.
package seat

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// Variable is the environment variable that carries a Seat from the plugin to the driver,
// which takes it out of the task's environment.
const Variable = "EBBTIDE_GPU_SEAT"

// Where a container finds what it shares the card with.
const (
	TaskPreload = "/usr/lib/ebbtide/libebbtide-cuda.so"
	TaskGate    = "/run/ebbtide"
	// Socket is the name of the gate's socket in its directory.
	Socket = "gate.sock"
	// taskLoader is what the dynamic loader reads, and loader is that file in the gate's
	// directory.
	taskLoader = "/etc/ld.so.preload"
	loader     = "ld.so.preload"
)

// Variables that the preload library reads, and the one that loads it.
const (
	EnvPreload = "LD_PRELOAD"
	EnvGate    = "EBBTIDE_GATE"
	EnvWaitMS  = "EBBTIDE_GATE_WAIT_MS"
)

// Seat is a container's seat on a card. Paths are the host's.
type Seat struct {
	// Preload is the preload library and Gate the directory of the gate's socket. Both are
	// empty if the container is to run without a share of the memory.
	Preload string `json:"preload,omitempty"`
	Gate    string `json:"gate,omitempty"`
	// MemoryMiB is the memory of the card, of the largest of several; 0 = not known.
	MemoryMiB int64 `json:"memory_mib,omitempty"`
	// WaitMS is for how many milliseconds a request for memory may wait; 0 leaves it to the
	// library.
	WaitMS int64 `json:"wait_ms,omitempty"`
	// Reports is the directory of what is reported of containers (ReportPath).
	Reports string `json:"reports,omitempty"`
	// Tasks is the directory in which the driver says what tasks are (Identity), Cards are the
	// UUIDs of the cards on which this one has a seat, and Seats are Nomad's IDs of these.
	Tasks string   `json:"tasks,omitempty"`
	Cards []string `json:"cards,omitempty"`
	Seats []string `json:"seats,omitempty"`
	// Notice says to people why the container runs without a share; "" = it has one.
	Notice string `json:"notice,omitempty"`
	// Unparked says why nobody's memory can be moved to the host's on this node; "" = it can,
	// or is not wanted to.
	Unparked string `json:"not_parked,omitempty"`
}

// Shares says whether the container takes part in the division of its card.
func (s Seat) Shares() bool { return s.Preload != "" }

// Encode writes a seat as the variable has it.
func (s Seat) Encode() (string, error) {
	if err := s.validate(); err != nil {
		return "", err
	}
	data, err := json.Marshal(s)
	return string(data), err
}

// Decode reads a seat. What it does not know it leaves alone, for plugin and driver may be
// of different versions while a node is upgraded.
func Decode(text string) (Seat, error) {
	var s Seat
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return Seat{}, fmt.Errorf("reading %s: %w", Variable, err)
	}
	if err := s.validate(); err != nil {
		return Seat{}, fmt.Errorf("reading %s: %w", Variable, err)
	}
	return s, nil
}

// validate names every field that is wrong.
func (s Seat) validate() error {
	var errs []error
	for _, f := range []struct{ name, path string }{{"preload", s.Preload}, {"gate", s.Gate}, {"reports", s.Reports}, {"tasks", s.Tasks}} {
		if f.path != "" && (!filepath.IsAbs(f.path) || filepath.Clean(f.path) != f.path) {
			errs = append(errs, fmt.Errorf("%s: must be an absolute path, without . and .. in it, got %q", f.name, f.path))
		}
	}
	for _, f := range []struct {
		name string
		n    int64
	}{{"memory_mib", s.MemoryMiB}, {"wait_ms", s.WaitMS}} {
		if f.n < 0 {
			errs = append(errs, fmt.Errorf("%s: must be ≥ 0, got %d", f.name, f.n))
		}
	}
	switch {
	case (s.Preload == "") != (s.Gate == ""):
		errs = append(errs, fmt.Errorf("preload, gate: are of no use without each other, got %q and %q", s.Preload, s.Gate))
	case s.Preload == "" && s.Notice == "":
		errs = append(errs, errors.New("notice: must say why there is neither preload nor gate, got none"))
	}
	return errors.Join(errs...)
}

// Mount is a path of the host that a container sees, read-only.
type Mount struct{ Host, Task string }

// Mounts are what the container has to see.
func (s Seat) Mounts() []Mount {
	if !s.Shares() {
		return nil
	}
	return []Mount{{Host: s.Preload, Task: TaskPreload}, {Host: s.Gate, Task: TaskGate}}
}

// Loader is the file that has the container's dynamic loader load the library. It does so
// also in programs whose environment has been cleared, and where LD_PRELOAD does not count
// (setuid). It takes the place of the image's own.
func (s Seat) Loader() Mount {
	return Mount{Host: filepath.Join(s.Gate, loader), Task: taskLoader}
}

// WriteLoader writes that file into the gate's directory.
func WriteLoader(gate string) error {
	if err := os.WriteFile(filepath.Join(gate, loader), []byte(TaskPreload+"\n"), 0o644); err != nil {
		return fmt.Errorf("writing what containers' loaders read: %w", err)
	}
	return nil
}

// Environment is what the container's environment has to hold beside what is there. The
// library goes in front of one that the job loads itself. How long its requests wait is the
// job's to say.
func (s Seat) Environment(there map[string]string) map[string]string {
	if !s.Shares() {
		return nil
	}
	env := map[string]string{EnvPreload: TaskPreload, EnvGate: path.Join(TaskGate, Socket)}
	// The loader takes colons and spaces between the names.
	if own := strings.Trim(there[EnvPreload], ": "); own != "" {
		env[EnvPreload] += ":" + own
	}
	if there[EnvWaitMS] == "" && s.WaitMS > 0 {
		env[EnvWaitMS] = strconv.FormatInt(s.WaitMS, 10)
	}
	return env
}
