// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fsp

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

type figures struct {
	mean, worst, latest   float64 // of completion; latest in seconds after fair sharing
	quality, worstQuality float64
	orders                float64 // changes of the first task, per task
}

func (g figures) String() string {
	return fmt.Sprintf("%+3.0f %% | %.2f | %3.0f s | %+3.0f %% | %.1f | %.1f", 100*g.mean, g.worst, g.latest, 100*g.quality, g.worstQuality, g.orders)
}

func compare(seeds int, f fluid, loads func(seed uint64) []load, how func() divide) figures {
	var g figures
	var fairSum, sum, fairQuality, quality float64
	for seed := range seeds {
		all := loads(uint64(seed))
		base := fluid{pool: f.pool}
		fairEnds, fairGood := base.run(all, fairSharing)
		ends, good := f.run(all, how())
		g.orders += float64(f.orders) / float64(len(all)*seeds)
		for i := range all {
			sum, fairSum = sum+ends[i], fairSum+fairEnds[i]
			quality, fairQuality = quality+good[i], fairQuality+fairGood[i]
			g.worst, g.latest = max(g.worst, ends[i]/fairEnds[i]), max(g.latest, ends[i]-fairEnds[i])
			g.worstQuality = max(g.worstQuality, good[i]/fairGood[i])
		}
	}
	g.mean, g.quality = sum/fairSum-1, quality/fairQuality-1
	return g
}

// The model's figures, with -v: two cores, median size 200 CPU-seconds, relative to fair sharing.
func TestFigures(t *testing.T) {
	if !testing.Verbose() {
		t.Skip("prints a table")
	}
	const seeds = 40
	table := "\n| jobs | policy | mean completion | worst job | latest | mean time to quality | worst | changes of order |\n"
	row := func(name, policy string, f fluid, loads func(seed uint64) []load, how func() divide) {
		f.pool = 2
		table += fmt.Sprintf("| %s | %s | %v |\n", name, policy, compare(seeds, f, loads, how))
	}
	changed := func(n int, quality float64, change func(*rand.Rand, *load)) func(uint64) []load {
		return func(seed uint64) []load {
			out, r := jobs(seed, n, quality), rand.New(rand.NewPCG(seed, 11))
			for i := range out {
				change(r, &out[i])
			}
			return out
		}
	}
	with := func(p Prefer, floor float64) func() divide {
		return func() divide { return decided(t, Params{p, floor}) }
	}
	same := func(*rand.Rand, *load) {}
	usual := fluid{interval: 20}
	row("12 at 50 %", "srpt", fluid{}, changed(12, 0.5, same), srpt)
	row("12 at 25 %", "srpt", fluid{}, changed(12, 0.25, same), srpt)
	for _, p := range []Prefer{Completion, Balanced, Quality} {
		each := func(name string, floor float64, f fluid, n int, quality float64, change func(*rand.Rand, *load)) {
			row(name, fmt.Sprintf("%s [%v]", p, floor), f, changed(n, quality, change), with(p, floor))
		}
		each("12 at 50 %", least, usual, 12, 0.5, same)
		each("12 at 50 %", 0.1, usual, 12, 0.5, same)
		each("12 at 25 %", 0.1, usual, 12, 0.25, same)
		each("30 at 25 %", 0.1, usual, 30, 0.25, same)
		each("3 at 25 %", 0.1, usual, 3, 0.25, same)
		each("decisions at events only", 0.1, fluid{}, 12, 0.5, same)
		each("decisions every 20 s only", 0.1, fluid{interval: 20, sparse: true}, 12, 0.5, same)
		each("one thread each", 0.1, usual, 12, 0.5, func(_ *rand.Rand, l *load) { l.cap = 1 })
		each("weights from 1/4 to 4", 0.1, usual, 12, 0.5, func(r *rand.Rand, l *load) { l.weight = math.Exp2(4*r.Float64() - 2) })
		each("remaining work wrong, σ of log2 0.3", 0.1, usual, 12, 0.5, func(r *rand.Rand, l *load) { l.wrong = math.Exp2(0.3 * r.NormFloat64()) })
		each("each estimate noisy, σ of log2 0.1", 0.1, usual, 12, 0.5, func(_ *rand.Rand, l *load) { l.wrong, l.noise = 1, 0.1 })
		each("size wrong to the end, σ of log2 0.3", 0.1, usual, 12, 0.5, func(r *rand.Rand, l *load) { l.wrong, l.constantError = math.Exp2(0.3*r.NormFloat64()), true })
	}
	t.Log(table)
}
