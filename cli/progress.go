// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/hashicorp/cli"

	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/remaining"
)

type progressCommand struct{ command }

func newProgress(io IO) cli.Command { return progressCommand{command{io, "progress"}} }

func (progressCommand) Synopsis() string { return "Show what Ebbtide reads from a trainer's output" }

func (progressCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide progress [options] < training.log

  Parses a trainer's output as the driver does and prints each report as a line of
  JSON:

    {"step":10,"total_steps":100,"value":0.5,"metric":"loss","line":3}

  Unknown step and total_steps are null. value is a number, or one of the strings
  "NaN", "Infinity" and "-Infinity", which JSON lacks as numbers; it is null in a
  report of steps alone, in which bar is the name of what counts them. line counts
  from 1; a line redrawn with \r counts once. A summary follows on stderr: what was
  skipped and why, and the length of the job, if its reports take the same time each.

  Pipe both streams, as bars go to stderr: trainer 2>&1 | ebbtide progress

  The options are those of the progress block in a job's task config. The exit
  status is 0 if there is a report, 1 if there is none, 2 for an invalid option.

Options:

  --preset NAME     Kind of output: ` + strings.Join(progress.Presets(), ", ") + `.
                    Default: auto, which tries them all.
  --metric NAME     Full name of the metric as printed, in any case.
                    Default: the training loss, or the metric closest to it.
  --pattern RE      Regular expression (RE2) instead of a preset, with the group
                    (?P<value>...) and optionally (?P<step>...), (?P<total>...).
  --goal min|max    Whether the metric should fall or rise.
                    Default: inferred from its name.
`)
}

type progressLine struct {
	Step   *float64 `json:"step"`
	Total  *float64 `json:"total_steps"`
	Value  any      `json:"value"`
	Metric string   `json:"metric"`
	Bar    string   `json:"bar,omitempty"`
	Line   int64    `json:"line"`
}

func newProgressLine(r progress.Report) progressLine {
	l := progressLine{Step: orNull(r.Step), Total: orNull(r.Total), Metric: r.Metric, Bar: r.Bar, Line: r.Line}
	if !r.StepOnly() {
		l.Value = jsonNumber(r.Value)
	}
	return l
}

func (c progressCommand) Run(args []string) int {
	var config progress.Config
	flags := c.flags()
	flags.StringVar(&config.Preset, "preset", "", "")
	flags.StringVar(&config.Metric, "metric", "", "")
	flags.StringVar(&config.Pattern, "pattern", "", "")
	flags.StringVar(&config.Goal, "goal", "", "")
	if status, ok := c.parse(flags, args, c.Help()); !ok {
		return status
	}
	if flags.NArg() > 0 {
		return c.refuse(fmt.Errorf("unexpected argument %q: the log is read from standard input, as in: ebbtide progress < %s",
			flags.Arg(0), flags.Arg(0)))
	}
	parser, err := progress.NewParser(config)
	if err != nil {
		for _, e := range splitErrors(err) {
			if field := (*progress.FieldError)(nil); errors.As(e, &field) {
				fmt.Fprintf(c.io.Err, "ebbtide progress: --%s: %s, got %q\n", field.Field, field.Problem, field.Value)
			} else {
				fmt.Fprintf(c.io.Err, "ebbtide progress: %v\n", e)
			}
		}
		return exitUsage
	}
	return c.show(c.io.In, "standard input", parser, progressSummary{
		config: config, option: "--", length: newLength(),
		empty: "nothing was read from standard input: run the trainer with 2>&1 | ebbtide progress",
	})
}

// show prints the reports found in a log, and returns the exit status.
func (c command) show(log io.Reader, name string, parser *progress.Parser, sum progressSummary) int {
	parser.Explain()
	reader := progress.NewReader(log, parser)
	out := bufio.NewWriter(c.io.Out)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	for {
		if reader.Buffered() == 0 {
			if err := out.Flush(); err != nil {
				return c.failed(fmt.Errorf("write: %w", err))
			}
		}
		r, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			sum.print(c.io.Err, parser, reader.Stats())
			return c.failed(fmt.Errorf("read %s: %w", name, err))
		}
		if scale := sum.config.Scale; scale != 0 {
			r.Value *= scale
		}
		sum.add(r)
		if err := encoder.Encode(newProgressLine(r)); err != nil {
			return c.failed(fmt.Errorf("write: %w", err))
		}
	}
	if err := out.Flush(); err != nil {
		return c.failed(fmt.Errorf("write: %w", err))
	}
	sum.print(c.io.Err, parser, reader.Stats())
	if sum.count == 0 {
		return exitError
	}
	return exitOK
}

// splitErrors splits errors.Join's result.
func splitErrors(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// orNull returns nil, JSON's null, for an unknown number.
func orNull(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

// jsonNumber returns a string for numbers that JSON lacks.
func jsonNumber(v float64) any {
	switch {
	case math.IsNaN(v):
		return "NaN"
	case math.IsInf(v, 1):
		return "Infinity"
	case math.IsInf(v, -1):
		return "-Infinity"
	}
	return v
}

// progressSummary is printed to stderr at the end.
type progressSummary struct {
	config      progress.Config
	option      string // prefix of option names: "--"
	empty       string // advice for empty input
	count       int64
	first, last int64
	steps       int64 // reports with a step
	backwards   int64
	step        float64
	metrics     []progress.NameCount
	length      *length // nil = not shown, as the job's options are part of it
}

// length is the total number of steps that the driver would take for the job's.
type length struct {
	work         *remaining.Estimator
	now          remaining.Estimate
	total        float64 // last known; 0 = none
	since, until int64   // lines from which it was known, and no longer known; 0 = still known
	byMetric     bool    // its line has a metric
}

// add adds the n-th report. Its number stands for the CPU time, which a log does not have.
func (l *length) add(r progress.Report, n int64) {
	l.work.Add(remaining.Point{CPU: float64(n), Step: r.Step, Total: r.Total, PerEpoch: r.PerEpoch, StepOnly: r.StepOnly(), Bar: r.Bar})
	l.now = l.work.Estimate(float64(n), remaining.Curve{})
	switch {
	case l.now.Total > 0 && (l.now.Total != l.total || l.until > 0):
		l.total, l.since, l.until, l.byMetric = l.now.Total, r.Line, 0, !r.StepOnly()
	case l.now.Total == 0 && l.total > 0 && l.until == 0:
		l.until = r.Line
	}
}

func newLength() *length {
	return &length{work: remaining.New(remaining.Declared{}, remaining.State{})}
}

func (l *length) print(w io.Writer) {
	const advice = "set meta.ebbtide_total_steps or ebbtide_total_epochs, if no option of the command does"
	switch {
	case l.total > 0 && l.until > 0:
		fmt.Fprintf(w, "length: unknown since line %d (%.6g steps since line %d): %s; %s\n", l.until, l.total, l.since, cmp.Or(l.now.Lost, l.now.Why), advice)
	case l.total > 0 && l.byMetric:
		fmt.Fprintf(w, "length: %.6g steps, as printed with the metric, from line %d\n", l.total, l.since)
	case l.total > 0:
		fmt.Fprintf(w, "length: %.6g steps, likely, as they last, but have no metric, from line %d\n", l.total, l.since)
	default:
		fmt.Fprintf(w, "length: unknown: %s; %s\n", l.now.Why, advice)
	}
}

func (s *progressSummary) add(r progress.Report) {
	if s.count == 0 {
		s.first = r.Line
	}
	s.count++
	s.last = r.Line
	if !math.IsNaN(r.Step) && !r.StepOnly() { // bars may begin anew
		if s.steps > 0 && r.Step < s.step {
			s.backwards++
		}
		s.steps++
		s.step = r.Step
	}
	if s.length != nil {
		s.length.add(r, s.count)
	}
	if r.StepOnly() {
		return
	}
	for i := range s.metrics {
		if s.metrics[i].Name == r.Metric {
			s.metrics[i].Count++
			return
		}
	}
	if len(s.metrics) < 64 {
		s.metrics = append(s.metrics, progress.NameCount{Name: r.Metric, Count: 1})
	}
}

func (s *progressSummary) print(w io.Writer, p *progress.Parser, read progress.Stats) {
	others, names := p.Others()
	st := p.Stats()
	fmt.Fprintf(w, "%s in %s (%s)\n", plural(s.count, "report"), plural(read.Lines, "line"), plural(read.Bytes, "byte"))
	if s.count > 0 {
		goal := "inferred from its name"
		if s.config.Goal != "" {
			goal = "as configured"
		} else if p.Note() != "" {
			goal = "assumed"
		}
		if len(s.metrics) == 0 {
			fmt.Fprintf(w, "metric: none, steps alone, lines %d to %d\n", s.first, s.last)
		} else {
			fmt.Fprintf(w, "metric: %s; goal: %s, %s; step known in %d, lines %d to %d\n",
				seenNames(s.metrics, len(s.metrics) > 1), p.Goal(), goal, s.steps, s.first, s.last)
		}
		if s.length != nil {
			s.length.print(w)
		}
		if note := p.Note(); note != "" {
			fmt.Fprintf(w, "note: %s\n", note)
		}
		if s.backwards > 0 {
			fmt.Fprintf(w, "note: the step went back %s: the training run was restarted, or the step is not one (use %spattern)\n", times(s.backwards), s.option)
		}
		if len(s.metrics) > 1 {
			fmt.Fprintf(w, "note: the metric changed on the way: choose one with %smetric\n", s.option)
		}
	}

	skip := func(n int64, what, why string) {
		if n > 0 {
			fmt.Fprintf(w, "skipped: %s %s\n", plural(n, what), why)
		}
	}
	noise := "without a metric"
	switch {
	case s.config.Pattern != "":
		noise = "that the pattern does not match"
	case s.config.Metric != "":
		noise = fmt.Sprintf("without the metric %q", s.config.Metric)
	}
	skip(st.Noise, "line", noise)
	skip(st.Other, "line", "with another metric only")
	skip(st.NotNumber, "line", "with the metric but no number after it")
	skip(st.Shape, "line", fmt.Sprintf("with a metric, but not of the kind that preset %q reads", s.config.Preset))
	skip(st.Eval, "line", "of an evaluation's bar")
	skip(read.Oversized, "line", "in part: longer than 64 KiB, looked at in its first 64 KiB and last 4 KiB")

	if s.count > 0 {
		if len(others) > 0 {
			fmt.Fprintf(w, "other metrics: %s; choose with %smetric\n", seenNames(others, true), s.option)
		}
		return
	}
	fmt.Fprintln(w, "no report was found. What to try:")
	switch {
	case read.Bytes == 0:
		fmt.Fprintln(w, "  "+s.empty)
	case s.config.Pattern != "":
		fmt.Fprintln(w, "  the pattern is applied to each line on its own, without colours: try a shorter one first, such as loss[=: ]+(?P<value>[0-9.]+)")
	case st.Shape > 0:
		fmt.Fprintf(w, "  %spreset auto\n", s.option)
	case s.config.Metric != "" && (len(names) > 0 || len(others) > 0):
		fmt.Fprintf(w, "  %smetric with one of: %s\n", s.option, seenNames(append(others, names...), true))
	case len(names) > 0:
		fmt.Fprintf(w, "  %smetric NAME, if one of these is it: %s\n", s.option, seenNames(names, true))
	}
	if s.config.Pattern == "" {
		fmt.Fprintf(w, "  %spattern with a regular expression, such as 'step (?P<step>\\d+) .*score (?P<value>[-+.\\deE]+)'\n", s.option)
	}
	if read.Bytes > 0 && read.Lines < 2 {
		fmt.Fprintln(w, "  is the output complete? Python keeps it back without PYTHONUNBUFFERED=1")
	}
}

// seenNames lists names, most frequent first.
func seenNames(seen []progress.NameCount, counts bool) string {
	const most = 12
	var parts []string
	for i, s := range seen {
		if i == most {
			parts = append(parts, fmt.Sprintf("and %d more", len(seen)-most))
			break
		}
		if counts {
			parts = append(parts, fmt.Sprintf("%s (%d)", s.Name, s.Count))
		} else {
			parts = append(parts, s.Name)
		}
	}
	return strings.Join(parts, ", ")
}

func plural(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func times(n int64) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
