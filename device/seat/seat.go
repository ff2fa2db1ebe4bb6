// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package seat defines what the device plugin passes to the ebbtide driver about a container's
// seat on a card, and what the container gets for it.
//
// The plugin could return mounts itself, and does for other drivers. But in Nomad 1.11 a
// device's mounts replace the task's volumes. So they are passed in one environment variable,
// from which the driver builds them beside the volumes, at each start of the task: after an
// agent restart Nomad forgets a device's mounts, but not its variables.
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

// Variable is the environment variable that carries a Seat from the plugin to the driver, which
// removes it from the task's environment.
const Variable = "EBBTIDE_GPU_SEAT"

// Paths in the container.
const (
	TaskPreload = "/usr/lib/ebbtide/libebbtide-cuda.so"
	TaskGate    = "/run/ebbtide"
	// Socket is the name of the gate's socket in its directory.
	Socket = "gate.sock"
	// taskLoader is the file that the dynamic loader reads; loader is its source in the gate's
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

// Seat is a container's seat on a card. Paths are on the host.
type Seat struct {
	// Preload is the preload library and Gate the directory of the gate's socket. Both are
	// empty if the container runs without a memory share.
	Preload string `json:"preload,omitempty"`
	Gate    string `json:"gate,omitempty"`
	// MemoryMiB is the memory of the card, of the largest if several; 0 = unknown.
	MemoryMiB int64 `json:"memory_mib,omitempty"`
	// WaitMS is how long a request for memory may wait, in ms; 0: the library's default.
	WaitMS int64 `json:"wait_ms,omitempty"`
	// Reports is the directory of reports (ReportPath).
	Reports string `json:"reports,omitempty"`
	// Tasks is the directory of task identities (Identity), Cards are the UUIDs of the cards on
	// which this container has a seat, and Seats are Nomad's IDs of the seats.
	Tasks string   `json:"tasks,omitempty"`
	Cards []string `json:"cards,omitempty"`
	Seats []string `json:"seats,omitempty"`
	// Notice is why the container runs without a share; "" = it has one.
	Notice string `json:"notice,omitempty"`
	// Unparked is why containers cannot be parked on this node; "" = they can, or parking is
	// off.
	Unparked string `json:"not_parked,omitempty"`
}

// Shares reports whether the container takes part in the division of its card.
func (s Seat) Shares() bool { return s.Preload != "" }

// Encode returns the seat as the variable's value.
func (s Seat) Encode() (string, error) {
	if err := s.validate(); err != nil {
		return "", err
	}
	data, err := json.Marshal(s)
	return string(data), err
}

// Decode parses a seat. It ignores unknown fields, because plugin and driver may differ in
// version during an upgrade.
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

// validate names every invalid field.
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
		errs = append(errs, fmt.Errorf("preload, gate: must be set together, got %q and %q", s.Preload, s.Gate))
	case s.Preload == "" && s.Notice == "":
		errs = append(errs, errors.New("notice: must say why there is neither preload nor gate, got none"))
	}
	return errors.Join(errs...)
}

// Mount is a host path that a container sees read-only.
type Mount struct{ Host, Task string }

// Mounts returns the container's mounts.
func (s Seat) Mounts() []Mount {
	if !s.Shares() {
		return nil
	}
	return []Mount{{Host: s.Preload, Task: TaskPreload}, {Host: s.Gate, Task: TaskGate}}
}

// Loader returns the mount of the file that makes the container's dynamic loader load the
// library. Unlike LD_PRELOAD it works in programs with a cleared environment and in setuid
// ones. It hides the image's own file.
func (s Seat) Loader() Mount {
	return Mount{Host: filepath.Join(s.Gate, loader), Task: taskLoader}
}

// WriteLoader writes that file into the gate's directory.
func WriteLoader(gate string) error {
	if err := os.WriteFile(filepath.Join(gate, loader), []byte(TaskPreload+"\n"), 0o644); err != nil {
		return fmt.Errorf("writing the file for containers' loaders: %w", err)
	}
	return nil
}

// Environment returns the variables to add to the container's environment. The library goes in
// front of those the job preloads itself. The job may set the wait of its requests.
func (s Seat) Environment(there map[string]string) map[string]string {
	if !s.Shares() {
		return nil
	}
	env := map[string]string{EnvPreload: TaskPreload, EnvGate: path.Join(TaskGate, Socket)}
	// The loader accepts colons and spaces as separators.
	if own := strings.Trim(there[EnvPreload], ": "); own != "" {
		env[EnvPreload] += ":" + own
	}
	if there[EnvWaitMS] == "" && s.WaitMS > 0 {
		env[EnvWaitMS] = strconv.FormatInt(s.WaitMS, 10)
	}
	return env
}
