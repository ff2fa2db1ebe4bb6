// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package profile keeps how much card memory runs of the same key have held over their time,
// for Adaptive Fair-Share. Running time excludes pauses. Sizes are bytes. Everything but Store is
// pure.
package profile

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/ebbtide/ebbtide/device/gate/identify"
)

// Key identifies comparable runs: the same task of a job with the same arguments. A device
// plugin does not see the container's image, which the paper also uses.
type Key struct {
	Namespace string `json:"namespace"`
	// Job is the job's ID, without Nomad's suffix for a dispatch or period.
	Job   string `json:"job"`
	Group string `json:"group"`
	Task  string `json:"task"`
	// Arguments is a hash (identify.Container): arguments may hold secrets.
	Arguments string `json:"arguments"`
}

var childSuffix = regexp.MustCompile(`(/(dispatch-[0-9]+-[0-9a-f]+|periodic-[0-9]+))+$`)

// KeyOf returns the key of a container's run.
func KeyOf(c identify.Container) Key {
	return Key{
		Namespace: sanitize(c.Namespace), Job: sanitize(childSuffix.ReplaceAllString(c.Job, "")), Group: sanitize(c.Group), Task: sanitize(c.Task),
		Arguments: sanitize(c.Arguments),
	}
}

// sanitize bounds the length of a name chosen by a process, and makes it valid UTF-8.
func sanitize(name string) string {
	const longest = 256 // Nomad's own names have half of that
	return strings.ToValidUTF8(name[:min(longest, len(name))], "?")
}

// Application returns the key without its arguments, as one name.
func (k Key) Application() string {
	return strings.Join([]string{k.Namespace, k.Job, k.Group, k.Task}, "/")
}

// name returns the name of the key's file, in which nothing is chosen by a job.
func (k Key) name() string {
	// No name contains a zero byte, so different keys have different texts.
	text := strings.Join([]string{k.Namespace, k.Job, k.Group, k.Task, k.Arguments}, "\x00")
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16]) + ".json"
}
