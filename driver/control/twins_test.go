// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/measure"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/twin"
)

// runner is a training task of a given size, one CPU-second per step, on a node that divides its cores
// by weight.
type runner struct {
	*fake
	size, used float64
	at         int // second of the start
	ended      float64
	silent     bool
}

// course runs runners by weight on a number of cores until all have ended, and returns their ends
// in seconds.
func (n *node) course(cores float64, all ...*runner) []float64 {
	n.t.Helper()
	for now := 0; ; now++ {
		var sum float64
		do := make(behaviour)
		running := false
		for _, r := range all {
			if r.at == now {
				n.start(r.fake)
			}
			if running = running || r.ended == 0; r.at <= now && r.ended == 0 {
				sum += float64(r.limits.Shares)
			}
		}
		if !running {
			break
		}
		for _, r := range all {
			if r.at > now || r.ended > 0 {
				continue
			}
			cpu := cores * float64(r.limits.Shares) / sum
			do[r.fake] = func() (float64, string) {
				r.used += cpu
				if r.silent {
					return cpu, "working"
				}
				step := math.Floor(r.used)
				return cpu, fmt.Sprintf("step %.0f/%.0f loss=%.4f", step, r.size, 0.1+2*math.Exp(-4*r.used/r.size))
			}
		}
		n.second(do)
		for _, r := range all {
			if r.ended == 0 && r.used >= r.size {
				r.ended = float64(now + 1)
				n.remove(r.fake)
			}
		}
	}
	var out []float64
	for _, r := range all {
		out = append(out, r.ended-float64(r.at))
	}
	return out
}

func (n *node) runner(name string, size float64, at int) *runner {
	return &runner{fake: n.task(name), size: size, at: at}
}

// idling simulates a machine's idle time: the cores that the node's tasks leave unused.
func idling(cores float64, n **node) func(*Options) {
	start := time.Now()
	return func(o *Options) {
		o.Interval = 5 * time.Second
		o.Idle = func([]int) (map[int]float64, error) {
			used := (*n).c.twins.gone
			for _, t := range (*n).c.tasks {
				used += policy.CPUSeconds(t.usage.CPUSeconds)
			}
			return map[int]float64{0: cores*time.Since(start).Seconds() - float64(used)}, nil
		}
	}
}

// With sizes known from logs only, no task ends later than with equal shares, and most end sooner.
func TestFairFinish(t *testing.T) {
	for _, name := range []string{"auto", "fsp"} {
		t.Run(name, bubble(func(t *testing.T) {
			trial := func(policy string) []float64 {
				n := newNode(t, func(o *Options) { o.Policy, o.Interval = decider(t, policy), 5*time.Second })
				out := n.course(2, n.runner("long", 300, 0), n.runner("middle", 150, 20), n.runner("short", 60, 40), n.runner("other", 200, 60))
				if policy != "none" {
					must.StrContains(t, n.event("fair-finish").Message, "; with its fair share it would have taken ")
					must.Positive(t, n.c.twins.saved)
				}
				n.stop()
				return out
			}
			fair, ours := trial("none"), trial(name)
			t.Log(fair, ours)
			var sum, was float64
			for i := range fair {
				must.LessEq(t, 1.04*fair[i]+1, ours[i], must.Sprint(i))
				sum, was = sum+ours[i], was+fair[i]
			}
			must.Less(t, 0.85*was, sum)
		}))
	}
}

// Twins and ghosts survive a restart of the plugin: they continue from the kernel's counters,
// whatever the downtime.
func TestTwinSurvives(t *testing.T) {
	bubble(func(t *testing.T) {
		var n *node
		n = newNode(t, idling(0, &n))
		a, b, quick := n.task("a"), n.task("b"), n.task("quick")
		all := []*fake{a, b}
		for _, f := range append(all, quick) {
			n.start(f)
		}
		n.seconds(20, behaviour{a: learner(0.1, 0.5, 0), b: learner(0.1, 0.1, 0), quick: learner(0.1, 1.4, 0)})
		n.remove(quick)
		n.pass(2 * time.Second)
		before := n.twins(all...)
		must.Len(t, 1, n.c.twins.ghosts)
		left := twin.Left(n.c.twins.ghosts[0])
		saved := n.c.twins.saved
		must.Positive(t, saved)

		n.stop()
		time.Sleep(time.Hour)
		a.burn(5)
		b.burn(1)
		n.restart(nil, all...)
		n.pass(10 * time.Second)
		must.Eq(t, saved, n.c.twins.saved)
		must.InDelta(t, float64(left)-2, float64(twin.Left(n.c.twins.ghosts[0])), 0.1, must.Sprint("a third of six"))
		must.InDelta(t, 4, float64(n.twins(all...)-before), 0.1)
	})(t)
}

