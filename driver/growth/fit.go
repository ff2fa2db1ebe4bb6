// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package growth

import "math"

const (
	maxBins     = 24   // points per fitted curve
	horizon     = 0.1  // how far growth looks ahead, as a fraction of the window
	minResidual = 1e-3 // residuals below this fraction of the range count as none
	biasSigma   = 3.5  // a window is too long if its newest part is this many standard errors off the fit
	trendSigma  = 3.0  // … or if its newest half or quarter still has a trend
)

// shapes is the number of curves fitted. Each falls from φ(0) = 1: linearly,
// exponentially or hyperbolically; with factor and offset from the regression they are
// the m + A·e^(−kc) and m + 1/(kc+b) of training curves. The k lie on a grid, because
// linearising noisy values to find k would amplify the noise near m.
const shapes = 9

func phi(x float64) (y [shapes]float64) {
	e := math.Exp(-1.5 * x)
	y[0] = 1 - x
	y[1] = e // k = 1.5, 3, 6, 12
	y[2] = y[1] * y[1]
	y[3] = y[2] * y[2]
	y[4] = y[3] * y[3]
	y[5] = 1 / (1 + x)
	y[6] = 1 / (1 + 4*x)
	y[7] = 1 / (1 + 16*x)
	y[8] = 1 / (1 + 64*x)
	return y
}

// ahead is the fall of each shape from 1 to 1 + horizon, per unit of x.
var ahead = func() (d [shapes]float64) {
	a, b := phi(1), phi(1+horizon)
	for s := range d {
		d[s] = (a[s] - b[s]) / horizon
	}
	return d
}()

func shapeName(s int) string {
	switch {
	case s == 0:
		return "linear"
	case s < 5:
		return "exponential"
	}
	return "hyperbolic"
}

// fitter is the working memory of one task: measuring allocates nothing.
type fitter struct {
	cells []cell
	bins  []cell
	x     [maxBins]float64
	phi   [max(shapes, bends)][maxBins]float64
	wt    [maxBins]float64
	res   [maxBins]float64
	tmp   []float64
	g, se float64 // growth per CPU-second as a fraction of the range, and its standard error
	level float64 // the newest value, which is 0 in bins
}

func (f *fitter) load(h *history, n int, span float64) {
	if f.cells == nil {
		f.cells = make([]cell, 0, maxCells+1)
		f.bins = make([]cell, 0, maxBins)
		f.tmp = make([]float64, 0, maxCells+1)
	}
	f.cells = append(f.cells[:0], h.cells[:n]...)
	for i := h.done; i < len(f.cells); i++ {
		if v, ok := h.hampel(i); ok {
			f.cells[i].u = v
		}
	}
	// In units of the range, relative to the newest value: the result is independent of
	// the metric's offset and scale.
	ref := f.cells[len(f.cells)-1].u
	f.level = ref
	for i := range f.cells {
		f.cells[i].u = (f.cells[i].u - ref) / span
	}
}

func (f *fitter) window(share float64, n int) []cell {
	last := f.cells[len(f.cells)-1].c
	from := last - share*(last-f.cells[0].c)
	i := len(f.cells)
	for i > 0 && f.cells[i-1].c >= from {
		i--
	}
	return f.cells[max(0, min(i, len(f.cells)-n)):]
}

// group puts a window into at most maxBins bins of equal width in CPU-seconds, from the
// newest on.
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

// growth returns the growth per CPU-second, as a fraction of the range, and the name of
// the likeliest shape.
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
	f.g = g
	return g, name
}

// fit fits every shape to a window and averages their growth by likelihood: choosing a
// single shape would make growth jump when two fit equally well. good is false if the
// newest part of the window is off the fit.
func (f *fitter) fit(win []cell) (g float64, name string, good bool) {
	f.group(win)
	bins := f.bins
	n := len(bins)
	c0, c1 := bins[0].c, bins[n-1].c
	width := c1 - c0
	for i, b := range bins {
		f.x[i] = (b.c - c0) / width
		for s, y := range phi(f.x[i]) {
			f.phi[s][i] = y
		}
	}
	sigma := f.spread()
	var score, rate, dev, scale, offset, weight [shapes]float64
	least := math.Inf(1)
	for s := range shapes {
		var pp float64
		scale[s], offset[s], pp = f.regress(f.phi[s][:n], sigma)
		rate[s] = scale[s] * ahead[s] / width
		dev[s] = sigma / math.Sqrt(pp) * ahead[s] / width
		score[s] = f.misfit(n, sigma)
		least = math.Min(least, score[s])
	}
	total, best := 0.0, 0.0
	for s := range shapes {
		weight[s] = math.Pow(least/score[s], float64(n)/2)
		total += weight[s]
		g += weight[s] * rate[s]
		if weight[s] > best {
			best, name = weight[s], shapeName(s)
		}
	}
	g /= total
	v := 0.0
	for s := range shapes {
		v += weight[s] * ((rate[s]-g)*(rate[s]-g) + dev[s]*dev[s])
	}
	f.se = math.Sqrt(v / total)
	fitted := func(x float64) float64 {
		y := 0.0
		for s, p := range phi(x) {
			y += weight[s] * (offset[s] + scale[s]*p)
		}
		return y / total
	}
	good = f.levels(win, c0, width, fitted) && f.slopes(n, sigma, fitted)
	return g, name, good
}

