// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"fmt"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/internal/policytest"
)

func mib(n int) *int             { return &n }
func seconds(s float64) *float64 { return &s }

func decide(t must.T, in Input) (rules []string, paused []string) {
	t.Helper()
	must.NoError(t, in.Validate())
	for _, d := range policytest.Decide(t, Decide, in).Jobs {
		rules = append(rules, d.Rule)
		if d.Pause {
			paused = append(paused, d.ID)
		}
	}
	return rules, paused
}

func TestDecide(t *testing.T) {
	for name, tc := range map[string]struct {
		jobs   []Job
		rules  []string
		paused []string
	}{
		"no jobs": {},
		"all fit": {
			[]Job{{ID: "a", HeldMiB: 10, AheadMiB: mib(50)}, {ID: "b", HeldMiB: 10, AheadMiB: mib(50)}},
			[]string{RuleFits, RuleFits}, nil,
		},
		"the one that came last pauses": {
			[]Job{{ID: "a", HeldMiB: 10, AheadMiB: mib(60), ArrivedS: 2}, {ID: "b", HeldMiB: 10, AheadMiB: mib(60), ArrivedS: 1}},
			[]string{RulePause, RuleFits}, []string{"a"},
		},
		"the one of lower priority pauses": {
			[]Job{{ID: "a", HeldMiB: 10, AheadMiB: mib(60), Priority: 51, ArrivedS: 2}, {ID: "b", HeldMiB: 10, AheadMiB: mib(60), ArrivedS: 1}},
			[]string{RuleFits, RulePause}, []string{"b"},
		},
		"only the one whose rise is to come": {
			[]Job{{ID: "a", HeldMiB: 10, AheadMiB: mib(50), Priority: 90}, {ID: "b", HeldMiB: 40, AheadMiB: mib(40), Priority: 1}, {ID: "c", HeldMiB: 5, AheadMiB: mib(30), Priority: 50}},
			[]string{RuleFits, RuleFits, RulePause}, []string{"c"},
		},
		"no more than necessary": {
			[]Job{{ID: "a", HeldMiB: 10, AheadMiB: mib(60), Priority: 3}, {ID: "b", HeldMiB: 10, AheadMiB: mib(60), Priority: 2}, {ID: "c", HeldMiB: 10, AheadMiB: mib(20), Priority: 1}},
			[]string{RuleFits, RulePause, RuleFits}, []string{"b"},
		},
		"what is not known is not planned": {
			[]Job{{ID: "a", HeldMiB: 10, AheadMiB: mib(60)}, {ID: "b", HeldMiB: 30}},
			[]string{RuleFits, RuleUnknown}, nil,
		},
		"no pause helps the first": {
			[]Job{{ID: "a", HeldMiB: 10, AheadMiB: mib(99), Priority: 90}, {ID: "b", HeldMiB: 30, AheadMiB: mib(50)}, {ID: "c", HeldMiB: 30, AheadMiB: mib(50)}},
			[]string{RuleFirst, RuleFits, RulePause}, []string{"c"},
		},
		"the last one that runs is never paused": {
			[]Job{{ID: "a", HeldMiB: 60, AheadMiB: mib(99)}, {ID: "b", HeldMiB: 30, PausedS: seconds(5), AheadMiB: mib(50)}},
			[]string{RuleFirst, RuleWait}, []string{"b"},
		},
		"an unpausable job is given room before others": {
			[]Job{{ID: "a", HeldMiB: 10, AheadMiB: mib(20), Priority: 90}, {ID: "b", HeldMiB: 10, AheadMiB: mib(60), Priority: 80}, {ID: "c", HeldMiB: 10, AheadMiB: mib(60), Priority: 1, Fixed: true}},
			[]string{RuleFits, RulePause, RuleFits}, []string{"b"},
		},
		"an unpausable job without room": {
			[]Job{{ID: "a", HeldMiB: 10, AheadMiB: mib(60)}, {ID: "c", HeldMiB: 10, AheadMiB: mib(60), Priority: 1, Fixed: true}},
			[]string{RuleFits, RuleFixed}, nil,
		},
		"a resumed job rests": {
			[]Job{{ID: "a", HeldMiB: 10, AheadMiB: mib(60)}, {ID: "b", HeldMiB: 10, AheadMiB: mib(60), Priority: 1, ResumedS: seconds(59)}},
			[]string{RuleFits, RuleRest}, nil,
		},
		"and is paused again later": {
			[]Job{{ID: "a", HeldMiB: 10, AheadMiB: mib(60)}, {ID: "b", HeldMiB: 10, AheadMiB: mib(60), Priority: 1, ResumedS: seconds(60)}},
			[]string{RuleFits, RulePause}, []string{"b"},
		},
		"a paused job keeps its memory": {
			[]Job{{ID: "a", HeldMiB: 60, AheadMiB: mib(60)}, {ID: "b", HeldMiB: 30, AheadMiB: mib(60), PausedS: seconds(5)}, {ID: "c", HeldMiB: 1, AheadMiB: mib(20), ArrivedS: 9}},
			[]string{RuleFits, RuleWait, RulePause}, []string{"b", "c"},
		},
		"what fits to the last byte is not resumed": {
			[]Job{{ID: "a", HeldMiB: 50, AheadMiB: mib(50)}, {ID: "b", HeldMiB: 10, AheadMiB: mib(46), PausedS: seconds(5)}},
			[]string{RuleFits, RuleWait}, []string{"b"},
		},
		"what fits with something to spare is": {
			[]Job{{ID: "a", HeldMiB: 50, AheadMiB: mib(50)}, {ID: "b", HeldMiB: 10, AheadMiB: mib(45), PausedS: seconds(5)}},
			[]string{RuleFits, RuleResume}, nil,
		},
		"or what fits at all, while the first waits": {
			[]Job{{ID: "a", HeldMiB: 50, AheadMiB: mib(99)}, {ID: "b", HeldMiB: 10, AheadMiB: mib(50), PausedS: seconds(5)}},
			[]string{RuleFirst, RuleResume}, nil,
		},
		"the highest priority is resumed first": {
			[]Job{{ID: "a", HeldMiB: 10}, {ID: "b", HeldMiB: 10, AheadMiB: mib(60), PausedS: seconds(9)}, {ID: "c", HeldMiB: 10, AheadMiB: mib(60), PausedS: seconds(5), Priority: 60}},
			[]string{RuleUnknown, RuleWait, RuleResume}, []string{"b"},
		},
		"a paused one takes nothing from one that runs": {
			[]Job{{ID: "a", HeldMiB: 10, AheadMiB: mib(60)}, {ID: "b", HeldMiB: 10, AheadMiB: mib(60), PausedS: seconds(9), Priority: 90}},
			[]string{RuleFits, RuleWait}, []string{"b"},
		},
		"a pause ends, and others make room": {
			[]Job{{ID: "a", HeldMiB: 10, AheadMiB: mib(30), Priority: 90}, {ID: "b", HeldMiB: 10, AheadMiB: mib(60), Priority: 80}, {ID: "c", HeldMiB: 10, AheadMiB: mib(60), PausedS: seconds(600)}},
			[]string{RuleFits, RulePause, RuleAged}, []string{"b"},
		},
		"a pause ends, even if nothing fits": {
			[]Job{{ID: "a", HeldMiB: 60, AheadMiB: mib(60)}, {ID: "b", HeldMiB: 30, AheadMiB: mib(60), PausedS: seconds(601)}},
			[]string{RuleFits, RuleAged}, nil,
		},
		"no other job would run": {
			[]Job{{ID: "a", HeldMiB: 60, AheadMiB: mib(99), PausedS: seconds(1)}, {ID: "b", HeldMiB: 30, AheadMiB: mib(60), PausedS: seconds(2)}, {ID: "c", HeldMiB: 5, Halted: true}},
			[]string{RuleAlone, RuleWait, RuleHalted}, []string{"b"},
		},
		"a halted job does not run": {
			[]Job{{ID: "a", HeldMiB: 10, AheadMiB: mib(99), Halted: true, Priority: 90}, {ID: "b", HeldMiB: 10, AheadMiB: mib(99)}},
			[]string{RuleHalted, RuleFirst}, nil,
		},
		"more is held than there is": {
			[]Job{{ID: "a", HeldMiB: 80, AheadMiB: mib(80)}, {ID: "b", HeldMiB: 30, AheadMiB: mib(31)}, {ID: "c", HeldMiB: 0, AheadMiB: mib(0), PausedS: seconds(1)}},
			[]string{RuleFits, RulePause, RuleResume}, []string{"b"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			rules, paused := decide(t, Input{MemoryMiB: 100, Jobs: tc.jobs, Params: DefaultParams()})
			must.Eq(t, tc.rules, rules)
			must.Eq(t, tc.paused, paused)
		})
	}
}

