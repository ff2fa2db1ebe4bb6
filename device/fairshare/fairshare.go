// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package fairshare divides a card's memory among its containers by Adaptive Fair-Share (Chen
// et al., Cluster Computing 2019, §3.5.1, Algorithm 1):
//
//	Grouping     jobs with the same properties are a group: Window
//	CalculDists  Set_i = C_0·g_i/Σg + Σ_k C_k·prop_i^k/Σprop^k   (equation 1): Decide
//	Assign…      each container gets its part of the card: Decide
//	Adaptive…    the coefficients follow measurements: Adapt
//
// The functions are pure, and give the same bytes for the same input. Choices that the paper leaves
// open are documented at the rule.
package fairshare

import (
	"cmp"
	"slices"
	"strings"
)

// The rules of a GroupShare.
const (
	// RuleCount: only the number of the group's jobs counts, C_0 = 1.
	RuleCount = "fairshare.eq1.count"
	// RuleEqual: all properties of the group have the same weight.
	RuleEqual = "fairshare.eq1.equal"
	// RuleGiven: the coefficients are those of the input.
	RuleGiven = "fairshare.eq1.given"
	// RuleStatic: 1/n of the card for each of n groups.
	RuleStatic = "fairshare.static"
	// RuleWholeCard: all for the group whose container has the card.
	RuleWholeCard = "fairshare.whole-card"
)

// The rules of a Share, in Adaptive and Static mode.
const (
	// RuleWeight: the share follows from the weight.
	RuleWeight = "fairshare.weight"
	// RuleCap: all that its cap allows.
	RuleCap = "fairshare.cap"
	// RuleFloor: its weight would give it less than the floor.
	RuleFloor = "fairshare.floor"
	// RuleFloorShort: less than the floor, because of others' usage or minima.
	RuleFloorShort = "fairshare.floor.short"
	// RuleMinimum: its weight would give it less than its minimum.
	RuleMinimum = "fairshare.minimum"
	// RuleMinimumShort: less than its minimum: the minima do not fit together.
	RuleMinimumShort = "fairshare.minimum.short"
	// RuleInUse: it keeps what it holds, which exceeds its part.
	RuleInUse = "fairshare.in-use"
	// RuleOver: all keep what they hold, which exceeds the budget.
	RuleOver = "fairshare.over"
	// RuleStaticPart: an equal part of its group's 1/n (Static).
	RuleStaticPart = "fairshare.static.part"
	// RuleStaticCut: less than its part or its cap, because not all fit (Static).
	RuleStaticCut = "fairshare.static.cut"
	// RuleWholeCardWait: another container has the card (WholeCard).
	RuleWholeCardWait = "fairshare.whole-card.wait"
)

// Output is the result of Decide.
type Output struct {
	// Groups are in the input's order.
	Groups []GroupShare `json:"groups"`
	// Containers are in the input's order.
	Containers []Share `json:"containers"`
	// BudgetMiB is the memory less the reserve.
	BudgetMiB int `json:"budget_mib"`
	// GivenMiB is the sum of the shares.
	GivenMiB int `json:"given_mib"`
	// OverMiB is by how much usage exceeds the budget; 0 if it does not.
	OverMiB int `json:"over_mib"`
}

// GroupShare is the result for a group.
type GroupShare struct {
	ID string `json:"id"`
	// Terms are those of equation 1, the count first.
	Terms []Term `json:"terms"`
	// Set is Set_i, the sum of the terms. Σ Set is not 1.
	Set float64 `json:"set"`
	// Share is Set_i/Σ Set, a fraction.
	Share float64 `json:"share"`
	// MemoryMiB is the sum of the containers' shares; without containers in the input, the
	// group's part of the budget.
	MemoryMiB int    `json:"memory_mib"`
	Rule      string `json:"rule"`
	Why       string `json:"why"`
}

// Term is one term of equation 1: Coefficient · Number/Sum.
type Term struct {
	// Property is its name, or Count.
	Property string `json:"property"`
	// Coefficient is C, in [0, 1]; those of a group sum to 1.
	Coefficient float64 `json:"coefficient"`
	// Number is the group's number of jobs, or the rank of its value.
	Number int `json:"number"`
	// Sum is the number of jobs in the window, or the sum of the ranks over the distinct values.
	Sum int `json:"sum"`
}

// part is what the group would get if only this property counted.
func (t Term) part() float64 { return float64(t.Number) / float64(t.Sum) }

// Share is the result for a container.
type Share struct {
	ID string `json:"id"`
	// ShareMiB is what it may hold, ≥ what it holds now.
	ShareMiB int    `json:"share_mib"`
	Rule     string `json:"rule"`
	Why      string `json:"why"`
}

