// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package status

import (
	"bytes"
	"fmt"
	"image/color"
	"image/png"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// Labels are the texts of a picture; empty ones are omitted.
type Labels struct {
	Task      string
	Job       string
	Alloc     string
	Metric    string // the value's name
	Goal      string // min, max
	Estimator string // robust, published: defines the unit of growth
	Policy    string // flowcon, none
	Mode      string // weight, quota
	// FairFinish shows the task relative to its fair share instead of its growth.
	FairFinish bool
	PoolCores  float64 // size of the pool; 0 or NaN = unknown

	Targets []Mark // lines across the value
}

// Mark is a value with a name.
type Mark struct {
	Name  string
	Value float64
}

func LabelsOf(s Status) Labels {
	l := Labels{Task: s.Task, Job: s.Job, Alloc: s.Alloc, Metric: s.Metric, Goal: s.Goal, Estimator: s.Estimator,
		Policy: s.Policy, Mode: s.Mode, PoolCores: float64(s.Node.PoolCores), FairFinish: strings.HasPrefix(s.Rule, "fsp.")}
	for _, t := range []Mark{
		{"acceptable", float64(s.Target.Acceptable)}, {"objective", float64(s.Target.Objective)}, {"target", float64(s.Target.QoE)},
	} {
		if plotted(t.Value) {
			l.Targets = append(l.Targets, t)
		}
	}
	return l
}

// Size of a picture and its parts in pixels. One point is one pixel (72 dpi); y grows
// upwards.
const (
	picWidth, picHeight = 900, 700

	left, right  = 70, picWidth - 18
	valueTop     = 620
	valueBottom  = 434
	growthTop    = 400
	growthBottom = 246
	cpuTop       = 212
	cpuBottom    = 58
	stripHeight  = 14 // the category, on top of the growth panel
)

// Colours after Okabe and Ito: distinguishable with every common colour blindness and
// in lightness.
var (
	ink     = color.NRGBA{0x22, 0x26, 0x2b, 0xff}
	soft    = color.NRGBA{0x6a, 0x71, 0x79, 0xff}
	grid    = color.NRGBA{0xe4, 0xe7, 0xea, 0xff}
	frame   = color.NRGBA{0xa9, 0xaf, 0xb5, 0xff}
	blue    = color.NRGBA{0x00, 0x72, 0xb2, 0xff}
	orange  = color.NRGBA{0xe6, 0x9f, 0x00, 0xff}
	grey    = color.NRGBA{0x9a, 0xa0, 0xa6, 0xff}
	purple  = color.NRGBA{0x7a, 0x3b, 0x69, 0xff}
	red     = color.NRGBA{0xd5, 0x5e, 0x00, 0xff}
	sky     = color.NRGBA{0x9d, 0xcf, 0xf0, 0xff}
	skyEdge = color.NRGBA{0x3f, 0x97, 0xcc, 0xff}
	white   = color.NRGBA{0xff, 0xff, 0xff, 0xff}
)

type category struct {
	name, word string
	strip, ink color.NRGBA
}

var categories = []category{
	{"NL", "growing", blue, white},
	{"WL", "watching", orange, ink},
	{"CL", "completing", grey, ink},
}

var classes = []category{
	{"G", "better than asked", skyEdge, white},
	{"S", "satisfied", blue, white},
	{"B", "worse", red, white},
}

func tint(c color.NRGBA) color.NRGBA {
	mix := func(v uint8) uint8 { return uint8(255 - (255-int(v))*13/100) }
	return color.NRGBA{mix(c.R), mix(c.G), mix(c.B), 0xff}
}

// Draw returns a PNG of 900 × 700 pixels with three panels over a common time axis: the
// value (without any, the step), growth with category, and CPU limit with use. Rows may be in any order; values
// that are not finite leave gaps. A range of several powers of ten has a logarithmic
// axis.
func Draw(rows []Row, l Labels) (picture []byte, err error) {
	// The task may have written the rows: a panic of the libraries must not end the
	// driver.
	defer func() {
		if r := recover(); r != nil {
			picture, err = nil, fmt.Errorf("draw %d rows: %v", len(rows), r)
		}
	}()
	img := vgimg.NewWith(vgimg.UseWH(picWidth, picHeight), vgimg.UseDPI(72))
	paint(draw.New(img), inOrder(rows), l)
	var b bytes.Buffer
	if err := png.Encode(&b, img.Image()); err != nil {
		return nil, fmt.Errorf("encode picture: %w", err)
	}
	return b.Bytes(), nil
}

// inOrder returns rows sorted by time, thinned to a Writer's maximum, which bounds the
// cost of drawing.
func inOrder(rows []Row) []Row {
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b Row) int { return a.Time.Compare(b.Time) })
	return thin(rows, defaultMaxRows)
}

