// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"time"
)

// ExitIfOrphaned ends this process if its agent exits without having configured it. Nomad does not
// end a plugin whose config it has rejected before it exits, and such a plugin would never be
// called again.
//
// A configured plugin must outlive its agent, because its tasks depend on it and the next agent
// reattaches.
func (d *Driver) ExitIfOrphaned() {
	if orphaned(d.configured, os.Getppid, time.Second) {
		os.Exit(1)
	}
}

func (d *Driver) configured() bool { return d.setup.Load() != nil }

// orphaned blocks until the plugin is configured, and returns true if its parent process changes
// first. PR_SET_PDEATHSIG is unsuitable: it is bound to the parent's thread, and threads end while
// the agent lives.
func orphaned(configured func() bool, getppid func() int, every time.Duration) bool {
	for parent := getppid(); ; time.Sleep(every) {
		gone := getppid() != parent
		if configured() { // last, as the agent may be killed right after it
			return false
		}
		if gone {
			return true
		}
	}
}
