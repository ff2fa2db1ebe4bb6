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

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/policy/auto"
	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/driver/policy/policies"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/driver/target"
)

func num(x float64) *float64 { return &x }

// target makes a task with targets for its loss, and a channel of what is reached.
func (n *node) target(name string, targets target.Targets) (*fake, chan target.Reached) {
	f := n.task(name)
	f.progress.Metric = "loss"
	f.Targets, f.Watch = targets, target.NewWatcher("loss", target.GoalMin, targets)
	reached := make(chan target.Reached, 10)
	f.OnTarget = func(r target.Reached) { reached <- r }
	return f, reached
}

// says returns a task's behaviour: one value after the other.
func says(values ...any) func() (float64, string) {
	step := 0
	return func() (float64, string) {
		v := values[min(step, len(values)-1)]
		step++
		return 1, fmt.Sprintf("step=%d loss=%v", step, v)
	}
}

func TestTargetsAreReachedOnce(t *testing.T) {
	n := newNode(t, func(o *Options) { o.Policy = policies.Auto })
	f, reached := n.target("job", target.Targets{Acceptable: num(0.5), Objective: num(0.2), Hold: 1})
	n.start(f)
	do := map[*fake]func() (float64, string){f: says(1.0, 0.6, 0.5, 0.7, 0.4, 0.3)}
	for range 8 {
		n.second(do)
	}
	r := <-reached
	must.Eq(t, target.StateAcceptable, r.State)
	must.Eq(t, 0.5, r.Value)
	must.Eq(t, num(3), r.Step)
	must.StrContains(t, n.event("acceptable").Message, "acceptable target 0.5 reached: loss = 0.5 at step 3")
	must.Eq(t, target.StateAcceptable, n.c.find(f.ID).reached)

	data, err := os.ReadFile(filepath.Join(f.AllocDir, status.Dir, "job.acceptable"))
	must.NoError(t, err)
	var marker target.Reached
	must.NoError(t, json.Unmarshal(data, &marker))
	must.Eq(t, 0.5, marker.Target)

	do[f] = says(0.19)
	n.second(do) // not at the next decision: at once
	r = <-reached
	must.Eq(t, target.StateObjective, r.State)
	must.StrContains(t, n.event("objective").Message, "has succeeded")
	_, err = os.Stat(filepath.Join(f.AllocDir, status.Dir, "job.objective"))
	must.NoError(t, err)
	for range 30 {
		n.second(do)
	}
	must.Eq(t, 0, len(reached), must.Sprint("each target is reached once"))
	st, err := status.ReadStatus(filepath.Join(f.AllocDir, status.Dir, "job.json"))
	must.NoError(t, err)
	must.Eq(t, "objective", st.Target.State)
	must.Eq(t, status.Number(0.2), st.Target.Objective)
	must.StrContains(t, st.Why, "has succeeded")
}

func TestTargetHold(t *testing.T) {
	n := newNode(t, func(o *Options) { o.Policy = policies.Auto })
	f, reached := n.target("job", target.Targets{Objective: num(0.2), Hold: 3})
	n.start(f)
	do := map[*fake]func() (float64, string){f: says(1.0, 0.1, 0.5, 0.1, 0.1, "nan", 0.1, 0.1, 0.3)}
	for range 12 {
		n.second(do)
	}
	must.Eq(t, 0, len(reached))
	do[f] = says(0.2)
	for range 3 {
		n.second(do)
	}
	must.Eq(t, target.StateObjective, (<-reached).State)
}

func TestTargetOfAnEarlierProcess(t *testing.T) {
	n := newNode(t, func(o *Options) { o.Policy = policies.Auto })
	f, reached := n.target("job", target.Targets{Acceptable: num(0.5), Objective: num(0.2), Hold: 1})
	f.Reached = target.StateAcceptable
	n.start(f)
	do := map[*fake]func() (float64, string){f: says(0.6, 0.4)}
	for range 5 {
		n.second(do)
	}
	must.Eq(t, 0, len(reached), must.Sprint("the acceptable target was told before"))
	must.Eq(t, target.StateAcceptable, n.c.find(f.ID).reached)
}

