// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package chart draws the demo's picture: a pair of runs side by side, with the
// loss and the CPU of each job over time, and when each job was good and done.
package chart

import (
	"fmt"
	"image/color"
	"math"
	"strings"

	"github.com/ebbtide/ebbtide/e2e/demo/result"
)

// Where the parts lie.
const (
	leftX0, leftX1   = 64, 596
	rightX0, rightX1 = 654, 1186

	lossTop, lossBottom   = 752, 558
	stripTop              = 520
	stripHeight, stripGap = 12, 3
	cpuTop, cpuBottom     = 442, 278
	axisLabel             = 246
	barsTop               = 180
	barHeight, barGap     = 14, 3
	barsX0, barsX1        = 128, 880
	betterX               = 1060
)

// leastLeft is the bottom of the loss's logarithmic axis.
const leastLeft = 0.005

// Draw returns a PNG of a pair.
func Draw(p result.Pair, e result.Experiment) (picture []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			picture, err = nil, fmt.Errorf("drawing the picture: %v", r)
		}
	}()
	d := &drawing{painter: newPainter(), pair: p, cores: e.Cores}
	d.end = math.Max(d.pair.Flowcon.Makespan(), d.pair.None.Makespan())
	if !(d.end > 0) || math.IsInf(d.end, 0) {
		d.end = 1
	}
	d.head(e)
	d.column(p.Flowcon, leftX0, leftX1, "with Ebbtide (policy flowcon): CPU follows growth", true)
	d.column(p.None, rightX0, rightX1, "without (policy none): everybody alike", false)
	d.bars()
	return d.png()
}

type drawing struct {
	*painter
	pair  result.Pair
	cores float64
	end   float64 // of the time axes, seconds
}

// colourOf is a job's colour, the same in both runs.
func (d *drawing) colourOf(name string) color.NRGBA {
	for i, j := range d.pair.Flowcon.Jobs {
		if j.Name == name {
			return series[i%len(series)]
		}
	}
	return frame
}

// rangeOf is the range of a job's loss over both runs.
func (d *drawing) rangeOf(name string) result.Range {
	var both []result.Job
	for _, r := range []result.Run{d.pair.Flowcon, d.pair.None} {
		for _, j := range r.Jobs {
			if j.Name == name {
				both = append(both, j)
			}
		}
	}
	return result.RangeOf(both...)
}

func (d *drawing) head(e result.Experiment) {
	d.text("Three training jobs on one Nomad node", leftX0-44, height-30, style{size: 22, bold: true})
	parts := []string{"one run each, the same jobs and seed", fmt.Sprintf("%g cores", e.Cores), "exec engine", "limits by " + e.Mode,
		fmt.Sprintf("interval %g s", e.Interval)}
	if e.Nomad != "" {
		parts = append(parts, "Nomad "+e.Nomad)
	}
	d.text(strings.Join(parts, "   ·   "), leftX0-44, height-51, style{size: 13, colour: soft})
	x := float64(rightX1)
	for i := len(d.pair.Flowcon.Jobs) - 1; i >= 0; i-- {
		j := d.pair.Flowcon.Jobs[i]
		label := style{size: 14, bold: true, right: true, colour: d.colourOf(j.Name)}
		x -= d.text(j.Name, x, height-30, label) + 5
		d.box(d.colourOf(j.Name), x-14, height-31, x, height-19)
		x -= 34
	}
}

// column draws one run.
func (d *drawing) column(r result.Run, x0, x1 float64, title string, categories bool) {
	px := func(t float64) float64 { return x0 + (x1-x0)*math.Max(0, math.Min(1, t/d.end)) }
	d.text(title, x0, lossTop+34, style{size: 15, bold: true})
	d.loss(r, px, x0, x1)
	d.strips(r, px, x0, x1, categories)
	d.cpu(r, px, x0, x1)
	for _, t := range ticks(d.end, 8) {
		d.text(fmt.Sprintf("%g", t), px(t), cpuBottom-17, style{size: 12, colour: soft, centre: true})
	}
	d.text("seconds since the first job was submitted", (x0+x1)/2, axisLabel, style{size: 12, colour: soft, centre: true})
}

// lossY is where a part of the loss lies: a logarithmic axis from 100 % down.
func lossY(left float64) float64 {
	f := math.Log(math.Max(left, leastLeft)/leastLeft) / math.Log(1.3/leastLeft)
	return lossBottom + (lossTop-lossBottom)*math.Min(1, f)
}

