// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import "errors"

var (
	// ErrGone means that the process or its cgroup has ended: nothing is
	// wrong, there is nothing left to limit.
	ErrGone = errors.New("the task's process or cgroup is gone")

	// ErrRefused means that the process has no cgroup that could be limited
	// without limiting others: it is in the root cgroup, in ours or one above
	// ours, in a group that tasks share, or in another task's.
	ErrRefused = errors.New("not a cgroup of one task alone")

	// ErrNoController means that the kernel offers no such control here: on
	// cgroup v2 the parent's cgroup.subtree_control lacks the controller, on
	// v1 the hierarchy is not mounted or the kernel was built without it.
	ErrNoController = errors.New("the cgroup controller is not enabled here")
)
