// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fairshare

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func groups() *rapid.Generator[[]Group] {
	return rapid.Custom(func(t *rapid.T) []Group {
		ranks := make(map[Property]int) // by value, whatever the property
		out := make([]Group, rapid.IntRange(1, 6).Draw(t, "groups"))
		for i := range out {
			g := Group{
				ID: fmt.Sprintf("g%d", i), Properties: map[string]Property{},
				Jobs: rapid.OneOf(rapid.IntRange(1, 20), rapid.SampledFrom([]int{1, maxNumber})).Draw(t, "jobs"),
			}
			for _, name := range []string{"application", "size", "user"} {
				if !rapid.Bool().Draw(t, "has "+name) {
					continue
				}
				value := name + rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, name)
				key := Property{Value: value}
				if ranks[key] == 0 {
					ranks[key] = rapid.SampledFrom([]int{1, 2, 3, 3, maxNumber}).Draw(t, "rank")
				}
				g.Properties[name] = Property{value, ranks[key]}
			}
			if rapid.Bool().Draw(t, "own") {
				g.Coefficients = coefficients(g.propertyNames()).Draw(t, "own coefficients")
			}
			out[i] = g
		}
		return out
	})
}

func coefficients(names []string) *rapid.Generator[Coefficients] {
	return rapid.Custom(func(t *rapid.T) Coefficients {
		if s := rapid.SampledFrom([]Scheme{CountOnly, Equal, ""}).Draw(t, "scheme"); s != "" {
			return Coefficients{Scheme: s}
		}
		c, sum := Coefficients{By: make(map[string]float64)}, 0.0
		for _, name := range names {
			c.By[name] = rapid.OneOf(rapid.SampledFrom([]float64{0, 1e-300, 1}), rapid.Float64Range(0, 1)).Draw(t, name)
			sum += c.By[name]
		}
		if sum == 0 {
			return Coefficients{Scheme: Equal}
		}
		for name := range c.By {
			c.By[name] /= sum
		}
		return c
	})
}

func shared(t *rapid.T, groups []Group) Coefficients {
	names := map[string]bool{}
	for _, g := range groups {
		for _, name := range g.propertyNames() {
			names[name] = true
		}
	}
	return coefficients(slices.Sorted(maps.Keys(names))).Draw(t, "coefficients")
}

func inputs(modes ...Mode) *rapid.Generator[Input] {
	return rapid.Custom(func(t *rapid.T) Input {
		in := Input{
			MemoryMiB: rapid.OneOf(rapid.IntRange(1, 50), rapid.IntRange(1, 200_000), rapid.Just(maxNumber)).Draw(t, "memory"),
			Mode:      rapid.SampledFrom(modes).Draw(t, "mode"),
			Groups:    groups().Draw(t, "groups"),
			Params:    Params{Floor: rapid.SampledFrom([]float64{0, 0.5, 0.9, 1}).Draw(t, "floor")},
		}
		in.ReserveMiB = rapid.SampledFrom([]int{0, 0, in.MemoryMiB / 10, in.MemoryMiB}).Draw(t, "reserve")
		in.Coefficients = shared(t, in.Groups)
		in.Containers = make([]Container, rapid.IntRange(0, 8).Draw(t, "containers"))
		budget := in.MemoryMiB - in.ReserveMiB
		size := rapid.OneOf(rapid.SampledFrom([]int{0, 0, budget / 4, budget, 2 * (budget / 2)}), rapid.IntRange(0, budget))
		for i := range in.Containers {
			c := Container{
				ID:         fmt.Sprintf("c%d", i),
				Group:      rapid.SampledFrom(in.Groups).Draw(t, "group").ID,
				MinimumMiB: size.Draw(t, "minimum"),
				Priority:   rapid.OneOf(rapid.SampledFrom([]int{0, 1, 50, 100}), rapid.IntRange(0, 100)).Draw(t, "priority"),
				InUseMiB:   size.Draw(t, "in use") / rapid.SampledFrom([]int{1, 10}).Draw(t, "part of it"),
				ArrivedS:   rapid.SampledFrom([]float64{0, 0, 1, -1.5}).Draw(t, "arrived"),
			}
			if rapid.Bool().Draw(t, "caps") {
				c = c.cap(size.Draw(t, "cap"))
			}
			in.Containers[i] = c
		}
		must.NoError(t, in.Validate())
		return in
	})
}

func bytesOf(t must.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v) // every number must fit into JSON
	must.NoError(t, err)
	return string(data)
}