// card holds the data of a decision. Groups and containers are sorted by ID, so that the result
// does not depend on the input's order.
type card struct {
	in         Input
	groups     []Group
	containers []Container
	budget     int                   // MiB
	sets       map[string]GroupShare // by group
	here       map[string]int        // containers on the card, by group
	holder     string                // the container that has the card (WholeCard)
	claims     []claim               // by container
	shares     []int                 // MiB, by container
	reached    int                   // the first level that could not be given to all; wanted if there is none
}

// Decide divides the card of a valid input. It does not change the input.
//
// Groups. Set_i is that of equation 1, with ranks summed over the distinct values of a property, as
// in figure 11, not over groups, as printed. The Set_i are normalised over the window.
//
// Containers. Equation 1 gives a group's part; the weight of each of its containers is
//
//	weight = Set_i / (containers of the group on the card) · priority / 50
//
// so with equal priorities groups divide as in equation 1. A group without containers on the card
// takes no memory from the others.
//
// Bounds, by precedence: no share is below current usage; as far as all fit, each gets its minimum;
// then the floor, Params.Floor of an equal share. A cap bounds the last two and anything beyond;
// what one container does not want goes to the others (weighted max-min fairness).
//
// Static. As in the paper, a group has 1/n of the card, n being the number of groups, and its
// containers equal parts of that; one with a cap gets its cap instead. Nothing is redistributed.
// If caps and minima exceed the budget, all are cut to one level.
//
// WholeCard. One container has the card: the one that holds memory; of several, or if none does, the
// one with the highest priority, then the earliest, then by ID. None is evicted.
func Decide(in Input) Output {
	c := newCard(in)
	c.computeSets()
	c.computeClaims()
	c.shares, c.reached = divide(c.budget, c.claims)
	return c.output()
}

func newCard(in Input) *card {
	c := &card{
		in: in, groups: slices.Clone(in.Groups), containers: slices.Clone(in.Containers),
		budget: in.MemoryMiB - in.ReserveMiB,
		sets:   make(map[string]GroupShare, len(in.Groups)),
		here:   make(map[string]int, len(in.Groups)),
	}
	slices.SortFunc(c.groups, func(a, b Group) int { return strings.Compare(a.ID, b.ID) })
	slices.SortFunc(c.containers, func(a, b Container) int { return strings.Compare(a.ID, b.ID) })
	for _, x := range c.containers {
		c.here[x.Group]++
	}
	if in.Mode == WholeCard && len(c.containers) > 0 {
		c.holder = slices.MinFunc(c.containers, first).ID
	}
	return c
}

func first(a, b Container) int {
	if (a.InUseMiB > 0) != (b.InUseMiB > 0) {
		return cmp.Compare(min(b.InUseMiB, 1), min(a.InUseMiB, 1))
	}
	return cmp.Or(
		cmp.Compare(b.priority(), a.priority()),
		cmp.Compare(a.ArrivedS, b.ArrivedS),
		strings.Compare(a.ID, b.ID),
	)
}

func (c *card) computeSets() {
	terms := terms(c.groups, c.in.Coefficients)
	total := 0.0
	for i, g := range c.groups {
		s := GroupShare{ID: g.ID, Terms: terms[i], Set: set(terms[i])}
		switch c.in.Mode {
		case Static:
			s.Terms, s.Set, s.Rule = []Term{}, 1/float64(len(c.groups)), RuleStatic
		case WholeCard:
			s.Terms, s.Set, s.Rule = []Term{}, 0, RuleWholeCard
			if slices.ContainsFunc(c.containers, func(x Container) bool { return x.ID == c.holder && x.Group == g.ID }) {
				s.Set = 1
			}
		default:
			s.Rule = eq1Rule(g, c.in.Coefficients)
		}
		total += s.Set
		c.sets[g.ID] = s
	}
	for id, s := range c.sets {
		if total > 0 {
			s.Share = s.Set / total
		}
		c.sets[id] = s
	}
}

func terms(groups []Group, coefficients Coefficients) [][]Term {
	type value struct{ property, value string }
	sums, seen := make(map[string]int), make(map[value]bool)
	for _, g := range groups {
		sums[Count] += g.Jobs
		for name, p := range g.Properties {
			if v := (value{name, p.Value}); !seen[v] {
				seen[v] = true
				sums[name] += p.Rank
			}
		}
	}
	out := make([][]Term, len(groups))
	for i, g := range groups {
		of := coefficients.of(g)
		for _, name := range g.propertyNames() {
			t := Term{Property: name, Coefficient: of[name], Number: g.Jobs, Sum: sums[name]}
			if name != Count {
				t.Number = g.Properties[name].Rank
			}
			out[i] = append(out[i], t)
		}
	}
	return out
}

