// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package growth

import "math"

const (
	maxBins   = 24   // points a curve is fitted to
	horizon   = 0.1  // how far ahead growth looks, as a fraction of the window
	smallest  = 1e-3 // residuals below this fraction of the range are as good as none
	biasSigma = 2.5  // a window is too long when its newest part is this far off the fit
)

// shape is a curve that falls from φ(0) = 1 and flattens: the parameter that
// enters linearly (scale and offset) is left to the regression.
type shape struct {
	name string
	phi  func(k, x float64) float64
	k    float64
}

var shapes = func() []shape {
	line := func(_, x float64) float64 { return 1 - x }
	exp := func(k, x float64) float64 { return math.Exp(-k * x) }
	hyp := func(k, x float64) float64 { return 1 / (1 + k*x) }
	return []shape{
		{"linear", line, 0},
		{"exponential", exp, 1.5}, {"exponential", exp, 3}, {"exponential", exp, 6}, {"exponential", exp, 12},
		{"hyperbolic", hyp, 1}, {"hyperbolic", hyp, 4}, {"hyperbolic", hyp, 16}, {"hyperbolic", hyp, 64},
	}
}()

// fitter holds one task's working memory, so that measuring allocates nothing.
type fitter struct {
	cells []cell
	span  float64 // range of values seen so far
	bins  []cell
	x     [maxBins]float64
	phi   [maxBins]float64
	wt    [maxBins]float64
	res   [maxBins]float64
	avg   [maxBins]float64 // residuals of the averaged fit
	tmp   []float64
}

// load takes the cells, with those the filter has not reached yet filtered as
// well as their neighbours allow.
func (f *fitter) load(h *history, span float64) {
	if f.cells == nil {
		f.cells = make([]cell, 0, maxCells+1)
		f.bins = make([]cell, 0, maxBins)
		f.tmp = make([]float64, 0, maxCells+1)
	}
	f.span = span
	f.cells = append(f.cells[:0], h.cells...)
	for i := h.done; i < len(f.cells); i++ {
		if v, ok := h.hampel(i); ok {
			f.cells[i].u = v
		}
	}
}

// window returns the cells of the last share of the CPU-seconds, at least n.
func (f *fitter) window(share float64, n int) []cell {
	last := f.cells[len(f.cells)-1].c
	from := last - share*(last-f.cells[0].c)
	i := len(f.cells)
	for i > 0 && f.cells[i-1].c >= from {
		i--
	}
	return f.cells[max(0, min(i, len(f.cells)-n)):]
}

// group puts a window into at most maxBins bins of equal width in CPU-seconds,
// counted from the newest.
func (f *fitter) group(win []cell) {
	f.bins = f.bins[:0]
	if len(win) <= maxBins {
		f.bins = append(f.bins, win...)
		return
	}
	first, last := win[0].c, win[len(win)-1].c
	was := -1
	for _, c := range win {
		b := maxBins - 1 - int((last-c.c)/(last-first)*maxBins)
		b = max(b, 0)
		if b == was {
			f.bins[len(f.bins)-1] = f.bins[len(f.bins)-1].join(c)
			continue
		}
		was = b
		f.bins = append(f.bins, c)
	}
}

// growth returns the growth per CPU-second, as a fraction of the range, and
// how it was found.
func (f *fitter) growth() (float64, string) {
	var g float64
	var name string
	before := len(f.cells) + 1
	for share := 1.0; share > 0.05; share /= 2 {
		win := f.window(share, plateauReports)
		if len(win) == before {
			continue
		}
		before = len(win)
		var good bool
		g, name, good = f.fit(win)
		if good {
			break
		}
	}
	return g, name
}

