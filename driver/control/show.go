// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"fmt"
	"math"
	"time"

	"github.com/ebbtide/ebbtide/driver/plan"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/internal/version"
)

// showEvery returns the minimum time between writes of a task's status. It grows with the number of
// tasks, for a constant cost.
func (c *Controller) showEvery() time.Duration {
	return max(time.Second, time.Duration(len(c.tasks))*200*time.Millisecond)
}

func (c *Controller) show(t *task, now time.Time, final bool) {
	t.readUsage()
	t.show.Write(c.status(t, now), c.row(t, now), t.state(), now, final)
}

func (c *Controller) status(t *task, now time.Time) status.Status {
	g, p := t.growth(c.pool)
	return status.Status{
		Version:   version.Version,
		Task:      t.Name,
		Alloc:     t.AllocID,
		Job:       t.JobID,
		Engine:    c.opts.Engine,
		Policy:    c.opts.Policy.Name,
		Estimator: c.opts.Estimator,
		Mode:      string(c.mode()),
		Kind:      string(t.kind()),
		Category:  string(t.decision.Category),
		Class:     string(t.decision.Class),
		Since:     t.since,
		Target: status.Target{
			State:      string(t.reached),
			Acceptable: number(t.Targets.Acceptable),
			Objective:  number(t.Targets.Objective),
			Hold:       t.Targets.Hold,
			QoE:        number(t.qoe()),
			Response:   number(t.response),
		},
		Fair:             t.fairStatus(),
		SpeCon:           t.speconStatus(),
		Move:             t.move,
		Resources:        t.resources.status(),
		GPU:              t.gpu,
		Turn:             t.turnStatus(),
		Metric:           t.m.Report.Metric,
		Goal:             string(t.m.Goal),
		Value:            status.Number(t.m.Report.Value),
		Step:             status.Number(t.m.Report.Step),
		Total:            status.Number(t.m.Report.Total),
		Progress:         number(p),
		Growth:           number(g),
		Reports:          t.m.Reports,
		Plateau:          t.m.Estimate.Plateau,
		Diverged:         t.m.Estimate.Diverged,
		Use:              status.Number(c.share(t.cores)),
		CPUSeconds:       status.Number(t.usage.CPUSeconds),
		Periods:          t.usage.Periods,
		ThrottledPeriods: t.usage.Throttled,
		Throttled:        status.Number(t.usage.ThrottledSeconds),
		Limit:            t.limitStatus(),
		Rule:             t.decision.Rule,
		Why:              t.explanation(c.mode()),
		Updated:          now,
		Node:             c.node(),
	}
}

func (t *task) fairStatus() status.Fair {
	f := status.NoFair()
	if !t.hasTwin() {
		return f
	}
	left, quality := t.size()
	f.RemainingCPUS, f.QualityCPUS = number((*float64)(left)), number((*float64)(quality))
	if left != nil && t.m.Pace > 0 {
		f.RemainingS = status.Number(float64(*left) / float64(t.m.Pace))
	}
	f.Overhead = number(t.m.Overhead)
	f.AheadCPUS = status.Number(t.fair.used - t.fair.cpu)
	if most := t.demand().Most; most > 0 {
		f.CapCores = status.Number(most)
	}
	f.Source, f.Why = string(t.m.Remaining.Source), t.m.Remaining.Why
	if d := t.decision.Fair; d != nil {
		f.Finish, f.FairFinish, f.Late = moment(d.FinishS), moment(d.FairFinishS), d.Late
	}
	return f
}

func moment(s *float64) time.Time {
	if s == nil || *s > 1e11 {
		return time.Time{}
	}
	return time.UnixMilli(int64(*s * 1e3)).UTC()
}

func (t *task) limitStatus() status.Limit {
	l := status.Limit{
		Fraction: status.Number(t.decision.Bound()),
		Kernel:   status.Kernel{Shares: t.enforced.Want.Shares, QuotaCores: status.Number(t.enforced.Want.QuotaCores)},
		InForce:  status.Kernel{Shares: t.enforced.InForce.Shares, QuotaCores: status.Number(t.enforced.InForce.QuotaCores)},
	}
	if t.enforced.Err != nil {
		l.Error = t.enforced.Err.Error()
	}
	return l
}

