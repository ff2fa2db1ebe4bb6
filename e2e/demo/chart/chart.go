// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package chart draws the demo's picture: a pair of runs with each job's loss and CPU over time,
// and when it was good and done.
package chart

import (
	"fmt"
	"image/color"
	"math"
	"strings"

	"github.com/ebbtide/ebbtide/e2e/demo/result"
)

// Horizontal layout.
const (
	leftX0, leftX1   = 64, 596
	rightX0, rightX1 = 654, 1186
	barsX0, barsX1   = 128, 880
	betterX          = 1060
)

// Vertical layout.
const (
	barHeight, barGap     = 14, 3
	rowHeight             = 2*(barHeight+barGap) + 10 // two bars per job
	stripHeight, stripGap = 12, 3
)

// layout is the vertical layout; bars and strips have a row per job.
type layout struct {
	barsTop                       float64
	axisLabel, cpuBottom, cpuTop  float64
	stripTop, lossBottom, lossTop float64
	height                        float64
}

func layoutFor(jobs int) layout {
	l := layout{barsTop: 48 + rowHeight*float64(jobs)}
	l.axisLabel, l.cpuBottom, l.cpuTop = l.barsTop+66, l.barsTop+98, l.barsTop+262
	l.stripTop = l.cpuTop + 33 + (stripHeight+stripGap)*float64(jobs)
	l.lossBottom, l.lossTop = l.stripTop+38, l.stripTop+232
	l.height = l.lossTop + 116
	return l
}

// leastLeft is the bottom of the logarithmic loss axis.
const leastLeft = 0.005

// quality is the marked fraction.
const quality = 0.95

// Draw returns a PNG.
func Draw(p result.Pair, e result.Experiment) (picture []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			picture, err = nil, fmt.Errorf("drawing the picture: %v", r)
		}
	}()
	l := layoutFor(len(p.With.Jobs))
	d := &drawing{painter: newPainter(l.height), layout: l, pair: p, cores: e.Cores}
	d.end = math.Max(d.pair.With.Makespan(), d.pair.None.Makespan())
	if !(d.end > 0) || math.IsInf(d.end, 0) {
		d.end = 1
	}
	d.head(e)
	d.column(p.With, leftX0, leftX1, fmt.Sprintf("with Ebbtide (policy %s)", p.With.Policy))
	d.column(p.None, rightX0, rightX1, "without (policy none): all jobs alike")
	d.bars()
	return d.png()
}

type drawing struct {
	*painter
	layout
	pair  result.Pair
	cores float64
	end   float64 // of the time axes, in seconds
}

// colourOf returns the colour of a job, which is the same in both runs.
func (d *drawing) colourOf(name string) color.NRGBA {
	for i, j := range d.pair.With.Jobs {
		if j.Name == name {
			return series[i%len(series)]
		}
	}
	return frame
}

func (d *drawing) head(e result.Experiment) {
	d.text(fmt.Sprintf("%d training jobs on one Nomad node", len(d.pair.With.Jobs)), leftX0-44, d.layout.height-30, style{size: 22, bold: true})
	parts := []string{"one run each, the same jobs and seed", fmt.Sprintf("%g cores", e.Cores), "exec engine", "limits by " + e.Mode,
		fmt.Sprintf("interval %g s", e.Interval)}
	if e.Nomad != "" {
		parts = append(parts, "Nomad "+e.Nomad)
	}
	d.text(strings.Join(parts, "   ·   "), leftX0-44, d.layout.height-51, style{size: 13, colour: soft})
	x := float64(rightX1)
	for i := len(d.pair.With.Jobs) - 1; i >= 0; i-- {
		j := d.pair.With.Jobs[i]
		label := style{size: 14, bold: true, right: true, colour: d.colourOf(j.Name)}
		x -= d.text(j.Name, x, d.layout.height-30, label) + 5
		d.box(d.colourOf(j.Name), x-14, d.layout.height-31, x, d.layout.height-19)
		x -= 34
	}
}

func (d *drawing) column(r result.Run, x0, x1 float64, title string) {
	px := func(t float64) float64 { return x0 + (x1-x0)*math.Max(0, math.Min(1, t/d.end)) }
	d.text(title, x0, d.lossTop+34, style{size: 15, bold: true})
	d.loss(r, px, x0, x1)
	d.strips(r, px, x0)
	d.cpu(r, px, x0, x1)
	for _, t := range ticks(d.end, 8) {
		d.text(fmt.Sprintf("%g", t), px(t), d.cpuBottom-17, style{size: 12, colour: soft, centre: true})
	}
	d.text("seconds since the first job was submitted", (x0+x1)/2, d.axisLabel, style{size: 12, colour: soft, centre: true})
}

