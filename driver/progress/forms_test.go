// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/remaining"
)

// testdata/forms holds short made-up outputs in the forms that trainers print, a file
// per field of work, with the reading that a person would give at the end of each:
//
//	# sample: stanza clear
//	# parsing, PyTorch; Stanza: a sentence with a comma and parentheses
//	step 20/50000 (epoch 1/240), loss = 8.12 (0.241 sec/batch)
//	step 40/50000 (epoch 1/240), loss = 7.01 (0.238 sec/batch)
//	# reads: loss min = 7.01 at 40/50000
//
// The first line is a name and a mark: "clear" (a person has no doubt), "unclear" (what
// is "-" cannot be known) or "bar" (steps, and no metric). Then follow one line about
// the trainer, the output, in which ␍ is a carriage return and ␛ an escape, and the
// reading: metric, goal, value, step, total.
//
// A field that is "-" cannot be known: whatever is read for it is wrong. "|" separates
// acceptable names of the metric. Several lines "# reads:" are acceptable readings. Of
// several ranks that print the same, the lowest is followed.

// minClear is the part of the clear samples that must be read in full.
const minClear = 0.95

const unknown = "-"

var marks = []string{"clear", "unclear", "bar"}

// form is a sample of testdata/forms.
type form struct {
	kind, name, mark string
	output           string
	want             []reading // acceptable ones
}

// reading is what is known at a sample's end, in the words of a sample. In what is
// wanted, "|" separates acceptable metrics.
type reading struct{ metric, goal, value, step, total string }

func (r reading) String() string {
	return fmt.Sprintf("%s %s = %s at %s/%s", r.metric, r.goal, r.value, r.step, r.total)
}

// parseReading reads "loss|train loss min = 0.49 at 3/10" or "- = - at -/-".
func parseReading(text string) (reading, error) {
	r := reading{goal: unknown}
	metric, rest, ok := strings.Cut(text, " = ")
	value, at, ok2 := strings.Cut(rest, " at ")
	step, total, ok3 := strings.Cut(at, "/")
	if !ok || !ok2 || !ok3 {
		return r, fmt.Errorf("%q is not of the form: metric goal = value at step/total", text)
	}
	r.metric, r.value, r.step, r.total = strings.ToLower(metric), value, step, total
	if metric != unknown {
		i := strings.LastIndex(metric, " ")
		if i < 0 || metric[i+1:] != GoalMin && metric[i+1:] != GoalMax {
			return r, fmt.Errorf("%q has no goal", text)
		}
		r.metric, r.goal = r.metric[:i], metric[i+1:]
	}
	for _, number := range []string{value, step, total} {
		if _, err := strconv.ParseFloat(number, 64); err != nil && number != unknown {
			return r, fmt.Errorf("%q: %w", text, err)
		}
	}
	return r, nil
}

// readForms returns the samples of a file.
func readForms(file string) ([]form, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	kind := strings.TrimSuffix(filepath.Base(file), ".txt")
	var forms []form
	for _, text := range strings.Split("\n"+string(data), "\n# sample: ")[1:] {
		lines := strings.SplitN(text, "\n", 3)
		if len(lines) < 3 || !strings.HasPrefix(lines[1], "# ") {
			return nil, fmt.Errorf("%s: %s: no line about the trainer", kind, lines[0])
		}
		f := form{kind: kind}
		f.name, f.mark, _ = strings.Cut(lines[0], " ")
		if !slices.Contains(marks, f.mark) {
			return nil, fmt.Errorf("%s: %s: unknown mark %q", kind, f.name, f.mark)
		}
		parts := strings.Split(strings.TrimSpace(lines[2]), "\n# reads: ")
		f.output = strings.NewReplacer("␍", "\r", "␛", "\x1b").Replace(parts[0]) + "\n"
		for _, text := range parts[1:] {
			want, err := parseReading(text)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", kind, f.name, err)
			}
			f.want = append(f.want, want)
		}
		if len(f.want) == 0 {
			return nil, fmt.Errorf("%s: %s: no reading", kind, f.name)
		}
		forms = append(forms, f)
	}
	return forms, nil
}