func (d *drawing) loss(r result.Run, px func(float64) float64, x0, x1 float64) {
	d.text("loss still to go, % of the way from the first to the best", x0, lossTop+9, style{size: 12.5, colour: soft})
	for _, left := range []float64{1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01} {
		y := lossY(left)
		c, w := grid, 1.0
		if left == 0.1 || left == 0.05 {
			c, w = frame, 1.2
		}
		d.line(c, w, pt{x0, y}, pt{x1, y})
		d.text(fmt.Sprintf("%g %%", 100*left), x0-7, y, style{size: 12, colour: soft, right: true, middle: true})
	}
	d.grid(px, lossBottom, lossTop)
	for _, j := range r.Jobs {
		if j.Submitted > 0.5 {
			d.dashed(d.colourOf(j.Name), 1.2, pt{px(j.Submitted), lossBottom}, pt{px(j.Submitted), lossTop})
		}
	}
	for _, j := range r.Jobs {
		rng := d.rangeOf(j.Name)
		var ps []pt
		end := 0 // beyond it there is nothing but the axis
		for i, q := range j.Curve {
			left := rng.Left(q.Value)
			ps = append(ps, pt{px(q.T), lossY(left)})
			if left > leastLeft {
				end = min(i+2, len(j.Curve))
			}
		}
		ps = ps[:end]
		d.line(d.colourOf(j.Name), 2, thin(ps)...)
	}
	// The moments that the summary counts, on top of all curves.
	for _, j := range r.Jobs {
		t := result.Measure(j, d.rangeOf(j.Name))
		for _, q := range []struct{ at, left float64 }{{t.To90, 0.1}, {t.To95, 0.05}} {
			if !math.IsNaN(q.at) {
				at := pt{px(j.Submitted + q.at), lossY(q.left)}
				d.dot(white, at, 5)
				d.dot(d.colourOf(j.Name), at, 3.6)
			}
		}
	}
	d.line(frame, 1, pt{x0, lossTop}, pt{x0, lossBottom}, pt{x1, lossBottom})
}

func (d *drawing) grid(px func(float64) float64, bottom, top float64) {
	for _, t := range ticks(d.end, 8) {
		d.line(grid, 1, pt{px(t), bottom}, pt{px(t), top})
	}
}

// strips show the category of each job over time, or, without a policy, only
// when it ran.
func (d *drawing) strips(r result.Run, px func(float64) float64, x0, x1 float64, categories bool) {
	y := float64(stripTop)
	if categories {
		x := d.text("category:", x0, y+8, style{size: 12.5, colour: soft}) + x0 + 10
		for _, c := range []struct {
			part float64
			word string
		}{{1, "growing (NL)"}, {0.55, "watching (WL)"}, {0.22, "converged (CL)"}} {
			d.box(mix(soft, c.part), x, y+7, x+12, y+19)
			x += 17 + d.text(c.word, x+16, y+8, style{size: 12.5, colour: soft}) + 14
		}
	} else {
		d.text("no categories", x0, y+8, style{size: 12.5, colour: soft})
	}
	for _, j := range r.Jobs {
		top := y
		y -= stripHeight
		d.text(j.Name, x0-7, (top+y)/2, style{size: 11, colour: d.colourOf(j.Name), bold: true, right: true, middle: true})
		if !categories {
			d.box(mix(d.colourOf(j.Name), 0.55), px(j.Started), y, px(j.Finished), top)
		}
		for i, s := range j.Samples {
			if !categories {
				break
			}
			until := j.Finished
			if i+1 < len(j.Samples) {
				until = j.Samples[i+1].T
			}
			part := map[string]float64{"NL": 1, "WL": 0.55, "CL": 0.22}[s.Category]
			if part > 0 && until > s.T {
				d.box(mix(d.colourOf(j.Name), part), px(s.T), y, px(until)+0.3, top)
			}
		}
		y -= stripGap
	}
}