func paint(c draw.Canvas, rows []Row, l Labels) {
	p := &painter{c: c, rows: rows, t: make([]float64, len(rows))}
	for i, r := range rows {
		p.t[i] = r.Time.Sub(rows[0].Time).Seconds()
	}
	span := 0.0
	if len(rows) > 0 {
		span = p.t[len(rows)-1]
	}
	unit, unitName := timeUnit(span)
	p.x = scale{min: 0, max: max(span, unit)}
	p.xUnit = unit

	p.header(l)
	p.value(l)
	p.growth(l)
	p.cpu(l)
	p.timeAxis(unitName)
	p.events()
}

type painter struct {
	c     draw.Canvas
	rows  []Row
	t     []float64 // seconds since the first row
	x     scale     // of t
	xUnit float64   // seconds per unit of the time axis
}

type panel struct {
	bottom, top float64
	y           scale
}

func (p *painter) px(t float64) vg.Length { return vg.Length(left + p.x.at(t)*(right-left)) }

func (a panel) py(v float64) vg.Length { return vg.Length(a.bottom + a.y.at(v)*(a.top-a.bottom)) }

func (p *painter) header(l Labels) {
	title := plain(l.Task)
	if title == "" {
		title = "task"
	}
	if l.Metric != "" {
		title += ": " + cut(plain(l.Metric), 60)
	}
	p.text(title, left, picHeight-14, style{size: 19, bold: true, top: true})
	var parts []string
	add := func(format string, s string) {
		if s != "" {
			parts = append(parts, fmt.Sprintf(format, cut(plain(s), 48)))
		}
	}
	add("job %s", l.Job)
	add("allocation %s", l.Alloc[:min(8, len(l.Alloc))])
	add("policy %s", l.Policy)
	if l.Policy != "none" {
		add("limits by %s", l.Mode)
	}
	if l.PoolCores > 0 {
		add("pool %s cores", short(l.PoolCores, 0))
	}
	p.text(strings.Join(parts, "   ·   "), left, picHeight-39, style{size: 12, colour: soft, top: true})
}

func (p *painter) value(l Labels) {
	values, steps := Course(p.rows)
	if steps = steps && len(finite(values)) > 0; steps {
		l.Targets = nil // of the metric
	}
	seen := values
	for _, t := range l.Targets {
		seen = append(seen, t.Value) // show targets before they are reached
	}
	a := panel{valueBottom, valueTop, autoScale(seen, 200, false, 12)}
	title := cut(plain(l.Metric), 60)
	if title == "" {
		title = "value"
	}
	switch l.Goal {
	case "min":
		title += " (lower is better)"
	case "max":
		title += " (higher is better)"
	}
	switch {
	case len(finite(values)) == 0:
		title = "value: nothing reported yet"
	case steps:
		title = "steps"
	}
	p.panel(a, title)
	for _, t := range l.Targets {
		if !plotted(t.Value) {
			continue
		}
		y := a.py(t.Value)
		p.c.StrokeLines(draw.LineStyle{Color: soft, Width: 1.2, Dashes: []vg.Length{6, 4}}, []vg.Point{{X: left, Y: y}, {X: right, Y: y}})
		at := float64(y) + 4
		if at > valueTop-12 {
			at = float64(y) - 12 // not into the title
		}
		p.text(cut(plain(t.Name), 30)+" "+short(t.Value, 0), left+6, at, style{size: 11, colour: soft})
	}
	p.line(a, values, purple)
	for i, v := range values { // a diverged model
		if math.IsInf(v, 0) || math.Abs(v) > maxPlotted {
			p.cross(p.px(p.t[i]), valueTop-8)
		}
	}
	for i, r := range slices.Backward(p.rows) {
		if !plotted(values[i]) {
			continue
		}
		last := "last " + short(r.Value, 0) + ", "
		if steps {
			last = ""
		}
		if plotted(r.Step) {
			last += "step " + short(r.Step, 1)
			if plotted(r.Total) {
				last += " of " + short(r.Total, 1)
			}
		}
		p.text(strings.TrimSuffix(last, ", "), right, valueTop+5, style{size: 12, colour: purple, right: true})
		p.dot(p.px(p.t[i]), a.py(values[i]), 3, purple)
		break
	}
}

