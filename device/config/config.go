// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package config defines the device plugin's options: names, types, defaults, allowed values.
package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/ebbtide/ebbtide/device/fairshare"
	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/device/shares"
	"github.com/ebbtide/ebbtide/internal/metricsserver"
)

// How a container gets its card.
const (
	// InjectRuntime names the card to NVIDIA's container runtime, as Nomad's own plugin does.
	InjectRuntime = "runtime"
	// InjectDevices passes the card's device nodes, for engines without that runtime.
	InjectDevices = "devices"
)

// What mounts library and gate.
const (
	// MountsDriver is the ebbtide driver, which keeps the task's volumes.
	MountsDriver = "driver"
	// MountsDevice is this plugin, for other drivers. Nomad then drops the task's volumes.
	MountsDevice = "device"
)

// Treatment of a request beyond its container's share.
const (
	// OverWait: it waits until the memory is not needed otherwise.
	OverWait = "wait"
	OverDeny = "deny"
	// OverAuto is OverWait where containers can be parked: only then is every container sure to
	// get its share.
	OverAuto = "auto"
)

// Whether containers may be parked.
const (
	// ParkingAuto: where the tests of a real card have passed (package tested).
	ParkingAuto = "auto"
	ParkingOn   = "true"
	ParkingOff  = "false"
)

// Config holds the options as written: durations are text.
type Config struct {
	Enabled  bool     `codec:"enabled"`
	Preset   string   `codec:"preset"`
	Library  string   `codec:"library"`
	Seats    int      `codec:"seats_per_gpu"`
	Spread   bool     `codec:"spread"`
	Period   string   `codec:"fingerprint_period"`
	Ignored  []string `codec:"ignored_gpu_ids"`
	Inject   string   `codec:"inject"`
	Mounts   string   `codec:"mounts"`
	Preload  string   `codec:"preload"`
	Gate     string   `codec:"gate"`
	Reserve  int      `codec:"reserve_mib"`
	Division string   `codec:"division"`
	MaxWait  string   `codec:"max_wait"`
	Over     string   `codec:"over_share"`
	Parking  string   `codec:"parking"`
	CUDA     string   `codec:"cuda_library"`
	Turn     string   `codec:"turn"`
	Idle     string   `codec:"idle"`
	Lazy     bool     `codec:"lazy_return"`
	StateDir string   `codec:"state_dir"`
	Metrics  string   `codec:"metrics_address"`
}

// Spec returns the schema of the options, with their defaults.
func Spec() *hclspec.Spec {
	option := func(name, kind, value string) *hclspec.Spec {
		return hclspec.NewDefault(hclspec.NewAttr(name, kind, false), hclspec.NewLiteral(value))
	}
	return hclspec.NewObject(map[string]*hclspec.Spec{
		"enabled":            option("enabled", "bool", "true"),
		"preset":             option("preset", "string", `""`),
		"library":            option("library", "string", `""`),
		"seats_per_gpu":      option("seats_per_gpu", "number", "4"),
		"spread":             option("spread", "bool", "true"),
		"fingerprint_period": option("fingerprint_period", "string", `"30s"`),
		"ignored_gpu_ids":    option("ignored_gpu_ids", "list(string)", "[]"),
		"inject":             option("inject", "string", `"runtime"`),
		"mounts":             option("mounts", "string", `"driver"`),
		"preload":            option("preload", "string", `"/usr/lib/ebbtide/libebbtide-cuda.so"`),
		"gate":               option("gate", "string", `"/run/ebbtide/gate"`),
		"reserve_mib":        option("reserve_mib", "number", "512"),
		"division":           option("division", "string", `"seats"`),
		"max_wait":           option("max_wait", "string", `"1h"`),
		"over_share":         option("over_share", "string", `"auto"`),
		"parking":            option("parking", "string", `"auto"`),
		"cuda_library":       option("cuda_library", "string", `""`),
		"turn":               option("turn", "string", `"1m"`),
		"idle":               option("idle", "string", `"30s"`),
		"lazy_return":        option("lazy_return", "bool", "false"),
		"state_dir":          option("state_dir", "string", `"/var/lib/ebbtide/gpu"`),
		"metrics_address":    option("metrics_address", "string", `""`),
	})
}

// Settings is a validated Config.
type Settings struct {
	Enabled bool
	// Library is the path of NVML; "" is the system's.
	Library string
	Seats   int // containers that may share a card
	// Spread makes cards offer their seats one at a time.
	Spread   bool
	Period   time.Duration
	Ignored  []string // UUIDs of cards
	Inject   string
	Mounts   string // the component that mounts library and gate
	Preload  string // on the host
	Gate     string // of the gate's socket
	Reserve  uint64 // bytes of each card that are never granted
	Division string
	MaxWait  time.Duration
	Over     string
	Parking  string
	// CUDA is the path of libcuda.so.1; "" is the system's.
	CUDA string
	// Turn is how long a container keeps its memory while others wait for it; Idle, the time
	// without submitted work after which it is idle.
	Turn, Idle time.Duration
	// Profiles makes the adaptive division follow what jobs held.
	Profiles bool
	// Lazy restores idle containers only when they have work to submit.
	Lazy bool
	// StateDir is where profiles and the record of tested cards are stored.
	StateDir string
	// Metrics is where metrics are served.
	Metrics metricsserver.Address
}

