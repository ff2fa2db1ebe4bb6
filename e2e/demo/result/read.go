// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package result

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/ebbtide/ebbtide/driver/status"
)

// ReadCurve reads the file that the trainer's option -curve makes. Its wall_s
// counts from the process's start, which is at started, in seconds since the
// run's start. Values that are not finite are left out.
func ReadCurve(r io.Reader, started float64) ([]Point, error) {
	lines := csv.NewReader(r)
	header, err := lines.Read()
	if err != nil {
		return nil, fmt.Errorf("reading the header of a trainer's curve: %w", err)
	}
	var column [3]int
	for i, name := range []string{"step", "wall_s", "loss"} {
		if column[i] = slices.Index(header, name); column[i] < 0 {
			return nil, fmt.Errorf("a trainer's curve has no column %q, only %q", name, header)
		}
	}
	var out []Point
	for {
		record, err := lines.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading a trainer's curve: %w", err)
		}
		var v [3]float64
		for i, c := range column {
			if v[i], err = strconv.ParseFloat(record[c], 64); err != nil {
				return nil, fmt.Errorf("reading a trainer's curve: %w", err)
			}
		}
		if finite(v[2]) {
			out = append(out, Point{Step: v[0], T: started + v[1], Value: v[2]})
		}
	}
}

// Samples turns the rows of a task's history into samples. start is the run's.
func Samples(rows []status.Row, start time.Time) []Sample {
	var out []Sample
	for _, r := range rows {
		out = append(out, Sample{
			T:        r.Time.Sub(start).Seconds(),
			CPU:      Number(r.CPUSeconds),
			Growth:   Number(r.Growth),
			Limit:    Number(r.Limit),
			Shares:   r.Shares,
			Category: r.Category,
		})
	}
	return out
}
