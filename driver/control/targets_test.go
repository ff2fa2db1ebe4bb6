// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/driver/target"
)

func num(x float64) *float64 { return &x }

// target creates a task with targets for its loss, and a channel of reached targets.
func (n *node) target(name string, targets target.Targets) (*fake, chan target.Reached) {
	f := n.task(name)
	f.progress.Metric = "loss"
	f.Targets, f.Watcher = targets, target.NewWatcher("loss", policy.GoalMin, targets)
	reached := make(chan target.Reached, 10)
	f.OnTarget = func(r target.Reached) { reached <- r }
	return f, reached
}

func says(values ...any) func() (float64, string) {
	step := 0
	return func() (float64, string) {
		v := values[min(step, len(values)-1)]
		step++
		return 1, fmt.Sprintf("step=%d loss=%v", step, v)
	}
}

func TestTargetsAreReachedOnce(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, func(o *Options) { o.Policy = decider(t, "auto") })
		f, reached := n.target("job", target.Targets{Acceptable: num(0.5), Objective: num(0.2), Hold: 1})
		n.start(f)
		do := behaviour{f: says(1.0, 0.6, 0.5, 0.7, 0.4, 0.3)}
		n.seconds(8, do)
		r := <-reached
		must.Eq(t, policy.Acceptable, r.State)
		must.Eq(t, 0.5, r.Value)
		must.Eq(t, num(3), r.Step)
		must.StrContains(t, n.event("acceptable").Message, "acceptable target 0.5 reached: loss = 0.5 at step 3")
		must.Eq(t, policy.Acceptable, n.c.find(f.ID).reached)

		data, err := os.ReadFile(filepath.Join(f.SharedDir, status.Dir, "job.acceptable"))
		must.NoError(t, err)
		var marker target.Reached
		must.NoError(t, json.Unmarshal(data, &marker))
		must.Eq(t, 0.5, marker.Target)

		do[f] = says(0.19)
		n.second(do) // not only at the next decision
		r = <-reached
		must.Eq(t, policy.Objective, r.State)
		must.StrContains(t, n.event("objective").Message, "has succeeded")
		_, err = os.Stat(filepath.Join(f.SharedDir, status.Dir, "job.objective"))
		must.NoError(t, err)
		n.seconds(30, do)
		must.Eq(t, 0, len(reached), must.Sprint("each target is reached once"))
		st := f.shown(t)
		must.Eq(t, "objective", st.Target.State)
		must.Eq(t, status.Number(0.2), st.Target.Objective)
		must.StrContains(t, st.Why, "has succeeded")
	})(t)
}

func TestTargetHold(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, func(o *Options) { o.Policy = decider(t, "auto") })
		f, reached := n.target("job", target.Targets{Objective: num(0.2), Hold: 3})
		n.start(f)
		do := behaviour{f: says(1.0, 0.1, 0.5, 0.1, 0.1, "nan", 0.1, 0.1, 0.3)}
		n.seconds(12, do)
		must.Eq(t, 0, len(reached))
		do[f] = says(0.2)
		n.seconds(3, do)
		must.Eq(t, policy.Objective, (<-reached).State)
	})(t)
}

func TestTargetOfAnEarlierProcess(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, func(o *Options) { o.Policy = decider(t, "auto") })
		f, reached := n.target("job", target.Targets{Acceptable: num(0.5), Objective: num(0.2), Hold: 1})
		f.Watcher.Restore(policy.Acceptable)
		n.start(f)
		do := behaviour{f: says(0.6, 0.4)}
		n.seconds(5, do)
		must.Eq(t, 0, len(reached), must.Sprint("the acceptable target was told before"))
		must.Eq(t, policy.Acceptable, n.c.find(f.ID).reached)
	})(t)
}

func TestAcceptableTaskYields(t *testing.T) {
	for _, name := range []string{"tradl"} {
		t.Run(name, bubble(func(t *testing.T) {
			n := newNode(t, func(o *Options) { o.Policy = decider(t, name) })
			f, _ := n.target("good", target.Targets{Acceptable: num(0.9), Hold: 1})
			other, _ := n.target("other", target.Targets{Acceptable: num(0.001), Hold: 1})
			n.start(f)
			n.start(other)
			do := behaviour{f: learner(0.02, 1, 0), other: learner(0.005, 1, 0)}
			n.seconds(90, do)
			must.Eq(t, policy.Acceptable, n.c.find(f.ID).reached)
			must.Less(t, 0.5, float64(n.c.find(f.ID).decision.Bound()))
			must.Less(t, other.limits.Shares, f.limits.Shares)
			must.Eq(t, 2000, f.limits.Shares+other.limits.Shares)
			must.StrContains(t, n.c.find(f.ID).decision.Rule, "acceptable")
		}))
	}
}

