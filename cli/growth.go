// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/cli"

	"github.com/ebbtide/ebbtide/driver/growth"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
	"github.com/ebbtide/ebbtide/internal/fields"
)

type growthCommand struct{ command }

func newGrowth(io IO) cli.Command { return growthCommand{command{io, "growth"}} }

func (growthCommand) Synopsis() string {
	return "Show the growth of a training curve, and its plateau"
}

func (growthCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide growth --goal min|max [--estimator NAME] < points.csv
       nomad alloc fs ALLOC alloc/data/ebbtide/TASK.csv | ebbtide growth --goal min|max

  Feeds a training curve to a growth estimator as the driver does, and prints the
  estimate after each report.

  The input is CSV with a header. Columns, in any order: cpu_s (CPU-seconds used
  so far; a decrease means that the task was restarted), value (a number, NaN or
  Inf), and optionally t_s (seconds of wall time) and step (may be empty).

  A file with the column time is treated as a history written by the driver; its
  other columns are ignored. As when the driver recovers a task, only rows since its
  last start count. A row without a value is skipped, unless it has a step: then the
  value was NaN. The number of skipped rows is printed to stderr.

  The output is CSV: cpu_s, value, growth (per CPU-second: of the range seen so far
  for robust, in the metric's own unit for published; empty until there are
  enough reports), plateau (true or false) and category, as FlowCon's Algorithm 1
  assigns it to a task alone on its node after each report.

  All errors are reported, with line and column. The exit status is then 2, and
  stdout is empty.

Options:

  --goal min|max      Whether the metric should fall or rise.
  --estimator NAME    robust (the default) or published.
`)
}

func (c growthCommand) Run(args []string) int {
	var goal, estimator string
	flags := c.flags()
	flags.StringVar(&goal, "goal", "", "")
	flags.StringVar(&estimator, "estimator", growth.KindRobust, "")
	if status, ok := c.parse(flags, args, c.Help()); !ok {
		return status
	}
	if flags.NArg() > 0 {
		return c.refuse(fmt.Errorf("unexpected argument %q: the points are read from standard input, as in: ebbtide growth < %s",
			flags.Arg(0), flags.Arg(0)))
	}
	var errs []error
	switch growth.Goal(goal) {
	case growth.Min, growth.Max:
	case "":
		errs = append(errs, errors.New("--goal: must be given, one of min, max"))
	default:
		errs = append(errs, fmt.Errorf("--goal: must be one of min, max, got %q", goal))
	}
	if estimator != growth.KindRobust && estimator != growth.KindPublished {
		errs = append(errs, fmt.Errorf("--estimator: must be one of robust, published, got %q", estimator))
	}
	if len(errs) > 0 {
		return c.refuse(errs...)
	}
	e, err := growth.New(estimator, growth.Goal(goal))
	if err != nil {
		return c.refuse(err)
	}

	data, err := io.ReadAll(c.io.In)
	if err != nil {
		return c.failed(fmt.Errorf("read standard input: %w", err))
	}
	points, notes, errs := readPoints(data)
	if len(errs) > 0 {
		return c.refuse(errs...)
	}
	for _, note := range notes {
		fmt.Fprintf(c.io.Err, "ebbtide growth: %s\n", note)
	}

	var out bytes.Buffer
	w := csv.NewWriter(&out)
	_ = w.Write([]string{"cpu_s", "value", "growth", "plateau", "category"}) // a buffer never fails
	task := policy.Task{ID: "task", Entitlement: 1, Limit: 1, Use: 1}
	for _, p := range points {
		e.Add(p)
		m := e.Measure()
		row := []string{number(p.CPU), number(p.Value), "", strconv.FormatBool(m.Plateau), ""}
		task.Growth = nil
		if m.Measured {
			row[2] = number(m.Growth)
			task.Growth = &m.Growth
		}
		task = loneTask(task, m.Diverged)
		row[4] = string(task.Category)
		_ = w.Write(row)
	}
	w.Flush()
	if _, err := c.io.Out.Write(out.Bytes()); err != nil {
		return c.failed(fmt.Errorf("write: %w", err))
	}
	return exitOK
}

// loneTask returns the task after one more FlowCon decision, alone on its node.
func loneTask(t policy.Task, diverged bool) policy.Task {
	const interval = 20 // seconds; it does not affect a lone task's category
	s := policy.Snapshot{IntervalS: interval, InitialIntervalS: interval}
	if t.Category == policy.New {
		s.Event = policy.EventJoin
	}
	if diverged {
		t.Category = policy.CL // a diverged model counts as converged
	}
	s.Tasks = []policy.Task{t}
	d := flowcon.Decide(s, flowcon.DefaultParams()).Tasks[0]
	t.Category, t.Limit = d.Category, d.Bound()
	return t
}

func number(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

// pointColumns are the columns of an input that is not a history.
var pointColumns = []string{"cpu_s", "value", "t_s", "step"}

// readPoints reads a curve from CSV. It returns all errors, and notes on rows skipped in a
// history.
func readPoints(data []byte) (points []growth.Point, notes []string, errs []error) {
	allowed := strings.Join(pointColumns, ", ")
	data = bytes.TrimPrefix(data, []byte("\uFEFF"))
	r := csv.NewReader(bytes.NewReader(data))
	r.FieldsPerRecord = -1
	r.TrimLeadingSpace = true
	header, err := r.Read()
	if errors.Is(err, io.EOF) {
		return nil, nil, []error{errors.New("line 1: must be a header with the columns " + allowed + "; the input is empty")}
	}
	if err != nil {
		return nil, nil, []error{fmt.Errorf("reading the header: %w", err)}
	}
	for i, name := range header {
		header[i] = strings.TrimSpace(name)
	}
	// Only the driver's history has a time of day. Its other columns are ignored.
	history := slices.Contains(header, "time")
	column := map[string]int{}
	for i, name := range header {
		switch _, twice := column[name]; {
		case !history && !slices.Contains(pointColumns, name):
			errs = append(errs, fmt.Errorf("line 1, column %q: is unknown, must be one of %s", name, allowed))
		case twice:
			errs = append(errs, fmt.Errorf("line 1, column %q: is duplicated", name))
		}
		column[name] = i
	}
	for _, name := range []string{"cpu_s", "value"} {
		if _, ok := column[name]; !ok {
			errs = append(errs, fmt.Errorf("line 1: the column %q is missing", name))
		}
	}
	if len(errs) > 0 {
		return nil, nil, errs
	}

	for {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if history && r.InputOffset() == int64(len(data)) && !bytes.HasSuffix(data, []byte("\n")) {
			break // the driver is still writing this row
		}
		if err != nil {
			// The message has line and column; later rows cannot be separated.
			return nil, nil, append(errs, fmt.Errorf("reading the points: %w", err))
		}
		line, _ := r.FieldPos(0)
		if len(row) != len(header) {
			errs = append(errs, fmt.Errorf("line %d: must have %d columns like the header, got %d", line, len(header), len(row)))
			continue
		}
		// get parses a field; ok reports whether the number is allowed.
		get := func(name, want string, ok func(float64) bool) float64 {
			i, there := column[name]
			if !there {
				return math.NaN()
			}
			text := strings.TrimSpace(row[i])
			if text == "" && (name == "step" || name == "value" && history) {
				return math.NaN()
			}
			x, err := strconv.ParseFloat(text, 64)
			if err != nil || !ok(x) {
				errs = append(errs, fmt.Errorf("line %d, column %q: must be %s, got %q", line, name, want, text))
			}
			return x
		}
		p := growth.Point{
			CPU:   get("cpu_s", "a number ≥ 0", fields.NonNegative[float64]),
			Value: get("value", "a number, NaN or Inf", func(float64) bool { return true }),
			T:     get("t_s", "a number", fields.Finite[float64]),
			Step:  get("step", "a number or empty", fields.Finite[float64]),
		}
		points = append(points, p)
	}
	if len(errs) > 0 {
		return nil, nil, errs
	}
	if len(points) == 0 {
		return nil, nil, []error{errors.New("line 2: there are no points after the header")}
	}
	if !history {
		return points, nil, nil
	}

	curve := growth.NewCurve(points)
	if len(curve.Points) == 0 {
		return nil, nil, []error{fmt.Errorf("column \"value\": must have a value since the task was last started, got %d empty ones", curve.Blank)}
	}
	if curve.Earlier > 0 {
		notes = append(notes, fmt.Sprintf("the task was restarted (cpu_s falls); earlier rows skipped: %d", curve.Earlier))
	}
	if curve.Blank > 0 {
		notes = append(notes, fmt.Sprintf("rows without a value skipped: %d", curve.Blank))
	}
	return curve.Points, notes, nil
}
