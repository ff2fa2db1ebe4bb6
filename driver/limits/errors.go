// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import "errors"

var (
	// ErrGone means that the process or its cgroup has ended; no failure.
	ErrGone = errors.New("the task's process or cgroup is gone")

	// ErrNotExclusive means that no cgroup of the process could be limited without
	// limiting others: it is the root, the plugin's own or one above it, one that tasks
	// share, or another task's.
	ErrNotExclusive = errors.New("the task has no separate cgroup")

	// ErrNoController means that the control is missing: on cgroup v2 the parent's
	// cgroup.subtree_control lacks the controller; on v1 the hierarchy is not mounted
	// or the kernel was built without it.
	ErrNoController = errors.New("the cgroup controller is not enabled here")
)