func (n *node) twins(tasks ...*fake) (sum policy.CPUSeconds) {
	n.t.Helper()
	n.c.post(func(ctx context.Context) { n.c.decide(ctx, policy.EventNone) })
	n.pass(2 * time.Second)
	for _, f := range tasks {
		sum += n.c.find(f.ID).fair.cpu
	}
	return sum
}

func TestTwinStandsStill(t *testing.T) {
	bubble(func(t *testing.T) {
		var n *node
		n = newNode(t, idling(0, &n))
		a, b := n.task("a"), n.task("b")
		n.start(a)
		n.start(b)
		n.seconds(30, behaviour{a: learner(0.1, 0.3, 0), b: learner(0.1, 0.1, 0)})
		n.seconds(60, behaviour{a: learner(0.1, 0, 0), b: learner(0.1, 0, 0)})
		must.InDelta(t, 12, float64(n.twins(a, b)), 0.5, must.Sprint("they got 0.4 of 2 cores, for 30 s"))
		must.InDelta(t, 6, float64(n.c.find(a.ID).fair.cpu), 0.4)
	})(t)
}

// Idle CPUs count while they belong to the pool: not those that a task comes to own.
func TestTwin_idleOfThePool(t *testing.T) {
	bubble(func(t *testing.T) {
		start, owned := time.Now(), false
		n := newNode(t, func(o *Options) {
			o.Interval = 5 * time.Second
			o.SharedCPUs = func() ([]int, error) {
				if owned {
					return []int{0}, nil
				}
				return []int{0, 1}, nil
			}
			o.Idle = func(cpus []int) (map[int]float64, error) {
				idle := map[int]float64{0: 0.5 * time.Since(start).Seconds(), 1: 1000}
				maps.DeleteFunc(idle, func(cpu int, _ float64) bool { return !slices.Contains(cpus, cpu) })
				return idle, nil
			}
		})
		a := n.task("a")
		n.start(a)
		do := behaviour{a: learner(0.1, 0.5, 0)}
		for range 6 {
			n.seconds(10, do)
			owned = !owned
		}
		must.InDelta(t, 60, float64(n.twins(a)), 6, must.Sprint("half a core used, and half a core idle"))
	})(t)
}

// A task's cap depends on how long its threads run and wait for CPU, not on its limit.
func TestTwinCap(t *testing.T) {
	bubble(func(t *testing.T) {
		var n *node
		n = newNode(t, idling(2, &n))
		one, other := n.task("one-thread"), n.task("other")
		n.start(one)
		n.start(other)
		thread, learn := learner(0.1, 0.2, 0), learner(0.1, 1.8, 0)
		do := behaviour{
			one: func() (float64, string) { one.thread(1, 0.2, 0.8); return thread() },
			other: func() (float64, string) {
				for id := range 8 {
					other.thread(id, 0.2, 0.8)
				}
				return learn()
			},
		}
		n.seconds(30, do)
		must.InDelta(t, 1, float64(n.c.find(one.ID).m.Demand.Most), 0.01)
		must.InDelta(t, 8, float64(n.c.find(other.ID).m.Demand.Most), 0.1)
		must.InDelta(t, 30, float64(n.twins(one)), 4, must.Sprint("half of two cores"))
		n.remove(other)
		n.seconds(30, behaviour{one: func() (float64, string) { one.thread(1, 0.8, 0.2); cpu, line := thread(); return 4 * cpu, line }})
		must.InDelta(t, 1, float64(n.c.find(one.ID).m.Demand.Most), 0.01)
	})(t)
}

// Threads that wait for each other sleep while one of them waits for a CPU: a starved task seems to
// want less, and its twin must not be slowed by that. A single thread shows what it wants.
func TestTwinCap_starved(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, func(*Options) {})
		pair, single := n.task("pair"), n.task("single")
		n.start(pair)
		n.start(single)
		learn, other := learner(0.1, 2, 0), learner(0.1, 1, 0)
		n.seconds(30, behaviour{
			pair:   func() (float64, string) { pair.thread(1, 1, 0); pair.thread(2, 1, 0); return learn() },
			single: func() (float64, string) { single.thread(1, 1, 0); return other() },
		})
		must.InDelta(t, 2, float64(n.c.find(pair.ID).m.Demand.Most), 0.01)
		must.InDelta(t, 1, float64(n.c.find(single.ID).m.Demand.Most), 0.01)
		n.seconds(120, behaviour{
			pair: func() (float64, string) {
				pair.thread(1, 0.02, 0.4)
				pair.thread(2, 0.02, 0.98)
				_, line := learn()
				return 0.04, line
			},
			single: func() (float64, string) { single.thread(1, 0.2, 0.4); _, line := other(); return 0.2, line },
		})
		must.InDelta(t, 2, float64(n.c.find(pair.ID).m.Demand.Most), 0.01)
		must.InDelta(t, 1.0/3, float64(n.c.find(single.ID).m.Demand.Most), 0.02)
	})(t)
}

