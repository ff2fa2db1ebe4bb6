// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"time"

	"github.com/prometheus/procfs"
)

const maxThreads = 4096

// Threads maps each of a task's threads to its times.
type Threads map[int]Thread

// Thread is how long a thread has run, and how long it has waited for a CPU.
type Thread struct{ Run, Wait time.Duration }

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
				out[t.PID] = Thread{time.Duration(s.RunningNanoseconds), time.Duration(s.WaitingNanoseconds)}
			}
		}
	}
	return out
}

// Demand returns how many cores the threads would have used since an earlier reading, which is so old,
// if each had always got one at once: the time in which a thread waits for a CPU is not its own. It is
// least if no thread slept because another one waited, and most if each slept for no other reason: the
// same for a single thread.
//
// The kernel counts a wait when it ends, so least is too low for threads that seldom run.
func (t Threads) Demand(was Threads, old time.Duration) (least, most float64) {
	since, waits := make([]Thread, 0, len(t)), time.Duration(0)
	for id, d := range t {
		if before := was[id]; before.Run <= d.Run && before.Wait <= d.Wait {
			d.Run, d.Wait = d.Run-before.Run, d.Wait-before.Wait
		} // smaller values mean that the ID was reused
		since = append(since, d)
		waits += d.Wait
	}
	part := func(run, own time.Duration) float64 {
		if own > run {
			return float64(run) / float64(own)
		}
		return 1
	}
	for _, d := range since {
		if d.Run+d.Wait > 0 {
			least += part(d.Run, old-d.Wait)
			most += part(d.Run, old-waits)
		}
	}
	return least, most
}
