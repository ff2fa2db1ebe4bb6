// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package queue decides which jobs of a cluster have their places, if there is not room for all: a
// place is what a job asks for (GPUs, cores, memory), and is given as a whole. In: Input, a
// snapshot. Out: Output, the order, what starts, and what is suspended for it.
//
// Fair finish serves the jobs so that none ends later than its twin, which runs on a fluid cluster
// that all share. The rule is the node's (package fsp; FSP, Friedman and Henderson, SIGMETRICS
// 2003), in time instead of CPU; HFSP (Pastorelli et al., IEEE Trans. Cloud Computing 2017) did the
// same for Hadoop. Its guarantee is for sizes known exactly, jobs of one place, no cost of
// interruptions and decisions at any moment. Start with Decide, then cluster.go, fluid.go and
// place.go.
package queue

import (
	"cmp"
	"math"
	"slices"
	"strconv"
)

// Names of rules.
const (
	RuleRuns    = "queue.runs"    // it keeps its place
	RuleStart   = "queue.start"   // it gets a free place
	RuleYield   = "queue.yield"   // it is suspended for a job before it
	RuleTake    = "queue.take"    // it gets the place of jobs that leave
	RuleLeave   = "queue.leave"   // it is being stopped or suspended
	RuleWait    = "queue.wait"    // no place is free
	RuleReserve = "queue.reserve" // the same, and a node is kept free for it
	RuleNever   = "queue.never"   // no node is large enough
	RuleHold    = "queue.hold"    // an operator keeps it from starting
)

// Output has the decisions in the order of Input.Jobs, without jobs that have ended, and these jobs'
// owners: those that have or are due most of the cluster first (Use plus Share), equal ones by name.
type Output struct {
	Jobs   []Decision   `json:"jobs"`
	Owners []OwnerShare `json:"owners"`
}

type Decision struct {
	ID string `json:"id"`
	// Rank is the job's place in the order, from 1.
	Rank int `json:"rank"`
	// Node is where the job is to run; "" for nowhere. It differs from the present one in two
	// cases only: the job starts, or is suspended.
	Node string `json:"node"`
	// Late means that its twin has ended.
	Late bool `json:"late"`
	// StartS and EndS are when the job is expected to get its place, and to end, if no job comes and no
	// further one is suspended; null if it has a place, or if this is unknown.
	StartS *float64 `json:"start_s"`
	EndS   *float64 `json:"end_s"`
	// FairEndS is when the job's twin is expected to end; null if it has or this is unknown.
	FairEndS *float64 `json:"fair_end_s"`
	Rule     string   `json:"rule"`
	Why      string   `json:"why"`
}

// OwnerShare is an owner's part of the cluster, in sums of dominant shares: a job's is the fraction
// that it takes of the resource of which it takes most. Of several resources, they may sum to more
// than 1.
type OwnerShare struct {
	Owner
	// Use is what its running jobs have, Share what their and the waiting jobs' twins get now. A late
	// job's twin has ended and gets nothing; that of a job that has ended before it still does.
	Use   float64 `json:"use"`
	Share float64 `json:"share"`
	// Running and Waiting count its jobs with and without a place.
	Running int `json:"running"`
	Waiting int `json:"waiting"`
}

// Decide runs fair finish on a valid input, which it does not change.
func Decide(in Input) Output { return newCluster(in).decide() }

// DecideAfter runs the twins for a time in seconds, as Input.Advance does, and then decides.
func DecideAfter(seconds float64, in Input) Output {
	c := newCluster(in)
	c.advance(seconds)
	return c.decide()
}

