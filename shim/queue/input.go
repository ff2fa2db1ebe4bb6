// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package queue

import (
	"maps"
	"math"
	"slices"

	"github.com/ebbtide/ebbtide/internal/fields"
	"github.com/ebbtide/ebbtide/internal/optin"
)

// Input is the snapshot of a cluster for Decide.
type Input struct {
	NowS  float64 `json:"now_s" doc:"the time of the decision, in seconds since an arbitrary origin"`
	Nodes []Node  `json:"nodes" doc:"the nodes that jobs of the queue may use"`
	// Owners share the cluster by weight; those that are not listed weigh 1.
	Owners []Owner `json:"owners" strict:"optional"`
	// Jobs are the jobs that wait or run, and those that have ended before their twins.
	Jobs   []Job  `json:"jobs" doc:"the jobs of the queue"`
	Params Params `json:"params" strict:"optional"`
}

// Resources are amounts by name, in any unit.
type Resources map[string]float64

type Node struct {
	// ID is unique.
	ID string `json:"id" doc:"the node's unique ID"`
	// Capacity is what jobs of the queue may use: the node's, less what other jobs have.
	Capacity Resources `json:"capacity" doc:"what jobs of the queue may use there, by name, such as {\"gpu\": 8}"`
}

type Owner struct {
	Name   string  `json:"name" doc:"the owner's name"`
	Weight float64 `json:"weight" doc:"the owner's part of the cluster, relative to the others'"`
}

// Job is a job. Its seconds are those with its whole place.
type Job struct {
	// ID is unique.
	ID    string `json:"id" doc:"the job's unique ID"`
	Owner string `json:"owner" strict:"optional"`
	// Needs is the job's place.
	Needs      Resources `json:"needs" doc:"what it asks for, by name, on one node"`
	SubmittedS float64   `json:"submitted_s" doc:"when it was submitted, in seconds"`
	// Node is where it runs, since SinceS; "" while it waits.
	Node   string  `json:"node" strict:"optional"`
	SinceS float64 `json:"since_s" strict:"optional"`
	// ServedS is the time that it has run, in seconds, less what was lost; FairS what its twin has
	// had.
	ServedS float64 `json:"served_s" doc:"how long it has run, less what was lost, in seconds"`
	FairS   float64 `json:"fair_s" doc:"what its twin has had, in seconds of the whole place"`
	// RemainingS is what it still needs, in seconds; null if unknown.
	RemainingS *float64 `json:"remaining_s" doc:"what it still needs, in seconds of its whole place; null if unknown"`
	// Suspendable means that it can be suspended with a checkpoint, once it runs. CostS is what that
	// costs: saving, restoring and lost work, in seconds; 0 for Params.CostS.
	Suspendable bool    `json:"suspendable" strict:"optional"`
	CostS       float64 `json:"cost_s" strict:"optional"`
	// Local means that its checkpoint is on its node only: once suspended it can go on nowhere else,
	// and Feasible has that node at most.
	Local bool `json:"local" strict:"optional"`
	// Leaving means that it is being stopped or suspended: its place is about to be free.
	Leaving bool `json:"leaving" strict:"optional"`
	// Feasible are the IDs of nodes on which it may run; null for all.
	Feasible []string `json:"feasible,omitempty" strict:"optional"`
	// Ended means that it has ended before its twin.
	Ended bool `json:"ended" strict:"optional"`
	// Priority puts it before jobs of its owner with a lower one, from -optin.MaxPriority to
	// optin.MaxPriority.
	Priority int `json:"priority" strict:"optional"`
	// TopS is when an operator put it before all others, in seconds, the latest first; 0 for never.
	TopS float64 `json:"top_s" strict:"optional"`
	// Hold is who keeps it from starting, and why; "" if it may. Its twin waits as well.
	Hold string `json:"hold" strict:"optional"`
}

type Params struct {
	// ProbeS is the first quantum of a job of unknown size, in seconds.
	ProbeS float64 `json:"probe_s" strict:"optional"`
	// CostS is what an interruption costs if it was never measured, in seconds.
	CostS float64 `json:"cost_s" strict:"optional"`
	// Margin is how many times its costs an interruption must gain.
	Margin float64 `json:"margin" strict:"optional"`
	// Lost is the largest part of a job's time that interruptions may cost: a job runs CostS / Lost
	// before it may be suspended.
	Lost float64 `json:"lost" strict:"optional"`
}

func DefaultParams() Params { return Params{ProbeS: 120, CostS: 60, Margin: 2, Lost: 0.1} }

// Bounds of figures.
const (
	MaxS      = 1e9
	MaxAmount = 1e12
	MaxWeight = 1e6
)

