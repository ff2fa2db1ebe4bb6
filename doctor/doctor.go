// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package doctor looks for what is missing or dangerous in the configuration of a
// Nomad agent that runs Ebbtide.
//
// It has two halves. Gather reads configuration files, the agent's API and the
// machine, each as far as it can, into a Snapshot. Examine judges a Snapshot and
// is a pure function: no clock, no files, no network. What a Snapshot holds may
// be secret (a plugin's config); no Finding ever quotes it, except for Ebbtide's
// own options, which hold no secrets.
package doctor

import (
	"slices"
	"strings"
	"unicode"
)

// Status is the outcome of a check.
type Status string

// The outcomes. Only Fail makes the command fail.
const (
	OK   Status = "ok"   // as it should be
	Warn Status = "warn" // works, but something is lost or will surprise
	Fail Status = "fail" // does not work, or kills tasks
	Skip Status = "skip" // could not be looked at from here
)

// Finding is the outcome of one check, for people.
type Finding struct {
	// Name of the check; a check may have several findings.
	Name   string `json:"name"`
	Status Status `json:"status"`
	// Seen is what was seen, in one line.
	Seen string `json:"seen"`
	// Do is what to do about it; empty where nothing is to be done.
	Do string `json:"do,omitempty"`
	// Add is text for a file, mostly the agent's configuration; Do says where.
	Add string `json:"add,omitempty"`
}

// Config is the part of an agent's configuration that the checks look at, with
// Nomad's defaults filled in.
type Config struct {
	PluginDir      string
	ClientEnabled  bool
	MaxKillTimeout string
	// Options are client.options.
	Options                  map[string]string
	PublishAllocationMetrics bool
	// Plugins are the plugin blocks' configs by label. They may hold secrets.
	Plugins map[string]Block
	// HTTP is where the agent's API should be by this configuration, as a URL.
	HTTP string
	// Written is what files say themselves, where Nomad's default counts otherwise.
	Written Written
}

// Written are settings of files; empty where they say nothing.
type Written struct{ PluginDir, MaxKillTimeout string }

// Snapshot is everything that the checks look at.
type Snapshot struct {
	// Paths are the configuration files and directories that were named.
	Paths []string
	// Files is what the configuration files say together; nil when none was
	// named, or when they could not be read (FilesErr).
	Files    *Config
	FilesErr error
	API      API
	// Host is the machine; nil when the agent runs on another one (HostSkipped).
	Host        *Host
	HostSkipped string
}

// API is what the agent's API says.
type API struct {
	// Address as shown to people, without credentials.
	Address string
	// Asked says that the address was named, not worked out from files.
	Asked bool
	// Err is why the agent could not be asked; Denied that it refused the token.
	Err    error
	Denied bool
	// Config is the configuration in force; nil when unknown.
	Config  *Config
	Version string // of Nomad, "" when unknown
	// Node is the node's own record; nil when unknown, then NodeErr may say why.
	Node       *Node
	NodeErr    error
	NodeDenied bool
	// Bound are the jobs of the cluster that are bound to a node for a move, by namespace and
	// ID; none if that is not known.
	Bound []string
}

// Node is the part of a node's record that the checks look at.
type Node struct {
	Attributes map[string]string
	Drivers    map[string]DriverInfo
	// Cards are the cards that the device plugin ebbtide-gpu shares.
	Cards []Card
}

// Card is a shared GPU.
type Card struct {
	Name  string // of its device group
	Seats int
	// Unhealthy says why it cannot be used; "" if it can.
	Unhealthy string
	// Shared is whether its memory is divided, and Parking whether containers can be parked.
	Shared, Parking bool
	// OverShare is what becomes of a request for more than a share: "wait", "deny".
	OverShare string
}

// DriverInfo is a driver of a node.
type DriverInfo struct {
	Detected, Healthy bool
	Description       string
}

// Host is what was seen of the machine.
type Host struct {
	// Root says whether doctor itself runs as root.
	Root bool
	// Plugins are the files in plugin_dir, links resolved; PluginsErr is why they
	// could not be listed.
	Plugins    []File
	PluginsErr error
	// Agents are the running Nomad agents.
	Agents []Process
	// Cgroups are the mounts of the CPU controller; empty when there is none.
	Cgroups    []CgroupMount
	CgroupsErr error
	// Docker is the daemon; nil when the engine is not docker.
	Docker *Docker
}

// File is a file in the plugin directory.
type File struct {
	Name       string
	Executable bool
	// Ours says that the file is Ebbtide's plugin, whatever its name.
	Ours bool
}

// Process is a running Nomad agent.
type Process struct{ PID, UID int }

// CgroupMount is a mounted hierarchy of cgroups.
type CgroupMount struct {
	Version     int // 1 or 2
	Path        string
	Controllers []string // that exist there
	ReadOnly    bool
}

// Docker is what the Docker daemon says of itself.
type Docker struct {
	Endpoint string
	// Err is why it could not be asked; Denied that permission was refused.
	Err    error
	Denied bool

	Version       string
	CgroupDriver  string
	CgroupVersion string
	LiveRestore   bool
	Rootless      bool
	// CPUShares and CPUQuota say whether the daemon can set these limits.
	CPUShares, CPUQuota bool
}

// config is the configuration that the checks go by: the files, else what is in
// force. nil when neither is known.
func (s *Snapshot) config() *Config {
	if s.Files != nil {
		return s.Files
	}
	return s.API.Config
}

// Block is an HCL block as Nomad hands it to a plugin: blocks inside are lists of
// maps.
type Block map[string]any

// block returns an inner block; an empty one when it is absent.
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

// flag returns a bool option, or def; HCL also takes "true" and "false".
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

// names returns the option names of a block, sorted.
func (b Block) names() []string {
	out := make([]string, 0, len(b))
	for name := range b {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// clean makes text from elsewhere safe to print on one line.
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
