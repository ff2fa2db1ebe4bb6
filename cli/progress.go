// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/hashicorp/cli"

	"github.com/ebbtide/ebbtide/driver/progress"
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
  "NaN", "Infinity" and "-Infinity", which JSON lacks as numbers. line counts from 1;
  a line redrawn with \r counts once. A summary, with what was skipped and why,
  follows on stderr.

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
	Line   int64    `json:"line"`
}

func newProgressLine(r progress.Report) progressLine {
	return progressLine{Step: orNull(r.Step), Total: orNull(r.Total), Value: jsonNumber(r.Value), Metric: r.Metric, Line: r.Line}
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
		config: config, option: "--",
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
}

func (s *progressSummary) add(r progress.Report) {
	if s.count == 0 {
		s.first = r.Line
	}
	s.count++
	s.last = r.Line
	if !math.IsNaN(r.Step) {
		if s.steps > 0 && r.Step < s.step {
			s.backwards++
		}
		s.steps++
		s.step = r.Step
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
		fmt.Fprintf(w, "metric: %s; goal: %s, %s; step known in %d, lines %d to %d\n",
			seenNames(s.metrics, len(s.metrics) > 1), p.Goal(), goal, s.steps, s.first, s.last)
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
