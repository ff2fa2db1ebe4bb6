// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/progress"
)

func TestProgress(t *testing.T) {
	const log = "starting\nstep=10 loss=0.5 total_steps=100 acc=0.25\nacc=0.5\nstep=20 loss=nan\nloss=-inf\nloss=n/a\nstep=5 loss=1e-7"
	const reports = `{"step":10,"total_steps":100,"value":0.5,"metric":"loss","line":2}
{"step":20,"total_steps":100,"value":"NaN","metric":"loss","line":4}
{"step":20,"total_steps":100,"value":"-Infinity","metric":"loss","line":5}
{"step":5,"total_steps":100,"value":1e-7,"metric":"loss","line":7}
`
	for _, c := range []struct {
		name   string
		args   string
		in     string
		status int
		out    string
		err    []string // substrings
	}{
		{"reports", "", log, 0, reports, []string{
			"4 reports in 7 lines (111 bytes)\n",
			"metric: loss; goal: min, inferred from its name; step known in 4, lines 2 to 7\n",
			"length: 100 steps, as printed with the metric, from line 4\n",
			"note: the step went back once",
			"skipped: 1 line without a metric\n",
			"skipped: 1 line with another metric only\n",
			"skipped: 1 line with the metric but no number after it\n",
			"other metrics: acc (2); choose with --metric\n"}},
		{"a metric and a goal", "--metric acc --goal min", log, 0,
			`{"step":10,"total_steps":100,"value":0.25,"metric":"acc","line":2}
{"step":10,"total_steps":100,"value":0.5,"metric":"acc","line":3}
`, []string{"goal: min, as configured", `skipped: 5 lines without the metric "acc"`}},
		{"a pattern", `--pattern=loss=(?P<value>\S+)`, "x\nloss=3\nloss=x\n", 0,
			`{"step":null,"total_steps":null,"value":3,"metric":"value","line":2}
`, []string{"goal: min, assumed", "note: the name \"value\" does not say", "skipped: 1 line that the pattern does not match",
				"skipped: 1 line with the metric but no number after it"}},
		{"a preset", "--preset jsonl", "loss=0.5\n{\"loss\":0.25}\n", 0,
			`{"step":null,"total_steps":null,"value":0.25,"metric":"loss","line":2}
`, []string{`skipped: 1 line with a metric, but not of the kind that preset "jsonl" reads`}},
		{"a change of metric", "", "val_loss=0.5\nloss=0.25\n", 0, `{"step":null,"total_steps":null,"value":0.5,"metric":"val_loss","line":1}
{"step":null,"total_steps":null,"value":0.25,"metric":"loss","line":2}
`, []string{"metric: val_loss (1), loss (1)", "note: the metric changed"}},
		{"a long line", "", "loss=0.5 " + strings.Repeat("x", 70_000), 0, `{"step":null,"total_steps":null,"value":0.5,"metric":"loss","line":1}
`, []string{"skipped: 1 line in part: longer than 64 KiB"}},

		{"nothing", "", "", 1, "", []string{"0 reports in 0 lines (0 bytes)\n", "no report was found. What to try:", "2>&1 | ebbtide progress"}},
		{"no metric that is known", "", "zeta=0.5 lr=0.1\nzeta=0.4\n", 1, "", []string{"--metric NAME, if one of these is it: zeta (2), lr (1)\n", "--pattern"}},
		{"another metric", "--metric lost", "loss=0.5\n", 1, "", []string{"--metric with one of: loss (1)\n"}},
		{"another preset", "--preset keras", "loss=0.5\n", 1, "", []string{"--preset auto"}},
		{"a pattern that fits nothing", "--pattern=(?P<value>Z)", "loss=0.5\n", 1, "", []string{"try a shorter one"}},

		{"bad options", "--preset hf --goal up --metric=\x01", log, 2, "", []string{
			`ebbtide progress: --preset: must be one of auto, huggingface, keras, lightning, plain, tqdm, jsonl (did you mean "huggingface"?), got "hf"`,
			`ebbtide progress: --goal: must be "min", "max", or empty to infer it from the metric's name, got "up"`,
			`ebbtide progress: --metric: must not contain control characters`}},
		{"a bad pattern", "--pattern (", log, 2, "", []string{"ebbtide progress: --pattern: must be a regular expression"}},
		{"no group", "--pattern x", log, 2, "", []string{`--pattern: lacks the group "value"; the named groups are (?P<value>…), required`}},
		{"an unknown option", "--metrik loss", log, 2, "", []string{"flag provided but not defined: -metrik; allowed are -goal, -metric, -pattern, -preset"}},
		{"a file", "train.log", log, 2, "", []string{"ebbtide progress < train.log"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out, err bytes.Buffer
			status := Run(append([]string{"progress"}, strings.Fields(c.args)...), strings.NewReader(c.in), &out, &err)
			must.Eq(t, c.status, status, must.Sprint(err.String()))
			must.Eq(t, c.out, out.String())
			for line := range strings.Lines(out.String()) {
				must.True(t, json.Valid([]byte(line)))
			}
			for _, part := range c.err {
				must.StrContains(t, err.String(), part)
			}
		})
	}
}

// Reports of steps alone have no value, and a length that is only likely.
func TestProgress_steps(t *testing.T) {
	nan := math.NaN()
	line, err := json.Marshal(newProgressLine(progress.Report{Value: nan, Step: 3, Total: 10, Bar: "Training", Line: 1}))
	must.NoError(t, err)
	must.Eq(t, `{"step":3,"total_steps":10,"value":null,"metric":"","bar":"Training","line":1}`, string(line))

	parser, err := progress.NewParser(progress.Config{})
	must.NoError(t, err)
	summary := func(n int, total float64) string {
		s := progressSummary{length: newLength()}
		for i := range n {
			s.add(progress.Report{Value: nan, Step: float64(i % 100), Total: total, Line: int64(i + 1)})
		}
		var out strings.Builder
		s.print(&out, parser, progress.Stats{Lines: int64(n)})
		return out.String()
	}
	must.StrContains(t, summary(60, 99), "metric: none, steps alone, lines 1 to 60\nlength: 99 steps, likely, as they last, but have no metric, from line 11\n")
	must.StrContains(t, summary(150, 99), "length: unknown since line 101 (99 steps since line 11): the steps begin anew with each epoch, and the number of epochs is unknown; set meta.ebbtide_total_steps")
	must.StrContains(t, summary(50, nan), "length: unknown: no total is known; set")
	must.StrNotContains(t, summary(150, 99), "went back")
}

func TestProgress_io(t *testing.T) {
	var out, stderr bytes.Buffer
	in := iotest.ErrReader(errors.New("broken"))
	must.Eq(t, 1, Run([]string{"progress"}, in, &out, &stderr))
	must.StrContains(t, stderr.String(), "read standard input: broken")

	stderr.Reset()
	must.Eq(t, 1, Run([]string{"progress"}, strings.NewReader("loss=0.5\n"), failing{}, &stderr))
	must.StrContains(t, stderr.String(), "write: full")

	out.Reset()
	must.Eq(t, 0, Run([]string{"progress", "-h"}, strings.NewReader(""), &out, &stderr))
	must.StrContains(t, out.String(), "Usage: ebbtide progress")
}

// failing is a full disk.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("full") }
