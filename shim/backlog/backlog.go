// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package backlog places tasks by what is left to do. FlowCon's Algorithm 4 (package
// placement) asks where a task can learn fastest, SpeCon (packages migration, rebalance)
// how many tasks of which kind a node has; neither knows how long they still take, and both
// have left jobs behind that took several times as long. Here
//
//	a task that comes goes to the node with the least work left for its cores (Place);
//	a task that would end much sooner elsewhere, with what a move costs, moves (Move).
//
// Both are pure.
package backlog

import (
	"cmp"
	"fmt"
	"math"
	"strings"
)

// The rules that a Placement or Relocation can name.
const (
	// RuleLeast: the node has the least work left for its cores.
	RuleLeast = "backlog.least"
	// RuleNone: no node is feasible.
	RuleNone = "backlog.none"
	// RuleSooner: the task ends sooner on the other node.
	RuleSooner = "backlog.sooner"
	// RuleStay: no task does, by enough.
	RuleStay = "backlog.stay"
)

// Node is a node with its tasks.
type Node struct {
	ID        string
	PoolCores float64 // > 0
	Tasks     []Task
}

// Task is a training task on a node.
type Task struct {
	ID string
	// LeftCPUS is what it will still use until it ends, in CPU-seconds; nil if not known.
	LeftCPUS *float64
	// InS is in how many seconds it is expected to end; nil if not known.
	InS *float64
	// CapCores is the most that it can use; 0 stands for the pool.
	CapCores float64
	// Movable says that it may be moved now.
	Movable bool
}

// Placement is what Place decides.
type Placement struct {
	Node string `json:"node"` // "" if none is feasible
	Rule string `json:"rule"`
	Why  string `json:"why"`
}

// sums is a node's work.
type sums struct {
	left    float64 // CPU-seconds
	unknown int     // tasks
}

func (n Node) sums() sums {
	var s sums
	for _, t := range n.Tasks {
		if t.LeftCPUS == nil {
			s.unknown++
		} else {
			s.left += *t.LeftCPUS
		}
	}
	return s
}

// typical is what a task of unknown size counts with: the mean of those that are known, or
// 1, so that with nothing known the tasks are counted.
func typical(nodes []Node) float64 {
	sum, n := 0.0, 0
	for _, node := range nodes {
		for _, t := range node.Tasks {
			if t.LeftCPUS != nil {
				sum, n = sum+*t.LeftCPUS, n+1
			}
		}
	}
	if n == 0 || sum == 0 {
		return 1
	}
	return sum / float64(n)
}

// seconds is how long a node has to do.
func (n Node) seconds(typical float64) float64 {
	s := n.sums()
	return (s.left + float64(s.unknown)*typical) / n.PoolCores
}

// Place chooses the node for a task that comes, of those that Nomad would place it on: the
// one with the least to do for its cores. Ties go to the one where its twin would end
// first, which is where its fair share is the largest, then by ID.
func Place(feasible []Node) Placement {
	if len(feasible) == 0 {
		return Placement{Rule: RuleNone, Why: "no node is feasible: Nomad's placement stands"}
	}
	one := typical(feasible)
	best, least := 0, math.Inf(1)
	for i, n := range feasible {
		s := n.seconds(one)
		crowd := func(n Node) float64 { return float64(len(n.Tasks)+1) / n.PoolCores }
		b := feasible[best]
		if d := s - least; d < -rounding*least || math.Abs(d) <= rounding*least &&
			cmp.Or(cmp.Compare(crowd(n), crowd(b)), strings.Compare(n.ID, b.ID)) < 0 || math.IsInf(least, 1) {
			best, least = i, s
		}
	}
	n := feasible[best]
	return Placement{Node: n.ID, Rule: RuleLeast, Why: fmt.Sprintf("%s has the least to do of %d nodes: %.4g s for its %.4g cores and %d tasks", n.ID, len(feasible), least, n.PoolCores, len(n.Tasks))}
}

// rounding is the relative difference that is none.
const rounding = 1e-9

// Params are the operator's settings.
type Params struct {
	// CostS is how long a move keeps a task from running, in seconds: saving, starting anew
	// and the work that is lost.
	CostS float64
	// Margin is the part of what a task still takes that a move must save.
	Margin float64
}

// DefaultParams returns SpeCon's 5 s for a move, and a margin of a fifth.
func DefaultParams() Params { return Params{CostS: 5, Margin: 0.2} }

// Relocation is what Move decides.
type Relocation struct {
	Task   string  `json:"task"` // "" if none is to move
	From   string  `json:"from"`
	To     string  `json:"to"`
	SavedS float64 `json:"saved_s"`
	Rule   string  `json:"rule"`
	Why    string  `json:"why"`
}

// Move looks for the one task whose move saves most. On the target it is reckoned to end
// last, after all that is left there; and the target has less than half as much to do for
// its cores as the node that the task leaves, so that no two nodes pass a task to and fro.
// One of which it is not known how much it has left stays.
//
// A move must save Margin of what the task still takes, and twice what it costs: an
// estimate may be wrong.
func Move(nodes []Node, feasible func(task, node string) bool, p Params) Relocation {
	one := typical(nodes)
	work := make([]float64, len(nodes))
	for i, n := range nodes {
		work[i] = n.seconds(one)
	}
	out := Relocation{Rule: RuleStay, Why: "no task would end sooner on another node by enough"}
	for i, from := range nodes {
		for _, t := range from.Tasks {
			if !t.Movable || t.LeftCPUS == nil {
				continue
			}
			stays := work[i]
			if t.InS != nil {
				stays = *t.InS
			}
			for k, to := range nodes {
				if k == i || work[k] >= work[i]/2 {
					continue
				}
				most := to.PoolCores
				if t.CapCores > 0 {
					most = min(most, t.CapCores)
				}
				goes := p.CostS + max(*t.LeftCPUS/most, work[k]+*t.LeftCPUS/to.PoolCores)
				saved := stays - goes
				if saved < max(p.Margin*stays, 2*p.CostS) || saved <= out.SavedS || !feasible(t.ID, to.ID) {
					continue
				}
				out = Relocation{Task: t.ID, From: from.ID, To: to.ID, SavedS: saved, Rule: RuleSooner,
					Why: fmt.Sprintf("%s would end in %.0f s on %s, and in %.0f s on %s, the move included", t.ID, stays, from.ID, goes, to.ID)}
			}
		}
	}
	return out
}
