// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fairshare

import (
	"fmt"
	"strings"
)

func (c *card) whyGroup(s GroupShare) string {
	here := fmt.Sprintf("%d on the card", c.here[s.ID])
	if len(c.containers) == 0 {
		here = "nothing on the card"
	}
	switch s.Rule {
	case RuleStatic:
		return fmt.Sprintf("static: each of %d groups has an equal part, regardless of need; %s: %d MiB", len(c.groups), here, s.MemoryMiB)
	case RuleWholeCard:
		if s.Set > 0 {
			return fmt.Sprintf("the whole card belongs to its container %s: %d MiB", c.holder, s.MemoryMiB)
		}
		return fmt.Sprintf("the card belongs to one container at a time, and to none of this group: %d MiB", s.MemoryMiB)
	}
	var products []string
	for _, t := range s.Terms {
		if t.Coefficient > 0 {
			products = append(products, fmt.Sprintf("%.4g·%d/%d (%s)", t.Coefficient, t.Number, t.Sum, t.Property))
		}
	}
	why := map[string]string{
		RuleCount: "not enough profiles yet, only the number of jobs counts",
		RuleEqual: fmt.Sprintf("each of its %d properties has the same weight", len(s.Terms)),
		RuleGiven: "by its coefficients",
	}[s.Rule]
	return fmt.Sprintf("%s: Set = %s = %.4g, of Σ Set %.4g; %s: %d MiB",
		why, strings.Join(products, " + "), s.Set, s.Set/s.Share, here, s.MemoryMiB)
}

func (c *card) why(i int, rule string) string {
	x, claim := c.containers[i], c.claims[i]
	var s strings.Builder
	switch rule {
	case RuleOver:
		s.WriteString("more is in use than the budget: all keep what they hold, and no share grows until some is freed")
	case RuleInUse:
		s.WriteString("keeps what it holds, which exceeds its part")
	case RuleMinimumShort:
		s.WriteString("the minima do not fit on the card together: by weight, up to the minimum")
	case RuleMinimum:
		s.WriteString("raised to its minimum")
	case RuleFloorShort:
		fmt.Fprintf(&s, "the usage and minima of others leave it less than the floor of %d MiB", claim.levels[floor])
	case RuleFloor:
		fmt.Fprintf(&s, "raised to the floor, %.4g of an equal part", c.in.Params.Floor)
	case RuleCap:
		s.WriteString("as much as it wants")
		if c.in.Mode != Static {
			s.WriteString("; others get the rest")
		}
	case RuleStaticPart:
		fmt.Fprintf(&s, "its equal part: 1/%d of the card for the group, 1/%d of that", len(c.groups), c.here[x.Group])
	case RuleWholeCard:
		s.WriteString("has the card alone")
	case RuleWholeCardWait:
		fmt.Fprintf(&s, "waits: %s has the card", c.holder)
	case RuleStaticCut:
		s.WriteString("cut: parts, caps and what is in use do not fit together")
	default:
		s.WriteString("by its weight")
	}
	total := 0.0
	for _, other := range c.claims {
		total += other.weight
	}
	fmt.Fprintf(&s, "; weight %.4g of %.4g, in use %d MiB", claim.weight, total, x.InUseMiB)
	if x.MinimumMiB > 0 {
		fmt.Fprintf(&s, ", needs %d MiB", x.MinimumMiB)
	}
	if x.CapMiB != nil {
		fmt.Fprintf(&s, ", wants %d MiB", *x.CapMiB)
	}
	return s.String()
}