func TestAcceptableTaskYields(t *testing.T) {
	for _, policy := range []string{policies.Auto, policies.TRADL} {
		t.Run(policy, func(t *testing.T) {
			n := newNode(t, func(o *Options) { o.Policy = policy })
			f, _ := n.target("good", target.Targets{Acceptable: num(0.9), Hold: 1})
			other, _ := n.target("other", target.Targets{Acceptable: num(0.001), Hold: 1})
			n.start(f)
			n.start(other)
			do := map[*fake]func() (float64, string){f: learner(0.02, 1, 0), other: learner(0.005, 1, 0)}
			for range 90 {
				n.second(do)
			}
			must.Eq(t, target.StateAcceptable, n.c.find(f.ID).reached)
			must.Less(t, 0.5, n.c.find(f.ID).limit)
			must.Less(t, other.limits.Shares, f.limits.Shares)
			must.Eq(t, 2000, f.limits.Shares+other.limits.Shares)
			must.StrContains(t, n.c.find(f.ID).rule, "acceptable")
		})
	}
}

// A leave takes its use out of the sum, but the pool was full: nobody is set free.
func TestAcceptableTaskYieldsOnWhenOthersLeave(t *testing.T) {
	for _, policy := range []string{policies.Auto, policies.TRADL} {
		t.Run(policy, func(t *testing.T) {
			n := newNode(t, func(o *Options) { o.Policy = policy })
			good, _ := n.target("good", target.Targets{Acceptable: num(0.9), Hold: 1})
			other, _ := n.target("other", target.Targets{Acceptable: num(0.001), Hold: 1})
			leaver, _ := n.target("leaver", target.Targets{Acceptable: num(0.001), Hold: 1})
			cpu := 0.7 // of a pool of two cores
			uses := func(learn func() (float64, string)) func() (float64, string) {
				return func() (float64, string) { _, line := learn(); return cpu, line }
			}
			do := map[*fake]func() (float64, string){
				good: uses(learner(0.02, 0.7, 0)), other: uses(learner(0.005, 0.7, 0)), leaver: learner(0.005, 0.6, 0),
			}
			for _, f := range []*fake{good, other, leaver} {
				n.start(f)
			}
			for range 90 {
				n.second(do)
			}
			s := n.c.find(good.ID)
			must.StrContains(t, s.rule, "tradl.acceptable")

			n.c.remove(t.Context(), leaver.ID)
			must.StrContains(t, s.rule, "tradl.acceptable", must.Sprint(s.why))
			must.Less(t, 1, s.limit)
			delete(do, leaver)
			cpu = 1
			for range 45 {
				n.second(do)
				must.StrContains(t, s.rule, "tradl.acceptable", must.Sprint(s.why))
			}
			must.Zero(t, n.c.gone)
		})
	}
}

// What a trainer prints beside the declared metric reaches nothing.
func TestTargetsOfOneMetric(t *testing.T) {
	for _, lines := range [][]string{
		{"Initial test accuracy: 0.098", "loss=2.3", "loss=1.1"},
		{"loss=0.929 accuracy=0.3", "loss=0.99 accuracy=0.9"},
	} {
		n := newNode(t, func(o *Options) { o.Policy = policies.Auto })
		targets := target.Targets{Objective: num(0.95)}
		f, reached := n.target("job", targets)
		f.progress.Metric, f.Watch = "accuracy", target.NewWatcher("accuracy", target.GoalMax, targets)
		n.start(f)
		for _, line := range append(lines, "accuracy=0.95") {
			must.Eq(t, 0, len(reached))
			n.second(map[*fake]func() (float64, string){f: func() (float64, string) { return 1, line }})
		}
		must.Eq(t, 0.95, (<-reached).Value)
	}
}

