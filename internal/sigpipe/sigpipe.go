// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package sigpipe keeps a process alive that writes to the pipe of one that has died: a plugin to
// its agent's, a plugin's helper to the plugin's. Nomad's helpers run in init functions of their
// packages; this package imports nothing that theirs do not, so its init runs before.
package sigpipe

import (
	"os"
	"os/signal"
	"syscall"
)

// The signal is caught, not ignored: tasks would inherit an ignored one.
func init() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }
