// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// SharedCores is the number of CPUs that Nomad leaves to tasks without `cores`
// of their own, now: see Finder.SharedCores.
func SharedCores() (int, error) { return Finder{}.SharedCores() }

// SharedCores reads the cpuset that the Nomad client keeps for all tasks
// without `cores` of their own, and counts its CPUs: the node less
// reserved.cores less what `cores` tasks of any driver have pinned. (It knows
// nothing of reserved.cpu.) fs.ErrNotExist where Nomad keeps none, or has not
// yet: it writes the set when the first task comes.
func (f Finder) SharedCores() (int, error) {
	mounts, err := f.mounts()
	if err != nil {
		return 0, err
	}
	for _, m := range mounts {
		dir := "nomad.slice/share.slice"
		if m.version == 1 {
			if !slices.Contains(m.options, "cpuset") {
				continue
			}
			dir = "nomad/share"
		}
		b, err := os.ReadFile(filepath.Join(m.point, dir, "cpuset.cpus"))
		if err != nil || strings.TrimSpace(string(b)) == "" {
			continue
		}
		n, err := countCPUs(strings.TrimSpace(string(b)))
		if err != nil {
			return 0, fmt.Errorf("reading %s: %w", filepath.Join(m.point, dir, "cpuset.cpus"), err)
		}
		return n, nil
	}
	return 0, fmt.Errorf("finding the cpuset that Nomad's tasks share: %w", fs.ErrNotExist)
}

// countCPUs counts a list such as "0-3,7".
func countCPUs(list string) (n int, err error) {
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.Atoi(first)
		b, errB := strconv.Atoi(last)
		if err := errors.Join(errA, errB); err != nil || a < 0 || b < a {
			return 0, fmt.Errorf("cannot read the CPU list %q", list)
		}
		n += b - a + 1
	}
	return n, nil
}