// A value of another metric than the declared one reaches nothing, and is told.
func TestTargetsPause(t *testing.T) {
	for _, policy := range []string{policies.Auto, policies.TRADL} {
		n := newNode(t, func(o *Options) { o.Policy = policy })
		f, reached := n.target("job", target.Targets{Acceptable: num(0.9), Objective: num(0.5), Hold: 1})
		n.start(f)
		line := `{"step": 1, "val": {"loss": 0.1}}`
		do := map[*fake]func() (float64, string){f: func() (float64, string) { return 1, line }}
		for range 15 {
			n.second(do)
		}
		must.Eq(t, "its targets pause: the output now reports val.loss instead of loss", n.event("targets").Message)
		must.Eq(t, 0, len(reached))
		_, value := n.c.find(f.ID).position()
		must.Nil(t, value, must.Sprint("it is not the targets' metric"))
		line = `{"step": 2, "loss": 0.7, "val": {"loss": 0.1}}`
		for range 5 {
			n.second(do)
		}
		must.Eq(t, target.StateAcceptable, (<-reached).State)
		must.Eq(t, 0, len(reached))
	}
}

func TestServiceBesideTraining(t *testing.T) {
	for _, policy := range []string{policies.Auto, policies.DQoES} {
		t.Run(policy, func(t *testing.T) {
			n := newNode(t, func(o *Options) {
				o.Policy = policy
				o.Params.Dqoes.Step = dqoes.StepProportional
			})
			svc := n.task("svc")
			svc.Targets = target.Targets{QoE: 0.1, Hold: 1}
			svc.progress = progress.Config{Metric: "response_s"}
			job := n.task("job")
			n.start(svc)
			n.start(job)
			response := 0.1
			serve := func() (float64, string) { return 1, fmt.Sprintf("batches=10 response_s=%.3f", response) }
			do := map[*fake]func() (float64, string){svc: serve, job: learner(0.01, 1, 0)}
			for range 60 {
				n.second(do)
			}
			s := n.c.find(svc.ID)
			must.Eq(t, auto.KindService, s.kind())
			must.Eq(t, dqoes.Satisfied, s.class)
			must.InDelta(t, 0.1, *s.service.response, 1e-9)

			response = 0.3
			before := s.limit
			for range 60 {
				n.second(do)
			}
			must.Eq(t, dqoes.Bad, s.class)
			must.GreaterEq(t, before, s.limit)
			if policy == policies.Auto {
				must.Greater(t, job.limits.Shares, svc.limits.Shares, must.Sprint("the service gets what its target needs first"))
			}
			must.StrContains(t, n.event("qoe").Message, "misses its target of 0.1 s")

			response = 0.1
			for range 60 {
				n.second(do)
			}
			must.StrContains(t, n.event("qoe").Message, "meets its target of 0.1 s again")
			st, err := status.ReadStatus(filepath.Join(svc.AllocDir, status.Dir, "svc.json"))
			must.NoError(t, err)
			must.Eq(t, "service", st.Kind)
			must.Eq(t, "S", st.Class)
			must.Eq(t, status.Number(0.1), st.Target.QoE)
			must.Eq(t, 1, st.Node.Classes["S"])
		})
	}
}

func TestSourceThatCannotBeOpened(t *testing.T) {
	n := newNode(t, func(o *Options) { o.Policy = policies.Auto })
	f := n.task("job")
	f.Where = "the file /local/m.csv"
	f.Open = func() (progress.Source, error) { return nil, errors.New("no such directory") }
	n.start(f)
	for range 3 {
		n.second(map[*fake]func() (float64, string){f: learner(1, 1, 0)})
	}
	ev := n.event("progress")
	must.StrContains(t, ev.Message, "cannot be read from the file /local/m.csv")
	must.StrContains(t, ev.Message, "no such directory")
	must.Eq(t, limits.Limits{Shares: 1000}, f.limits)
}