func set(terms []Term) (set float64) {
	for _, t := range terms {
		set += t.Coefficient * t.part()
	}
	return set
}

func eq1Rule(g Group, all Coefficients) string {
	c := g.Coefficients
	if c.none() {
		c = all
	}
	switch c.Scheme {
	case CountOnly:
		return RuleCount
	case Equal:
		return RuleEqual
	default:
		return RuleGiven
	}
}

func (c *card) computeClaims() {
	equal := 0
	if n := len(c.containers); n > 0 {
		equal = int(c.in.Params.Floor * float64(c.budget) / float64(n))
	}
	for _, x := range c.containers {
		want := c.wants(x)
		claim := claim{weight: 1, levels: [levels]int{held: x.InUseMiB, wanted: max(want, x.InUseMiB)}}
		claim.levels[minimum] = max(x.InUseMiB, min(x.MinimumMiB, want))
		claim.levels[floor] = max(claim.levels[minimum], min(equal, want))
		if c.in.Mode == Adaptive || c.in.Mode == "" {
			claim.weight = c.sets[x.Group].Share / float64(c.here[x.Group]) * float64(x.priority()) / DefaultPriority
		}
		c.claims = append(c.claims, claim)
	}
}

func (c *card) wants(x Container) int {
	switch {
	case c.in.Mode == WholeCard && x.ID != c.holder:
		return 0
	case c.in.Mode == WholeCard:
		return c.budget
	case x.CapMiB != nil:
		return min(*x.CapMiB, c.budget)
	case c.in.Mode == Static:
		return min(max(c.part(x), x.MinimumMiB), c.budget)
	default:
		return c.budget
	}
}

// part returns a container's equal part of its group's part, in MiB (Static).
func (c *card) part(x Container) int { return c.budget / (len(c.groups) * c.here[x.Group]) }

func (c *card) output() Output {
	out := Output{
		Groups: make([]GroupShare, len(c.in.Groups)), Containers: make([]Share, len(c.in.Containers)),
		BudgetMiB: c.budget,
	}
	byID, memory := make(map[string]Share, len(c.containers)), c.groupMemory()
	for i, x := range c.containers {
		rule := c.rule(i)
		byID[x.ID] = Share{ID: x.ID, ShareMiB: c.shares[i], Rule: rule, Why: c.why(i, rule)}
		memory[x.Group] += c.shares[i]
		out.GivenMiB += c.shares[i]
	}
	if c.reached == held {
		out.OverMiB = out.GivenMiB - c.budget
	}
	for i, x := range c.in.Containers {
		out.Containers[i] = byID[x.ID]
	}
	for i, g := range c.in.Groups {
		s := c.sets[g.ID]
		s.MemoryMiB = memory[g.ID]
		s.Why = c.whyGroup(s)
		out.Groups[i] = s
	}
	return out
}

func (c *card) groupMemory() map[string]int {
	memory := make(map[string]int, len(c.groups))
	if len(c.containers) > 0 || c.in.Mode == WholeCard {
		return memory
	}
	var claims []claim
	for _, g := range c.groups {
		claims = append(claims, claim{weight: c.sets[g.ID].Share, levels: [levels]int{wanted: c.budget}})
	}
	shares, _ := divide(c.budget, claims)
	for i, g := range c.groups {
		memory[g.ID] = shares[i]
	}
	return memory
}

func (c *card) rule(i int) string {
	x, claim, share := c.containers[i], c.claims[i], c.shares[i]
	switch {
	case c.reached == held:
		return RuleOver
	case c.in.Mode == WholeCard && x.ID == c.holder:
		return RuleWholeCard
	case c.in.Mode == WholeCard && share == 0:
		return RuleWholeCardWait
	case c.reached == minimum && share < claim.levels[minimum]:
		return RuleMinimumShort
	case c.reached == floor && share < claim.levels[floor]:
		return RuleFloorShort
	case x.CapMiB != nil && share == *x.CapMiB:
		return RuleCap
	case share > claim.levels[floor] && c.in.Mode != Static:
		return RuleWeight
	case share > claim.levels[floor] && share < claim.levels[wanted]:
		return RuleStaticCut
	case share > claim.levels[floor]:
		return RuleStaticPart
	// The first bound that holds the share up.
	case share == x.InUseMiB && share > 0:
		return RuleInUse
	case share == claim.levels[minimum] && share > 0:
		return RuleMinimum
	case share == claim.levels[floor] && claim.levels[floor] < claim.levels[wanted]:
		return RuleFloor
	case c.in.Mode == Static:
		return RuleStaticPart
	default:
		return RuleWeight
	}
}
