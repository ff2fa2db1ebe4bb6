// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
)

func TestGrowth(t *testing.T) {
	var in strings.Builder
	in.WriteString("step,value,cpu_s\n")
	for i := 1; i <= 40; i++ {
		fmt.Fprintf(&in, "%d,%.6f,%d\n", i, math.Exp(-float64(i)/2), 10*i)
	}
	status, stdout, stderr := ebbtide(in.String(), "growth", "--goal", "min")
	must.Eq(t, "", stderr)
	must.Eq(t, exitOK, status)
	rows := strings.Split(strings.TrimSpace(stdout), "\n")
	must.Len(t, 41, rows)
	must.Eq(t, "cpu_s,value,growth,plateau,category", rows[0])
	must.Eq(t, "10,0.606531,,false,NL", rows[1])
	must.Eq(t, "20,0.367879,,false,NL", rows[2])
	must.StrHasPrefix(t, "30,0.22313,0.0", rows[3])
	must.StrHasSuffix(t, ",false,NL", rows[3])
	must.StrHasSuffix(t, ",0,true,CL", rows[40])

	_, again, _ := ebbtide(in.String(), "growth", "-goal=min", "--estimator", "robust")
	must.Eq(t, stdout, again)
}

func TestGrowth_published(t *testing.T) {
	status, stdout, stderr := ebbtide("\uFEFFvalue, cpu_s ,t_s\r\n3,10,1\r\n2,12,2\r\nNaN,14,3\r\n1,15,4\r\n1,16,5\r\n1,17,6\r\n-Inf,18,7\r\n",
		"growth", "--goal", "max", "--estimator", "published")
	must.Eq(t, "", stderr)
	must.Eq(t, exitOK, status)
	must.Eq(t, `cpu_s,value,growth,plateau,category
10,3,,false,NL
12,2,0.5,false,NL
14,NaN,0,false,CL
15,1,0,false,CL
16,1,0,false,CL
17,1,0.2,false,CL
18,-Inf,0,false,CL
`, stdout)
}

func TestGrowth_history(t *testing.T) {
	dir := t.TempDir()
	w, err := status.NewWriter(dir, "train", status.Options{})
	must.NoError(t, err)
	var plain strings.Builder
	plain.WriteString("cpu_s,value,step\n")
	nan, at := math.NaN(), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	row := func(cpu, step, value float64) {
		at = at.Add(time.Second)
		must.NoError(t, w.Append(status.Row{Time: at, CPUSeconds: cpu, Step: step, Value: value, Category: "NL", Limit: 1, Rule: "flowcon.alg1.nl", Event: "a, b"}))
	}
	row(90, nan, nan)
	row(100, 7, 0.01) // of an earlier process
	row(0, nan, nan)
	row(1, nan, nan)
	for i := 1; i <= 40; i++ {
		cpu, value := 10*float64(i), math.Round(1e6*math.Exp(-float64(i)/2))/1e6
		row(cpu, float64(i), value)
		row(cpu+1, float64(i), value)
		fmt.Fprintf(&plain, "%g,%g,%d\n", cpu, value, i)
	}
	row(500, 41, nan)
	plain.WriteString("500,NaN,41\n")
	file := filepath.Join(dir, status.Dir, "train.csv")
	history, err := os.ReadFile(file)
	must.NoError(t, err)

	status, stdout, stderr := ebbtide(string(history), "growth", "--goal", "min")
	must.Eq(t, "ebbtide growth: the task was restarted (cpu_s falls); earlier rows skipped: 2\n"+
		"ebbtide growth: rows without a value skipped: 2\n", stderr)
	must.Eq(t, exitOK, status)
	_, want, _ := ebbtide(plain.String(), "growth", "--goal", "min")
	must.Eq(t, want, stdout)
	must.StrHasSuffix(t, "\n500,NaN,0,false,CL\n", stdout)

	_, stdout, stderr = ebbtide(string(history)+"2026-01-01T00:02:00Z,51", "growth", "--goal", "min")
	must.Eq(t, want, stdout, must.Sprint("a row that is still being written"))
	must.StrNotContains(t, stderr, "51")

	status, stdout, stderr = ebbtide("time,later,cpu_s,value\nx,y,10,3\nx,y,12,2\n", "growth", "--goal", "max", "--estimator", "published")
	must.Eq(t, "", stderr, must.Sprint("of another version: another order, no steps, a column that is not known"))
	must.Eq(t, exitOK, status)
	must.StrContains(t, stdout, "\n12,2,0.5,")
}