func TestLateBecause(t *testing.T) {
	of := func(first policy.CPUSeconds, most policy.Cores) string {
		task := &task{usage: limits.Usage{CPUSeconds: 100}, fair: fair{first: first}, m: measure.Measurement{Demand: measure.Demand{Most: most}}}
		return task.lateReason(2)
	}
	must.StrContains(t, of(0, 0), "never known")
	must.Eq(t, "it was first estimated at 50 CPU-seconds, and used 100", of(50, 0))
	must.StrContains(t, of(100, 1), "it can use only 1 cores")
	must.StrContains(t, of(100, 0), "changed in the meantime")
}

// A task that expects an absurd amount of work counts as of unknown size in the node's sum.
func TestNode_absurdSize(t *testing.T) {
	c := &Controller{}
	for i, left := range []policy.CPUSeconds{1e15, 100} {
		task := &task{Task: Task{ID: string(rune('a' + i))}}
		task.Limited, task.m.Remaining.CPUS = true, &left
		c.tasks = append(c.tasks, task)
	}
	n := c.node()
	must.Eq(t, 2, n.Counts[""])
	must.Eq(t, 1, n.Sized)
	must.Eq(t, 100, float64(n.RemainingCPUS))
}

// A task that ends before its twin leaves a ghost, which keeps its share until its twin
// ends.
func TestGhost(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, func(o *Options) { o.Policy, o.Interval = decider(t, "auto"), 5*time.Second })
		ahead, other := n.task("ahead"), n.task("other")
		n.start(ahead)
		n.start(other)
		do := behaviour{ahead: learner(0.1, 1.5, 0), other: learner(0.1, 0.5, 0)}
		n.seconds(20, do)
		n.remove(ahead)
		must.Len(t, 1, n.c.twins.ghosts)
		must.InDelta(t, 10, float64(twin.Left(n.c.twins.ghosts[0])), 2)
		must.Len(t, 2, n.c.snapshot.last.Tasks)
		delete(do, ahead)
		do[other] = learner(0.1, 2, 0)
		n.seconds(25, do)
		must.InDelta(t, 60, float64(n.twins(other)), 1, must.Sprint("all that it has used: its twin is level again"))
		must.SliceEmpty(t, n.c.twins.ghosts)
	})(t)
}

// Only success saves time: a task that fails, or is stopped or moved, did not end early.
func TestTwins_failed(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, func(o *Options) { o.Policy, o.Interval = decider(t, "auto"), 5*time.Second })
		failed, succeeds, other := n.task("failed"), n.task("succeeds"), n.task("other")
		all := behaviour{failed: learner(0.1, 0.9, 0), succeeds: learner(0.1, 0.9, 0), other: learner(0.1, 0.2, 0)}
		for f := range all {
			n.start(f)
		}
		n.seconds(20, all)
		n.c.Remove(failed.ID, false)
		n.pass(2 * time.Second)
		must.Zero(t, n.c.twins.saved)
		for len(n.events) > 0 {
			must.NotEq(t, "fair-finish", (<-n.events).Annotations["ebbtide"])
		}
		n.remove(succeeds)
		must.Positive(t, n.c.twins.saved)
		n.event("fair-finish")
	})(t)
}

// A task that joins between updates has no earlier CPU time, and takes none from the other twins.
func TestTwins_join(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, func(o *Options) { o.Policy, o.Interval = decider(t, "fsp"), 60*time.Second })
		first, second := n.task("first"), n.task("second")
		n.start(first)
		do := behaviour{first: func() (float64, string) { return 2, "step 1/1000 loss=1" }}
		for range 40 {
			n.second(do)
		}
		n.start(second)
		n.second(do)
		a, b := n.c.tasks[0].fair, n.c.tasks[1].fair
		must.Less(t, 5, float64(b.cpu))
		must.Greater(t, 70, float64(a.cpu))
		n.stop()
	})(t)
}
