// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"time"

	"github.com/prometheus/procfs"
)

// maxThreads bounds what is looked at to find what a task could use.
const maxThreads = 4096

// Threads is how long each of a task's threads has run or waited for a CPU.
type Threads map[int]time.Duration

// Threads reads that from the kernel. It is empty where the kernel does not count it
// (CONFIG_SCHED_INFO), or the processes cannot be seen.
func (c *Cgroup) Threads() Threads {
	out := make(Threads)
	proc, err := procfs.NewFS(c.finder.proc())
	if err != nil {
		return out
	}
	for _, pid := range c.pids() {
		threads, err := proc.AllThreads(pid)
		if err != nil {
			continue // it has ended
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

// Since returns for how long all threads together have run or waited since an earlier
// look. Over the time between, that is how many cores they could have used.
func (t Threads) Since(was Threads) (sum time.Duration) {
	for id, d := range t {
		if before := was[id]; before <= d {
			d -= before
		} // else the number is another thread's now
		sum += d
	}
	return sum
}