// lossY returns a position on the logarithmic axis from 100 % down.
func (d *drawing) lossY(left float64) float64 {
	f := math.Log(math.Max(left, leastLeft)/leastLeft) / math.Log(1.3/leastLeft)
	return d.lossBottom + (d.lossTop-d.lossBottom)*math.Min(1, f)
}

func (d *drawing) loss(r result.Run, px func(float64) float64, x0, x1 float64) {
	d.text("loss still to go, % of the way from the first to the best", x0, d.lossTop+9, style{size: 12.5, colour: soft})
	for _, left := range []float64{1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01} {
		y := d.lossY(left)
		c, w := grid, 1.0
		if left == 1-quality {
			c, w = frame, 1.2
		}
		d.line(c, w, pt{x0, y}, pt{x1, y})
		d.text(fmt.Sprintf("%g %%", 100*left), x0-7, y, style{size: 12, colour: soft, right: true, middle: true})
	}
	d.grid(px, d.lossBottom, d.lossTop)
	for _, j := range r.Jobs {
		if j.Submitted > 0.5 {
			d.dashed(d.colourOf(j.Name), 1.2, pt{px(j.Submitted), d.lossBottom}, pt{px(j.Submitted), d.lossTop})
		}
	}
	for _, j := range r.Jobs {
		var ps []pt
		end := 0 // beyond it, only the axis is drawn
		for i, q := range j.Curve {
			left := j.Curve.Left(q.Value)
			ps = append(ps, pt{px(q.T), d.lossY(left)})
			if left > leastLeft {
				end = min(i+2, len(j.Curve))
			}
		}
		ps = ps[:end]
		d.line(d.colourOf(j.Name), 2, thin(ps)...)
	}
	// The summary's times, above all curves.
	for _, j := range r.Jobs {
		if t := j.Curve.Quality(quality); t != nil {
			at := pt{px(*t), d.lossY(1 - quality)}
			d.dot(white, at, 5)
			d.dot(d.colourOf(j.Name), at, 3.6)
		}
	}
	d.line(frame, 1, pt{x0, d.lossTop}, pt{x0, d.lossBottom}, pt{x1, d.lossBottom})
}

func (d *drawing) grid(px func(float64) float64, bottom, top float64) {
	for _, t := range ticks(d.end, 8) {
		d.line(grid, 1, pt{px(t), bottom}, pt{px(t), top})
	}
}

// strips show when each job ran.
func (d *drawing) strips(r result.Run, px func(float64) float64, x0 float64) {
	y := d.stripTop
	d.text("from submission to end", x0, y+8, style{size: 12.5, colour: soft})
	for _, j := range r.Jobs {
		top := y
		y -= stripHeight
		d.text(j.Name, x0-7, (top+y)/2, style{size: 11, colour: d.colourOf(j.Name), bold: true, right: true, middle: true})
		d.box(tint(d.colourOf(j.Name), 0.55), px(j.Submitted), y, px(j.Finished), top)
		y -= stripGap
	}
}

// cpu stacks the jobs' use, in order of arrival.
func (d *drawing) cpu(r result.Run, px func(float64) float64, x0, x1 float64) {
	d.text(fmt.Sprintf("CPU used, %% of the %g cores", d.cores), x0, d.cpuTop+9, style{size: 12.5, colour: soft})
	py := func(share float64) float64 {
		return d.cpuBottom + (d.cpuTop-d.cpuBottom)*math.Max(0, math.Min(1.02, share))
	}
	steps := 2 * int(x1-x0) / 4
	base := make([]float64, steps+1)
	for _, j := range r.Jobs {
		var lower, upper []pt
		for i := range base {
			t := d.end * float64(i) / float64(steps)
			lower = append(lower, pt{px(t), py(base[i])})
			base[i] += Use(j, t, d.cores)
			upper = append(upper, pt{px(t), py(base[i])})
		}
		fill := append([]pt{}, lower...)
		for i := len(upper) - 1; i >= 0; i-- {
			fill = append(fill, upper[i])
		}
		d.area(tint(d.colourOf(j.Name), 0.75), fill...)
	}
	for _, share := range []float64{0, 0.25, 0.5, 0.75, 1} {
		d.line(color.NRGBA{0x22, 0x26, 0x2b, 0x18}, 1, pt{x0, py(share)}, pt{x1, py(share)})
		d.text(fmt.Sprintf("%g", 100*share), x0-7, py(share), style{size: 12, colour: soft, right: true, middle: true})
	}
	d.line(frame, 1, pt{x0, d.cpuTop}, pt{x0, d.cpuBottom}, pt{x1, d.cpuBottom})
}

// smooth is the averaging window, in seconds.
const smooth = 2.0

// Use returns the fraction of the pool that a job used around t, from its CPU-seconds.
func Use(j result.Job, t, cores float64) float64 {
	from, to := math.Max(t-smooth/2, j.Started), math.Min(t+smooth/2, j.Finished)
	if !(to > from && t >= j.Started && t <= j.Finished) { // false for NaN
		return 0
	}
	use := (counted(j, to) - counted(j, from)) / ((to - from) * cores)
	if !(use > 0) {
		return 0
	}
	return use
}

