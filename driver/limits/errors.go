// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"errors"
	"fmt"
)

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

// ParentQuotaError is cgroup v1's refusal of a quota larger than a parent's.
// The parent's holds whatever the task's is.
type ParentQuotaError struct {
	// Cores is the quota refused, in cores.
	Cores float64
	// Parent is the directory of the parent with the least quota, and
	// ParentCores that quota in cores.
	Parent      string
	ParentCores float64
	Err         error
}

func (e *ParentQuotaError) Error() string {
	return fmt.Sprintf("quota of %.3f cores: the parent %s allows at most %.3f: %v", e.Cores, e.Parent, e.ParentCores, e.Err)
}

// Unwrap returns the kernel's error.
func (e *ParentQuotaError) Unwrap() error { return e.Err }
