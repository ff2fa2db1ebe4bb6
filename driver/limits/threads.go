// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"time"

	"github.com/prometheus/procfs"
)

const maxThreads = 4096

// Threads maps each of a task's threads to the time it has run or waited for a CPU.
type Threads map[int]time.Duration

// Threads reads the scheduler's statistics. Empty if the kernel lacks CONFIG_SCHED_INFO
// or the processes are not visible.
func (c *Cgroup) Threads() Threads {
	out := make(Threads)
	proc, err := procfs.NewFS(c.finder.proc())
	if err != nil {
		return out
	}
	for _, pid := range c.pids() {
		threads, err := proc.AllThreads(pid)
		if err != nil {
			continue // exited
		}
		for _, t := range threads {
			if len(out) == maxThreads {
				return out
			}
			if s, err := t.Schedstat(); err == nil {
				out[t.PID] = time.Duration(s.RunningNanoseconds + s.WaitingNanoseconds)
			}
		}
	}
	return out
}

// Since returns the total time that threads have run or waited since an earlier
// reading. Divided by the time between, it is the number of cores they could have used.
func (t Threads) Since(was Threads) (sum time.Duration) {
	for id, d := range t {
		if before := was[id]; before <= d {
			d -= before
		} // a smaller value means that the ID was reused
		sum += d
	}
	return sum
}
