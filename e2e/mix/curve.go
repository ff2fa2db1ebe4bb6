// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package mix

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// Point is a trainer's report. All metrics are losses.
type Point struct {
	T     float64 `json:"t_s"`
	CPU   float64 `json:"cpu_s"` // used so far
	Step  float64 `json:"step"`
	Value float64 `json:"value"` // finite
}

// Curve is a trainer's record by step. Model, seed and steps determine its values; a policy affects
// only its times.
type Curve []Point

// ReadCurve reads the file of the trainer's -curve. wall_s counts from the process's start,
// which is at started, in seconds since the run's start. Non-finite values and an incomplete
// last line are skipped.
func ReadCurve(r io.Reader, started float64) (Curve, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("reading a trainer's curve: %w", err)
	}
	lines := csv.NewReader(bytes.NewReader(data[:bytes.LastIndexByte(data, '\n')+1]))
	header, err := lines.Read()
	if err != nil {
		return nil, fmt.Errorf("reading the header of a trainer's curve: %w", err)
	}
	var column [4]int
	for i, name := range []string{"step", "wall_s", "cpu_s", "loss"} {
		if column[i] = slices.Index(header, name); column[i] < 0 {
			return nil, fmt.Errorf("a trainer's curve has no column %q, only %q", name, header)
		}
	}
	var out Curve
	for {
		record, err := lines.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading a trainer's curve: %w", err)
		}
		var v [4]float64
		for i, c := range column {
			if v[i], err = strconv.ParseFloat(record[c], 64); err != nil {
				return nil, fmt.Errorf("reading a trainer's curve: %w", err)
			}
		}
		if !math.IsNaN(v[3]) && !math.IsInf(v[3], 0) {
			out = append(out, Point{Step: v[0], T: started + v[1], CPU: v[2], Value: v[3]})
		}
	}
}

// Reached returns when the curve first reaches a value; NaN if never.
func (c Curve) Reached(value float64) float64 {
	for _, p := range c {
		if p.Value <= value {
			return p.T
		}
	}
	return math.NaN()
}

// Range returns the first and the best value; NaN for an empty curve.
func (c Curve) Range() (first, best float64) {
	if len(c) == 0 {
		return math.NaN(), math.NaN()
	}
	return c[0].Value, slices.MinFunc(c, func(a, b Point) int {
		switch {
		case a.Value < b.Value:
			return -1
		case a.Value > b.Value:
			return 1
		}
		return 0
	}).Value
}

// Left returns the remaining fraction of the way to the best value: 1 at the first, 0 at the best.
func (c Curve) Left(value float64) float64 {
	first, best := c.Range()
	if first == best {
		return 0
	}
	return (value - best) / (first - best)
}

// Quality returns when a fraction of the way from first to best value is done; nil for an empty
// curve.
func (c Curve) Quality(part float64) *float64 {
	first, best := c.Range()
	at := c.Reached(best + (1-part)*(first-best))
	if math.IsNaN(at) {
		return nil
	}
	return &at
}