func TestDecide_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(Adaptive, Static, WholeCard, "").Draw(t, "in")
		before := bytesOf(t, in)
		out := Decide(in)
		must.Eq(t, before, bytesOf(t, in), must.Sprint("the input must not change"))
		must.Eq(t, bytesOf(t, out), bytesOf(t, Decide(in)), must.Sprint("the same bytes again"))

		budget, used, needed, given, wanted := in.MemoryMiB-in.ReserveMiB, 0, 0, 0, 0
		for i, c := range in.Containers {
			s := out.Containers[i]
			must.Eq(t, c.ID, s.ID)
			must.NotEq(t, "", s.Rule)
			must.GreaterEq(t, c.InUseMiB, s.ShareMiB)
			most := budget
			if c.CapMiB != nil && in.Mode != WholeCard {
				most = min(most, *c.CapMiB)
			}
			must.LessEq(t, max(most, c.InUseMiB), s.ShareMiB)
			used, given = used+c.InUseMiB, given+s.ShareMiB
			needed += max(c.InUseMiB, min(c.MinimumMiB, most))
			wanted += max(c.InUseMiB, most)
		}
		must.Eq(t, given, out.GivenMiB)
		if used > budget {
			must.Eq(t, used-budget, out.OverMiB)
			must.Eq(t, used, given, must.Sprint("no container gets more"))
		} else {
			must.Zero(t, out.OverMiB)
			must.LessEq(t, budget, given)
			if in.Mode != Static && len(in.Containers) > 0 {
				must.GreaterEq(t, min(budget, wanted), given, must.Sprint("no wanted memory is left"))
			}
			if in.Mode != WholeCard && needed <= budget {
				for i, c := range in.Containers {
					least := c.MinimumMiB
					if c.CapMiB != nil {
						least = min(least, *c.CapMiB)
					}
					must.GreaterEq(t, min(least, budget), out.Containers[i].ShareMiB)
				}
			}
		}

		shares, memory := 0.0, 0
		for i, g := range out.Groups {
			must.Eq(t, in.Groups[i].ID, g.ID)
			shares, memory = shares+g.Share, memory+g.MemoryMiB
			if len(g.Terms) > 0 {
				sum := 0.0
				for _, term := range g.Terms {
					must.Between(t, 0, term.Coefficient, 1)
					sum += term.Coefficient
				}
				must.InDelta(t, 1, sum, 1e-9)
				must.Positive(t, g.Set)
			}
		}
		if in.Mode != WholeCard || len(in.Containers) > 0 {
			must.InDelta(t, 1, shares, 1e-9)
		}
		switch {
		case len(in.Containers) > 0:
			must.Eq(t, given, memory)
		case in.Mode != WholeCard:
			must.Eq(t, budget, memory)
		}
	})
}

func TestDecide_permutation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(Adaptive, Static, WholeCard).Draw(t, "in")
		out := Decide(in)
		other := in
		other.Groups = rapid.Permutation(in.Groups).Draw(t, "groups")
		other.Containers = rapid.Permutation(in.Containers).Draw(t, "containers")
		permuted := Decide(other)
		byID := make(map[string]any)
		for _, g := range permuted.Groups {
			byID["group "+g.ID] = g
		}
		for _, c := range permuted.Containers {
			byID[c.ID] = c
		}
		for _, g := range out.Groups {
			must.Eq(t, any(g), byID["group "+g.ID])
		}
		for _, c := range out.Containers {
			must.Eq(t, any(c), byID[c.ID])
		}
	})
}

// A higher priority never costs a MiB, and does not help others.
func TestDecide_monotoneInPriority(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(Adaptive, WholeCard).Draw(t, "in")
		if len(in.Containers) == 0 {
			return
		}
		i := rapid.IntRange(0, len(in.Containers)-1).Draw(t, "which")
		low := Decide(in)
		in.Containers[i].Priority = rapid.IntRange(in.Containers[i].priority(), 100).Draw(t, "higher")
		high := Decide(in)
		for j, c := range high.Containers {
			if j == i {
				must.GreaterEq(t, low.Containers[j].ShareMiB, c.ShareMiB)
			} else {
				must.LessEq(t, low.Containers[j].ShareMiB+slack(in), c.ShareMiB)
			}
		}
	})
}

func TestDecide_monotoneInCount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(Adaptive).Draw(t, "in")
		i := rapid.IntRange(0, len(in.Groups)-1).Draw(t, "which")
		few := Decide(in)
		in.Groups = slices.Clone(in.Groups)
		in.Groups[i].Jobs = rapid.IntRange(in.Groups[i].Jobs, maxNumber).Draw(t, "more")
		many := Decide(in)
		must.GreaterEq(t, few.Groups[i].Share*(1-1e-12), many.Groups[i].Share)
		for j, c := range in.Containers {
			if c.Group == in.Groups[i].ID {
				must.GreaterEq(t, few.Containers[j].ShareMiB-slack(in), many.Containers[j].ShareMiB)
			}
		}
	})
}