func (p *painter) growth(l Labels) {
	words := categories
	if p.service() {
		words = classes
	}
	g := p.column(func(r Row) float64 { return r.Growth })
	if p.service() {
		target := math.NaN()
		for _, t := range l.Targets {
			target = t.Value
		}
		g = p.column(func(r Row) float64 { return r.Value / target })
	}
	ahead := p.column(func(r Row) float64 { return r.Ahead })
	fair := !p.service() && l.FairFinish && len(finite(ahead)) > 0
	if fair {
		g = ahead
	}
	a := panel{growthBottom, growthTop - stripHeight, autoScale(g, 30, true, 6)}
	unit := ", per second with the whole pool"
	if l.Estimator == "robust" {
		unit = ", part of the range seen, per second with the whole pool"
	}
	title := "growth G" + unit
	switch {
	case p.service():
		title = "response time, as a part of the target"
	case fair:
		title = "ahead of its fair share, CPU-seconds"
	case len(finite(g)) == 0:
		title = "growth G: not measured yet"
	}
	p.bands(a, words)
	p.panel(a, "")
	p.text(title, left, growthTop+5, style{size: 13, bold: true})
	p.line(a, g, ink)
	x := vg.Length(right)
	for _, c := range slices.Backward(words) {
		x = p.swatch(x, growthTop+5, c.name+" "+c.word, c.strip)
	}
}

func (p *painter) service() bool {
	return slices.ContainsFunc(p.rows, func(r Row) bool { return r.Class != "" })
}

func (r Row) group() string {
	if r.Class != "" {
		return r.Class
	}
	return r.Category
}

func (p *painter) bands(a panel, words []category) {
	for from := 0; from < len(p.rows); {
		to := from + 1
		for to < len(p.rows) && p.rows[to].group() == p.rows[from].group() {
			to++
		}
		end := p.x.max
		if to < len(p.rows) {
			end = p.t[to]
		}
		for _, c := range words {
			if c.name != p.rows[from].group() {
				continue
			}
			x0, x1 := p.px(p.t[from]), p.px(end)
			p.box(x0, vg.Length(a.bottom), x1, vg.Length(a.top), tint(c.strip))
			p.box(x0, vg.Length(a.top), x1, vg.Length(a.top+stripHeight), c.strip)
			if x1-x0 > 26 {
				p.text(c.name, float64(x0+x1)/2, a.top+3, style{size: 11, bold: true, colour: c.ink, centre: true})
			}
		}
		from = to
	}
}

func (p *painter) cpu(l Labels) {
	percent := func(f float64) float64 { return 100 * f }
	use := p.column(func(r Row) float64 { return percent(r.Use) })
	limit := p.column(func(r Row) float64 { return percent(r.Limit) })
	most := 100.0
	for _, v := range finite(use) {
		most = max(most, v)
	}
	a := panel{cpuBottom, cpuTop, scale{min: 0, max: min(most, 200) * 1.08}}
	p.area(a, use)
	title := "CPU, % of the pool"
	if l.PoolCores > 0 {
		title += " (100 % = " + short(l.PoolCores, 0) + " cores)"
	}
	p.panel(a, title)
	p.steps(a, limit)
	name := "limit"
	switch l.Mode {
	case "weight":
		name = "limit (share when others want CPU)"
	case "quota":
		name = "limit (ceiling)"
	}
	x := p.swatch(right, cpuTop+5, "used", sky)
	p.swatch(x, cpuTop+5, name, red)
}

func (p *painter) panel(a panel, title string) {
	for _, t := range a.y.ticks(5) {
		y := a.py(t.at)
		p.stroke(grid, 1, vg.Point{X: left, Y: y}, vg.Point{X: right, Y: y})
		p.text(t.label, left-7, float64(y), style{size: 12, colour: soft, right: true, middle: true})
	}
	for _, t := range p.timeTicks() {
		x := p.px(t.at * p.xUnit)
		p.stroke(grid, 1, vg.Point{X: x, Y: vg.Length(a.bottom)}, vg.Point{X: x, Y: vg.Length(a.top)})
	}
	p.stroke(frame, 1, vg.Point{X: left, Y: vg.Length(a.top)}, vg.Point{X: left, Y: vg.Length(a.bottom)},
		vg.Point{X: right, Y: vg.Length(a.bottom)})
	if title != "" {
		p.text(title, left, a.top+5, style{size: 13, bold: true})
	}
}

func (p *painter) timeTicks() []tick {
	return scale{min: 0, max: p.x.max / p.xUnit}.ticks(9)
}

