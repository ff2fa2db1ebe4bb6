// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package relocate moves tasks that would end much sooner on another node. FlowCon's
// Algorithm 4 (package placement) asks where a task can learn fastest, SpeCon (packages
// migration, rebalance) how many tasks of which kind a node has; neither knows how long
// they still take, and both have left jobs behind that took several times as long.
package relocate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// The rules that an Output can name.
const (
	// RuleSooner: the task ends sooner on the other node.
	RuleSooner = "relocate.sooner"
	// RuleStay: no task does, by enough.
	RuleStay = "relocate.stay"
)

// Output is what Decide decides.
type Output struct {
	// Task is the one to move; "" if none is.
	Task string `json:"task"`
	From string `json:"from"`
	To   string `json:"to"`
	// SavedS is by how much sooner it ends, in seconds.
	SavedS float64 `json:"saved_s"`
	Rule   string  `json:"rule"`
	Why    string  `json:"why"`
}

// typical is what a task of unknown size counts with: the mean of those that are known, or
// 1, so that with nothing known the tasks are counted.
func typical(nodes []Node) float64 {
	sum, n := 0.0, 0
	for _, node := range nodes {
		sum, n = sum+node.LeftCPUS, n+node.Known
	}
	if n == 0 || sum == 0 {
		return 1
	}
	return sum / float64(n)
}

// Seconds returns how long each node has to do, with all its cores.
func Seconds(nodes []Node) []float64 {
	out := make([]float64, len(nodes))
	each := typical(nodes)
	for i, n := range nodes {
		out[i] = (n.LeftCPUS + float64(n.Unknown)*each) / n.PoolCores
	}
	return out
}

// Decide looks on a valid input for the one task whose move saves most. On the target it
// is reckoned to end last, after all that is left there; and the target has less than half
// as much to do for its cores as the node that the task leaves, so that no two nodes pass
// a task to and fro.
//
// A move must save Margin of what the task still takes, and twice what it costs: an
// estimate may be wrong. A task that ends soon cannot.
func Decide(in Input) Output {
	work := Seconds(in.Nodes)
	at := make(map[string]int, len(in.Nodes))
	for i, n := range in.Nodes {
		at[n.ID] = i
	}
	out := Output{Rule: RuleStay, Why: "no task would end sooner on another node by enough"}
	for _, t := range in.Tasks {
		i := at[t.Node]
		stays := work[i]
		if t.InS != nil {
			stays = *t.InS
		}
		for _, k := range targets(t, at) {
			to := in.Nodes[k]
			if k == i || work[k] >= work[i]/2 {
				continue
			}
			most := to.PoolCores
			if t.CapCores > 0 {
				most = min(most, t.CapCores)
			}
			cost := cmp.Or(t.CostS, in.Params.CostS)
			goes := cost + max(t.LeftCPUS/most, work[k]+t.LeftCPUS/to.PoolCores)
			saved := stays - goes
			if saved < max(in.Params.Margin*stays, 2*cost) || saved <= out.SavedS {
				continue
			}
			out = Output{Task: t.ID, From: t.Node, To: to.ID, SavedS: saved, Rule: RuleSooner,
				Why: fmt.Sprintf("%s would end in %.0f s on %s, and in %.0f s on %s, the move included", t.ID, stays, t.Node, goes, to.ID)}
		}
	}
	return out
}

// targets are the nodes that could take a task, in order.
func targets(t Task, at map[string]int) []int {
	all := slices.Collect(maps.Values(at))
	if t.To != nil {
		all = all[:0]
		for _, id := range t.To {
			if k, ok := at[id]; ok {
				all = append(all, k)
			}
		}
	}
	slices.Sort(all)
	return all
}

// Pays says why the move of a task does not pay, whoever wants it; "" if it does, or if it is
// not known when the task ends where it is. It must end sooner on the target, the move
// included, so one that ends soon does not move. There it ends at the latest when all tasks
// have had equal parts of the cores, and, if it is known what they have left, when all is done.
func Pays(t Task, to Node, costS float64) (why string) {
	if t.InS == nil || to.PoolCores <= 0 {
		return ""
	}
	most := to.PoolCores
	if t.CapCores > 0 {
		most = min(most, t.CapCores)
	}
	takes := t.LeftCPUS / min(most, to.PoolCores/float64(to.Known+to.Unknown+1))
	if to.Unknown == 0 {
		takes = min(takes, max(t.LeftCPUS/most, (t.LeftCPUS+to.LeftCPUS)/to.PoolCores))
	}
	if costS+takes < *t.InS {
		return ""
	}
	return fmt.Sprintf("it does not pay: it would end in %.0f s where it is, and in %.0f s there, %.0f s of it for the move", *t.InS, costS+takes, costS)
}