// counted interpolates a job's CPU-seconds.
func counted(j result.Job, t float64) float64 {
	before := result.Sample{T: j.Started}
	for _, s := range j.Samples {
		if math.IsNaN(float64(s.CPU)) || s.T <= before.T {
			continue
		}
		if s.T >= t {
			part := (t - before.T) / (s.T - before.T)
			return float64(before.CPU) + math.Max(0, part)*float64(s.CPU-before.CPU)
		}
		before = s
	}
	return float64(before.CPU)
}

// bars show each job's duration under both policies.
func (d *drawing) bars() {
	type times struct{ done, good float64 }
	took := func(r result.Run, name string) times {
		for _, j := range r.Jobs {
			if j.Name != name {
				continue
			}
			t := times{j.Finished - j.Submitted, math.NaN()}
			if at := j.Curve.Quality(quality); at != nil {
				t.good = *at - j.Submitted
			}
			return t
		}
		return times{math.NaN(), math.NaN()}
	}
	longest := 0.0
	for _, r := range []result.Run{d.pair.None, d.pair.With} {
		for _, j := range r.Jobs {
			longest = math.Max(longest, j.Finished-j.Submitted)
		}
	}
	if !(longest > 0) || math.IsInf(longest, 0) {
		longest = 1
	}
	px := func(t float64) float64 { return barsX0 + (barsX1-barsX0)*math.Min(1, t/longest) }
	y := d.barsTop
	d.text("seconds from a job's own submission to its end", barsX0, y+16, style{size: 13, bold: true})
	d.dot(ink, pt{barsX0 + 336, y + 20.5}, 3.4)
	d.text("95 % of its quality", barsX0+345, y+16, style{size: 13, colour: soft})
	d.text("95 % of quality", betterX, y+16, style{size: 13, bold: true, right: true})
	d.text("done", rightX1, y+16, style{size: 13, bold: true, right: true})
	for _, j := range d.pair.With.Jobs {
		none, with := took(d.pair.None, j.Name), took(d.pair.With, j.Name)
		c := d.colourOf(j.Name)
		y -= 4
		d.text(j.Name, barsX0-68, y-barHeight-barGap/2, style{size: 14, bold: true, right: true, middle: true, colour: c})
		for _, b := range []struct {
			name  string
			times times
			part  float64
		}{{d.pair.With.Policy, with, 0.85}, {"none", none, 0.35}} {
			mid := y - barHeight/2
			d.text(b.name, barsX0-8, mid, style{size: 12, colour: soft, right: true, middle: true})
			d.box(tint(c, b.part), barsX0, y-barHeight, px(b.times.done), y)
			d.text(fmt.Sprintf("%.1f s", b.times.done), px(b.times.done)+6, mid, style{size: 12, middle: true})
			if !math.IsNaN(b.times.good) {
				d.dot(white, pt{px(b.times.good), mid}, 4.6)
				d.dot(ink, pt{px(b.times.good), mid}, 3.4)
			}
			y -= barHeight + barGap
		}
		mid := y + barHeight + 1.5*barGap
		d.text(change(none.good, with.good), betterX, mid, style{size: 14, right: true, middle: true})
		d.text(change(none.done, with.done), rightX1, mid, style{size: 14, right: true, middle: true})
		y -= 6
	}
	for _, t := range ticks(longest, 10) {
		d.text(fmt.Sprintf("%g", t), px(t), y-9, style{size: 12, colour: soft, centre: true})
	}
}

func change(none, with float64) string {
	c := with/none - 1
	switch {
	case math.IsNaN(c) || math.IsInf(c, 0):
		return "unknown"
	case math.Abs(c) < 0.005:
		return "same"
	case c < 0:
		return fmt.Sprintf("%.0f %% sooner", -100*c)
	}
	return fmt.Sprintf("%.0f %% later", 100*c)
}

// ticks returns about n round numbers from 0 to end.
func ticks(end float64, n int) []float64 {
	if !(end > 0) || math.IsInf(end, 0) {
		return []float64{0}
	}
	raw := end / float64(n)
	step := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 5, 10} {
		if raw <= m*step*1.0001 {
			step *= m
			break
		}
	}
	var out []float64
	for i := 0; float64(i)*step <= end*1.0001; i++ {
		out = append(out, float64(i)*step)
	}
	return out
}

// thin drops points within half a point of each other, except the first and the last, as thousands
// of reports look the same.
func thin(ps []pt) []pt {
	var out []pt
	for i, q := range ps {
		if len(out) > 1 && i+1 < len(ps) && ps[i+1].x-out[len(out)-1].x < 0.5 {
			continue
		}
		out = append(out, q)
	}
	return out
}