func (p *painter) timeAxis(unit string) {
	for _, t := range p.timeTicks() {
		x := p.px(t.at * p.xUnit)
		p.stroke(frame, 1, vg.Point{X: x, Y: cpuBottom}, vg.Point{X: x, Y: cpuBottom - 4})
		p.text(t.label, float64(x), cpuBottom-19, style{size: 12, colour: soft, centre: true})
	}
	label := "time [" + unit + "]"
	if len(p.rows) > 0 {
		label = "time since " + p.rows[0].Time.UTC().Format("2006-01-02 15:04:05 UTC") + " [" + unit + "]"
	}
	p.text(label, (left+right)/2, 14, style{size: 13, centre: true})
}

// events marks events by a line through all panels, with labels where there is room.
func (p *painter) events() {
	const lanes, most = 4, 200
	var taken [lanes]vg.Length // right end of the last text in each lane
	n, lastX := 0, vg.Length(-1)
	for i, r := range p.rows {
		if r.Event == "" || n >= most {
			continue
		}
		x := p.px(p.t[i])
		if x-lastX >= 2 { // closer lines would merge into a block
			p.dashed(x)
			lastX = x
			n++
		}
		label := strings.TrimPrefix(cut(plain(r.Event), 44), "ebbtide: ")
		st := style{size: 11, colour: ink}
		w := st.text().Width(label)
		from := x + 4
		if from+w > right {
			from = x - 4 - w
		}
		for lane := range taken {
			if from < taken[lane] || from < left {
				continue
			}
			y := float64(valueTop - 15 - 15*lane)
			p.box(from-2, vg.Length(y-3), from+w+2, vg.Length(y+11), color.NRGBA{0xff, 0xff, 0xff, 0xd8})
			p.text(label, float64(from), y, st)
			taken[lane] = from + w + 8
			break
		}
	}
}

func (p *painter) column(of func(Row) float64) []float64 {
	out := make([]float64, len(p.rows))
	for i, r := range p.rows {
		out[i] = of(r)
	}
	return out
}

func finite(values []float64) []float64 {
	var out []float64
	for _, v := range values {
		if plotted(v) {
			out = append(out, v)
		}
	}
	return out
}

// line draws the finite values. A faint dashed line bridges gaps; a value between two
// gaps is a dot.
func (p *painter) line(a panel, values []float64, colour color.NRGBA) {
	var run []vg.Point
	var before *vg.Point
	flush := func() {
		if len(run) == 0 {
			return
		}
		if before != nil {
			p.c.StrokeLines(draw.LineStyle{Color: faint(colour), Width: 1, Dashes: []vg.Length{2, 3}}, []vg.Point{*before, run[0]})
		}
		end := run[len(run)-1]
		before = &end
		if len(run) == 1 {
			p.dot(run[0].X, run[0].Y, 2, colour)
		} else {
			p.stroke(colour, 1.8, perPixel(run)...)
		}
		run = run[:0]
	}
	for i, v := range values {
		if !plotted(v) {
			flush()
			continue
		}
		run = append(run, vg.Point{X: p.px(p.t[i]), Y: a.py(v)})
	}
	flush()
}

// steps draws a limit, which holds from its row on.
func (p *painter) steps(a panel, values []float64) {
	var run []vg.Point
	flush := func() {
		if len(run) > 1 {
			p.stroke(red, 2, perPixel(run)...)
		}
		run = run[:0]
	}
	for i, v := range values {
		if !plotted(v) {
			flush()
			continue
		}
		end := p.x.max
		if i+1 < len(p.t) {
			end = p.t[i+1]
		}
		y := a.py(v)
		run = append(run, vg.Point{X: p.px(p.t[i]), Y: y}, vg.Point{X: p.px(end), Y: y})
	}
	flush()
}

// area fills below the use, a row's average since the row before. Rows within two
// pixels are averaged.
func (p *painter) area(a panel, values []float64) {
	var top []vg.Point
	base := vg.Length(a.bottom)
	flush := func() {
		if len(top) > 1 {
			fill := append([]vg.Point{{X: top[0].X, Y: base}}, top...)
			p.c.FillPolygon(sky, append(fill, vg.Point{X: top[len(top)-1].X, Y: base}))
			p.stroke(skyEdge, 1, top...)
		}
		top = top[:0]
	}
	for i := 0; i < len(values); {
		if !plotted(values[i]) {
			flush()
			i++
			continue
		}
		from := p.px(0)
		if i > 0 {
			from = p.px(p.t[i-1])
		}
		end := p.px(p.t[i])
		sum, n := values[i], 1.0
		for i++; i < len(values) && plotted(values[i]) && p.px(p.t[i])-from < 2; i++ {
			sum, n, end = sum+values[i], n+1, p.px(p.t[i])
		}
		y := a.py(sum / n)
		top = append(top, vg.Point{X: from, Y: y}, vg.Point{X: max(end, from), Y: y})
	}
	flush()
}

