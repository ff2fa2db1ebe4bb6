// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package picture

import (
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/template"

	"github.com/ebbtide/ebbtide/sim/metrics"
)

//go:embed picture.tmpl.svg
var file string

var page = template.Must(template.New("picture").Parse(file))

// The plot's area within the drawing.
const left, right, top, bottom = 56.0, 744.0, 48.0, 432.0

// drawing is what the template draws. Places are formatted.
type drawing struct {
	Title, Base, Same string
	Columns, Rows     []label
	Lines             []line
}

type label struct{ At, Text string }

type line struct {
	Name, At, Path string
	Colour         int
	Dashed         bool
	Median, Worst  string
}

// colours is the number of colours in the template; further lines are dashed.
const colours = 7

// Ratios plots, per policy, the cumulative distribution of completion relative to the base
// policy ("" for metrics.DefaultBase), as SVG.
func Ratios(w io.Writer, title string, runs []metrics.Run, base string) error {
	d := drawing{Title: escape(title), Base: escape(metrics.BaseName(base))}
	ratios := make(map[string][]float64)
	low, high := 1.0, 1.0
	var names []string
	for _, name := range metrics.Policies(runs) {
		found, err := metrics.Ratios(runs, base, name)
		if err != nil {
			return err
		}
		if name == metrics.BaseName(base) || len(found) == 0 {
			continue
		}
		slices.Sort(found)
		low, high = min(low, found[0]), max(high, found[len(found)-1])
		ratios[name], names = found, append(names, name)
	}
	step := round((high - low) / 8)
	low, high = step*math.Floor(low/step), step*math.Ceil(high/step)
	x := func(ratio float64) string { return place(left + (right-left)*(ratio-low)/(high-low)) }
	y := func(part float64) string { return place(bottom - (bottom-top)*part) }
	d.Same = x(1)
	for i := range int(math.Round((high-low)/step)) + 1 {
		at := low + float64(i)*step
		d.Columns = append(d.Columns, label{x(at), fmt.Sprintf("%.4g", at)})
	}
	for part := range 6 {
		d.Rows = append(d.Rows, label{y(float64(part) / 5), fmt.Sprintf("%d %%", 20*part)})
	}
	for i, name := range names {
		all := ratios[name]
		var path strings.Builder
		fmt.Fprintf(&path, "M%s %s", x(all[0]), y(0))
		for k, ratio := range all {
			fmt.Fprintf(&path, "H%sV%s", x(ratio), y(float64(k+1)/float64(len(all))))
		}
		d.Lines = append(d.Lines, line{
			Name: escape(name), At: place(top + 24 + 20*float64(i)), Path: path.String(), Colour: i % colours, Dashed: i >= colours,
			Median: fmt.Sprintf("%.2f", all[(len(all)-1)/2]), Worst: fmt.Sprintf("%.2f", all[len(all)-1]),
		})
	}
	var out bytes.Buffer
	if err := page.Execute(&out, d); err != nil {
		return fmt.Errorf("drawing: %w", err)
	}
	if _, err := out.WriteTo(w); err != nil {
		return fmt.Errorf("writing the picture: %w", err)
	}
	return nil
}

// round returns the next of 1, 2, 5 times a power of ten; 0.1 for 0.
func round(x float64) float64 {
	if x <= 0 {
		return 0.1
	}
	ten := math.Pow(10, math.Floor(math.Log10(x)))
	for _, nice := range []float64{1, 2, 5} {
		if x <= nice*ten {
			return nice * ten
		}
	}
	return 10 * ten
}

func place(x float64) string { return fmt.Sprintf("%.1f", x) }

func escape(s string) string { return template.HTMLEscapeString(s) }
