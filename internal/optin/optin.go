// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package optin reads what a job's meta says of moves: which of the shim's policies may move
// it, and how often. The driver checks it before a task starts; the shim goes by it.
package optin

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// The keys of a job's meta.
const (
	Migrate  = "ebbtide_migrate"
	Cooldown = "ebbtide_cooldown"
)

// The shim's policies.
const (
	Relocate        = "relocate"
	FlowConPlace    = "flowcon-place"
	SpeConMigrate   = "specon-migrate"
	SpeConRebalance = "specon-rebalance"
)

// All returns the policies, in the order in which a task meets them.
func All() []string { return []string{Relocate, FlowConPlace, SpeConMigrate, SpeConRebalance} }

// Policies reads which policies may move a job: all ("true"), none ("false"), or those that
// are named, separated by commas.
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

// longest is the longest cooldown: a year.
const longest = 365 * 24 * time.Hour

// ReadCooldown reads the least time between two moves of a job.
func ReadCooldown(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 || d > longest {
		return 0, fmt.Errorf("must be a duration from 0s to %v, such as 1h, got %q", longest, value)
	}
	return d, nil
}
