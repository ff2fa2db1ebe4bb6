// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// testLone: the only task on a node is not limited, growing or converged.
func testLone(t *testing.T, c *cluster) {
	for name, k := range map[string]task{"growing": growing("train"), "flat": flat("train")} {
		t.Run(name, func(t *testing.T) {
			alloc := c.start(t, job{id: "lone-" + name, tasks: []task{k}})
			pid := c.pid(t, alloc, "train")
			base := kernel(t, pid)
			must.Eq(t, 400, base.Shares)
			want := map[string]string{"growing": "NL", "flat": "CL"}[name]
			c.waitStatus(t, alloc, "train", "measured as "+want, func(s status.Status) bool {
				now := kernel(t, pid)
				must.Eq(t, base.Shares, now.Shares, must.Sprintf("shares of a lone task in category %q", s.Category))
				must.Eq(t, 0, now.QuotaCores, must.Sprintf("quota of a lone task in category %q", s.Category))
				return s.Category == want && s.Growth.Known()
			})
			must.Eq(t, 0, kernel(t, pid).Throttled)
			c.stop(t, "lone-"+name)
		})
	}
}

// testCompeting runs growing and flat tasks concurrently.
func testCompeting(t *testing.T, c *cluster) {
	quota := false
	if node, err := c.agent.Node(t.Context()); err == nil {
		quota = node.Attributes["driver.ebbtide.mode"] == "quota"
	}
	run := func(id string, k task) (*api.Allocation, int) {
		alloc := c.start(t, job{id: id, tasks: []task{k}})
		return alloc, c.pid(t, alloc, k.name)
	}
	flatAlloc, flatPID := run("flat", flat("train"))
	c.waitStatus(t, flatAlloc, "train", "converged", settled("train", "CL"))
	growAlloc, growPID := run("growing", growing("train"))

	// In weight mode a joining task has its fair share until it is measured, so the kernel's limits
	// may not change.
	converged := func(s status.Status) bool { return s.Category == "CL" && s.Limit.Fraction < 0.9 }
	st := c.waitStatus(t, flatAlloc, "train", "limited", converged)
	c.waitStatus(t, growAlloc, "train", "growing", func(s status.Status) bool { return s.Category == "NL" && s.Growth > 0 })
	st = c.waitStatus(t, flatAlloc, "train", "limited in the kernel", func(s status.Status) bool {
		return converged(s) && (quota && s.Limit.QuotaCores > 0 || !quota && s.Limit.Shares < 400)
	})

	// The status shows the kernel's values.
	var k harness.Kernel
	eventually(t, "the limits in the status are the kernel's", func() (err error) {
		if st, err = c.status(t, flatAlloc, "train"); err != nil {
			return err
		}
		k = kernel(t, flatPID)
		if k.Shares != st.Limit.InForce.Shares || math.Abs(k.QuotaCores-float64(st.Limit.InForce.QuotaCores)) > 0.011 {
			return fmt.Errorf("the kernel has %d shares and %.3f cores, the status %+v", k.Shares, k.QuotaCores, st.Limit)
		}
		return nil
	})
	if quota {
		must.Eq(t, 400, k.Shares)
		must.Between(t, 0.01, k.QuotaCores, float64(st.Node.PoolCores))
	} else {
		must.Less(t, 400, k.Shares)
		must.Eq(t, 0, k.QuotaCores)
		must.Greater(t, k.Shares, kernel(t, growPID).Shares)
		// Other tasks keep theirs: the sum is unchanged.
		sum := k.Shares + kernel(t, growPID).Shares
		must.Between(t, 790, sum, 810)
	}
	must.GreaterEq(t, 1/(2*float64(st.Node.Tasks))-1e-9, float64(st.Limit.Fraction))
	must.Eq(t, 2, st.Node.Tasks)
	must.Eq(t, map[string]int{"NL": 1, "CL": 1}, withoutZeros(st.Node.Counts))
	c.waitEvent(t, flatAlloc, "train", "converged")

	cores := use(t, 12, growPID, flatPID)
	if quota {
		// Retry: other load on the machine distorts the ratio under a quota.
		for range 2 {
			if cores[0]+cores[1] > 0.75*float64(runtime.NumCPU()) {
				break
			}
			t.Logf("growing %.2f cores, converged %.2f cores: the machine is busy otherwise", cores[0], cores[1])
			cores = use(t, 12, growPID, flatPID)
		}
		must.Less(t, 1.1*k.QuotaCores+0.05, cores[1])
	}
	ratio := cores[0] / cores[1]
	t.Logf("growing %.2f cores, converged %.2f cores: %.2f times", cores[0], cores[1], ratio)
	if quota && cores[0]+cores[1] < 0.75*float64(runtime.NumCPU()) {
		t.Log("the machine was too busy to tell the ratio under a ceiling")
	} else {
		must.GreaterEq(t, 1.5, ratio)
	}
	if quota {
		c.waitStatus(t, flatAlloc, "train", "throttled", func(s status.Status) bool { return s.Throttled > 0 && s.ThrottledPeriods > 0 })
		must.Positive(t, kernel(t, flatPID).Throttled)
	}

	// A third task with twice the CPU gets its entitlement until measured; a quota, a fraction of
	// the pool, is lowered immediately.
	changed := watchLimits(t, flatPID)
	third := growing("train")
	third.cpu = 800
	joined, joinedPID := run("third", third)
	begun := taskStarted(t, joined, "train")
	if quota {
		select {
		case at := <-changed:
			t.Logf("join to new limits in the kernel: %v after Nomad's event", at.Sub(begun).Round(time.Millisecond))
		case <-deadline(t, startDeadline).Done():
			t.Fatal("the limits did not change for the third task")
		}
	}
	c.waitStatus(t, joined, "train", "one of three", func(s status.Status) bool { return s.Node.Tasks == 3 && s.Category == "NL" })
	if !quota {
		eventually(t, "the sum of the shares is kept", func() error {
			sum := kernel(t, growPID).Shares + kernel(t, flatPID).Shares + kernel(t, joinedPID).Shares
			if sum < 1590 || sum > 1610 {
				return fmt.Errorf("it is %d", sum)
			}
			if own := kernel(t, joinedPID).Shares; own < 790 || own > 810 {
				return fmt.Errorf("of which the third has %d", own)
			}
			return nil
		})
	}
	c.waitStatus(t, joined, "train", "measured", func(s status.Status) bool { return s.Growth > 0 })
	cores = use(t, 12, growPID, flatPID, joinedPID)
	t.Logf("three tasks: growing %.2f, converged %.2f, joined %.2f cores", cores[0], cores[1], cores[2])
	must.Greater(t, cores[1], cores[0]+cores[2])

	// When tasks leave, the remaining one's limit is restored.
	c.stop(t, "growing")
	c.stop(t, "third")
	eventually(t, "the limit of the task that stays is lifted", func() error {
		if now := kernel(t, flatPID); now.Shares != 400 || now.QuotaCores != 0 {
			return fmt.Errorf("it has %d shares, %.2f cores", now.Shares, now.QuotaCores)
		}
		return nil
	})
	c.stop(t, "flat")
}

