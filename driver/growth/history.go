// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package growth

import (
	"math"
	"slices"
)

// maxCells bounds a task's history: 256 cells of 40 bytes.
const maxCells = 256

// cell is one report or the mean of neighbouring ones.
type cell struct {
	c, t, u float64 // mean CPU-seconds, mean wall time, mean oriented value
	n       float64 // number of reports
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

// history keeps a curve in bounded memory: the newest reports singly, older ones in
// cells that widen with age, which preserves the shape.
type history struct {
	cells  []cell
	done   int     // cells before this one are filtered
	offset float64 // CPU-seconds of earlier processes

	// The range is the largest improvement among filtered cells: a mere deterioration
	// is nothing learnt.
	worst   float64
	span    float64 // largest improvement of all segments
	absMax  float64 // largest absolute value, to tell rounding from change
	counted bool
}

// end returns the CPU-seconds of the newest report, over all processes.
func (h *history) end() float64 {
	if len(h.cells) == 0 {
		return 0
	}
	return h.cells[len(h.cells)-1].at
}

// add appends a report and reports whether two cells were joined to make room. own
// forces a separate cell even at the same CPU-seconds.
func (h *history) add(c, t, u float64, own bool) bool {
	h.absMax = math.Max(h.absMax, math.Abs(u))
	if n := len(h.cells); n > 0 {
		if next := h.end() + math.Max(1e-9, 1e-12*h.end()); c < next {
			if !own {
				// Reports read at once share one CPU reading.
				h.cells[n-1] = h.cells[n-1].join(cell{c, t, u, 1, c})
				return false
			}
			c = next // no two cells at one place
		}
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

// filter replaces an outlier by the median of its neighbourhood (Hampel). An outlier
// exceeds both its neighbours, unlike the steps of a steep monotone curve; the first
// value, with one neighbour, is kept.
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
	h.span = math.Max(h.span, h.worst-u)
}

// doubtful reports whether the newest report may be an outlier, which only the next one
// can show.
func (h *history) doubtful(buf []float64) bool {
	n := len(h.cells)
	if n < plateauReports {
		return false
	}
	before := h.cells[n-plateauReports : n-1]
	last, a, b := h.cells[n-1], before[len(before)-3], before[len(before)-1]
	due := b.u + (b.u-a.u)/(b.c-a.c)*(last.c-b.c)
	usual := 0.05 * h.span
	for i := 1; i < len(before); i++ {
		usual = math.Max(usual, 3*math.Abs(before[i].u-before[i-1].u))
	}
	return math.Abs(last.u-due) > math.Max(usual, 8*noise(before, buf))
}

// rangeNow returns the range over the first n cells; those not yet filtered are filtered
// provisionally.
func (h *history) rangeNow(n int) float64 {
	worst, span := h.worst, h.span
	for i := h.done; i < n; i++ {
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

func (h *history) drop(i int) { h.cells = h.cells[:i] }

// cut removes the cells before i; the range is kept.
func (h *history) cut(i int) {
	h.cells = slices.Delete(h.cells, 0, i)
	h.done = 0
	h.counted = false
	for ; h.done < len(h.cells)-hampelHalf; h.done++ {
		h.filter(h.done)
		h.count(h.cells[h.done].u)
	}
}

// noise returns a robust standard deviation of the reports around their trend, from second
// differences; 0 with fewer than 3.
func noise(cells []cell, buf []float64) float64 {
	for i := 2; i < len(cells); i++ {
		a, b, c := cells[i-2], cells[i-1], cells[i]
		if c.c <= a.c {
			continue
		}
		f := (b.c - a.c) / (c.c - a.c)
		d := b.u - (a.u + f*(c.u-a.u))
		// Normalised to the noise of one report, for any spacing and counts.
		v := 1/b.n + (1-f)*(1-f)/a.n + f*f/c.n
		buf = append(buf, math.Abs(d)/math.Sqrt(v))
	}
	if len(buf) == 0 {
		return 0
	}
	return madToSigma * median(buf)
}