func (c *cluster) decide() Output {
	in, f := c.in, c.twins()
	owners := c.owners(f)
	ends := c.ends(f)
	order, held := in.obey(in.byFairFinish(ends), ends)
	placed := c.place(order, Rules{Reserve: in.starves, Interrupt: true})
	plan := placed.plan
	starts, finishes := placed.expect(order)
	out := Output{Jobs: make([]Decision, 0, len(in.Jobs)), Owners: owners}
	rank := make([]int, len(in.Jobs))
	for k, i := range slices.Concat(order, held) {
		rank[i] = k + 1
	}
	for _, i := range held {
		plan[i] = Placed{Rule: RuleHold, Because: "on hold " + in.Jobs[i].Hold}
	}
	for i := range in.Jobs {
		j := &in.Jobs[i]
		if j.Ended {
			continue
		}
		d := Decision{ID: j.ID, Rank: rank[i], Node: plan[i].Node, Rule: plan[i].Rule, Late: j.RemainingS != nil && in.Params.twinLeft(j) == 0}
		d.StartS, d.EndS = in.at(&starts[i]), in.at(&finishes[i])
		if j.RemainingS != nil && !d.Late {
			d.FairEndS = in.at(&ends[i])
		}
		if d.Why = plan[i].Because; d.Why == "" {
			d.Why = in.due(j, &d)
		}
		out.Jobs = append(out.Jobs, d)
	}
	return out
}

// at turns seconds from now into a time, nil for never.
func (in Input) at(seconds *float64) *float64 {
	if math.IsInf(*seconds, 1) {
		return nil
	}
	*seconds += in.NowS
	return seconds
}

// Advance runs the twins for a time in seconds: it adds what each gets to its job's FairS. It
// returns when each twin ended, in seconds from the beginning; +Inf if it did not.
func (in Input) Advance(seconds float64) []float64 { return newCluster(in).advance(seconds) }

func (c *cluster) advance(seconds float64) []float64 {
	in, f := c.in, c.twins()
	ends := slices.Repeat([]float64{math.Inf(1)}, len(in.Jobs))
	f.advance(seconds, 1, func(t twin, at float64) {
		if !t.on {
			ends[t.job] = at
		}
	})
	for _, k := range f.kinds {
		for i, t := range k.twins {
			if i < k.ended && !t.on {
				in.Jobs[t.job].FairS += t.left
			} else {
				in.Jobs[t.job].FairS += k.had
			}
		}
	}
	return ends
}

