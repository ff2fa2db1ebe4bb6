// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package growth

import (
	"math"
	"slices"
)

// maxCells bounds the history of one task: 256 cells of 40 bytes.
const maxCells = 256

// cell is one report or the mean of several neighbouring ones.
type cell struct {
	c, t, u float64 // mean CPU-seconds, mean wall time, mean oriented value
	n       float64 // reports in it
	at      float64 // CPU-seconds of the newest report in it
}

func (a cell) join(b cell) cell {
	n := a.n + b.n
	return cell{
		c:  a.c + (b.c-a.c)*(b.n/n),
		t:  a.t + (b.t-a.t)*(b.n/n),
		u:  a.u + (b.u-a.u)*(b.n/n),
		n:  n,
		at: b.at,
	}
}

// history keeps a curve in bounded memory: newest reports one by one, older
// ones in cells whose width grows with their age, so that the shape stays.
type history struct {
	cells  []cell
	done   int     // cells before this one went through the outlier filter
	offset float64 // CPU-seconds of earlier processes

	// The largest improvement seen is the range: a value that merely got worse
	// is not something learnt. Over filtered cells only.
	worst   float64 // worst value since the segment began
	span0   float64 // largest improvement so far
	absMax  float64
	counted bool
}

// end is the CPU-seconds of the newest report, over all processes.
func (h *history) end() float64 {
	if len(h.cells) == 0 {
		return 0
	}
	return h.cells[len(h.cells)-1].at
}

// add appends a report, and says whether two cells were joined to make room.
// own forces a cell of its own even at the same CPU-seconds.
func (h *history) add(c, t, u float64, own bool) bool {
	h.absMax = math.Max(h.absMax, math.Abs(u))
	if n := len(h.cells); n > 0 && !own && c == h.cells[n-1].at {
		// Reports read in one go carry one CPU reading.
		h.cells[n-1] = h.cells[n-1].join(cell{c, t, u, 1, c})
		return false
	}
	if h.cells == nil {
		h.cells = make([]cell, 0, maxCells+1)
	}
	h.cells = append(h.cells, cell{c, t, u, 1, c})
	for ; h.done < len(h.cells)-hampelHalf; h.done++ {
		h.filter(h.done)
		h.count(h.cells[h.done].u)
	}
	if len(h.cells) > maxCells {
		h.thin()
		return true
	}
	return false
}

// filter replaces an outlier by the median of its neighbourhood (Hampel). An
// outlier sticks out from both its neighbours: the steps of a steep monotone
// curve do not, and a first value, having only one side, is believed.
func (h *history) filter(i int) {
	if v, ok := h.hampel(i); ok {
		h.cells[i].u = v
	}
}

func (h *history) hampel(i int) (float64, bool) {
	if i == 0 || i == len(h.cells)-1 {
		return 0, false
	}
	u := h.cells[i].u
	if (u-h.cells[i-1].u)*(u-h.cells[i+1].u) <= 0 {
		return 0, false
	}
	lo, hi := max(0, i-hampelHalf), min(len(h.cells), i+hampelHalf+1)
	if hi-lo < 5 {
		return 0, false
	}
	var a, b [2*hampelHalf + 1]float64
	n := 0
	for _, c := range h.cells[lo:hi] {
		a[n] = c.u
		n++
	}
	m := median(a[:n])
	n = 0
	for _, c := range h.cells[lo:hi] {
		b[n] = math.Abs(c.u - m)
		n++
	}
	return m, math.Abs(u-m) > hampelSigmas*madToSigma*median(b[:n])
}

func (h *history) count(u float64) {
	if !h.counted {
		h.worst, h.counted = u, true
	}
	h.worst = math.Max(h.worst, u)
	h.span0 = math.Max(h.span0, h.worst-u)
}

// span is the largest improvement among the filtered values, all segments.
func (h *history) span() float64 { return h.span0 }

// rangeNow is span with the newest, not yet filtered values.
func (h *history) rangeNow() float64 {
	worst, span := h.worst, h.span0
	for i := h.done; i < len(h.cells); i++ {
		u := h.cells[i].u
		if v, ok := h.hampel(i); ok {
			u = v
		}
		if i == 0 {
			worst = u
		}
		worst = math.Max(worst, u)
		span = math.Max(span, worst-u)
	}
	return span
}

// magnitude is the largest absolute value, for telling rounding from change.
func (h *history) magnitude() float64 { return h.absMax }

// thin joins the neighbours that are closest together for their age.
func (h *history) thin() {
	now := h.end()
	all := now - h.cells[0].c
	best, at := math.Inf(1), 1
	for i := 1; i < h.done-2; i++ {
		a, b := h.cells[i-1], h.cells[i+1]
		w := b.c - a.c
		if s := w / (now - h.cells[i].c + all/16); s < best {
			best, at = s, i
		}
	}
	h.cells[at] = h.cells[at].join(h.cells[at+1])
	h.cells = slices.Delete(h.cells, at+1, at+2)
	h.done--
}

// cut forgets the cells before i. The range stays.
func (h *history) cut(i int) {
	h.cells = slices.Delete(h.cells, 0, i)
	h.done = 0
	h.counted = false
	for ; h.done < len(h.cells)-hampelHalf; h.done++ {
		h.filter(h.done)
		h.count(h.cells[h.done].u)
	}
}

// noise is a robust standard deviation of the reports around their own course,
// from second differences, which no straight trend enters. 0 with fewer than 3.
func noise(cells []cell, buf []float64) float64 {
	for i := 2; i < len(cells); i++ {
		a, b, c := cells[i-2], cells[i-1], cells[i]
		if c.c <= a.c {
			continue
		}
		f := (b.c - a.c) / (c.c - a.c)
		d := b.u - (a.u + f*(c.u-a.u))
		// Each reading's own noise, whatever the spacing and the counts.
		v := 1/b.n + (1-f)*(1-f)/a.n + f*f/c.n
		buf = append(buf, math.Abs(d)/math.Sqrt(v))
	}
	if len(buf) == 0 {
		return 0
	}
	return madToSigma * median(buf)
}