// Divisions returns the modes of division, the default first (device/shares, device/fairshare).
func Divisions() []string {
	return []string{string(shares.Seats), string(fairshare.Adaptive), string(fairshare.Static), string(fairshare.WholeCard)}
}

// adaptiveFairShare is the preset of the paper: adaptive shares that follow profiles.
const adaptiveFairShare = "adaptive-fair-share"

const maxSocketDir = gate.MaxPath - len("/"+handoff.Socket)

var libraries = map[string]string{"library": "libnvidia-ml.so.1", "cuda_library": "libcuda.so.1"}

// Validate parses and checks every option. Its error joins all problems, each with the option,
// the value and what is allowed.
func (c Config) Validate() (*Settings, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	s := &Settings{
		Enabled: c.Enabled, Library: c.Library, Seats: c.Seats, Spread: c.Spread, Ignored: c.Ignored, Inject: c.Inject, Mounts: c.Mounts, Preload: c.Preload, Gate: c.Gate,
		Reserve: uint64(max(0, c.Reserve)) << 20, Division: c.Division,
		Over: c.Over, Parking: c.Parking, CUDA: c.CUDA, Lazy: c.Lazy, StateDir: c.StateDir,
	}
	for name, path := range map[string]string{"library": c.Library, "cuda_library": c.CUDA} {
		if path != "" && !filepath.IsAbs(path) {
			bad("%s: must be the absolute path of %s, or empty, got %q", name, libraries[name], path)
		}
	}
	if !filepath.IsAbs(c.StateDir) {
		bad("state_dir: must be the absolute path of a directory, got %q", c.StateDir)
	}
	if c.Seats < 1 || c.Seats > 64 {
		bad("seats_per_gpu: must be from 1 to 64, got %d", c.Seats)
	}
	duration := func(name, text, like string, most time.Duration) time.Duration {
		d, err := time.ParseDuration(text)
		switch {
		case err != nil:
			bad("%s: must be a duration like %s, got %q", name, like, text)
		case d < time.Second || d > most:
			bad("%s: must be a duration from 1s to %dh, got %v", name, most/time.Hour, d)
		}
		return d
	}
	s.Period = duration("fingerprint_period", c.Period, "30s", time.Hour)
	s.MaxWait = duration("max_wait", c.MaxWait, "1h", 24*time.Hour)
	s.Turn = duration("turn", c.Turn, "1m", 24*time.Hour)
	s.Idle = duration("idle", c.Idle, "30s", 24*time.Hour)
	for _, id := range c.Ignored {
		if !strings.HasPrefix(id, "GPU-") {
			bad("ignored_gpu_ids: must be UUIDs like GPU-…, as nvidia-smi -L has them, got %q", id)
		}
	}
	oneOf := func(name, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			bad("%s: must be one of %s, got %q", name, strings.Join(allowed, ", "), value)
		}
	}
	oneOf("inject", c.Inject, InjectRuntime, InjectDevices)
	oneOf("mounts", c.Mounts, MountsDriver, MountsDevice)
	oneOf("division", c.Division, Divisions()...)
	oneOf("over_share", c.Over, OverAuto, OverWait, OverDeny)
	oneOf("parking", c.Parking, ParkingAuto, ParkingOn, ParkingOff)
	switch c.Preset {
	case "":
	case adaptiveFairShare:
		s.Division, s.Profiles = string(fairshare.Adaptive), true
	default:
		bad("preset: must be %s or empty, got %q", adaptiveFairShare, c.Preset)
	}
	if !filepath.IsAbs(c.Preload) {
		bad("preload: must be the absolute path of libebbtide-cuda.so, got %q", c.Preload)
	}
	if !filepath.IsAbs(c.Gate) || len(c.Gate) > maxSocketDir {
		bad("gate: must be the absolute path of a directory, of at most %d bytes, for the gate's socket, got %q", maxSocketDir, c.Gate)
	}
	if c.Reserve < 0 || c.Reserve > 1<<20 {
		bad("reserve_mib: must be from 0 to 1048576, got %d", c.Reserve)
	}
	var err error
	if s.Metrics, err = metricsserver.Parse(c.Metrics); err != nil {
		bad("metrics_address: %w", err)
	}
	return s, errors.Join(errs...)
}