// Validate returns all errors as a fields.Errors, by JSON path.
func (in Input) Validate() error {
	var errs fields.Errors
	// Paths are made for errors only: there may be ten thousands of jobs.
	amounts := func(of Resources, path func() string) (some bool) {
		valid := true
		for _, x := range of {
			valid, some = valid && fields.Within(x, 0, MaxAmount), some || x > 0
		}
		if !valid {
			for _, name := range slices.Sorted(maps.Keys(of)) {
				errs.Bound(fields.Member(path(), name), of[name], 0, MaxAmount)
			}
		}
		return some
	}
	errs.Bound("now_s", in.NowS, 0, math.MaxFloat64)
	nodes := fields.IDs{List: "nodes"}
	is := make(map[string]bool, len(in.Nodes))
	for i, n := range in.Nodes {
		nodes.Check(&errs, i, n.ID)
		amounts(n.Capacity, func() string { return fields.Member(fields.Index("nodes", i), "capacity") })
		is[n.ID] = true
	}
	for i, o := range in.Owners {
		at := fields.Member(fields.Index("owners", i), "weight")
		if !(o.Weight > 0 && o.Weight <= MaxWeight) {
			errs.Add(at, "must be > 0 and ≤ %v, got %v", MaxWeight, o.Weight)
		}
		if slices.ContainsFunc(in.Owners[:i], func(p Owner) bool { return p.Name == o.Name }) {
			errs.Add(fields.Member(fields.Index("owners", i), "name"), "is duplicated: %q", o.Name)
		}
	}
	jobs, checked := fields.IDs{List: "jobs"}, make(map[list]bool)
	for i := range in.Jobs {
		j := &in.Jobs[i]
		at := func(name string) string { return fields.Member(fields.Index("jobs", i), name) }
		bound := func(name string, x, low, high float64) {
			if !fields.Within(x, low, high) {
				errs.Bound(at(name), x, low, high)
			}
		}
		jobs.Check(&errs, i, j.ID)
		if !amounts(j.Needs, func() string { return at("needs") }) {
			errs.Add(at("needs"), "must have an amount > 0 of something")
		}
		if j.Node != "" && !is[j.Node] {
			errs.Add(at("node"), "must be the id of one of nodes, or \"\", got %q", j.Node)
		}
		if j.Node != "" && j.Ended {
			errs.Add(at("node"), "must be \"\" for a job that has ended, got %q", j.Node)
		}
		bound("served_s", j.ServedS, 0, MaxS)
		bound("fair_s", j.FairS, 0, MaxS)
		if j.RemainingS != nil {
			bound("remaining_s", *j.RemainingS, 0, MaxS)
		}
		bound("cost_s", j.CostS, 0, MaxS)
		bound("priority", float64(j.Priority), -optin.MaxPriority, optin.MaxPriority)
		bound("top_s", j.TopS, 0, math.MaxFloat64)
		if l := listOf(j.Feasible); !checked[l] {
			checked[l] = true
			for k, id := range j.Feasible {
				if !is[id] {
					errs.Add(fields.Index(at("feasible"), k), "must be the id of one of nodes, got %q", id)
				}
			}
		}
	}
	p := in.Params
	errs.Bound("params.probe_s", p.ProbeS, 0, MaxS)
	errs.Bound("params.cost_s", p.CostS, 0, MaxS)
	errs.Bound("params.margin", p.Margin, 0, 100)
	errs.Bound("params.lost", p.Lost, 0.001, 1)
	return errs.Err()
}

// left is what a job still needs, in seconds. One of unknown size is served a quantum at a time, the
// first of Params.ProbeS, and each as long as all before it, as in Tiresias.
func (p *Params) left(j *Job) float64 {
	if j.RemainingS != nil {
		return *j.RemainingS
	}
	end := max(p.ProbeS, 1)
	for end <= j.ServedS {
		end *= 2
	}
	return end - j.ServedS
}

// twinLeft is what its twin still needs for as much.
func (p *Params) twinLeft(j *Job) float64 {
	size := j.ServedS
	if !j.Ended {
		size += p.left(j)
	}
	if left := size - j.FairS; left > size*1e-9 {
		return left
	}
	return 0
}

func (p *Params) cost(j *Job) float64 {
	if j.CostS > 0 {
		return j.CostS
	}
	return p.CostS
}

// Example returns a valid input: a short job comes while a long one has the only GPU.
func Example() Input {
	long, short := 7200.0, 600.0
	return Input{
		NowS:   3600,
		Nodes:  []Node{{ID: "node-a", Capacity: Resources{"gpu": 1}}},
		Owners: []Owner{{Name: "vision", Weight: 2}},
		Jobs: []Job{
			{ID: "resnet", Owner: "vision", Needs: Resources{"gpu": 1}, Node: "node-a", ServedS: 3600, FairS: 3600, RemainingS: &long, Suspendable: true},
			{ID: "probe", Owner: "speech", Needs: Resources{"gpu": 1}, SubmittedS: 3600, RemainingS: &short},
		},
		Params: DefaultParams(),
	}
}
