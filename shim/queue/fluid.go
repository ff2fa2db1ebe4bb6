// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package queue

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
)

// fluid shares the cluster among twins as a fluid. A twin's rate is the fraction of its whole place
// that it gets. Rates rise together, owners' dominant shares in proportion to their weights and
// those of an owner's twins equally (DRF, Ghodsi et al., NSDI 2011), until a twin has its whole
// place or a resource that it needs is used up. An owner's twins that need the same always have the
// same rate: they are of one kind.
type fluid struct {
	owners []fluidOwner
	kinds  []*kind
	alike  map[string]*kind // by owner and use
	key    []byte           // scratch space
	used   []float64        // of each resource, the part that the rates take
	grow   []float64        // of used, in 1 of the time of fill
	next   events
}

type twin struct {
	job  int
	left float64 // until it ends, in seconds of its whole place
	on   bool    // it goes on then
}

// kind is twins of an owner that need the same.
type kind struct {
	use   []float64 // the part of each resource that a twin's whole place takes
	share float64   // the largest of these: a twin's dominant share
	twins []twin    // by what is left
	ended int       // of twins
	n     int       // of twins, running
	rate  float64
	had   float64 // seconds that each running twin has had
	// Of the owner's open kinds from this one: the number of running twins, and the resources that
	// they take per unit of level.
	opened int
	mix    []float64
}

type fluidOwner struct {
	name   string
	weight float64
	kinds  []*kind // by rising share
	open   []*kind // of them, those whose rates may still rise
	level  float64 // dominant share of each open twin
	at     float64 // when it was that
}

func newFluid(resources int) *fluid {
	return &fluid{alike: make(map[string]*kind), used: make([]float64, resources), grow: make([]float64, resources)}
}

// join adds a twin. Its owner is an index in f.owners.
func (f *fluid) join(owner int, use []float64, t twin) {
	f.key = binary.NativeEndian.AppendUint64(f.key[:0], uint64(owner))
	for _, u := range use {
		f.key = binary.NativeEndian.AppendUint64(f.key, math.Float64bits(u))
	}
	k := f.alike[string(f.key)]
	if k == nil {
		k = &kind{use: slices.Clone(use), share: slices.Max(use), mix: make([]float64, len(use))}
		f.alike[string(f.key)], f.kinds = k, append(f.kinds, k)
		f.owners[owner].kinds = append(f.owners[owner].kinds, k)
	}
	if t.left > 0 || t.on {
		k.n++
	} else {
		k.ended++
	}
	if t.left <= 0 && t.on {
		t.left = math.Inf(1)
	}
	k.twins = append(k.twins, t)
}

// sort is due after the last twin has joined.
func (f *fluid) sort() {
	for _, o := range f.owners {
		slices.SortStableFunc(o.kinds, func(a, b *kind) int { return cmp.Compare(a.share, b.share) })
	}
	for _, k := range f.kinds {
		slices.SortFunc(k.twins, func(a, b twin) int { return cmp.Compare(a.left, b.left) })
	}
}

// fill sets the rates of the kinds. Time is such that an owner's share rises by its weight in 1.
func (f *fluid) fill() {
	for i := range f.owners {
		o := &f.owners[i]
		o.level, o.at = 0, 0
		o.kinds = slices.DeleteFunc(o.kinds, func(k *kind) bool { return k.n == 0 })
		o.open = slices.Clone(o.kinds)
	}
	clear(f.used)
	f.sum()
	for now := 0.0; !math.IsInf(f.next.first(), 1); {
		step, scarce := f.next.first()-now, -1
		for r, g := range f.grow {
			if s := (1 - f.used[r]) / g; g > 0 && s < step {
				step, scarce = s, r
			}
		}
		step = max(step, 0)
		add(f.used, f.grow, step)
		now += step
		if scarce >= 0 {
			f.freeze(scarce, now)
			f.sum()
			continue
		}
		o := &f.owners[f.next[0].id]
		add(f.grow, o.open[0].mix, -o.speed())
		o.open[0].rate, o.level, o.at = 1, o.open[0].share, now
		if o.open = o.open[1:]; len(o.open) > 0 {
			add(f.grow, o.open[0].mix, o.speed())
		}
		f.next.postpone(o.due())
	}
}

