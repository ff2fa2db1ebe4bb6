// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package queue

import (
	"cmp"
	"math"
	"slices"
)

// fluid shares the cluster among twins as a fluid. A twin's rate is the fraction of its whole
// place that it gets. Rates rise together, owners' dominant shares in proportion to their weights
// and those of an owner's twins equally (DRF, Ghodsi et al., NSDI 2011), until a twin has its whole
// place or a resource that it needs is used up.
type fluid struct {
	owners []fluidOwner
	use    [][]float64 // by twin, the part of each resource that its whole place takes
	share  []float64   // by twin, the largest of these: its dominant share
	rate   []float64   // by twin
	open   []bool      // by twin: its rate may still rise
}

type fluidOwner struct {
	weight float64
	twins  []int // by rising share
	next   int   // the first in twins that may be open
	opened int
	level  float64   // dominant share of each open twin
	mix    []float64 // of the resources, per unit of level, in sum over the open twins
}

// newFluid returns the fluid of twins, of which owner is the index in weights.
func newFluid(weights []float64, owner []int, use [][]float64) *fluid {
	f := &fluid{owners: make([]fluidOwner, len(weights)), use: use, share: make([]float64, len(use)), rate: make([]float64, len(use)), open: make([]bool, len(use))}
	for i, u := range use {
		f.share[i] = slices.Max(u)
		o := &f.owners[owner[i]]
		o.twins = append(o.twins, i)
	}
	for k, w := range weights {
		o := &f.owners[k]
		o.weight = w
		slices.SortStableFunc(o.twins, func(a, b int) int { return cmp.Compare(f.share[a], f.share[b]) })
	}
	return f
}

// fill sets the rates of the twins that run; the others have none.
func (f *fluid) fill(runs []bool) {
	if len(f.use) == 0 {
		return
	}
	used := make([]float64, len(f.use[0]))
	grow := make([]float64, len(used)) // of used, while the owners' shares rise by their weights
	left := f.begin(runs)
	for left > 0 {
		clear(grow)
		step, first, scarce := math.Inf(1), -1, -1
		for k := range f.owners {
			o := &f.owners[k]
			if o.opened == 0 {
				continue
			}
			for !f.open[o.twins[o.next]] {
				o.next++
			}
			if s := (f.share[o.twins[o.next]] - o.level) / o.speed(); s < step {
				step, first = s, k
			}
			for r, m := range o.mix {
				grow[r] += m * o.speed()
			}
		}
		for r, g := range grow {
			if s := (1 - used[r]) / g; g > 0 && s < step {
				step, scarce = s, r
			}
		}
		step = max(step, 0)
		for r, g := range grow {
			used[r] += step * g
		}
		for k := range f.owners {
			o := &f.owners[k]
			if o.opened == 0 {
				continue
			}
			o.level += step * o.speed()
			if scarce < 0 && k == first {
				left -= f.close(o, o.twins[o.next], 1)
			}
			if scarce >= 0 && o.mix[scarce] > 0 {
				for _, i := range o.twins[o.next:] {
					if f.open[i] && f.use[i][scarce] > 0 {
						left -= f.close(o, i, o.level/f.share[i])
					}
				}
				o.mix[scarce] = 0 // no rounding error remains
			}
		}
	}
}

// begin opens the twins that run and returns their number.
func (f *fluid) begin(runs []bool) int {
	all := 0
	for k := range f.owners {
		o := &f.owners[k]
		o.next, o.opened, o.level, o.mix = 0, 0, 0, make([]float64, len(f.use[0]))
		for _, i := range o.twins {
			f.rate[i], f.open[i] = 0, runs[i]
			if !runs[i] {
				continue
			}
			o.opened++
			for r, u := range f.use[i] {
				o.mix[r] += u / f.share[i]
			}
		}
		all += o.opened
	}
	return all
}

// speed is that of an open twin's level.
func (o *fluidOwner) speed() float64 { return o.weight / float64(o.opened) }

// close fixes a twin's rate. It returns 1, the number of twins that it closed.
func (f *fluid) close(o *fluidOwner, i int, rate float64) int {
	f.rate[i], f.open[i] = min(rate, 1), false
	o.opened--
	for r, u := range f.use[i] {
		o.mix[r] = max(o.mix[r]-u/f.share[i], 0)
	}
	if o.opened == 0 {
		clear(o.mix)
	}
	return 1
}

// batches bounds how often ends fills the rates anew. Twins that end between two fills keep their
// rates until then.
const batches = 64

// ends returns the seconds until each twin has had what is left, in seconds of its whole place, if
// no job joins. on are the twins that go on then.
func (f *fluid) ends(left []float64, on []bool) []float64 {
	ends := make([]float64, len(left))
	for i, l := range left {
		if l > 0 {
			ends[i] = math.Inf(1)
		}
	}
	f.advance(left, on, math.Inf(1), 1+len(left)/batches, func(i int, at float64) { ends[i] = at })
	return ends
}

// advance runs twins, until each has had what is left, for a time in seconds, and returns what each
// has had. ended is called when a twin ends; each is how many may before rates are filled anew.
func (f *fluid) advance(left []float64, on []bool, seconds float64, each int, ended func(i int, at float64)) (had []float64) {
	had = make([]float64, len(left))
	runs := make([]bool, len(left))
	left = slices.Clone(left)
	for i, l := range left {
		if runs[i] = l > 0 || on[i]; l <= 0 {
			left[i] = math.Inf(1)
		}
	}
	var due []float64
	for now := 0.0; now < seconds; {
		f.fill(runs)
		due = due[:0]
		running := false
		for i, is := range runs {
			if running = running || is && f.rate[i] > 0; is && f.rate[i] > 0 && !math.IsInf(left[i], 1) {
				due = append(due, (left[i]-had[i])/f.rate[i])
			}
		}
		step := seconds - now
		if len(due) > 0 {
			slices.Sort(due)
			step = min(step, due[min(each, len(due))-1])
		}
		if !running || math.IsInf(step, 1) {
			break
		}
		for i, is := range runs {
			if !is || f.rate[i] == 0 {
				continue
			}
			in := (left[i] - had[i]) / f.rate[i]
			if had[i] += step * f.rate[i]; in > step {
				continue
			}
			if runs[i] = on[i]; !on[i] {
				had[i] = left[i]
			}
			left[i] = math.Inf(1)
			ended(i, now+in)
		}
		now += step
	}
	return had
}
