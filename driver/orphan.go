// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"time"
)

// ExitIfOrphaned ends this process when its agent is gone without having configured it.
// Nomad does not end a plugin whose config it refused before exiting, and nothing would
// ever call such a plugin again.
//
// A configured plugin must outlive its agent, as its tasks depend on it and the next
// agent reattaches.
func (d *Driver) ExitIfOrphaned() {
	if orphaned(d.configured, os.Getppid, time.Second) {
		os.Exit(1)
	}
}

func (d *Driver) configured() bool { return d.setup.Load() != nil }

// orphaned waits until the plugin is configured, or returns true once its parent
// process changes. PR_SET_PDEATHSIG is unsuitable: it follows the parent's thread, and
// the agent's threads end while it lives.
func orphaned(configured func() bool, getppid func() int, every time.Duration) bool {
	for parent := getppid(); ; time.Sleep(every) {
		gone := getppid() != parent
		if configured() { // checked last: the agent may have been killed right after
			return false
		}
		if gone {
			return true
		}
	}
}
