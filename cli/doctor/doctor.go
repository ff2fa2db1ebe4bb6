// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package doctor checks a Nomad agent that runs Ebbtide. In: configuration files, the agent's
// API and the machine, which Gather reads as far as possible into a Snapshot. Out: Findings,
// which the pure function Examine derives from the Snapshot. Start with doctor.go, then
// checks.go.
//
// A Snapshot may hold secrets, such as a plugin's config. Findings quote only Ebbtide's own
// options, which hold none.
package doctor

import (
	"slices"
	"strings"
	"unicode"

	"github.com/ebbtide/ebbtide/shim/move"
)

// Status is the outcome of a check.
type Status string

// Only Fail makes the command fail.
const (
	OK   Status = "ok"
	Warn Status = "warn" // degraded or surprising
	Fail Status = "fail" // does not work, or kills tasks
	Skip Status = "skip" // cannot be checked from here
)

// Finding is the outcome of one check.
type Finding struct {
	// Name of the check, which may have several findings.
	Name   string `json:"name"`
	Status Status `json:"status"`
	Seen   string `json:"seen"`
	// Do is the remedy, "" if none is needed.
	Do string `json:"do,omitempty"`
	// Add is text for a file named in Do, mostly the agent's configuration.
	Add string `json:"add,omitempty"`
}

// Config is the checked part of an agent's configuration, with Nomad's defaults.
type Config struct {
	PluginDir                string
	ClientEnabled            bool
	MaxKillTimeout           string
	Options                  map[string]string
	PublishAllocationMetrics bool
	// Plugins are plugin configs by label. They may hold secrets.
	Plugins map[string]Block
	// HTTP is the URL of the agent's API.
	HTTP string
	// Written are settings before defaults are applied.
	Written Written
}

// Written are settings as written in files, "" if absent.
type Written struct{ PluginDir, MaxKillTimeout string }

type Snapshot struct {
	// Paths are the given configuration files and directories.
	Paths []string
	// Files is the merged configuration; nil if no path was given, or after FilesErr.
	Files    *Config
	FilesErr error
	API      API
	// Host is the machine; nil if the agent runs elsewhere (HostSkipped says so).
	Host        *Host
	HostSkipped string
}

// API is what the agent's API returned.
type API struct {
	// Address is without credentials.
	Address string
	// Asked means that the address was given, not derived from files.
	Asked bool
	// Err is why the request failed; Denied that the token was rejected.
	Err    error
	Denied bool
	// Config is the running configuration, nil if unknown.
	Config  *Config
	Version string // of Nomad, "" if unknown
	// Node is the client's node, nil if unknown or after NodeErr.
	Node       *Node
	NodeErr    error
	NodeDenied bool
	// Disk is what the client's garbage collection depends on, nil if unknown.
	Disk *move.Disk
	// Algorithm is the scheduler's for the node: "binpack" or "spread", "" if unknown.
	Algorithm string
	// Others means that the cluster has other ready nodes; false if unknown.
	Others bool
	// Bound are the jobs bound to a node for a move, as namespace/ID; empty if unknown.
	Bound []string
}

type Node struct {
	Attributes map[string]string
	Drivers    map[string]DriverInfo
	// Cores means that a task has cores of its own; false if unknown.
	Cores bool
	// Cards are those shared by the device plugin.
	Cards []Card
}

type Card struct {
	Name  string // of its device group
	Seats int
	// Unhealthy says why it cannot be used, "" if it can.
	Unhealthy string
	// Shared means that its memory is divided, Parking that containers can be parked.
	Shared, Parking bool
	// NotParked says why not, if known.
	NotParked string
	// OverShare is the handling of requests beyond a share: "wait" or "deny".
	OverShare string
	// Persistence is NVIDIA's persistence mode: "Enabled", "Disabled", or "" if unknown.
	Persistence string
}

type DriverInfo struct {
	Detected, Healthy bool
	Description       string
}

type Host struct {
	// Root means that doctor itself runs as root.
	Root bool
	// Plugins are the files in plugin_dir, with links resolved.
	Plugins    []File
	PluginsErr error
	// Agents are the running Nomad agents.
	Agents []Process
	// Cgroups are the mounts that may have a CPU controller.
	Cgroups    []CgroupMount
	CgroupsErr error
	// Docker is the daemon, nil for engine exec.
	Docker *Docker
}

type File struct {
	Name       string
	Executable bool
	// Ours means Ebbtide's plugin, whatever its name; Nomad is the version of the drivers in it.
	Ours  bool
	Nomad string
}

type Process struct{ PID, UID int }

type CgroupMount struct {
	Version     int // 1 or 2
	Path        string
	Controllers []string
	ReadOnly    bool
}

// Docker is what the Docker daemon reports.
type Docker struct {
	Endpoint string
	// Err is why it could not be queried; Denied that permission was denied.
	Err    error
	Denied bool

	Version             string
	CgroupDriver        string
	CgroupVersion       string
	LiveRestore         bool
	Rootless            bool
	CPUShares, CPUQuota bool
}

// config returns the files' configuration, else the running one, else nil.
func (s *Snapshot) config() *Config {
	if s.Files != nil {
		return s.Files
	}
	return s.API.Config
}

// Block is an HCL block as passed to a plugin: inner blocks are lists of maps.
type Block map[string]any

// block returns an inner block, nil if absent.
func (b Block) block(name string) Block {
	switch v := b[name].(type) {
	case map[string]any:
		return v
	case []map[string]any:
		if len(v) > 0 {
			return v[0]
		}
	case []any:
		if len(v) > 0 {
			if m, ok := v[0].(map[string]any); ok {
				return m
			}
		}
	}
	return nil
}

// text returns a string option, or def.
func (b Block) text(name, def string) string {
	if v, ok := b[name].(string); ok {
		return v
	}
	return def
}

// flag returns a bool option, or def; HCL also accepts "true" and "false".
func (b Block) flag(name string, def bool) bool {
	switch v := b[name].(type) {
	case bool:
		return v
	case string:
		if v == "true" || v == "false" {
			return v == "true"
		}
	}
	return def
}

func (b Block) names() []string {
	out := make([]string, 0, len(b))
	for name := range b {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// clean makes foreign text safe to print on one line.
func clean(s string) string {
	const most = 300
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
	if runes := []rune(s); len(runes) > most {
		s = string(runes[:most]) + "…"
	}
	return strings.TrimSpace(s)
}