// read returns the last report with a metric or, without any, the position by step reports: package
// remaining counts how often a bar begins anew.
func (f form) read() (reading, error) {
	p, err := NewParser(Config{})
	if err != nil {
		return reading{}, err
	}
	last := Report{Value: unset, Step: unset, Total: unset}
	work := remaining.New(remaining.Declared{}, remaining.State{})
	for r, n := NewReader(strings.NewReader(f.output), p), 1.0; ; n++ {
		report, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return readingOf(p, last), nil
		case err != nil:
			return reading{}, err
		case !report.StepOnly():
			last = report
		case last.StepOnly():
			work.Add(remaining.Point{CPU: n, Step: report.Step, Total: report.Total, StepOnly: true, Bar: report.Bar})
			last.Step, last.Total, _ = work.Position(n)
		}
	}
}

func readingOf(p *Parser, r Report) reading {
	number := func(v float64) string {
		if !isSet(v) {
			return unknown
		}
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	got := reading{unknown, unknown, unknown, number(r.Step), number(r.Total)}
	if !r.StepOnly() {
		got.metric, got.value = strings.ToLower(r.Metric), strconv.FormatFloat(r.Value, 'g', -1, 64)
		if p.Note() == "" { // else the goal is assumed
			got.goal = p.Goal()
		}
	}
	return got
}

// grade is the judgement of one field.
type grade int

const (
	right grade = iota
	nothing
	wrong
)

// judge compares a field with what is wanted.
func judge(got, want string) grade {
	switch {
	case got == want:
		return right
	case got == unknown:
		return nothing
	case want == unknown:
		return wrong
	}
	g, err := strconv.ParseFloat(got, 64)
	w, err2 := strconv.ParseFloat(want, 64)
	if err == nil && err2 == nil && math.Abs(g-w) <= 1e-9*math.Abs(w) {
		return right
	}
	return wrong
}

var fields = [...]string{"metric", "value", "step", "total"}

type grades [len(fields)]grade

func (g grades) worst() grade { return slices.Max(g[:]) }

// grades judges r, which was read, by what is wanted.
func (r reading) grades(want reading) (g grades) {
	switch {
	case r.metric == unknown || want.metric == unknown:
		g[0] = judge(r.metric, want.metric)
	case !slices.Contains(strings.Split(want.metric, "|"), r.metric):
		g[0] = wrong
	default:
		g[0] = judge(r.goal, want.goal)
	}
	g[1] = judge(r.value, want.value)
	g[2] = judge(r.step, want.step)
	g[3] = judge(r.total, want.total)
	return g
}

// grades judges a reading by the acceptable one that it is closest to.
func (f form) grades(got reading) grades {
	var all []grades
	for _, want := range f.want {
		all = append(all, got.grades(want))
	}
	return slices.MinFunc(all, func(a, b grades) int {
		sum := func(g grades) (n int) {
			for _, v := range g {
				n += int(v)
			}
			return n
		}
		return cmp.Or(int(a.worst())-int(b.worst()), sum(a)-sum(b))
	})
}

// TestForms reads the samples with the zero Config and counts what is right, unknown
// and wrong. A wrong reading is worse than none: it is acted upon, and a wrong step or
// total makes the job's size wrong by a factor.
func TestForms(t *testing.T) {
	files, err := filepath.Glob("testdata/forms/*.txt")
	must.NoError(t, err)
	must.SliceNotEmpty(t, files)

	type count struct {
		of, right map[string]int // samples by mark
		fields    [len(fields)][3]int
	}
	newCount := func() count { return count{of: map[string]int{}, right: map[string]int{}} }
	row := func(name string, c count) string {
		s := fmt.Sprintf("%-12s", name)
		for _, mark := range marks {
			s += fmt.Sprintf("%5d/%-3d", c.right[mark], c.of[mark])
		}
		for _, f := range c.fields {
			s += fmt.Sprintf("   %3d %3d %3d", f[right], f[nothing], f[wrong])
		}
		return s + "\n"
	}
	all := newCount()
	var table, wrongs, steps, unknowns strings.Builder
	names := map[string]bool{}
	wrongSamples, wrongSteps := 0, 0
	for _, file := range files {
		forms, err := readForms(file)
		must.NoError(t, err)
		must.SliceNotEmpty(t, forms)
		c := newCount()
		for _, f := range forms {
			must.False(t, names[f.name], must.Sprintf("two samples are named %s", f.name))
			names[f.name] = true
			got, err := f.read()
			must.NoError(t, err)
			g := f.grades(got)
			worst := g.worst()
			for _, c := range []*count{&c, &all} {
				c.of[f.mark]++
				if worst == right {
					c.right[f.mark]++
				}
				for i := range g {
					c.fields[i][g[i]]++
				}
			}
			line := fmt.Sprintf("%s/%s: %v, want %v\n", f.kind, f.name, got, f.want)
			switch {
			case g[2] == wrong || g[3] == wrong:
				wrongSamples++
				wrongSteps++
				steps.WriteString(line)
			case worst == wrong:
				wrongSamples++
				wrongs.WriteString(line)
			case worst == nothing:
				unknowns.WriteString(line)
			}
		}
		table.WriteString(row(strings.TrimSuffix(filepath.Base(file), ".txt"), c))
	}
	t.Logf("samples that are read in full; right, unknown and wrong by field\n%-12s  %s       %s\n%s%s", "",
		strings.Join(marks, "  "), strings.Join(fields[:], "        "), table.String(), row("all", all))
	t.Logf("%d with a wrong step or total:\n%s", wrongSteps, steps.String())
	t.Logf("%d wrong otherwise:\n%s", wrongSamples-wrongSteps, wrongs.String())
	t.Logf("unknown:\n%s", unknowns.String())
	t.Logf("%d wrong, %d of them in step or total; %d of %d clear ones read", wrongSamples, wrongSteps, all.right["clear"], all.of["clear"])

	must.Zero(t, wrongSamples)
	must.GreaterEq(t, minClear, float64(all.right["clear"])/float64(all.of["clear"]))
}

// TestFormsJudge checks the judgement itself: what is wrong must never count as unknown.
func TestFormsJudge(t *testing.T) {
	f := form{want: []reading{
		{"loss|train loss", GoalMin, "0.5", "3", "10"},
		{"loss|train loss", GoalMin, "0.5", "120", "400"},
	}}
	for _, c := range []struct {
		got  reading
		want grades
	}{
		{reading{"train loss", GoalMin, "0.5", "3", "10"}, grades{right, right, right, right}},
		{reading{"loss", unknown, "0.50", "120", "400"}, grades{nothing, right, right, right}},
		{reading{"loss", GoalMax, "0.4", "120", "400"}, grades{wrong, wrong, right, right}},
		{reading{"loss", GoalMin, "0.5", "120", unknown}, grades{right, right, right, nothing}},
		{reading{"lr", GoalMin, "0.5", "120", "10"}, grades{wrong, right, wrong, right}},
		{reading{unknown, unknown, unknown, unknown, unknown}, grades{nothing, nothing, nothing, nothing}},
	} {
		must.Eq(t, c.want, f.grades(c.got))
	}
	none := reading{unknown, unknown, unknown, unknown, unknown}
	f.want = []reading{none}
	must.Eq(t, grades{right, right, right, right}, f.grades(none))
	must.Eq(t, grades{wrong, wrong, wrong, wrong}, f.grades(reading{"loss", GoalMin, "1", "2", "3"}))
}