// sum adds up what the open kinds take, from the last: no rounding error remains of those that are
// closed.
func (f *fluid) sum() {
	clear(f.grow)
	f.next = f.next[:0]
	none := make([]float64, len(f.grow))
	for i := range f.owners {
		o := &f.owners[i]
		opened, mix := 0, none
		for _, k := range slices.Backward(o.open) {
			opened += k.n
			k.opened = opened
			for r, u := range k.use {
				k.mix[r] = mix[r] + u/k.share*float64(k.n)
			}
			mix = k.mix
		}
		if opened > 0 {
			add(f.grow, mix, o.speed())
			f.next = append(f.next, event{o.due(), i})
		}
	}
	f.next.order()
}

// freeze closes the kinds that need a resource which is used up.
func (f *fluid) freeze(scarce int, now float64) {
	for i := range f.owners {
		o := &f.owners[i]
		if len(o.open) == 0 || o.open[0].mix[scarce] == 0 {
			continue
		}
		o.level, o.at = o.level+(now-o.at)*o.speed(), now
		o.open = slices.DeleteFunc(o.open, func(k *kind) bool {
			if k.use[scarce] == 0 {
				return false
			}
			k.rate = min(o.level/k.share, 1)
			return true
		})
	}
}

// speed is that of an open twin's level.
func (o *fluidOwner) speed() float64 { return o.weight / float64(o.open[0].opened) }

// due is when the next kind has its whole place.
func (o *fluidOwner) due() float64 {
	if len(o.open) == 0 {
		return math.Inf(1)
	}
	return o.at + (o.open[0].share-o.level)/o.speed()
}

// batches bounds how often ends fills the rates anew. Twins that end between two fills keep their
// rates until then.
const batches = 64

// advance runs the twins for a time in seconds. ended is called when a twin ends; each is how many
// may before rates are filled anew.
func (f *fluid) advance(seconds float64, each int, ended func(t twin, at float64)) {
	for now := 0.0; now < seconds; {
		f.fill()
		f.next = f.next[:0]
		for i, k := range f.kinds {
			if at := k.due(); !math.IsInf(at, 1) {
				f.next = append(f.next, event{at, i})
			}
		}
		f.next.order()
		step := seconds - now
		for n := 1; f.next.first() <= step && !math.IsInf(f.next.first(), 1); n++ {
			at := f.next.first()
			k := f.kinds[f.next[0].id]
			t := k.twins[k.ended]
			ended(t, now+at)
			if k.ended++; !t.on {
				k.n--
			}
			f.next.postpone(k.due())
			if n == each || math.IsInf(f.next.first(), 1) {
				step = at
			}
		}
		if math.IsInf(step, 1) {
			return
		}
		for _, k := range f.kinds {
			k.had += step * k.rate
		}
		now += step
	}
}

// due is the time until the next twin ends, +Inf if none does.
func (k *kind) due() float64 {
	if k.ended == len(k.twins) || k.rate == 0 {
		return math.Inf(1)
	}
	return (k.twins[k.ended].left - k.had) / k.rate
}

// events are a heap by time; +Inf is never.
type events []event

type event struct {
	at float64
	id int
}

func (e events) first() float64 {
	if len(e) == 0 {
		return math.Inf(1)
	}
	return e[0].at
}

// postpone puts the first event off.
func (e events) postpone(at float64) {
	e[0].at = at
	e.sink(0)
}

// drop removes the first event.
func (e events) drop() events {
	last := len(e) - 1
	e[0] = e[last]
	e = e[:last]
	e.sink(0)
	return e
}

func (e events) add(new event) events {
	e = append(e, new)
	for i := len(e) - 1; i > 0 && e[i].at < e[(i-1)/2].at; i = (i - 1) / 2 {
		e[i], e[(i-1)/2] = e[(i-1)/2], e[i]
	}
	return e
}

func (e events) order() {
	for i := len(e)/2 - 1; i >= 0; i-- {
		e.sink(i)
	}
}

// sink moves event i down, behind those before it.
func (e events) sink(i int) {
	for {
		first := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(e); c++ {
			if e[c].at < e[first].at {
				first = c
			}
		}
		if first == i {
			return
		}
		e[i], e[first] = e[first], e[i]
		i = first
	}
}