// inputs draws a card. If plain, everything is known and every job may be paused.
func inputs(plain bool) *rapid.Generator[Input] {
	return rapid.Custom(func(t *rapid.T) Input {
		in := Input{MemoryMiB: rapid.IntRange(1, 200).Draw(t, "memory"), Params: DefaultParams()}
		for i := range rapid.IntRange(0, 7).Draw(t, "jobs") {
			j := Job{
				ID: fmt.Sprintf("j%d", i), Priority: rapid.IntRange(0, 3).Draw(t, "priority"),
				ArrivedS: float64(rapid.IntRange(0, 3).Draw(t, "arrived")), HeldMiB: rapid.IntRange(0, 60).Draw(t, "held"),
			}
			if plain || rapid.Bool().Draw(t, "known") {
				j.AheadMiB = mib(rapid.IntRange(0, 150).Draw(t, "ahead"))
			}
			limit := 1000.0
			if plain {
				limit = 599
			}
			switch rapid.IntRange(0, 2).Draw(t, "state") {
			case 1:
				j.PausedS = seconds(rapid.Float64Range(0, limit).Draw(t, "paused"))
			case 2:
				if !plain {
					j.ResumedS = seconds(rapid.Float64Range(0, limit).Draw(t, "resumed"))
				}
			}
			if !plain {
				j.Fixed, j.Halted = rapid.Bool().Draw(t, "fixed"), rapid.Bool().Draw(t, "halted")
			}
			in.Jobs = append(in.Jobs, j)
		}
		return in
	})
}

