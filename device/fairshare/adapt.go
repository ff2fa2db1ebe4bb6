// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fairshare

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// The rules of a Move.
const (
	// RuleProfiling: not enough profiles yet, C_0 = 1 is kept.
	RuleProfiling = "fairshare.adapt.profiling"
	// RuleEnough: there are enough profiles now, all coefficients start at 1/m.
	RuleEnough = "fairshare.adapt.equal"
	// RuleUnmeasured: the group was not measured, its coefficients are kept.
	RuleUnmeasured = "fairshare.adapt.unmeasured"
	// RuleKeep: the group had what it needed.
	RuleKeep = "fairshare.adapt.keep"
	// RuleShort: it had too little, so a property that gives it more gains weight.
	RuleShort = "fairshare.adapt.short"
	// RuleSurplus: it had too much while others were short, so a property that gives it less
	// gains weight.
	RuleSurplus = "fairshare.adapt.surplus"
	// RuleUnexplained: it had too little or too much, but no property would change that.
	RuleUnexplained = "fairshare.adapt.unexplained"
)

// AdaptOutput is the result of Adapt.
type AdaptOutput struct {
	// Coefficients are for groups without own ones, in the next Input.
	Coefficients Coefficients `json:"coefficients"`
	// Groups are in the input's order.
	Groups []Move `json:"groups"`
}

// Move is the change of one group's coefficients.
type Move struct {
	ID string `json:"id"`
	// Coefficients are the group's own in the next Input; left out if it has none.
	Coefficients Coefficients `json:"coefficients,omitzero"`
	// Shortfall is what was missing, as a fraction of what the group had; −0.5 if it needed half.
	Shortfall float64 `json:"shortfall"`
	// Property is the one whose coefficient grew; "" if none did.
	Property string `json:"property"`
	// Step is how far the coefficients moved towards that property, in [0, Params.Step].
	Step float64 `json:"step"`
	Rule string  `json:"rule"`
	Why  string  `json:"why"`
}

// rounding is the relative error that comparisons tolerate.
const rounding = 1e-9

// Adapt moves the coefficients after a window. The paper (§3.5.1) names AdaptiveUpdate without
// defining it; this rule is ours.
//
// Profiles. Until Params.Profiles jobs have been measured, the scheme is count-only; then equal, for
// all groups at once.
//
// Shortfall. A group is short if requests were denied, or if its jobs exceeded their baseline by
// more than Params.Slow while it used up its grant. Its shortfall is the larger of the denied
// requests per job and the slowdown, as a fraction, at most 1. A group that is not short and used
// less than Params.Full of its grant had too much; it needs peak/Full, and never less than its
// measured minimum. That counts only while another group is short: otherwise the coefficients
// would drift on a card that is not full.
//
// Property. The group should have had T = Set_i · (1 + shortfall). Each of its properties alone
// would have given it its part, g_i/Σg or prop_i^k/Σprop^k. The property that best explains the
// shortfall is the one with its part nearest to T, among those on the same side of Set_i as T; of
// equals, the count first, then by name. If there is none the coefficients are kept.
//
// Step. All coefficients of the group move the same fraction s of the way to that property: C ←
// (1 − s)·C, and s is added to the one. So they sum to 1, none is negative, and Set_i moves by
// s·(part − Set_i). s is Params.Step, or less, so as not to overshoot T.
func Adapt(in AdaptInput) AdaptOutput {
	out := AdaptOutput{Coefficients: clone(in.Coefficients), Groups: make([]Move, len(in.Groups))}
	enough := in.Profiles >= in.Params.Profiles
	if enough && in.Coefficients.Scheme == CountOnly {
		out.Coefficients.Scheme = Equal
	}
	measured := make(map[string]Measured, len(in.Measured))
	lacking := false
	for _, m := range in.Measured {
		measured[m.Group] = m
	}
	for _, g := range in.Groups {
		lacking = lacking || in.Params.short(measured[g.ID], g.Jobs) > 0
	}
	terms := terms(in.Groups, in.Coefficients)
	for i, g := range in.Groups {
		out.Groups[i] = in.Params.move(g, terms[i], measured, lacking)
		mine := &out.Groups[i]
		mine.ID = g.ID
		if mine.Coefficients.none() {
			mine.Coefficients = clone(g.Coefficients)
		}
		if !countOnly(g, in.Coefficients) {
			continue
		}
		mine.Coefficients, mine.Property, mine.Step = clone(g.Coefficients), "", 0
		mine.Rule, mine.Why = RuleProfiling, fmt.Sprintf("%d of %d profiles: only the number of jobs counts", in.Profiles, in.Params.Profiles)
		if enough {
			mine.Rule, mine.Why = RuleEnough, fmt.Sprintf("%d profiles are enough: each of its %d properties has the same weight", in.Profiles, len(terms[i]))
			if !g.Coefficients.none() {
				mine.Coefficients.Scheme = Equal
			}
		}
	}
	return out
}

