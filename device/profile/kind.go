// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package profile knows how much memory of a card the jobs of a kind have held, over their
// running time, and what that says of one that runs.
//
// Times are running times: pauses do not count. Sizes are bytes. Everything but Store is
// pure: no clock, no I/O.
package profile

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/ebbtide/ebbtide/device/gate/peer"
)

// Kind says which runs are alike: those of the same task of a job with the same arguments.
// The paper takes the container's image as well; a device plugin does not see it, so that a
// new image shows in the next profiles only.
type Kind struct {
	Namespace string `json:"namespace"`
	// Job is the job's ID, without what Nomad adds to it for each dispatch or period.
	Job   string `json:"job"`
	Group string `json:"group"`
	Task  string `json:"task"`
	// Arguments is a hash of the arguments, see peer.Container. The arguments themselves
	// are stored nowhere: they may hold secrets.
	Arguments string `json:"arguments"`
}

// child is what Nomad adds to the ID of a job that a parameterized or periodic one begins.
var child = regexp.MustCompile(`(/(dispatch-[0-9]+-[0-9a-f]+|periodic-[0-9]+))+$`)

// KindOf returns the kind of what runs in a container.
func KindOf(c peer.Container) Kind {
	return Kind{
		Namespace: plain(c.Namespace), Job: plain(child.ReplaceAllString(c.Job, "")), Group: plain(c.Group), Task: plain(c.Task),
		Arguments: plain(c.Arguments),
	}
}

// plain bounds what a process may call itself, and makes it text that JSON keeps.
func plain(name string) string {
	const longest = 256 // Nomad's own names have half of that
	return strings.ToValidUTF8(name[:min(longest, len(name))], "?")
}

// Application is the kind without its arguments, as one name.
func (k Kind) Application() string {
	return strings.Join([]string{k.Namespace, k.Job, k.Group, k.Task}, "/")
}

// name is that of the kind's file: nothing that a job may call itself is part of a path.
func (k Kind) name() string {
	// A zero byte is in none of them, so that no two kinds have one text.
	text := strings.Join([]string{k.Namespace, k.Job, k.Group, k.Task, k.Arguments}, "\x00")
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16]) + ".json"
}