// watchLimits reports the next change of a process's limits. An unrelated decision makes the
// measurement early, not late.
func watchLimits(t *testing.T, pid int) <-chan time.Time {
	t.Helper()
	before := kernel(t, pid)
	ctx := deadline(t, 2*startDeadline)
	changed := make(chan time.Time, 1)
	go func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if k, err := harness.ReadKernel(pid); err == nil && (k.Shares != before.Shares || k.QuotaCores != before.QuotaCores) {
				changed <- k.At
				return
			}
		}
	}()
	return changed
}

func withoutZeros(counts map[string]int) map[string]int {
	m := make(map[string]int)
	for k, n := range counts {
		if n > 0 {
			m[k] = n
		}
	}
	return m
}

// taskStarted returns the time of the start in Nomad's events.
func taskStarted(t *testing.T, alloc *api.Allocation, task string) time.Time {
	t.Helper()
	for _, ev := range alloc.TaskStates[task].Events {
		if ev.Type == api.TaskStarted {
			return time.Unix(0, ev.Time)
		}
	}
	t.Fatal("the task has no event of its start")
	return time.Time{}
}

// TestQuota tests the papers' hard limit with both engines.
func TestQuota(t *testing.T) {
	for _, engine := range []string{"exec", "docker"} {
		t.Run(engine, func(t *testing.T) {
			c := newCluster(t, newHarness(t), engine, clusterOptions{settings: map[string]string{"policy": `"flowcon"`, "mode": `"quota"`, "quota_min_cores": "0.3"}})
			testLone(t, c)
			testCompeting(t, c)
		})
	}
}

