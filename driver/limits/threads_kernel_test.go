// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// Two threads could use two cores, next to other tasks and under a quota.
func TestKernel_threads(t *testing.T) {
	if len(cpus(t)) < 2 {
		t.Skip("skipped: a helper has as many busy threads as there are CPUs, two at most")
	}
	k := newKernel(t)
	tasks := []*Cgroup{k.run("a", "busy", -1), k.run("b", "busy", -1), k.run("limited", "busy", -1), k.run("idle", "sleep", -1)}
	must.NoError(t, tasks[2].SetQuota(0.1))
	during(t, 0.5, tasks[0], tasks[1]) // while they start up
	look := func() (all []Threads) {
		for _, c := range tasks {
			all = append(all, c.Threads())
		}
		return all
	}
	start := time.Now()
	before := look()
	during(t, 2, tasks[0], tasks[1])
	took := time.Since(start)
	for i, now := range look() {
		could := now.Since(before[i]).Seconds() / took.Seconds()
		t.Logf("task %d could have used %.2f cores", i, could)
		if i == 3 {
			must.Less(t, 0.2, could)
		} else {
			must.Between(t, 1.4, could, 3.6,
				must.Sprint("two threads, and those of the Go runtime now and then"))
		}
	}
}

func TestThreads_since(t *testing.T) {
	was := Threads{1: 5 * time.Second, 2: 7 * time.Second, 3: time.Second}
	is := Threads{1: 6 * time.Second, 2: 2 * time.Second, 4: 3 * time.Second}
	must.Eq(t, 6*time.Second, is.Since(was), must.Sprint("a second more, a number that is another's now, and a new one"))
}
