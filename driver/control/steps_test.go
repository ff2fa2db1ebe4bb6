// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/growth"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/remaining"
	"github.com/ebbtide/ebbtide/driver/target"
)

// bar is a source of step reports.
type bar struct{ step, total, read float64 }

func (b *bar) Poll(context.Context) ([]progress.Report, error) {
	if b.step == b.read {
		return nil, nil
	}
	b.read = b.step
	return []progress.Report{{Value: math.NaN(), Step: b.step, Total: b.total}}, nil
}

func (b *bar) Goal() string              { return "" }
func (b *bar) Note() string              { return "" }
func (b *bar) Stats() progress.Stats     { return progress.Stats{Lines: int64(b.read)} }
func (b *bar) Close() error              { return nil }
func (b *bar) Offset() json.RawMessage   { return nil }
func (b *bar) SetOffset(json.RawMessage) {}

// stepper is a task that reports steps only, one per second and core.
func (n *node) stepper(name string, total float64) (*fake, *bar) {
	f, b := n.task(name), &bar{total: total}
	f.Open = func() (progress.Source, error) { return b, nil }
	return f, b
}

func (b *bar) advance() (float64, string) { b.step++; return 1, "" }

// Step reports give a task a size, an expected end and a history, and no growth.
func TestStepReports(t *testing.T) {
	for _, name := range []string{"flowcon", "tradl", "auto", "fsp"} {
		t.Run(name, bubble(func(t *testing.T) {
			n := newNode(t, func(o *Options) { o.Policy = decider(t, name) })
			f, b := n.stepper("bar", 1000)
			zero := 0.0
			f.Targets.Acceptable, f.Targets.Hold = &zero, 1
			f.Watcher = target.NewWatcher("loss", policy.GoalMin, f.Targets)
			other := n.task("other")
			n.start(f)
			n.start(other)
			do := behaviour{f: b.advance, other: learner(0.005, 1, 0.01)}
			for range 150 {
				n.second(do)
				if name == "flowcon" || name == "tradl" {
					must.GreaterEq(t, 990, f.limits.Shares, must.Sprint("as a task without reports"))
				}
			}
			k := n.c.find(f.ID)
			must.Eq(t, growth.Estimate{}, k.m.Estimate)
			must.Eq(t, policy.InTraining, k.reached)
			must.Nil(t, k.m.Gain.Value)
			must.SliceEmpty(t, k.m.Curve)
			must.InDelta(t, 850, float64(*k.m.Remaining.CPUS), 3)
			n.pass(3 * time.Second)
			st := f.shown(t)
			must.Eq(t, 150, st.Reports)
			must.Eq(t, []float64{150, 1000}, []float64{float64(st.Step), float64(st.Total)})
			must.False(t, st.Value.Known())
			must.Eq(t, "", st.Metric)
			must.Eq(t, string(remaining.Steps), st.Fair.Source)
			must.InDelta(t, float64(st.Fair.RemainingCPUS/st.Use)/float64(st.Node.PoolCores), float64(st.Fair.RemainingS), 0.2*float64(st.Fair.RemainingS))
			if name == "auto" || name == "fsp" {
				must.False(t, st.Fair.Finish.IsZero())
			}
			must.StrContains(t, n.event("no-progress").Message, "its targets need a metric, and only steps have been read from its output")
			n.restart(nil, f, other)
			b.read = 0
			n.seconds(5, do)
			k = n.c.find(f.ID)
			must.InDelta(t, 845, float64(*k.m.Remaining.CPUS), 10, must.Sprint("known after a restart"))
			must.Eq(t, 155, n.c.remove(n.ctx, f.ID, true).Run.Steps)
		}))
	}
}

// A size that turns out wrong is an event, once.
func TestStepReportsLost(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		f, b := n.stepper("bar", 50)
		n.start(f)
		n.seconds(50, behaviour{f: b.advance})
		must.NotNil(t, n.c.find(f.ID).m.Remaining.CPUS)
		n.seconds(20, behaviour{f: func() (float64, string) { return 1, "" }})
		must.Nil(t, n.c.find(f.ID).m.Remaining.CPUS)
		must.StrContains(t, n.event("unsized").Message, "the task goes on")
		b.step = 0
		n.seconds(200, behaviour{f: b.advance})
		n.restart(nil, f)
		n.seconds(60, behaviour{f: b.advance})
		for len(n.events) > 0 {
			must.NotEq(t, "unsized", (<-n.events).Annotations["ebbtide"])
		}
	})(t)
}

// Past the quality point, a task without a metric has not converged: the shim would migrate it.
func TestStepReportsConverge(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, func(o *Options) { o.Policy = decider(t, "auto") })
		f, b := n.stepper("bar", 100)
		other := n.task("other")
		n.start(f)
		n.start(other)
		n.seconds(90, behaviour{f: b.advance, other: learner(0.005, 1, 0.01)})
		must.Eq(t, policy.NL, n.c.find(f.ID).decision.Category)
	})(t)
}

// A curve that falls in a straight line has not converged at its quality point.
func TestQualityPoint(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, func(o *Options) { o.Policy = decider(t, "auto") })
		line, other := n.task("line"), n.task("other")
		n.start(line)
		n.start(other)
		step := 0
		n.seconds(90, behaviour{line: func() (float64, string) {
			step++
			return 1, fmt.Sprintf("step=%d/100 loss=%g", step, 1-float64(step)/200)
		}, other: learner(0.005, 1, 0.01)})
		must.Eq(t, policy.NL, n.c.find(line.ID).decision.Category)
		must.StrHasPrefix(t, "past its quality point: loss = 0.", n.event("quality").Message)
	})(t)
}

// Under every policy the categories are FlowCon's, and only a flat curve has converged: not one of
// twenty that fall in straight lines, each more slowly than the one before.
func TestConvergedIsFlat(t *testing.T) {
	for _, policyName := range []string{"auto", "flowcon", "none"} {
		t.Run(policyName, bubble(func(t *testing.T) {
			n := newNode(t, func(o *Options) { o.Policy = decider(t, policyName) })
			do := make(behaviour)
			var lines []*fake
			for i := range 20 {
				f := n.task(fmt.Sprintf("line%d", i))
				lines = append(lines, f)
				n.start(f)
				step, slope := 0, math.Pow(0.8, float64(i))/1000
				do[f] = func() (float64, string) {
					step++
					return 0.1, fmt.Sprintf("step=%d loss=%g", step, 1-slope*float64(step))
				}
			}
			flat := n.task("flat")
			n.start(flat)
			do[flat] = learner(5, 0.1, 0.001)
			n.seconds(400, do)
			must.Eq(t, policy.CL, n.c.find(flat.ID).decision.Category)
			must.Eq(t, policy.NL, n.c.find(lines[0].ID).decision.Category)
			said := make(map[string]string)
			for len(n.events) > 0 {
				if ev := <-n.events; strings.HasPrefix(ev.Message, "converged: ") {
					said[ev.TaskName] = ev.Message
				}
			}
			must.MapContainsKeys(t, said, []string{"flat"})
			must.Eq(t, 1, len(said), must.Sprint(said))
		}))
	}
}