func countOnly(g Group, all Coefficients) bool {
	return g.Coefficients.Scheme == CountOnly || g.Coefficients.none() && all.Scheme == CountOnly
}

func clone(c Coefficients) Coefficients { return Coefficients{c.Scheme, maps.Clone(c.By)} }

// short returns how much more the group needed, as a fraction of what it had.
func (p AdaptParams) short(m Measured, jobs int) float64 {
	short := 0.0
	if slow := m.slow(); slow > p.Slow*(1+rounding) && float64(m.PeakMiB) >= p.Full*float64(m.GrantedMiB) {
		short = slow
	}
	return min(max(short, float64(m.Denied)/float64(jobs)), 1)
}

func (m Measured) slow() float64 {
	if m.DurationS == nil || m.BaselineS == nil {
		return 0
	}
	return math.Max(*m.DurationS / *m.BaselineS - 1, 0)
}

// spare returns how much less the group needed, as a fraction of what it had.
func (p AdaptParams) spare(m Measured) float64 {
	if m.GrantedMiB == 0 {
		return 0
	}
	needs := max(float64(m.PeakMiB)/p.Full, float64(m.MinimumMiB))
	return max(1-needs/float64(m.GrantedMiB), 0)
}

func (p AdaptParams) move(g Group, terms []Term, measured map[string]Measured, lacking bool) Move {
	m, known := measured[g.ID]
	if !known {
		return Move{Rule: RuleUnmeasured, Why: "nothing was measured: coefficients stay"}
	}
	mv := Move{Shortfall: p.short(m, g.Jobs), Rule: RuleShort}
	figures := p.describe(m)
	if mv.Shortfall == 0 {
		mv.Shortfall, mv.Rule = -p.spare(m), RuleSurplus
	}
	switch {
	case mv.Shortfall == 0:
		mv.Rule, mv.Why = RuleKeep, figures+": had what it needed, coefficients stay"
		return mv
	case mv.Rule == RuleSurplus && !lacking:
		mv.Rule, mv.Why = RuleKeep, figures+": had more than it needed, but no group was short, coefficients stay"
		return mv
	}
	is := set(terms)
	should := is * (1 + mv.Shortfall)
	to, found := explains(terms, is, should)
	if !found {
		mv.Rule = RuleUnexplained
		mv.Why = fmt.Sprintf("%s: none of its properties gives it %s than Set = %.4g, coefficients stay", figures, side(mv.Shortfall), is)
		return mv
	}
	mv.Property = to.Property
	mv.Step = min(p.Step, (should-is)/(to.part()-is))
	mv.Coefficients.By = make(map[string]float64, len(terms))
	for _, t := range terms {
		mv.Coefficients.By[t.Property] = (1 - mv.Step) * t.Coefficient
	}
	mv.Coefficients.By[to.Property] += mv.Step
	mv.Why = fmt.Sprintf("%s: Set = %.4g should have been %.4g, and %s (%d/%d) explains that best: coefficients go %.4g of the way to it, Set → %.4g",
		figures, is, should, to.Property, to.Number, to.Sum, mv.Step, is+mv.Step*(to.part()-is))
	return mv
}

func explains(terms []Term, is, should float64) (Term, bool) {
	side := slices.DeleteFunc(slices.Clone(terms), func(t Term) bool {
		if should > is {
			return t.part() <= is*(1+rounding)
		}
		return t.part() >= is*(1-rounding)
	})
	if len(side) == 0 {
		return Term{}, false
	}
	// MinFunc returns the first of equals: the count, else the first by name.
	return slices.MinFunc(side, func(a, b Term) int {
		return cmp.Compare(math.Abs(a.part()-should), math.Abs(b.part()-should))
	}), true
}

func side(shortfall float64) string {
	if shortfall > 0 {
		return "more"
	}
	return "less"
}

func (p AdaptParams) describe(m Measured) string {
	var s strings.Builder
	fmt.Fprintf(&s, "held up to %d of %d MiB", m.PeakMiB, m.GrantedMiB)
	if m.MinimumMiB > 0 {
		fmt.Fprintf(&s, ", needs %d MiB", m.MinimumMiB)
	}
	if m.DurationS != nil && m.BaselineS != nil {
		fmt.Fprintf(&s, ", took %.4g s for %.4g s", *m.DurationS, *m.BaselineS)
	}
	if m.Denied > 0 {
		fmt.Fprintf(&s, ", %d requests denied", m.Denied)
	}
	return s.String()
}