func TestFileAsSource(t *testing.T) {
	n := newNode(t, func(o *Options) { o.Policy = policies.Auto })
	f := n.task("job")
	f.progress = progress.Config{File: "/alloc/m.jsonl", Metric: "val.loss", Goal: "min", Scale: 0.001}
	n.start(f)
	write := func(i int) {
		out, err := os.OpenFile(filepath.Join(f.AllocDir, "m.jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		must.NoError(t, err)
		_, err = fmt.Fprintf(out, "{\"step\": %d, \"val\": {\"loss\": %d}}\n", i, 1000/(i+1))
		must.NoError(t, errors.Join(err, out.Close()))
	}
	for i := range 20 {
		write(i)
		n.second(map[*fake]func() (float64, string){f: learner(1, 1, 0)})
	}
	s := n.c.find(f.ID)
	must.InDelta(t, 0.05, s.last.Value, 1e-9)
	must.Eq(t, 20, s.reports)
	must.NotNil(t, s.growth)
}

func TestOtherResources(t *testing.T) {
	n := newNode(t, func(o *Options) { o.NodeMemory = 1 << 30 })
	f := n.task("job")
	f.resources = limits.Resources{MemoryBytes: 256 << 20}
	n.start(f)
	learn := learner(0.01, 1, 0)
	for range 25 {
		n.second(map[*fake]func() (float64, string){f: func() (float64, string) {
			f.mu.Lock()
			f.resources.BlockBytes += 2 << 20
			f.mu.Unlock()
			return learn()
		}})
	}
	r, p := n.c.find(f.ID).resources, *n.c.find(f.ID).progress
	must.Eq(t, 256, r.memory)
	must.InDelta(t, p/0.25, r.memoryG, 1e-9)
	must.InDelta(t, 2, r.block, 1e-6)
	must.InDelta(t, p/2, r.blockG, 1e-9)
	must.Eq(t, 0, r.network)
	must.True(t, r.networkG != r.networkG, must.Sprint("no growth per nothing"))
	must.False(t, r.status().NetworkGrowth.Known())
}

func TestIOWeights(t *testing.T) {
	n := newNode(t, func(o *Options) { o.IOWeight = true })
	flat, grows := n.task("flat"), n.task("grows")
	n.start(flat)
	n.start(grows)
	do := map[*fake]func() (float64, string){flat: learner(1, 1, 0), grows: learner(0.005, 1, 0)}
	for range 60 {
		n.second(do)
	}
	must.Eq(t, 50, flat.ioSets[len(flat.ioSets)-1])
	must.Eq(t, 150, grows.ioSets[len(grows.ioSets)-1])
	must.Less(t, 10, len(flat.ioSets), must.Sprint("only what changes is written"))

	n = newNode(t, func(o *Options) { o.IOWeight = true })
	f := n.task("none")
	f.refuse = limits.ErrNoController
	n.start(f)
	for range 60 {
		n.second(map[*fake]func() (float64, string){f: learner(1, 1, 0)})
	}
	must.Len(t, 1, f.ioSets, must.Sprint("a kernel without it is asked once"))
}

// Tasks that come and go faster than the interval do not keep the others from being
// decided on at the end of it.
func TestJoinsDoNotPostponeTheInterval(t *testing.T) {
	n := newNode(t, nil)
	f := n.task("stays")
	n.start(f)
	do := map[*fake]func() (float64, string){f: learner(0.01, 1, 0)}
	regular := 0
	for i := range 30 {
		before := n.c.nextRun
		n.second(do)
		if !n.clock.Before(before) {
			regular++
		}
		guest := n.task(fmt.Sprintf("guest%d", i))
		n.start(guest)
		n.c.remove(t.Context(), guest.ID)
		n.settle()
	}
	must.GreaterEq(t, 2, regular)
}
