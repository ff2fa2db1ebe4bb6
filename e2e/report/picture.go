// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	_ "embed"
	"fmt"
	"math"
	"slices"
	"strings"
	"text/template"

	"github.com/ebbtide/ebbtide/sim/metrics"
)

//go:embed picture.tmpl.svg
var pictureText string

// setting is a real experiment under the default policy, auto.
type setting struct{ name, what, kase string }

func settings() []setting {
	return []setting{
		{"5 jobs, one node", "train", "5 jobs"},
		{"10 jobs, one node", "train", "10 jobs"},
		{"15 jobs, one node", "train", "15 jobs"},
		{"5 PyTorch jobs, one node", "torch", "5 jobs"},
		{"20 jobs, four nodes", "cluster", "20 jobs"},
	}
}

// measured returns the settings that have been run, with what auto changes in each.
func (e allResults) measured() ([]setting, []metrics.Summary, error) {
	var (
		found     []setting
		summaries []metrics.Summary
	)
	for _, s := range settings() {
		summary, ok, err := e.realOf(s.what, s.kase, "weight", "auto")
		if err != nil {
			return nil, nil, err
		}
		if ok {
			found, summaries = append(found, s), append(summaries, summary)
		}
	}
	return found, summaries, nil
}

// gains returns the README's table.
func (e allResults) gains() (string, error) {
	found, summaries, err := e.measured()
	if err != nil {
		return "", err
	}
	var rows [][]string
	for i, s := range summaries {
		rows = append(rows, []string{
			found[i].name, change(s.Time(metrics.Completion).Ratio), change(s.Time(metrics.Makespan).Ratio),
			change(s.Time("quality_50").Ratio), fmt.Sprintf("%.0f", 100*s.Slower), fmt.Sprintf("%.2f", s.Ratio.Max),
		})
	}
	return table([]string{"real jobs", "mean time to end, %", "last end, %", "time to half quality, %", "slower jobs, %", "worst job, ×"}, rows), nil
}

// Geometry of the picture, in pixels.
const (
	rowHeight = 56
	axisLeft  = 190
	axisRight = 580
	axisTop   = 74
	least     = 0.18 // ratios at the ends of the axis
	greatest  = 2.6
)

// x returns the position of a ratio on the axis, which is logarithmic.
func x(ratio float64) float64 {
	at := math.Log(ratio/least) / math.Log(greatest/least)
	return axisLeft + at*(axisRight-axisLeft)
}

type dot struct {
	X, Y string
	Late bool
}

type pictureRow struct {
	Name, Change, Interval, Worst string
	Y, Low, High, Mean            string
	Dots                          []dot
}

type tick struct {
	X, Label string
	Bold     bool
}

type picture struct {
	Height, Bottom int
	Title          string
	Rows           []pictureRow
	Ticks          []tick
}

func px(v float64) string { return fmt.Sprintf("%.1f", v) }

// picture draws each job's time under auto relative to plain Nomad, as SVG.
func (e allResults) picture() (string, error) {
	found, summaries, err := e.measured()
	if err != nil {
		return "", err
	}
	p := picture{
		Title:  "Time from submission to end with Ebbtide, of the time under plain Nomad",
		Bottom: axisTop + rowHeight*len(found), Height: axisTop + rowHeight*len(found) + 16,
	}
	for _, t := range []tick{{Label: "¼"}, {Label: "½"}, {Label: "same time", Bold: true}, {Label: "twice"}} {
		t.X = px(x(map[string]float64{"¼": 0.25, "½": 0.5, "same time": 1, "twice": 2}[t.Label]))
		p.Ticks = append(p.Ticks, t)
	}
	for i, s := range summaries {
		ratios, err := metrics.Ratios(e.runsOf(found[i]), metrics.DefaultBase, "auto")
		if err != nil {
			return "", fmt.Errorf("drawing %s: %w", found[i].name, err)
		}
		slices.Sort(ratios)
		y, r := float64(axisTop+rowHeight*i)+22, s.Time(metrics.Completion).Ratio
		row := pictureRow{
			Name: found[i].name, Change: percent(r.Mean), Worst: fmt.Sprintf("worst ×%.2f", s.Ratio.Max),
			Interval: "[" + points(r.Low) + "…" + points(r.High) + "]",
			Y:        px(y + 18), Low: px(x(r.Low)), High: px(x(r.High)), Mean: px(x(r.Mean)),
		}
		var last [7]float64 // x of the last dot in each lane
		for _, ratio := range ratios {
			at, lane := x(min(max(ratio, least), greatest)), 0
			for k := range last { // the first lane with room, from the middle outwards
				if lane = k; at-last[k] >= 5 {
					break
				}
			}
			last[lane] = at
			offset := float64((lane+1)/2) * 5
			if lane%2 == 1 {
				offset = -offset
			}
			row.Dots = append(row.Dots, dot{px(at), px(y + offset - 4), ratio > 1.02})
		}
		p.Rows = append(p.Rows, row)
	}
	t, err := template.New("picture").Parse(pictureText)
	if err != nil {
		return "", fmt.Errorf("reading the picture's template: %w", err)
	}
	var b strings.Builder
	if err := t.Execute(&b, p); err != nil {
		return "", fmt.Errorf("drawing %s: %w", pictureFile, err)
	}
	return b.String(), nil
}

// runsOf returns the runs of a setting, and those under none, in mode weight.
func (e allResults) runsOf(s setting) []metrics.Run {
	return slices.DeleteFunc(e.bench[s.what].Metrics("weight"), func(r metrics.Run) bool {
		return !strings.HasPrefix(r.Scenario, s.what+", "+s.kase+",")
	})
}