func TestGrowth_errors(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   string
		args []string
		want []string
	}{
		{"no goal", "", nil, []string{"--goal: must be given"}},
		{"options", "", []string{"--goal", "up", "--estimator", "best"}, []string{`--goal: must be one of min, max, got "up"`, `--estimator: must be one of robust, published, got "best"`}},
		{"unknown option", "", []string{"--gaol", "min"}, []string{"gaol", "allowed are -estimator, -goal"}},
		{"argument", "", []string{"--goal", "min", "x.csv"}, []string{"ebbtide growth < x.csv"}},
		{"empty", "", []string{"--goal", "min"}, []string{"line 1: must be a header", "empty"}},
		{"no points", "cpu_s,value\n", []string{"--goal", "min"}, []string{"line 2: there are no points"}},
		{"header", "cpu,value,value\n1,2,3\n", []string{"--goal", "min"}, []string{
			`line 1, column "cpu": is unknown, must be one of cpu_s, value, t_s, step`, `column "value": is duplicated`, `"cpu_s" is missing`}},
		{"values", "cpu_s,value,t_s,step\n1,x,2,\n-1,2,NaN,y\n\n1,2\nNaN,1,1,1\n", []string{"--goal", "min"}, []string{
			`line 2, column "value": must be a number, NaN or Inf, got "x"`,
			`line 3, column "cpu_s": must be a number ≥ 0, got "-1"`,
			`line 3, column "t_s": must be a number, got "NaN"`,
			`line 3, column "step": must be a number or empty, got "y"`,
			`line 5: must have 4 columns like the header, got 2`,
			`line 6, column "cpu_s": must be a number ≥ 0, got "NaN"`}},
		{"subset of a history", "cpu_s,value,category\n1,1,NL\n", []string{"--goal", "min"}, []string{`line 1, column "category": is unknown, must be one of cpu_s, value, t_s, step`}},
		{"history", "time,cpu_s,step,value\nx,,1,1\nx,1,a,b\n", []string{"--goal", "min"}, []string{
			`line 2, column "cpu_s": must be a number ≥ 0, got ""`, `line 3, column "step": must be`, `line 3, column "value": must be`}},
		{"history without values", "time,cpu_s,value\nx,5,1\nx,1,\nx,2,\n", []string{"--goal", "min"}, []string{
			`column "value": must have a value since the task was last started, got 2 empty ones`}},
		{"range", "cpu_s,value\n1,1e999\n", []string{"--goal", "min"}, []string{`line 2, column "value"`}},
		{"quotes", "cpu_s,value\n1,\"2\n", []string{"--goal", "min"}, []string{"reading the points", "line 2"}},
		{"header quotes", "cpu_s,\"value\n", []string{"--goal", "min"}, []string{"reading the header", "line 1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, stdout, stderr := ebbtide(tc.in, append([]string{"growth"}, tc.args...)...)
			must.Eq(t, exitUsage, status)
			must.Eq(t, "", stdout)
			for _, want := range tc.want {
				must.StrContains(t, stderr, want)
			}
			must.Eq(t, len(tc.want) > 1 && tc.name == "values", strings.Count(stderr, "\n") == 6)
		})
	}
}

func TestGrowth_help(t *testing.T) {
	for _, arg := range []string{"--help", "-h"} {
		status, stdout, _ := ebbtide("", "growth", arg)
		must.Eq(t, exitOK, status)
		must.StrContains(t, stdout, "Usage: ebbtide growth")
	}
	must.Eq(t, exitOK, growthCommand{command{io: IO{Out: new(strings.Builder)}, name: "growth"}}.Run([]string{"-h"}))
}

func TestGrowth_io(t *testing.T) {
	var errs strings.Builder
	bad := errors.New("broken")
	c := growthCommand{command{io: IO{In: iotest.ErrReader(bad), Out: new(strings.Builder), Err: &errs}, name: "growth"}}
	must.Eq(t, exitError, c.Run([]string{"--goal", "min"}))
	must.StrContains(t, errs.String(), "read standard input: broken")
	c.io = IO{In: strings.NewReader("cpu_s,value\n1,1\n"), Out: growthSink{bad}, Err: &errs}
	must.Eq(t, exitError, c.Run([]string{"--goal", "min"}))
	must.StrContains(t, errs.String(), "write: broken")
}

type growthSink struct{ err error }

func (s growthSink) Write([]byte) (int, error) { return 0, s.err }

func FuzzGrowth(f *testing.F) {
	f.Add("cpu_s,value\n1,2\n2,nan\n3,1\n0,5\n")
	f.Add("value,cpu_s,step,t_s\n1e300,1e-300,1,1\n")
	f.Add("time,cpu_s,step,value,event\nx,1,,,\nx,0,1,,\nx,2,1,3,y\nx,3")
	f.Fuzz(func(t *testing.T, in string) {
		status, stdout, stderr := ebbtide(in, "growth", "--goal", "max")
		must.Eq(t, status == exitOK, stdout != "")
		if status == exitUsage {
			must.NotEq(t, "", stderr)
		}
	})
}