func TestDecide_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(false).Draw(t, "input")
		must.NoError(t, in.Validate())
		out := policytest.Decide(t, Decide, in)
		runs, could := 0, 0
		for i, d := range out.Jobs {
			j := in.Jobs[i]
			must.Eq(t, j.ID, d.ID)
			must.StrHasPrefix(t, "gpu.plan.", d.Rule)
			must.NotEq(t, "", d.Why)
			if !j.Halted {
				could++
				if !d.Pause {
					runs++
				}
			}
			if d.Pause {
				must.True(t, j.rise() > 0, must.Sprint("a job without a rise is paused"))
				must.True(t, j.PausedS != nil || !j.Fixed && !j.Halted)
			}
			if j.PausedS != nil && *j.PausedS >= in.Params.MaxPauseS {
				must.False(t, d.Pause, must.Sprint("every pause ends"))
			}
		}
		must.True(t, could == 0 || runs > 0, must.Sprint("no job runs"))

		turned := in
		turned.Jobs = slices.Clone(in.Jobs)
		slices.Reverse(turned.Jobs)
		back := Decide(turned).Jobs
		slices.Reverse(back)
		must.Eq(t, out.Jobs, back)
	})
}

// If everything is known, running jobs never outgrow the card, but for one that no pause could
// have helped.
func TestDecide_neverOver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(true).Draw(t, "input")
		out := policytest.Decide(t, Decide, in)
		free, rises := in.MemoryMiB, 0
		for i, d := range out.Jobs {
			free -= in.Jobs[i].HeldMiB
			if !d.Pause && d.Rule != RuleFirst && d.Rule != RuleAlone {
				rises += in.Jobs[i].rise()
			}
		}
		must.True(t, rises == 0 || rises <= free)
		// Deciding again pauses only a job whose rise did not fit and which was first: now it
		// may not be.
		for i, d := range out.Jobs {
			j := &in.Jobs[i]
			switch {
			case d.Pause && j.PausedS == nil:
				j.PausedS = seconds(0)
			case !d.Pause && j.PausedS != nil:
				j.PausedS, j.ResumedS = nil, seconds(0)
			}
		}
		again := Decide(in)
		for i, d := range again.Jobs {
			if rule := out.Jobs[i].Rule; d.Pause && rule != RuleFirst {
				must.True(t, out.Jobs[i].Pause, must.Sprint("an admitted job is paused at once"))
			}
		}
	})
}