// slack is what the last bit of a weight may move: 1 MiB, where two claim it equally.
func slack(in Input) int {
	if in.MemoryMiB == maxNumber {
		return 16
	}
	return 1
}

func TestDecide_capsGoToOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(Adaptive).Draw(t, "in")
		if len(in.Containers) == 0 {
			return
		}
		in.Params.Floor = 0
		for i := range in.Containers {
			in.Containers[i].MinimumMiB = 0
		}
		i := rapid.IntRange(0, len(in.Containers)-1).Draw(t, "which")
		before := Decide(in)
		in.Containers[i] = in.Containers[i].cap(rapid.IntRange(0, before.Containers[i].ShareMiB).Draw(t, "cap"))
		for j, c := range Decide(in).Containers {
			if j != i {
				must.GreaterEq(t, before.Containers[j].ShareMiB-slack(in), c.ShareMiB)
			}
		}
	})
}

func adaptations() *rapid.Generator[AdaptInput] {
	return rapid.Custom(func(t *rapid.T) AdaptInput {
		in := AdaptInput{
			Groups:   groups().Draw(t, "groups"),
			Profiles: rapid.IntRange(0, 9).Draw(t, "profiles"),
			Params:   DefaultAdaptParams(),
		}
		in.Params.Step = rapid.SampledFrom([]float64{0.01, 0.1, 1}).Draw(t, "step")
		in.Params.Slow = rapid.SampledFrom([]float64{0, 0.1}).Draw(t, "slow")
		in.Coefficients = shared(t, in.Groups)
		seconds := rapid.OneOf(rapid.Just[*float64](nil), rapid.Map(
			rapid.SampledFrom([]float64{1e-300, 1, 1.05, 2, 1e300}), func(s float64) *float64 { return &s }))
		for _, g := range in.Groups {
			if rapid.Bool().Draw(t, "measured") {
				in.Measured = append(in.Measured, Measured{
					Group:      g.ID,
					GrantedMiB: rapid.IntRange(0, 100).Draw(t, "granted"), PeakMiB: rapid.IntRange(0, 120).Draw(t, "peak"),
					MinimumMiB: rapid.IntRange(0, 120).Draw(t, "minimum"), Denied: rapid.SampledFrom([]int{0, 0, 1, 9}).Draw(t, "denied"),
					DurationS: seconds.Draw(t, "duration"), BaselineS: seconds.Draw(t, "baseline"),
				})
			}
		}
		must.NoError(t, in.Validate())
		return in
	})
}

func TestAdapt_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := adaptations().Draw(t, "in")
		before := bytesOf(t, in)
		out := Adapt(in)
		must.Eq(t, before, bytesOf(t, in), must.Sprint("the input must not change"))
		must.Eq(t, bytesOf(t, out), bytesOf(t, Adapt(in)), must.Sprint("the same bytes again"))

		next := AdaptInput{Coefficients: out.Coefficients, Params: in.Params}
		was, byID := terms(in.Groups, in.Coefficients), make(map[string]Move)
		for i, g := range in.Groups {
			mv := out.Groups[i]
			must.Eq(t, g.ID, mv.ID)
			must.NotEq(t, "", mv.Why)
			must.Between(t, -1, mv.Shortfall, 1)
			byID[mv.ID] = mv
			g.Coefficients = mv.Coefficients
			next.Groups = append(next.Groups, g)
		}
		must.NoError(t, next.Validate(), must.Sprint("what comes out goes in again"))
		for i, is := range terms(next.Groups, next.Coefficients) {
			mv := out.Groups[i]
			switch mv.Rule {
			case RuleShort:
				must.GreaterEq(t, set(was[i]), set(is)*(1+1e-9))
				must.LessEq(t, set(was[i])*(1+mv.Shortfall)*(1+1e-9), set(is))
			case RuleSurplus:
				must.LessEq(t, set(was[i]), set(is)*(1-1e-9))
				must.GreaterEq(t, set(was[i])*(1+mv.Shortfall)*(1-1e-9), set(is))
			case RuleEnough:
				continue
			default:
				must.InDelta(t, set(was[i]), set(is), 1e-12*(1+set(is)))
			}
			sum := 0.0
			for k, term := range is {
				must.Between(t, 0, term.Coefficient, 1)
				must.LessEq(t, in.Params.Step+1e-9, max(term.Coefficient-was[i][k].Coefficient, was[i][k].Coefficient-term.Coefficient))
				sum += term.Coefficient
			}
			must.InDelta(t, 1, sum, 1e-9)
		}

		in.Groups = rapid.Permutation(in.Groups).Draw(t, "groups")
		in.Measured = rapid.Permutation(in.Measured).Draw(t, "measured")
		for _, mv := range Adapt(in).Groups {
			must.Eq(t, byID[mv.ID], mv)
		}
	})
}
