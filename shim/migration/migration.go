// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package migration chooses the node to which a converged task moves, as SpeCon does
// (Algorithm 2): each node has the score
//
//	S = |PC|·w_PC + |WC|·w_WC + |CC|·w_CC
//
// and the task goes to a node with the least one; if its own node is among them, it
// stays. Of several, it goes to the one whose resources are used least.
package migration

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// The rules that an Output can name.
const (
	// RuleStay: no node has a lower score than the task's own.
	RuleStay = "specon.alg2.stay"
	// RuleLeast: one node has the least score.
	RuleLeast = "specon.alg2.least"
	// RuleUse: several nodes have the least score; one of them is used least.
	RuleUse = "specon.alg2.use"
)

// Output is what Decide decides. The task counts as migrated from now on, whether it
// moves or stays: it is asked once (Algorithm 2, lines 9, 15 and 20).
type Output struct {
	// Move says whether the task is to move.
	Move bool `json:"move"`
	// To is the ID of the node on which the task is to run; its own if it stays.
	To string `json:"to"`
	// Scores are the S of all nodes, by their ID: less is better.
	Scores map[string]float64 `json:"scores"`
	// Rule is the stable name of the rule that fired.
	Rule string `json:"rule"`
	// Why is a sentence for people that says how it came about.
	Why string `json:"why"`
}

// Decide runs Algorithm 2 on a valid input. It does not change the input. The task
// itself counts on its node, as published. A tie of use is broken by the node's ID, so
// that a decision can be repeated.
func Decide(in Input) Output {
	out := Output{To: in.From, Scores: make(map[string]float64, len(in.Nodes))}
	least := math.Inf(1)
	for _, n := range in.Nodes {
		s := n.Counts.Score(in.Params.Weights)
		out.Scores[n.ID] = s
		least = math.Min(least, s)
	}
	own := out.Scores[in.From]
	var targets []Node // T
	for _, n := range in.Nodes {
		if same(out.Scores[n.ID], least) {
			targets = append(targets, n)
		}
	}
	if same(own, least) {
		out.Rule = RuleStay
		out.Why = fmt.Sprintf("%s has the least score of %d, %.4g: %s stays", in.From, len(in.Nodes), own, in.Task)
		return out
	}
	best := slices.MinFunc(targets, func(a, b Node) int {
		return cmp.Or(cmp.Compare(a.Use, b.Use), strings.Compare(a.ID, b.ID))
	})
	out.Move, out.To, out.Rule = true, best.ID, RuleLeast
	out.Why = fmt.Sprintf("%s has the least score of %d, %.4g; %s has %.4g", best.ID, len(in.Nodes), least, in.From, own)
	if len(targets) > 1 {
		out.Rule = RuleUse
		out.Why = fmt.Sprintf("%d nodes have the least score, %.4g, and of them %s is used least, %.4g; %s has %.4g", len(targets), least, best.ID, best.Use, in.From, own)
	}
	return out
}

// Score is S of Algorithm 2.
func (c Counts) Score(w Weights) float64 {
	return float64(c.PC)*w.PC + float64(c.WC)*w.WC + float64(c.CC)*w.CC
}

// same says whether scores differ by no more than the last bits of their sums.
func same(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Max(math.Abs(a), math.Abs(b)) }