// cpu stacks what the jobs really used, in the order of their arrival.
func (d *drawing) cpu(r result.Run, px func(float64) float64, x0, x1 float64) {
	d.text(fmt.Sprintf("CPU used, %% of the %g cores", d.cores), x0, cpuTop+9, style{size: 12.5, colour: soft})
	py := func(share float64) float64 { return cpuBottom + (cpuTop-cpuBottom)*math.Max(0, math.Min(1.02, share)) }
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
		d.area(mix(d.colourOf(j.Name), 0.75), fill...)
	}
	for _, share := range []float64{0, 0.25, 0.5, 0.75, 1} {
		d.line(color.NRGBA{0x22, 0x26, 0x2b, 0x18}, 1, pt{x0, py(share)}, pt{x1, py(share)})
		d.text(fmt.Sprintf("%g", 100*share), x0-7, py(share), style{size: 12, colour: soft, right: true, middle: true})
	}
	d.line(frame, 1, pt{x0, cpuTop}, pt{x0, cpuBottom}, pt{x1, cpuBottom})
}

// smooth is over how many seconds the use is averaged.
const smooth = 2.0

// Use is the part of the pool that a job used around a time, from the
// CPU-seconds that were counted.
func Use(j result.Job, t, cores float64) float64 {
	from, to := math.Max(t-smooth/2, j.Started), math.Min(t+smooth/2, j.Finished)
	if !(to > from && t >= j.Started && t <= j.Finished) { // NaN is not
		return 0
	}
	use := (counted(j, to) - counted(j, from)) / ((to - from) * cores)
	if !(use > 0) {
		return 0
	}
	return use
}

// counted interpolates the CPU-seconds that a job has used until a time.
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

// bars show for each job how long it took under both policies.
func (d *drawing) bars() {
	rows := result.Compare(d.pair, d.cores).Rows
	longest := 0.0
	for _, r := range rows {
		longest = math.Max(longest, math.Max(r.None.Completion, r.Flowcon.Completion))
	}
	if !(longest > 0) || math.IsInf(longest, 0) {
		longest = 1
	}
	px := func(t float64) float64 { return barsX0 + (barsX1-barsX0)*math.Min(1, t/longest) }
	y := float64(barsTop)
	d.text("seconds from a job's own submission to its end", barsX0, y+16, style{size: 13, bold: true})
	d.dot(ink, pt{barsX0 + 336, y + 20.5}, 3.4)
	d.text("90 % and 95 % of its quality", barsX0+345, y+16, style{size: 13, colour: soft})
	d.text("95 % of quality", betterX, y+16, style{size: 13, bold: true, right: true})
	d.text("done", rightX1, y+16, style{size: 13, bold: true, right: true})
	for _, r := range rows {
		c := d.colourOf(r.Name)
		y -= 4
		d.text(r.Name, barsX0-68, y-barHeight-barGap/2, style{size: 14, bold: true, right: true, middle: true, colour: c})
		for _, b := range []struct {
			name  string
			times result.Times
			part  float64
		}{{"flowcon", r.Flowcon, 0.85}, {"none", r.None, 0.35}} {
			mid := y - barHeight/2
			d.text(b.name, barsX0-8, mid, style{size: 12, colour: soft, right: true, middle: true})
			d.box(mix(c, b.part), barsX0, y-barHeight, px(b.times.Completion), y)
			d.text(fmt.Sprintf("%.1f s", b.times.Completion), px(b.times.Completion)+6, mid, style{size: 12, middle: true})
			for _, t := range []float64{b.times.To90, b.times.To95} {
				if !math.IsNaN(t) {
					d.dot(white, pt{px(t), mid}, 4.6)
					d.dot(ink, pt{px(t), mid}, 3.4)
				}
			}
			y -= barHeight + barGap
		}
		mid := y + barHeight + 1.5*barGap
		d.text(change(r.None.To95, r.Flowcon.To95), betterX, mid, style{size: 14, right: true, middle: true})
		d.text(change(r.None.Completion, r.Flowcon.Completion), rightX1, mid, style{size: 14, right: true, middle: true})
		y -= 6
	}
	for _, t := range ticks(longest, 10) {
		d.text(fmt.Sprintf("%g", t), px(t), y-9, style{size: 12, colour: soft, centre: true})
	}
}

// change is the difference in words.
func change(none, flowcon float64) string {
	c := result.Change(none, flowcon)
	switch {
	case math.IsNaN(c):
		return "unknown"
	case math.Abs(c) < 0.005:
		return "same"
	case c < 0:
		return fmt.Sprintf("%.0f %% sooner", -100*c)
	}
	return fmt.Sprintf("%.0f %% later", 100*c)
}

// ticks are about n round numbers from 0 to the end.
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

// thin keeps, of the points that lie within half a point of the picture, the
// first and the last: a line of thousands of reports draws no better.
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