// The allocator runs when a target is reached, not only at the end of an interval.
func TestAcceptableTaskYieldsAtOnce(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, func(o *Options) { o.Policy, o.Interval = decider(t, "tradl"), 20*time.Second })
		good, _ := n.target("good", target.Targets{Acceptable: num(0.5), Hold: 1})
		other, _ := n.target("other", target.Targets{Acceptable: num(0.001), Hold: 1})
		n.start(good)
		n.start(other)
		do := behaviour{good: says(1.0), other: says(1.0)}
		n.seconds(45, do)
		must.Eq(t, other.limits.Shares, good.limits.Shares)
		do[good] = says(0.4)
		n.seconds(2, do)
		must.Less(t, other.limits.Shares, good.limits.Shares)
	})(t)
}

// A leave reduces the sum of use, but the pool was full: no limit is lifted.
func TestAcceptableTaskYieldsOnWhenOthersLeave(t *testing.T) {
	for _, name := range []string{"tradl"} {
		t.Run(name, bubble(func(t *testing.T) {
			n := newNode(t, func(o *Options) { o.Policy = decider(t, name) })
			good, _ := n.target("good", target.Targets{Acceptable: num(0.9), Hold: 1})
			other, _ := n.target("other", target.Targets{Acceptable: num(0.001), Hold: 1})
			leaver, _ := n.target("leaver", target.Targets{Acceptable: num(0.001), Hold: 1})
			cpu := 0.7 // of a pool of two cores
			uses := func(learn func() (float64, string)) func() (float64, string) {
				return func() (float64, string) { _, line := learn(); return cpu, line }
			}
			do := behaviour{
				good: uses(learner(0.02, 0.7, 0)), other: uses(learner(0.005, 0.7, 0)), leaver: learner(0.005, 0.6, 0),
			}
			for _, f := range []*fake{good, other, leaver} {
				n.start(f)
			}
			n.seconds(90, do)
			s := n.c.find(good.ID)
			must.StrContains(t, s.decision.Rule, "tradl.acceptable")

			n.remove(leaver)
			must.StrContains(t, s.decision.Rule, "tradl.acceptable", must.Sprint(s.decision.Why))
			must.Less(t, 1, float64(s.decision.Bound()))
			delete(do, leaver)
			cpu = 1
			for range 45 {
				n.second(do)
				must.StrContains(t, s.decision.Rule, "tradl.acceptable", must.Sprint(s.decision.Why))
			}
			must.Zero(t, n.c.leftCores)
		}))
	}
}

func TestTargetsOfOneMetric(t *testing.T) {
	bubble(func(t *testing.T) {
		for _, lines := range [][]string{
			{"Initial test accuracy: 0.098", "loss=2.3", "loss=1.1"},
			{"loss=0.929 accuracy=0.3", "loss=0.99 accuracy=0.9"},
		} {
			n := newNode(t, func(o *Options) { o.Policy = decider(t, "auto") })
			targets := target.Targets{Objective: num(0.95)}
			f, reached := n.target("job", targets)
			f.progress.Metric, f.Watcher = "accuracy", target.NewWatcher("accuracy", policy.GoalMax, targets)
			n.start(f)
			for _, line := range append(lines, "accuracy=0.95") {
				must.Eq(t, 0, len(reached))
				n.second(behaviour{f: func() (float64, string) { return 1, line }})
			}
			must.Eq(t, 0.95, (<-reached).Value)
		}
	})(t)
}

func TestTargetsPause(t *testing.T) {
	bubble(func(t *testing.T) {
		for _, name := range []string{"auto", "tradl"} {
			n := newNode(t, func(o *Options) { o.Policy = decider(t, name) })
			f, reached := n.target("job", target.Targets{Acceptable: num(0.9), Objective: num(0.5), Hold: 1})
			n.start(f)
			line := `{"step": 1, "val": {"loss": 0.1}}`
			do := behaviour{f: func() (float64, string) { return 1, line }}
			n.seconds(15, do)
			must.Eq(t, "its targets are paused: the output now reports val.loss instead of loss", n.event("targets").Message)
			must.Eq(t, 0, len(reached))
			must.Nil(t, n.c.find(f.ID).policyTask(0, 2, "").Value, must.Sprint("it is not the targets' metric"))
			line = `{"step": 2, "loss": 0.7, "val": {"loss": 0.1}}`
			n.seconds(5, do)
			must.Eq(t, policy.Acceptable, (<-reached).State)
			must.Eq(t, 0, len(reached))
		}
	})(t)
}

