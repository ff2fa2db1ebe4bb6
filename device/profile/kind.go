// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package profile keeps how much card memory jobs of a kind have held over their running time,
// and forecasts running jobs from that.
//
// Times are running times: pauses do not count. Sizes are bytes. Everything but Store is pure:
// no clock, no I/O.
package profile

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/ebbtide/ebbtide/device/gate/identify"
)

// Kind identifies comparable runs: the same task of a job with the same arguments. The paper
// also uses the container's image; a device plugin does not see it, so a new image only shows
// in later profiles.
type Kind struct {
	Namespace string `json:"namespace"`
	// Job is the job's ID, without Nomad's suffix for a dispatch or period.
	Job   string `json:"job"`
	Group string `json:"group"`
	Task  string `json:"task"`
	// Arguments is a hash of the arguments, see identify.Container. The arguments themselves are
	// stored nowhere: they may hold secrets.
	Arguments string `json:"arguments"`
}

// childSuffix is the suffix that Nomad adds to the ID of a dispatched or periodic job.
var childSuffix = regexp.MustCompile(`(/(dispatch-[0-9]+-[0-9a-f]+|periodic-[0-9]+))+$`)

// KindOf returns the kind of a container's run.
func KindOf(c identify.Container) Kind {
	return Kind{
		Namespace: sanitize(c.Namespace), Job: sanitize(childSuffix.ReplaceAllString(c.Job, "")), Group: sanitize(c.Group), Task: sanitize(c.Task),
		Arguments: sanitize(c.Arguments),
	}
}

// sanitize bounds the length of a name chosen by a process, and makes it valid UTF-8 for JSON.
func sanitize(name string) string {
	const longest = 256 // Nomad's own names have half of that
	return strings.ToValidUTF8(name[:min(longest, len(name))], "?")
}

// Application returns the kind without its arguments, as one name.
func (k Kind) Application() string {
	return strings.Join([]string{k.Namespace, k.Job, k.Group, k.Task}, "/")
}

// name returns the name of the kind's file: no name chosen by a job becomes part of a path.
func (k Kind) name() string {
	// No name contains a zero byte, so different kinds have different texts.
	text := strings.Join([]string{k.Namespace, k.Job, k.Group, k.Task, k.Arguments}, "\x00")
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16]) + ".json"
}
