// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package optin parses a job's consent to moves in its meta: by which of the shim's
// policies, and how often. The driver validates it before a task starts; the shim obeys
// it.
package optin

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	Migrate  = "ebbtide_migrate"
	Cooldown = "ebbtide_cooldown"
	Queue    = "ebbtide_queue"
	Owner    = "ebbtide_owner"
	Duration = "ebbtide_duration"
	// Adopt names the allocation whose checkpoint a task resumes from. Ebbtide sets it in a group's meta.
	Adopt = "ebbtide_adopt"
	// Priority is of a job in the queue; that of a GPU's share is the device plugin's.
	Priority = "ebbtide_queue_priority"
)

const (
	Relocate        = "relocate"
	FlowConPlace    = "flowcon-place"
	SpeConMigrate   = "specon-migrate"
	SpeConRebalance = "specon-rebalance"
)

// All returns the policies in the order in which they apply to a task.
func All() []string { return []string{Relocate, FlowConPlace, SpeConMigrate, SpeConRebalance} }

// Policies parses the policies that may move a job: all ("true"), none ("false"), or
// names separated by commas.
func Policies(value string) ([]string, error) {
	switch value {
	case "true":
		return All(), nil
	case "false":
		return nil, nil
	}
	var names []string
	for name := range strings.SplitSeq(value, ",") {
		name = strings.TrimSpace(name)
		if !slices.Contains(All(), name) {
			return nil, fmt.Errorf(`must be "true", "false", or some of %s, got %q`, strings.Join(All(), ", "), value)
		}
		names = append(names, name)
	}
	return names, nil
}

const longest = 365 * 24 * time.Hour

// ReadCooldown parses the minimum time between two moves of a job.
func ReadCooldown(value string) (time.Duration, error) { return duration(value, 0, "1h") }

// ReadDuration parses how long a job takes with its whole place, by its author's guess.
func ReadDuration(value string) (time.Duration, error) { return duration(value, time.Second, "2h30m") }

func duration(value string, least time.Duration, example string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < least || d > longest {
		return 0, fmt.Errorf("must be a duration from %v to %v, such as %s, got %q", least, longest, example, value)
	}
	return d, nil
}

// MaxPriority is the highest priority of a job in the queue; the lowest is as far below 0.
const MaxPriority = 100

// ReadPriority parses a job's priority among those of its owner in the queue.
func ReadPriority(value string) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < -MaxPriority || n > MaxPriority {
		return 0, fmt.Errorf("must be a whole number from %d to %d, got %q", -MaxPriority, MaxPriority, value)
	}
	return n, nil
}

const maxOwner = 64

// CheckOwner checks the name of a job's owner.
func CheckOwner(value string) error {
	if len(value) > maxOwner || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fmt.Errorf("must be a name of at most %d bytes, got %q", maxOwner, value)
	}
	return nil
}
