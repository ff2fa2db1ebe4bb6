// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package migration chooses a converged task's node by SpeCon's Algorithm 2. Each node has the
// score
//
//	S = |PC|·w_PC + |WC|·w_WC + |CC|·w_CC
//
// The task stays if its node has the lowest score; else it moves to a node that has it, the least
// used one if there are several.
package migration

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

const (
	// RuleStay: no node's score is lower than the own node's.
	RuleStay = "specon.alg2.stay"
	// RuleLeast: a single node has the lowest score.
	RuleLeast = "specon.alg2.least"
	// RuleUse: of several with the lowest score, one is least used.
	RuleUse = "specon.alg2.use"
)

// Output is the decision. The task counts as migrated in either case: it is decided once (Algorithm
// 2, lines 9, 15 and 20).
type Output struct {
	Move bool `json:"move"`
	// To is the task's future node; its own if it stays.
	To string `json:"to"`
	// Scores are S by node ID; lower is better.
	Scores map[string]float64 `json:"scores"`
	// Rule is stable.
	Rule string `json:"rule"`
	Why  string `json:"why"`
}

// Decide runs Algorithm 2 on a valid input, which it does not change. The task counts on its own
// node, as published. Ties of use are resolved by node ID, so decisions are reproducible.
func Decide(in Input) Output {
	out := Output{To: in.From, Scores: make(map[string]float64, len(in.Nodes))}
	least := math.Inf(1)
	for _, n := range in.Nodes {
		s := n.Counts.Score(in.Params.Weights)
		out.Scores[n.ID] = s
		least = math.Min(least, s)
	}
	own := out.Scores[in.From]
	var targets []Node
	for _, n := range in.Nodes {
		if same(out.Scores[n.ID], least) {
			targets = append(targets, n)
		}
	}
	if same(own, least) {
		out.Rule = RuleStay
		out.Why = fmt.Sprintf("%s has the lowest score of %d, %.4g: %s stays", in.From, len(in.Nodes), own, in.Task)
		return out
	}
	best := slices.MinFunc(targets, func(a, b Node) int {
		return cmp.Or(cmp.Compare(a.Use, b.Use), strings.Compare(a.ID, b.ID))
	})
	out.Move, out.To, out.Rule = true, best.ID, RuleLeast
	out.Why = fmt.Sprintf("%s has the lowest score of %d, %.4g; %s has %.4g", best.ID, len(in.Nodes), least, in.From, own)
	if len(targets) > 1 {
		out.Rule = RuleUse
		out.Why = fmt.Sprintf("%d nodes have the lowest score, %.4g, and of them %s is used least, %.4g; %s has %.4g", len(targets), least, best.ID, best.Use, in.From, own)
	}
	return out
}

func (c Counts) Score(w Weights) float64 {
	return float64(c.PC)*w.PC + float64(c.WC)*w.WC + float64(c.CC)*w.CC
}

// same reports whether a and b are equal except for rounding errors.
func same(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Max(math.Abs(a), math.Abs(b)) }
