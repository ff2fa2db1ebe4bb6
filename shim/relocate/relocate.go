// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package relocate moves tasks that would finish much sooner on another node. FlowCon's Algorithm 4
// (package placement) considers growth, SpeCon (migration, rebalance) task counts; neither
// considers remaining work, so both can leave jobs on nodes where they take several times as long.
package relocate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

const (
	// RuleSooner: the task finishes sooner on the other node.
	RuleSooner = "relocate.sooner"
	// RuleStay: no move saves enough.
	RuleStay = "relocate.stay"
)

type Output struct {
	// Task is the task to move, "" if none.
	Task string `json:"task"`
	From string `json:"from"`
	To   string `json:"to"`
	// SavedS is the time gained, in seconds.
	SavedS float64 `json:"saved_s"`
	Rule   string  `json:"rule"`
	Why    string  `json:"why"`
}

// typical returns the size assumed for tasks of unknown size: the mean of known ones, or 1, so
// without estimates tasks are counted.
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

// Seconds returns each node's remaining work divided by its cores, in seconds.
func Seconds(nodes []Node) []float64 {
	out := make([]float64, len(nodes))
	each := typical(nodes)
	for i, n := range nodes {
		out[i] = (n.LeftCPUS + float64(n.Unknown)*each) / n.PoolCores
	}
	return out
}

// Decide returns the move that saves most for a valid input. On the target the task is assumed to
// finish after all other work. The target must have less than half the source's work per core, so
// that two nodes do not pass a task back and forth.
//
// A move must save Margin of the remaining time, and twice its cost, since estimates err.
func Decide(in Input) Output {
	work := Seconds(in.Nodes)
	at := make(map[string]int, len(in.Nodes))
	for i, n := range in.Nodes {
		at[n.ID] = i
	}
	out := Output{Rule: RuleStay, Why: "no task would finish sufficiently sooner on another node"}
	for _, t := range in.Tasks {
		i := at[t.Node]
		stays := work[i]
		if t.InS != nil {
			stays = *t.InS
		}
		for _, k := range targets(t, at) {
			to := in.Nodes[k]
			if k == i || !(work[k] < work[i]/2) { // also if one is NaN
				continue
			}
			most := to.PoolCores
			if t.CapCores > 0 {
				most = min(most, t.CapCores)
			}
			cost := cmp.Or(t.CostS, in.Params.CostS)
			goes := cost + max(t.LeftCPUS/most, work[k]+t.LeftCPUS/to.PoolCores)
			saved := stays - goes
			if !(saved > out.SavedS && saved >= max(in.Params.Margin*stays, 2*cost)) {
				continue
			}
			out = Output{Task: t.ID, From: t.Node, To: to.ID, SavedS: saved, Rule: RuleSooner,
				Why: fmt.Sprintf("%s would finish in %.0f s on %s, or in %.0f s on %s including the move", t.ID, stays, t.Node, goes, to.ID)}
		}
	}
	return out
}

// targets returns the indexes of the nodes that could take the task, sorted.
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

// Pays returns why moving the task does not pay, "" if it does or if its finish is unknown. It must
// finish sooner on the target, including the move. Its latest finish there is with an equal share
// of the cores; if the target's work is known, also when all of that is done.
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
	return fmt.Sprintf("it would finish in %.0f s on its node, but in %.0f s on the target, including %.0f s for the move", *t.InS, costS+takes, costS)
}
