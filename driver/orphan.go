// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"time"
)

// ExitIfOrphaned ends this process when the agent that started it is gone and has
// never configured it. Nomad does not end a plugin whose config was refused before
// it exits itself, and nothing would ever call such a plugin again.
//
// A configured one must outlive its agent: its tasks depend on it, and the next
// agent takes it up again.
func (d *Driver) ExitIfOrphaned() {
	if orphaned(d.configured, os.Getppid, time.Second) {
		os.Exit(1)
	}
}

// configured says that SetConfig has succeeded.
func (d *Driver) configured() bool { return d.setup.Load() != nil }

// orphaned waits until the plugin has been configured, or until its parent is no
// longer the one it had at first; it returns true for the latter. The kernel's own
// signal for that (PR_SET_PDEATHSIG) follows the thread that started us, and the
// agent's threads end while it lives.
func orphaned(configured func() bool, getppid func() int, every time.Duration) bool {
	for parent := getppid(); ; time.Sleep(every) {
		gone := getppid() != parent
		if configured() { // asked last: an agent may have been killed just after it
			return false
		}
		if gone {
			return true
		}
	}
}
