// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package picture

import (
	"fmt"
	"image/color"
	"io"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"github.com/ebbtide/ebbtide/sim/metrics"
)

// The palette of Okabe and Ito, as in tasks' plots.
func colours() []color.Color {
	return []color.Color{
		color.NRGBA{0x00, 0x72, 0xb2, 0xff}, color.NRGBA{0xd5, 0x5e, 0x00, 0xff}, color.NRGBA{0x00, 0x9e, 0x73, 0xff},
		color.NRGBA{0xcc, 0x79, 0xa7, 0xff}, color.NRGBA{0xe6, 0x9f, 0x00, 0xff}, color.NRGBA{0x56, 0xb4, 0xe9, 0xff},
		color.NRGBA{0x6a, 0x71, 0x79, 0xff},
	}
}

// Ratios plots, per policy, the cumulative distribution of completion relative to the base
// policy ("" for metrics.DefaultBase), as PNG.
func Ratios(w io.Writer, title string, runs []metrics.Run, base string) error {
	p := plot.New()
	p.Title.Text = title
	p.X.Label.Text = "completion, of that under " + metrics.BaseName(base)
	p.Y.Label.Text = "part of the jobs"
	p.Y.Min, p.Y.Max = 0, 1
	p.Legend.Left, p.Legend.Top = true, true
	p.Add(plotter.NewGrid())
	drawn := 0
	for _, name := range metrics.Policies(runs) {
		ratios, err := metrics.Ratios(runs, base, name)
		if err != nil {
			return err
		}
		if name == metrics.BaseName(base) || len(ratios) == 0 {
			continue
		}
		slices.Sort(ratios)
		var points plotter.XYs
		for i, x := range ratios {
			points = append(points, plotter.XY{X: x, Y: float64(i) / float64(len(ratios))}, plotter.XY{X: x, Y: float64(i+1) / float64(len(ratios))})
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return fmt.Errorf("drawing policy %s: %w", name, err)
		}
		line.Color = colours()[drawn%len(colours())]
		line.Width = vg.Points(1.5)
		if drawn >= len(colours()) {
			line.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
		}
		drawn++
		p.Add(line)
		p.Legend.Add(name, line)
	}
	unit, err := plotter.NewLine(plotter.XYs{{X: 1, Y: 0}, {X: 1, Y: 1}})
	if err != nil {
		return fmt.Errorf("drawing: %w", err)
	}
	unit.Color = color.Gray{0x80}
	p.Add(unit)
	img := vgimg.NewWith(vgimg.UseWH(9*vg.Inch, 6*vg.Inch), vgimg.UseDPI(100))
	p.Draw(draw.New(img))
	if _, err := (vgimg.PngCanvas{Canvas: img}).WriteTo(w); err != nil {
		return fmt.Errorf("writing the picture: %w", err)
	}
	return nil
}