// owners returns the owners of all jobs with what they have and, as the twins run now, are due.
func (c *cluster) owners(f *fluid) []OwnerShare {
	f.fill()
	out := make([]OwnerShare, len(f.owners))
	of := make(map[string]*OwnerShare, len(f.owners))
	for i, o := range f.owners {
		of[o.name] = &out[i]
		out[i].Owner = Owner{o.name, o.weight}
		for _, k := range o.kinds {
			out[i].Share += k.rate * k.share * float64(k.n)
		}
	}
	use := make([]float64, len(c.names))
	for i := range c.in.Jobs {
		j := &c.in.Jobs[i]
		o := of[j.Owner]
		switch {
		case j.Ended:
		case j.Node != "":
			o.Running++
			c.parts(i, use)
			o.Use += min(slices.Max(use), 1)
		default:
			o.Waiting++
		}
	}
	slices.SortFunc(out, func(a, b OwnerShare) int {
		return cmp.Or(cmp.Compare(b.Use+b.Share, a.Use+a.Share), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// ends runs the twins. It returns the seconds until each job's twin ends, or has had its quantum, if no
// job joins; 0 if it has, +Inf for a job that fits on no node or is on hold.
func (c *cluster) ends(f *fluid) []float64 {
	ends := slices.Repeat([]float64{math.Inf(1)}, len(c.in.Jobs))
	twins := 0
	for _, k := range f.kinds {
		twins += len(k.twins)
		for _, t := range k.twins {
			if c.in.Params.twinLeft(&c.in.Jobs[t.job]) == 0 {
				ends[t.job] = 0
			}
		}
	}
	f.advance(math.Inf(1), 1+twins/batches, func(t twin, at float64) { ends[t.job] = at })
	return ends
}

// twins returns the fluid of the twins of the jobs that fit on a node and are not on hold, and of
// those that have ended, as far as the cluster has what they need; and all jobs' owners.
func (c *cluster) twins() *fluid {
	weights := make(map[string]float64, len(c.in.Owners))
	for _, o := range c.in.Owners {
		weights[o.Name] = o.Weight
	}
	f := newFluid(len(c.names))
	owners := make(map[string]int)
	use := make([]float64, len(c.names))
	for i := range c.in.Jobs {
		j := &c.in.Jobs[i]
		owner, ok := owners[j.Owner]
		if !ok {
			owner = len(f.owners)
			owners[j.Owner] = owner
			f.owners = append(f.owners, fluidOwner{name: j.Owner, weight: cmp.Or(weights[j.Owner], 1)})
		}
		if !j.Ended && !c.fits(i) || !c.has(i) || j.onHold() {
			continue
		}
		c.parts(i, use)
		f.join(owner, use, twin{job: i, left: c.in.Params.twinLeft(j), on: j.RemainingS == nil && !j.Ended})
	}
	f.sort()
	return f
}

// weight of what a job still needs, against the time until its twin ends, in the order. With 0 the
// worst job took nearly 50 times as long as with its fair share, with 1 to 3 the order is nearly by
// remaining time, and long jobs end later.
const needWeight = 0.5

// early is the weight of a job's key in the order during its beginning, a part of its work, so that
// first results come sooner (docs/queue.md). With a quarter they come half as much sooner again, for
// two to four times as many points of the mean; with a twentieth of the work the gain is half or less.
const beginning, early = 0.1, 0.5

// byFairFinish orders the jobs by the time until their twins end, 0 for late ones, plus half of what
// they still need: among late jobs those come first that need least. (In the order of their lateness
// a long one makes all others late.) In a job's beginning this counts half, unless it could not be
// suspended after it. A running job is before by twice what its suspension costs, so that two do not
// take turns.
func (in Input) byFairFinish(ends []float64) []int {
	return in.Order(func(i int) float64 {
		j := &in.Jobs[i]
		left := in.Params.left(j)
		key := ends[i] + needWeight*left
		if j.Suspendable && j.ServedS < beginning*(j.ServedS+left) {
			key *= early
		}
		if j.Node != "" {
			key -= 2 * in.Params.cost(j)
		}
		return key
	})
}

// Order returns the indexes of the jobs that have not ended by rising key, equal ones by submission.
func (in Input) Order(key func(i int) float64) []int {
	order := make([]int, 0, len(in.Jobs))
	keys := make([]float64, len(in.Jobs))
	for i := range in.Jobs {
		if !in.Jobs[i].Ended {
			order, keys[i] = append(order, i), key(i)
		}
	}
	slices.SortFunc(order, func(a, b int) int {
		if keys[a] != keys[b] {
			return cmp.Compare(keys[a], keys[b])
		}
		return cmp.Or(cmp.Compare(in.Jobs[a].SubmittedS, in.Jobs[b].SubmittedS), a-b)
	})
	return order
}

// patience is how many first quanta a job of unknown size may be behind its twin.
const patience = 100

// starves reports whether a node is kept free for a job: if it is at the top, late or, its size being
// unknown, far behind its twin. Kept free for any job, the mean of sim/scenarios/gangs.hcl changes by
// −38.5 instead of −39.1 %, without suspensions (turns) by +18 instead of −1 %.
func (in Input) starves(j Job) bool {
	switch {
	case j.TopS > 0:
		return true
	case j.RemainingS == nil:
		return j.FairS-j.ServedS >= patience*in.Params.ProbeS
	}
	return in.Params.twinLeft(&j) == 0
}

// due says why a job has its rank.
func (in *Input) due(j *Job, d *Decision) string {
	switch {
	case j.TopS > 0:
		return "an operator put it at the top"
	case d.Late:
		return "late: with its fair share of the cluster it would have ended"
	case d.FairEndS != nil:
		return "with its fair share of the cluster it would end in " + span(*d.FairEndS-in.NowS)
	case j.ServedS < in.Params.ProbeS:
		return "size unknown: its first quantum shows it"
	}
	return "size unknown: it has its fair share of the cluster"
}

func span(s float64) string {
	switch {
	case s < 120:
		return strconv.FormatFloat(s, 'f', 0, 64) + " s"
	case s < 7200:
		return strconv.FormatFloat(s/60, 'f', 0, 64) + " min"
	}
	return strconv.FormatFloat(s/3600, 'f', 1, 64) + " h"
}