// spread returns the noise of the bins, from second differences of the newer half, because noise
// often shrinks during training.
func (f *fitter) spread() float64 {
	n := len(f.bins)
	newer := f.bins[n-max(n/2, min(n, 8)):]
	per := 0.0
	for _, b := range newer {
		per += b.n / float64(len(newer))
	}
	return math.Max(noise(newer, f.tmp[:0])/math.Sqrt(per), minResidual)
}

func (f *fitter) misfit(n int, sigma float64) float64 {
	q := 0.0
	lim := 9 * sigma * sigma
	for i := range n {
		q += math.Min(f.res[i]*f.res[i], lim)
	}
	return q/float64(n) + minResidual*minResidual
}

func (f *fitter) levels(win []cell, c0, width float64, fitted func(float64) float64) bool {
	recent := win[max(0, len(win)-48):]
	sigma := math.Max(noise(recent, f.tmp[:0]), minResidual)
	sum := 0.0
	m := 0
	for i := len(win) - 1; i >= len(win)/2 && m < 32; i-- {
		r := (win[i].u - fitted((win[i].c-c0)/width)) * math.Sqrt(win[i].n) / sigma
		sum += math.Max(-4, math.Min(4, r))
		if m++; m > 1 && math.Abs(sum) > biasSigma*math.Sqrt(float64(m)) {
			return false
		}
	}
	return true
}

func (f *fitter) slopes(n int, sigma float64, fitted func(float64) float64) bool {
	for _, m := range []int{n / 2, n / 4} {
		if m < 5 {
			continue
		}
		mx, mr := 0.0, 0.0
		for i := n - m; i < n; i++ {
			f.res[i] = f.bins[i].u - fitted(f.x[i])
			mx += f.x[i] / float64(m)
			mr += f.res[i] / float64(m)
		}
		var xx, xr float64
		for i := n - m; i < n; i++ {
			xx += (f.x[i] - mx) * (f.x[i] - mx)
			xr += (f.x[i] - mx) * (f.res[i] - mr)
		}
		if math.Abs(xr) > trendSigma*sigma*math.Sqrt(xx) {
			return false
		}
	}
	return true
}

// regress fits u = m + a·φ with Huber weights, stores the residuals in res and returns
// also the weighted sum of squares of φ about its mean.
func (f *fitter) regress(phi []float64, sigma float64) (a, m, ss float64) {
	n := len(phi)
	bins, wt, res := f.bins[:n], f.wt[:n], f.res[:n]
	for i := range wt {
		wt[i] = 1
	}
	var lim float64
	for pass := range 3 {
		var sw, sp, su float64
		for i, p := range phi {
			sw += wt[i]
			sp += wt[i] * p
			su += wt[i] * bins[i].u
		}
		mp, mu := sp/sw, su/sw
		var pu float64
		ss = 0
		for i, p := range phi {
			ss += wt[i] * (p - mp) * (p - mp)
			pu += wt[i] * (p - mp) * (bins[i].u - mu)
		}
		a = pu / ss
		m = mu - a*mp
		for i, p := range phi {
			res[i] = bins[i].u - m - a*p
		}
		if pass == 0 {
			f.tmp = f.tmp[:0]
			for _, r := range res {
				f.tmp = append(f.tmp, math.Abs(r))
			}
			lim = 1.5 * math.Max(madToSigma*median(f.tmp), sigma)
		}
		for i, r := range res {
			wt[i] = 1
			if r = math.Abs(r); r > lim {
				wt[i] = lim / r
			}
		}
	}
	return a, m, ss
}

const (
	flatRate    = 0.05  // part of the range, over as many CPU-seconds as used so far, below which the curve is flat
	boundZ      = 1.645 // standard errors of a one-sided 95 % bound
	leaveZ      = 2.0   // standard errors of a slope that ends a plateau
	recentShare = 0.25  // the second window: the newest quarter of the CPU-seconds
)

func (f *fitter) plateau(was bool) bool {
	n := len(f.cells)
	if n < plateauReports {
		return false
	}
	used := f.cells[n-1].c - f.cells[0].c
	flat := func(s, se, z float64) bool {
		return s < z*se || (s+boundZ*se)*used < flatRate
	}
	s, se := f.trend(f.window(recentShare, plateauReports))
	if was {
		// Leaving takes both windows: noise seldom shows in both at once, a real drop
		// soon does.
		return flat(f.g, f.se, leaveZ) || flat(s, se, leaveZ)
	}
	return flat(f.g, f.se, 0) && flat(s, se, 0)
}

// trend returns the improvement per CPU-second over a window and its standard error, by Theil–Sen:
// the median slope of all pairs, which resists outliers.
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
	sigma := math.Max(madToSigma*median(f.tmp), minResidual)
	return slope, sigma / math.Sqrt(ss)
}
