// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package workload

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/fields"
)

// ErrData means that a source's data is missing or invalid.
var ErrData = errors.New("the data cannot be used")

var errNoData = fmt.Errorf("%w: no directory is named (-data, or data in the scenario)", ErrData)

// Data is the directory with curves/, workloads/ and traces/. The zero value has none.
type Data struct{ FS fs.FS }

const adaptdlLists = 4

// table reads the given columns of a CSV file with a header.
func (d Data) table(name string, columns ...string) ([][]string, error) {
	if d.FS == nil {
		return nil, errNoData
	}
	f, err := d.FS.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrData, err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrData, name, err)
	}
	if len(rows) < 2 {
		return nil, fmt.Errorf("%w: %s: must have a header and rows, got %d lines", ErrData, name, len(rows))
	}
	out := make([][]string, len(rows)-1)
	for i := range out {
		out[i] = make([]string, len(columns))
	}
	for c, column := range columns {
		at := slices.Index(rows[0], column)
		if at < 0 {
			return nil, fmt.Errorf("%w: %s: the column %q is missing", ErrData, name, column)
		}
		for i, row := range rows[1:] {
			out[i][c] = row[at]
		}
	}
	return out, nil
}

func number(name string, row int, text string) (float64, error) {
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || !fields.Finite(x) {
		return 0, fmt.Errorf("%w: %s, line %d: must be a number, got %q", ErrData, name, row+2, text)
	}
	return x, nil
}

// curve is a real curve of an application.
type curve struct {
	*Curve
	application string
	size        float64 // batches
}

// curves reads all curves, sorted by name. Initial values are not in the data: 0 for an
// accuracy; for an error rate 100.
func (d Data) curves() ([]curve, error) {
	if d.FS == nil {
		return nil, errNoData
	}
	names, err := fs.Glob(d.FS, "curves/*.csv")
	if err != nil || len(names) == 0 {
		return nil, errors.Join(fmt.Errorf("%w: there is no file curves/*.csv", ErrData), err)
	}
	var out []curve
	for _, name := range names {
		rows, err := d.table(name, "progress", "metric")
		if err != nil {
			return nil, err
		}
		application, _, _ := strings.Cut(path.Base(name), "-")
		c := &Curve{Goal: policy.GoalMax, X: []float64{0}, Y: []float64{0}}
		if application == "deepspeech2" {
			c.Goal, c.Y[0] = policy.GoalMin, 100
		}
		for i, row := range rows {
			x, err := number(name, i, row[0])
			if err != nil {
				return nil, err
			}
			y, err := number(name, i, row[1])
			if err != nil {
				return nil, err
			}
			if !(x > c.X[len(c.X)-1]) {
				return nil, fmt.Errorf("%w: %s, line %d: progress must be > %v, got %v", ErrData, name, i+2, c.X[len(c.X)-1], x)
			}
			c.X, c.Y = append(c.X, x), append(c.Y, y)
		}
		if c.Goal == policy.GoalMin {
			c.Y[0] = max(c.Y[0], c.Y[1])
		}
		size := c.X[len(c.X)-1]
		for i := range c.X {
			c.X[i] /= size
		}
		out = append(out, curve{c, application, size})
	}
	return out, nil
}

// hours returns the order of magnitude of a job's GPU-hours: the middle of its application's
// category in Pollux (Qiao et al., OSDI 2021, §5.2), the source of the lists.
func hours() map[string]float64 {
	return map[string]float64{"cifar10": 0.3, "ncf": 0.3, "bert": 3, "deepspeech2": 3, "yolov3": 30, "imagenet": 300}
}

// consecutive draws the start of a run of consecutive entries, which keeps their arrivals.
func (s Spec) consecutive(r *rand.Rand, of int) (int, error) {
	if s.Jobs > of {
		return 0, fmt.Errorf("%w: jobs must be ≤ %d, which the data has, got %d", ErrData, of, s.Jobs)
	}
	return r.IntN(of - s.Jobs + 1), nil
}

// adaptdl takes jobs of an arrival list. Applications without a curve get a random one.
func (s Spec) adaptdl(r *rand.Rand, data Data, list int) ([]Job, error) {
	curves, err := data.curves()
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("workloads/adaptdl-%d.csv", list)
	rows, err := data.table(name, "time", "application", "num_replicas")
	if err != nil {
		return nil, err
	}
	first, err := s.consecutive(r, len(rows))
	if err != nil {
		return nil, err
	}
	var jobs []Job
	for i, row := range rows[first : first+s.Jobs] {
		at, err := number(name, first+i, row[0])
		if err != nil {
			return nil, err
		}
		replicas, err := number(name, first+i, row[2])
		if err != nil {
			return nil, err
		}
		work, ok := hours()[row[1]]
		if !ok {
			return nil, fmt.Errorf("%w: %s, line %d: the application %q is not known", ErrData, name, first+i+2, row[1])
		}
		j := Job{Kind: row[1], ArriveS: at, WorkCPUS: float64(work * between(r, 0.5, 2)), CapCores: replicas, Curve: anyLoss(r, max(s.Reports, 1))}
		if own := of(curves, row[1]); len(own) > 0 {
			j.Curve = own[r.IntN(len(own))].Curve
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}

func of(all []curve, application string) []curve {
	var out []curve
	for _, c := range all {
		if c.application == application {
			out = append(out, c)
		}
	}
	return out
}

// alibaba takes pods of the trace with their CPU and duration. The trace has no curves, so each
// gets one of the real ones.
func (s Spec) alibaba(r *rand.Rand, data Data) ([]Job, error) {
	curves, err := data.curves()
	if err != nil {
		return nil, err
	}
	const name = "traces/alibaba-2023-pods.csv"
	rows, err := data.table(name, "cpu_milli", "creation_time", "scheduled_time", "deletion_time")
	if err != nil {
		return nil, err
	}
	var pods []Job
	for i, row := range rows {
		if row[2] == "" {
			continue // never ran
		}
		var x [4]float64
		for k, text := range row {
			if x[k], err = number(name, i, text); err != nil {
				return nil, err
			}
		}
		if lasted := x[3] - x[2]; lasted > 0 && x[0] > 0 {
			cores := x[0] / 1000
			pods = append(pods, Job{Kind: "pod", ArriveS: x[1], WorkCPUS: lasted * cores, CapCores: cores})
		}
	}
	first, err := s.consecutive(r, len(pods))
	if err != nil {
		return nil, err
	}
	jobs := pods[first : first+s.Jobs]
	for i := range jobs {
		jobs[i].Curve = curves[r.IntN(len(curves))].Curve
	}
	return jobs, nil
}