type worker struct {
	id       string
	priority int
	curve    []int // MiB held at each step of its work
	done     int   // steps
	paused   int   // seconds paused; -1: not
	resumed  int   // seconds since the resume; -1: never
	longest  int   // pause
}

// On a card whose jobs end, all finish. A request without room waits, as at the gate.
func TestDecide_allEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const memory, horizon, maxPause = 100, 5, 40
		params := Params{Margin: 0.05, RestS: 6, MaxPauseS: maxPause}
		var jobs []*worker
		for i := range rapid.IntRange(1, 5).Draw(t, "jobs") {
			w := &worker{id: fmt.Sprintf("j%d", i), priority: rapid.IntRange(1, 3).Draw(t, "priority"), paused: -1, resumed: -1}
			low := rapid.IntRange(0, 15).Draw(t, "low")
			peak := rapid.IntRange(low, 40).Draw(t, "peak")
			for range rapid.IntRange(1, 30).Draw(t, "flat") {
				w.curve = append(w.curve, low)
			}
			for range rapid.IntRange(1, 10).Draw(t, "at the peak") {
				w.curve = append(w.curve, peak)
			}
			jobs = append(jobs, w)
		}
		for now := 0; len(jobs) > 0; now++ {
			must.True(t, now < 5000, must.Sprint("a job waits forever"))
			in := Input{MemoryMiB: memory, Params: params}
			held := 0
			for i, w := range jobs {
				is := w.curve[max(0, w.done-1)]
				if w.done == 0 {
					is = 0
				}
				held += is
				j := Job{ID: w.id, Priority: w.priority, ArrivedS: float64(i), HeldMiB: is, AheadMiB: mib(slices.Max(w.curve[w.done:min(w.done+horizon, len(w.curve))]))}
				if w.paused >= 0 {
					j.PausedS = seconds(float64(w.paused))
				} else if w.resumed >= 0 {
					j.ResumedS = seconds(float64(w.resumed))
				}
				in.Jobs = append(in.Jobs, j)
			}
			must.True(t, held <= memory)
			out := Decide(in)
			for i, d := range out.Jobs {
				w := jobs[i]
				switch {
				case d.Pause:
					w.paused++
					w.longest = max(w.longest, w.paused)
					continue
				case w.paused >= 0:
					w.paused, w.resumed = -1, 0
				case w.resumed >= 0:
					w.resumed++
				}
				if more := w.curve[w.done] - in.Jobs[i].HeldMiB; held+more <= memory { // else it waits
					held += more
					w.done++
				}
			}
			jobs = slices.DeleteFunc(jobs, func(w *worker) bool {
				must.True(t, w.longest <= maxPause+1)
				return w.done == len(w.curve)
			})
		}
	})
}