// TestPolicyNone: limits are released and never set, but tasks are measured.
func TestPolicyNone(t *testing.T) {
	c := newCluster(t, newHarness(t), "exec", clusterOptions{settings: map[string]string{"policy": `"none"`}})
	a := c.start(t, job{id: "growing", tasks: []task{growing("train")}})
	b := c.start(t, job{id: "flat", tasks: []task{flat("train")}})
	for _, alloc := range []*api.Allocation{a, b} {
		pid := c.pid(t, alloc, "train")
		c.waitStatus(t, alloc, "train", "measured", func(s status.Status) bool {
			k := kernel(t, pid)
			must.Eq(t, 400, k.Shares)
			must.Eq(t, 0, k.QuotaCores)
			return s.Growth.Known() && s.Policy == "none" && s.CPUSeconds > 5
		})
	}
}

// TestLeftAlone: tasks that opt out or have reserved cores are not limited.
func TestLeftAlone(t *testing.T) {
	c := newCluster(t, newHarness(t), "exec", clusterOptions{settings: map[string]string{"policy": `"flowcon"`, "mode": `"quota"`, "quota_min_cores": "0.3"}})
	off := flat("train")
	off.meta = map[string]string{"ebbtide_limit": "off"}
	offAlloc := c.start(t, job{id: "off", tasks: []task{off}})
	flatAlloc := c.start(t, job{id: "flat", tasks: []task{flat("train")}})
	c.start(t, job{id: "growing", tasks: []task{growing("train")}})
	c.waitStatus(t, flatAlloc, "train", "limited", func(s status.Status) bool { return s.Limit.InForce.QuotaCores > 0 })
	k := kernel(t, c.pid(t, offAlloc, "train"))
	must.Eq(t, 400, k.Shares)
	must.Eq(t, 0, k.QuotaCores)
	st, err := c.status(t, offAlloc, "train")
	must.NoError(t, err)
	must.Positive(t, st.Reports)
	pool := float64(st.Node.PoolCores)
	c.stop(t, "off")

	own := flat("train")
	own.cpu = -1
	own.body = "resources {\n cores = 1\n memory = 64\n}"
	ownAlloc := c.start(t, job{id: "cores", tasks: []task{own}})
	before := kernel(t, c.pid(t, ownAlloc, "train"))
	c.waitStatus(t, flatAlloc, "train", "in a smaller pool", func(s status.Status) bool { return math.Abs(float64(s.Node.PoolCores)-(pool-1)) < 0.01 })
	c.waitStatus(t, ownAlloc, "train", "measured", func(s status.Status) bool { return s.Reports > 50 })
	after := kernel(t, c.pid(t, ownAlloc, "train"))
	must.Eq(t, before.Shares, after.Shares)
	must.Eq(t, 0, after.QuotaCores)
}

// TestRealTraining runs a learning model next to a converged one.
func TestRealTraining(t *testing.T) {
	c := newCluster(t, newHarness(t), "exec", clusterOptions{settings: map[string]string{"policy": `"flowcon"`}})
	// Two trainers per task, one silent, as this model cannot keep two CPUs busy.
	trainer := func(args string) task {
		k := shell("trainer " + args + " -threads 1 -steps 0 -seed 2 -silent & exec trainer " + args + " -threads 1 -steps 0")
		k.cpu, k.memory = 400, 256
		return k
	}
	done := c.start(t, job{id: "done", tasks: []task{trainer("-model logreg -size 4096 -dim 16 -decay 100 -style keras")}})
	c.waitStatus(t, done, "train", "converged", settled("train", "CL"))
	young := c.start(t, job{id: "young", tasks: []task{trainer("-model vae -style lightning")}})
	c.waitStatus(t, young, "train", "growing", func(s status.Status) bool { return s.Category == "NL" && s.Growth > 0 })
	c.waitStatus(t, done, "train", "limited", func(s status.Status) bool {
		return s.Category == "CL" && s.Limit.InForce.Shares < 400
	})
	cores := use(t, 6, c.pid(t, young, "train"), c.pid(t, done, "train"))
	t.Logf("learning %.2f cores, converged %.2f cores: %.2f times", cores[0], cores[1], cores[0]/cores[1])
	must.GreaterEq(t, 1.5, cores[0]/cores[1])
}