// perPixel keeps, of the points within one pixel, the first, the lowest, the highest
// and the last.
func perPixel(pts []vg.Point) []vg.Point {
	if len(pts) < picWidth {
		return pts
	}
	var out []vg.Point
	for i := 0; i < len(pts); {
		j, lo, hi := i, i, i
		for ; j < len(pts) && int(pts[j].X) == int(pts[i].X); j++ {
			if pts[j].Y < pts[lo].Y {
				lo = j
			}
			if pts[j].Y > pts[hi].Y {
				hi = j
			}
		}
		keep := []int{i, min(lo, hi), max(lo, hi), j - 1}
		for _, k := range slices.Compact(keep) {
			out = append(out, pts[k])
		}
		i = j
	}
	return out
}

func faint(c color.NRGBA) color.NRGBA { c.A = 0x70; return c }

func (p *painter) stroke(c color.NRGBA, width vg.Length, pts ...vg.Point) {
	p.c.StrokeLines(draw.LineStyle{Color: c, Width: width}, pts)
}

func (p *painter) dashed(x vg.Length) {
	for _, a := range [][2]vg.Length{{valueBottom, valueTop}, {growthBottom, growthTop}, {cpuBottom, cpuTop}} {
		p.c.StrokeLines(draw.LineStyle{Color: faint(ink), Width: 1, Dashes: []vg.Length{4, 3}},
			[]vg.Point{{X: x, Y: a[0]}, {X: x, Y: a[1]}})
	}
}

func (p *painter) box(x0, y0, x1, y1 vg.Length, c color.NRGBA) {
	p.c.FillPolygon(c, []vg.Point{{X: x0, Y: y0}, {X: x1, Y: y0}, {X: x1, Y: y1}, {X: x0, Y: y1}})
}

func (p *painter) dot(x, y, r vg.Length, c color.NRGBA) {
	p.c.DrawGlyphNoClip(draw.GlyphStyle{Color: c, Radius: r, Shape: draw.CircleGlyph{}}, vg.Point{X: x, Y: y})
}

func (p *painter) cross(x, y vg.Length) {
	p.stroke(red, 2, vg.Point{X: x - 4, Y: y - 4}, vg.Point{X: x + 4, Y: y + 4})
	p.stroke(red, 2, vg.Point{X: x - 4, Y: y + 4}, vg.Point{X: x + 4, Y: y - 4})
}

func (p *painter) swatch(x vg.Length, y float64, label string, c color.NRGBA) vg.Length {
	st := style{size: 12, colour: soft}
	x -= st.text().Width(label)
	p.text(label, float64(x), y, st)
	x -= 16
	p.box(x, vg.Length(y), x+11, vg.Length(y)+11, c)
	return x - 14
}

// style of a text; by default x and y are its left end and baseline.
type style struct {
	size                       float64
	bold                       bool
	right, centre, middle, top bool
	colour                     color.NRGBA
}

func (s style) text() text.Style {
	f := font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Length(s.size)}
	if s.bold {
		f.Weight = 3 // golang.org/x/image/font.WeightBold
	}
	ts := text.Style{Color: s.colour, Font: f, Handler: plot.DefaultTextHandler}
	if s.colour.A == 0 {
		ts.Color = ink
	}
	return ts
}

func (p *painter) text(txt string, x, y float64, s style) {
	if txt == "" {
		return
	}
	ts := s.text()
	e := ts.FontExtents()
	w := ts.Width(txt)
	pt := vg.Point{X: vg.Length(x), Y: vg.Length(y)}
	switch {
	case s.right:
		pt.X -= w
	case s.centre:
		pt.X -= w / 2
	}
	switch {
	case s.middle:
		pt.Y -= e.Ascent * 0.36
	case s.top:
		pt.Y -= e.Ascent
	}
	// The face draws from the baseline, which no alignment of the library offers.
	face := font.DefaultCache.Lookup(ts.Font, ts.Font.Size)
	p.c.SetColor(ts.Color)
	p.c.FillString(face, pt, txt)
}