func TestServiceBesideTraining(t *testing.T) {
	for _, name := range []string{"auto", "dqoes"} {
		t.Run(name, bubble(func(t *testing.T) {
			n := newNode(t, func(o *Options) {
				o.Policy = decider(t, name)
			})
			svc := n.task("svc")
			svc.Targets = target.Targets{QoE: 0.1, Hold: 1}
			svc.progress = progress.Config{Metric: "response_s"}
			job := n.task("job")
			n.start(svc)
			n.start(job)
			response := 0.1
			serve := func() (float64, string) { return 1, fmt.Sprintf("batches=10 response_s=%.3f", response) }
			do := behaviour{svc: serve, job: learner(0.01, 1, 0)}
			n.seconds(60, do)
			s := n.c.find(svc.ID)
			must.Eq(t, policy.Service, s.kind())
			must.Eq(t, policy.Satisfied, s.decision.Class)
			must.InDelta(t, 0.1, *s.response, 1e-9)

			response = 0.3
			before := s.decision.Bound()
			n.seconds(60, do)
			must.Eq(t, policy.Bad, s.decision.Class)
			must.GreaterEq(t, before, s.decision.Bound())
			if name == "auto" {
				must.Greater(t, job.limits.Shares, svc.limits.Shares, must.Sprint("the service gets what its target needs first"))
			}
			must.StrContains(t, n.event("qoe").Message, "misses its target of 0.1 s")

			response = 0.1
			n.seconds(60, do)
			must.StrContains(t, n.event("qoe").Message, "meets its target of 0.1 s again")
			st := svc.shown(t)
			must.Eq(t, "service", st.Kind)
			must.Eq(t, "S", st.Class)
			must.Eq(t, status.Number(0.1), st.Target.QoE)
			must.Eq(t, 1, st.Node.Classes["S"])
		}))
	}
}

func TestSourceThatCannotBeOpened(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, func(o *Options) { o.Policy = decider(t, "auto") })
		f := n.task("job")
		f.Where = "the file /local/m.csv"
		f.Open = func() (progress.Source, error) { return nil, errors.New("no such directory") }
		n.start(f)
		for range 3 {
			n.second(behaviour{f: learner(1, 1, 0)})
		}
		ev := n.event("progress")
		must.StrContains(t, ev.Message, "cannot read its progress from the file /local/m.csv")
		must.StrContains(t, ev.Message, "no such directory")
		must.Eq(t, limits.Limits{Shares: 1000}, f.limits)
	})(t)
}

// An error that a source returns once is reported, even if the next poll succeeds before the loop's
// tick.
func TestSourceThatFailsOnce(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		f := n.task("job")
		n.start(f)
		s := n.c.find(f.ID)
		was := s.m
		s.m.Failures, s.m.Failure = 1, errors.New("it answers a page")
		s.reportProgress(was, time.Now())
		s.m = was
		must.StrContains(t, n.event("progress").Message, "it answers a page")
	})(t)
}

func TestFileAsSource(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, func(o *Options) { o.Policy = decider(t, "auto") })
		f := n.task("job")
		f.progress = progress.Config{File: "/alloc/m.jsonl", Metric: "val.loss", Goal: "min", Scale: 0.001}
		n.start(f)
		write := func(i int) {
			out, err := os.OpenFile(filepath.Join(f.SharedDir, "m.jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
			must.NoError(t, err)
			_, err = fmt.Fprintf(out, "{\"step\": %d, \"val\": {\"loss\": %d}}\n", i, 1000/(i+1))
			must.NoError(t, errors.Join(err, out.Close()))
		}
		for i := range 20 {
			write(i)
			n.second(behaviour{f: learner(1, 1, 0)})
		}
		n.seconds(1, nil)
		s := n.c.find(f.ID)
		must.InDelta(t, 0.05, s.m.Report.Value, 1e-9)
		must.Eq(t, 20, s.m.Reports)
		must.True(t, s.measured())
	})(t)
}

func TestOtherResources(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, func(o *Options) { o.NodeMemory = 1 << 30 })
		f := n.task("job")
		f.resources = limits.Resources{MemoryBytes: 256 << 20}
		n.start(f)
		learn := learner(0.01, 1, 0)
		for range 25 {
			n.second(behaviour{f: func() (float64, string) {
				f.mu.Lock()
				f.resources.BlockBytes += 2 << 20
				f.mu.Unlock()
				return learn()
			}})
		}
		r, p := n.c.find(f.ID).resources, n.c.find(f.ID).m.Estimate.Progress
		must.Eq(t, 256, r.memory)
		must.InDelta(t, p/0.25, r.memoryG, 1e-9)
		must.InDelta(t, 2, r.block, 1e-6)
		must.InDelta(t, p/2, r.blockG, 1e-9)
		must.Eq(t, 0, r.network)
		must.True(t, r.networkG != r.networkG, must.Sprint("no growth per nothing"))
		must.False(t, r.status().NetworkGrowth.Known())
	})(t)
}

func TestJoinsDoNotPostponeTheInterval(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		f := n.task("stays")
		n.start(f)
		do := behaviour{f: learner(0.01, 1, 0)}
		regular := 0
		for i := range 30 {
			before := n.c.nextRun
			n.second(do)
			if !time.Now().Before(before) {
				regular++
			}
			guest := n.task(fmt.Sprintf("guest%d", i))
			n.start(guest)
			n.remove(guest)
		}
		must.GreaterEq(t, 2, regular)
	})(t)
}
