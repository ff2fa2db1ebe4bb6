// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package result

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
)

// falling is a curve of n reports, one a second from t0 on: 1, 1/2, 1/3, …
func falling(t0 float64, n int) []Point {
	var out []Point
	for i := range n {
		out = append(out, Point{T: t0 + float64(i), Step: float64(i), Value: 1 / float64(i+1)})
	}
	return out
}

func TestRange(t *testing.T) {
	long := Job{Curve: falling(0, 10)}
	short := Job{Curve: falling(0, 5)}
	r := RangeOf(short, long)
	must.Eq(t, Range{First: 1, Best: 0.1}, r)
	must.Eq(t, r, RangeOf(long, short))
	must.InDelta(t, 0.1+0.9*0.1, r.At(0.90), 1e-12)
	must.Eq(t, 1, r.Left(1))
	must.Eq(t, 0, r.Left(0.1))
	must.Eq(t, 0, Range{First: 2, Best: 2}.Left(2))
	must.True(t, math.IsNaN(RangeOf(Job{}).Best))
}

func TestMeasure(t *testing.T) {
	r := Range{First: 1, Best: 0.1} // 90 % at 0.19, 95 % at 0.145
	cases := []struct {
		name string
		job  Job
		want Times
	}{
		{"from its own submission", Job{Submitted: 3, Finished: 30, Curve: falling(5, 10)}, Times{27, 7, 8}},
		{"exactly at the value", Job{Finished: 9, Curve: []Point{{T: 1, Value: 1}, {T: 2, Value: r.At(0.90)}, {T: 4, Value: r.At(0.95)}}}, Times{9, 2, 4}},
		{"the first time counts", Job{Finished: 9, Curve: []Point{{T: 1, Value: 1}, {T: 2, Value: 0.1}, {T: 3, Value: 0.5}, {T: 4, Value: 0.1}}}, Times{9, 2, 2}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { must.Eq(t, c.want, Measure(c.job, r)) })
	}
	never := Measure(Job{Finished: 9, Curve: falling(0, 2)}, r)
	must.True(t, math.IsNaN(never.To90))
	must.True(t, math.IsNaN(never.To95))
}

func TestCompare(t *testing.T) {
	cpu := []Sample{{T: 1, CPU: 3}, {T: 5, CPU: 10}, {T: 6, CPU: Number(math.NaN())}}
	p := Pair{
		Flowcon: Run{Jobs: []Job{
			{Name: "a", Finished: 20, Curve: falling(0, 10), Samples: cpu},
			{Name: "only here", Finished: 1},
			{Name: "b", Submitted: 5, Finished: 15, Curve: falling(6, 10)},
		}},
		None: Run{Jobs: []Job{
			{Name: "b", Submitted: 5, Finished: 25, Curve: falling(8, 10), Samples: cpu},
			{Name: "a", Finished: 20, Curve: falling(0, 10), Samples: cpu},
		}},
	}
	c := Compare(p, 2)
	must.Len(t, 2, c.Rows)
	must.Eq(t, "a", c.Rows[0].Name)
	must.Eq(t, "b", c.Rows[1].Name)
	must.Eq(t, Times{20, 8, 9}, c.Rows[1].None)
	must.Eq(t, Times{10, 6, 7}, c.Rows[1].Flowcon)
	must.Eq(t, 20.0, c.Mean.None.Completion)
	must.Eq(t, 15.0, c.Mean.Flowcon.Completion)
	must.Eq(t, 25.0, c.MakespanNone)
	must.Eq(t, 20.0, c.MakespanFlowcon)
	must.InDelta(t, 20.0/50, c.BusyNone, 1e-12)
	must.InDelta(t, 10.0/40, c.BusyFlowcon, 1e-12)
	must.InDelta(t, -0.25, Change(c.Mean.None.Completion, c.Mean.Flowcon.Completion), 1e-12)
	must.True(t, math.IsNaN(Change(0, 1)))
}

func TestNoise(t *testing.T) {
	run := func(t0 float64) Run {
		return Run{Jobs: []Job{{Curve: falling(t0, 20)}, {Submitted: 8.5}}}
	}
	must.Eq(t, 0.0, noise(Pair{Flowcon: run(0), None: run(0)}))
	must.InDelta(t, 0.25, noise(Pair{Flowcon: run(0), None: run(2)}), 1e-12) // 8 steps, 6 steps
	must.True(t, math.IsNaN(noise(Pair{Flowcon: run(0)})))
	must.True(t, math.IsNaN(noise(Pair{Flowcon: run(9), None: run(9)})))
}

func TestSpread(t *testing.T) {
	must.Eq(t, Spread{N: 3, Min: 1, Median: 2, Max: 9}, SpreadOf([]float64{9, 1, math.NaN(), 2}))
	must.Eq(t, Spread{N: 2, Min: 1, Median: 1.5, Max: 2}, SpreadOf([]float64{2, 1}))
	must.True(t, math.IsNaN(SpreadOf(nil).Median))
}

func TestReadCurve(t *testing.T) {
	text := "step,wall_s,cpu_s,loss,accuracy\n0,0.1,0.1,2.5,NaN\n10,1.5,1.1,nan,NaN\n20,2.5,2.0,1.25,NaN\n"
	got, err := ReadCurve(strings.NewReader(text), 10)
	must.NoError(t, err)
	must.Eq(t, []Point{{T: 10.1, Step: 0, Value: 2.5}, {T: 12.5, Step: 20, Value: 1.25}}, got)

	for name, bad := range map[string]string{
		"reading the header":     "",
		`no column "wall_s"`:     "step,loss\n1,2\n",
		"parsing \"x\"":          "step,wall_s,loss\n1,x,2\n",
		"wrong number of fields": "step,wall_s,loss\n1,2\n",
	} {
		_, err := ReadCurve(strings.NewReader(bad), 0)
		must.ErrorContains(t, err, name)
	}
}

func TestSamples(t *testing.T) {
	start := time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)
	got := Samples([]status.Row{{Time: start.Add(1500 * time.Millisecond), CPUSeconds: 2, Growth: 0.5, Limit: 0.25, Shares: 100, Category: "WL"}}, start)
	must.Eq(t, []Sample{{T: 1.5, CPU: 2, Growth: 0.5, Limit: 0.25, Shares: 100, Category: "WL"}}, got)
}

func TestNumber(t *testing.T) {
	b, err := json.Marshal([]Number{1.25, Number(math.NaN()), Number(math.Inf(1))})
	must.NoError(t, err)
	must.Eq(t, "[1.25,null,null]", string(b))
	var back []Number
	must.NoError(t, json.Unmarshal(b, &back))
	must.Eq(t, 1.25, back[0])
	must.True(t, math.IsNaN(float64(back[1])))
	must.Error(t, json.Unmarshal([]byte(`["x"]`), &back))
}