// maxSize bounds the sizes that count in a node's sum, in CPU-seconds: 300 years on one core. A task
// that prints an absurd number of steps is of unknown size for the shim, which would otherwise ignore
// the node (shim/relocate.MaxCPUS).
const maxSize = 1e10

func (c *Controller) node() status.Node {
	n := status.Node{
		PoolCores: status.Number(c.pool),
		Tasks:     len(c.tasks),
		Counts:    make(map[string]int),
		Classes:   make(map[string]int),
		GrowthSum: make(map[string]status.Number),
		SpeCon:    make(map[string]int),
		SavedS:    status.Number(c.twins.saved.Seconds()),
		Alpha:     status.Number(c.alpha),
		IntervalS: status.Number(c.interval.Seconds()),
	}
	for _, t := range c.tasks {
		n.Use += status.Number(c.share(t.cores))
		category := string(t.decision.Category)
		switch {
		case !t.Limited: // not controlled
		case t.kind() == policy.Service:
			n.Classes[string(t.decision.Class)]++
		default:
			n.Counts[category]++
			n.SpeCon[string(t.specon.category)]++
			if left, _ := t.size(); left != nil && *left <= maxSize {
				n.RemainingCPUS += status.Number(*left)
				n.Sized++
			}
			if g, _ := t.growth(c.pool); g != nil {
				n.GrowthSum[category] += status.Number(*g)
			}
		}
	}
	return n
}

func (t *task) explanation(mode plan.Mode) string {
	switch {
	case !t.Limited && t.Pinned > 0:
		return "the task has dedicated cores (`cores`) and is not limited"
	case !t.Limited:
		return "the job asked not to be limited (ebbtide_limit = \"off\")"
	case t.cgroup == nil:
		return "cgroup not found yet: the task keeps Nomad's limits"
	case mode == plan.ModeNone:
		return "policy none: the task keeps Nomad's limits"
	case t.reached == policy.Objective:
		return "the objective is reached: the task is being stopped and has succeeded"
	}
	text := t.decision.Why
	if t.modest > 0 {
		text = fmt.Sprintf("it uses %.2g cores at most, its fair share is %.2g: it keeps what Nomad gave it", float64(t.demand().Least), float64(t.modest))
	}
	if t.m.Estimate.Why != "" {
		text += "; growth: " + t.m.Estimate.Why
	}
	if t.m.Note != "" {
		text += ". " + t.m.Note
	}
	return text
}

func (c *Controller) row(t *task, now time.Time) status.Row {
	g, p := t.growth(c.pool)
	r := t.resources
	row := status.Row{
		Time:       now,
		CPUSeconds: t.usage.CPUSeconds,
		Step:       t.m.Report.Step,
		Total:      t.m.Report.Total,
		Value:      t.m.Report.Value,
		Growth:     float64(number(g)),
		Progress:   float64(number(p)),
		Category:   string(t.decision.Category),
		Limit:      float64(t.decision.Bound()),
		Shares:     t.enforced.InForce.Shares,
		QuotaCores: t.enforced.InForce.QuotaCores,
		Use:        float64(c.share(t.cores)),
		Throttled:  t.usage.ThrottledSeconds,
		Rule:       t.decision.Rule,
		Class:      string(t.decision.Class),
		MemoryMiB:  r.memory, MemoryG: r.memoryG,
		BlockMiBs: r.block, BlockG: r.blockG,
		NetworkMiBs: r.network, NetworkG: r.networkG,
		Remaining: math.NaN(), Ahead: math.NaN(),
	}
	if t.hasTwin() {
		f := t.fairStatus()
		row.Remaining, row.Ahead = float64(f.RemainingCPUS), float64(f.AheadCPUS)
	}
	if t.Targets.Any() {
		row.State = string(t.reached)
	}
	return row
}

func (t *task) qoe() *float64 {
	if t.Targets.QoE > 0 {
		return &t.Targets.QoE
	}
	return nil
}

func number(f *float64) status.Number {
	if f == nil {
		return status.Unknown()
	}
	return status.Number(*f)
}
