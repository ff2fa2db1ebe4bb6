// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package chart

import (
	"bytes"
	"fmt"
	"image/color"
	"image/png"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// Size in points, y upwards; rendered with twice as many pixels for dense screens.
const (
	width = 1200
	dpi   = 144
)

// The palette of Okabe and Ito, distinguishable with common colour blindness.
var (
	ink    = color.NRGBA{0x22, 0x26, 0x2b, 0xff}
	soft   = color.NRGBA{0x5f, 0x66, 0x6e, 0xff}
	grid   = color.NRGBA{0xe4, 0xe7, 0xea, 0xff}
	frame  = color.NRGBA{0xa9, 0xaf, 0xb5, 0xff}
	white  = color.NRGBA{0xff, 0xff, 0xff, 0xff}
	series = []color.NRGBA{
		{0x00, 0x72, 0xb2, 0xff},
		{0xe6, 0x9f, 0x00, 0xff},
		{0x00, 0x9e, 0x73, 0xff},
		{0xcc, 0x79, 0xa7, 0xff},
		{0xd5, 0x5e, 0x00, 0xff},
		{0x56, 0xb4, 0xe9, 0xff}, // sky blue
		{0x7a, 0x6a, 0x4f, 0xff},
	}
)

// tint mixes a colour with white.
func tint(c color.NRGBA, part float64) color.NRGBA {
	f := func(v uint8) uint8 { return uint8(255 - part*float64(255-int(v)) + 0.5) }
	return color.NRGBA{f(c.R), f(c.G), f(c.B), 0xff}
}

// painter draws in points.
type painter struct {
	img    *vgimg.Canvas
	c      draw.Canvas
	height float64
}

func newPainter(height float64) *painter {
	img := vgimg.NewWith(vgimg.UseWH(width, vg.Length(height)), vgimg.UseDPI(dpi))
	return &painter{img: img, c: draw.New(img), height: height}
}

func (p *painter) png() ([]byte, error) {
	var b bytes.Buffer
	if err := png.Encode(&b, p.img.Image()); err != nil {
		return nil, fmt.Errorf("encoding the picture: %w", err)
	}
	return b.Bytes(), nil
}

type pt struct{ x, y float64 }

// points drops non-finite points and bounds the rest: the rasteriser would draw a line to infinity.
func points(ps []pt) []vg.Point {
	out := make([]vg.Point, 0, len(ps))
	bound := func(v float64) vg.Length { return vg.Length(math.Max(-width, math.Min(2*width, v))) }
	for _, q := range ps {
		if !math.IsNaN(q.x) && !math.IsNaN(q.y) {
			out = append(out, vg.Point{X: bound(q.x), Y: bound(q.y)})
		}
	}
	return out
}

func (p *painter) line(c color.NRGBA, w float64, ps ...pt) {
	if q := points(ps); len(q) > 1 {
		p.c.StrokeLines(draw.LineStyle{Color: c, Width: vg.Length(w)}, q)
	}
}

func (p *painter) dashed(c color.NRGBA, w float64, ps ...pt) {
	if q := points(ps); len(q) > 1 {
		p.c.StrokeLines(draw.LineStyle{Color: c, Width: vg.Length(w), Dashes: []vg.Length{4, 3}}, q)
	}
}

func (p *painter) area(c color.NRGBA, ps ...pt) {
	if q := points(ps); len(q) > 2 {
		p.c.FillPolygon(c, q)
	}
}

func (p *painter) box(c color.NRGBA, x0, y0, x1, y1 float64) {
	p.area(c, pt{x0, y0}, pt{x1, y0}, pt{x1, y1}, pt{x0, y1})
}

func (p *painter) dot(c color.NRGBA, at pt, r float64) {
	for _, q := range points([]pt{at}) {
		p.c.DrawGlyphNoClip(draw.GlyphStyle{Color: c, Radius: vg.Length(r), Shape: draw.CircleGlyph{}}, q)
	}
}

// style of text; the default is left-aligned on the baseline.
type style struct {
	size          float64
	bold          bool
	colour        color.NRGBA
	right, centre bool
	middle        bool
}

func (s style) text() text.Style {
	f := font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Length(s.size)}
	if s.bold {
		f.Weight = 3 // golang.org/x/image/font.WeightBold
	}
	c := s.colour
	if c == (color.NRGBA{}) {
		c = ink
	}
	return text.Style{Color: c, Font: f, Handler: plot.DefaultTextHandler}
}

func (p *painter) text(txt string, x, y float64, s style) float64 {
	ts := s.text()
	w := float64(ts.Width(txt))
	switch {
	case s.right:
		x -= w
	case s.centre:
		x -= w / 2
	}
	if s.middle {
		y -= 0.35 * s.size
	}
	if math.IsNaN(x) || math.IsNaN(y) {
		return 0
	}
	face := font.DefaultCache.Lookup(ts.Font, ts.Font.Size)
	p.c.SetColor(ts.Color)
	p.c.FillString(face, vg.Point{X: vg.Length(x), Y: vg.Length(y)}, txt)
	return w
}