// fit fits every shape to a window and averages what they promise, each with
// the weight of its likelihood: choosing one shape makes growth jump when two
// describe a noisy curve equally well. good is false when the newest part of
// the window lies off the fit.
func (f *fitter) fit(win []cell) (g float64, name string, good bool) {
	f.group(win)
	bins := f.bins
	n := len(bins)
	c0, c1 := bins[0].c, bins[n-1].c
	width := c1 - c0
	for i, b := range bins {
		f.x[i] = (b.c - c0) / width
	}
	// Second differences of the newer half: noise often shrinks as training goes on.
	sigma := math.Max(noise(bins[n-max(n/2, min(n, 6)):], f.tmp[:0]), smallest*f.span)
	var score, rate [16]float64
	var resid [16][maxBins]float64
	least := math.Inf(1)
	for s, sh := range shapes {
		a := f.regress(sh, n, sigma)
		rate[s] = a * (sh.phi(sh.k, 1) - sh.phi(sh.k, 1+horizon)) / horizon / width
		q := 0.0
		lim := 9 * sigma * sigma
		for i := range n {
			r := f.res[i]
			resid[s][i] = r
			q += math.Min(r*r, lim)
		}
		score[s] = q/float64(n) + (smallest*f.span)*(smallest*f.span)
		least = math.Min(least, score[s])
	}
	clear(f.avg[:])
	total, best := 0.0, 0.0
	for s, sh := range shapes {
		w := math.Pow(least/score[s], float64(n)/2)
		total += w
		g += w * rate[s]
		for i := range n {
			f.avg[i] += w * resid[s][i]
		}
		if w > best {
			best, name = w, sh.name
		}
	}
	g /= total * f.span
	// Is the newest quarter off?
	m := max(2, n/4)
	sum := 0.0
	for i := n - m; i < n; i++ {
		sum += math.Max(-4*sigma, math.Min(4*sigma, f.avg[i]/total))
	}
	good = math.Abs(sum) <= biasSigma*sigma*math.Sqrt(float64(m))
	return g, name, good
}

// regress fits u = m + a·φ(x) with Huber's weights and leaves the residuals in res.
func (f *fitter) regress(sh shape, n int, sigma float64) (a float64) {
	for i := range n {
		f.phi[i] = sh.phi(sh.k, f.x[i])
		f.wt[i] = 1
	}
	for range 3 {
		var sw, sp, su float64
		for i := range n {
			sw += f.wt[i]
			sp += f.wt[i] * f.phi[i]
			su += f.wt[i] * f.bins[i].u
		}
		mp, mu := sp/sw, su/sw
		var pp, pu float64
		for i := range n {
			d := f.phi[i] - mp
			pp += f.wt[i] * d * d
			pu += f.wt[i] * d * (f.bins[i].u - mu)
		}
		a = pu / pp
		for i := range n {
			r := f.bins[i].u - mu - a*(f.phi[i]-mp)
			f.res[i] = r
			f.tmp = append(f.tmp[:i], math.Abs(r))
		}
		lim := 1.5 * math.Max(madToSigma*median(f.tmp[:n]), sigma)
		for i := range n {
			f.wt[i] = 1
			if r := math.Abs(f.res[i]); r > lim {
				f.wt[i] = lim / r
			}
		}
	}
	return a
}

const (
	flatRate = 0.05 // of the range, per CPU-seconds used so far: a slope below is flat
	enterZ   = 0.5
	leaveZ   = 2.5
	boundZ   = 1.645
	shortWin = 0.25
	longWin  = 0.5
)

// plateau says whether the curve is flat, given that it was (or not).
func (f *fitter) plateau(was bool) bool {
	n := len(f.cells)
	if n < plateauReports {
		return false
	}
	used := f.cells[n-1].c - f.cells[0].c
	flat := func(share float64) bool {
		s, se := f.trend(f.window(share, plateauReports))
		s, se = s*used/f.span, se*used/f.span
		if s+boundZ*se < flatRate {
			return true
		}
		if was {
			return s < leaveZ*se
		}
		return s < enterZ*se
	}
	if was {
		return flat(shortWin) && flat(longWin)
	}
	return flat(shortWin) && flat(longWin)
}

// trend is the improvement per CPU-second over a window (Theil–Sen) with its
// standard error.
func (f *fitter) trend(win []cell) (slope, se float64) {
	f.group(win)
	bins := f.bins
	n := len(bins)
	f.tmp = f.tmp[:0]
	for i := range n {
		for j := i + 1; j < n; j++ {
			f.tmp = append(f.tmp, (bins[i].u-bins[j].u)/(bins[j].c-bins[i].c))
		}
	}
	slope = median(f.tmp)
	mc := 0.0
	for _, b := range bins {
		mc += b.c
	}
	mc /= float64(n)
	ss := 0.0
	f.tmp = f.tmp[:0]
	for _, b := range bins {
		ss += (b.c - mc) * (b.c - mc)
		f.tmp = append(f.tmp, b.u+slope*b.c)
	}
	level := median(f.tmp)
	f.tmp = f.tmp[:0]
	for _, b := range bins {
		f.tmp = append(f.tmp, math.Abs(b.u+slope*b.c-level))
	}
	sigma := math.Max(madToSigma*median(f.tmp), smallest*f.span)
	return slope, sigma / math.Sqrt(ss)
}
