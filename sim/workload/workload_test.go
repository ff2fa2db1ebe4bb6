// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package workload

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/driver/policy"
)

func TestExp(t *testing.T) {
	for x := -20.0; x <= 20; x += 0.37 {
		must.InDelta(t, 1, exp(x)/math.Exp(x), 1e-10)
	}
}

func TestNormal(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	sum, squares := 0.0, 0.0
	const n = 20000
	for range n {
		x := Normal(r)
		sum, squares = sum+x, squares+x*x
	}
	must.InDelta(t, 0, sum/n, 0.03)
	must.InDelta(t, 1, squares/n, 0.05)
}

func TestCurve(t *testing.T) {
	c := Curve{Goal: policy.GoalMax, X: []float64{0, 0.5, 1}, Y: []float64{0, 0.8, 1}}
	must.InDelta(t, 0.4, c.At(0.25), 1e-12)
	must.Eq(t, 0.8, c.At(0.5))
	must.Eq(t, 1, c.At(2))
	must.Eq(t, 0, c.At(-1))
	must.InDelta(t, 0.75, c.Reach(0.5), 1e-12)
	must.Eq(t, 0.5, c.Reach(0))
	must.Eq(t, 1, c.Reach(2))
	must.Eq(t, 0.5, c.Passes(0.7))
	must.Eq(t, 1, c.Passes(7))
	flat := Curve{X: []float64{0, 1}, Y: []float64{3, 3}}
	must.Eq(t, 1, flat.Reach(0.5))
}

// Generated curves fall from first to last value, and quality rises with work.
func TestAnyLoss(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyLoss(rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)), 50)
		must.Len(t, 51, c.X)
		for i := 1; i < len(c.X); i++ {
			must.Less(t, c.X[i], c.X[i-1])
			must.LessEq(t, c.Y[i-1]+1e-12, c.Y[i])
		}
		must.LessEq(t, c.Reach(0.95), c.Reach(0.5))
		must.Positive(t, c.Span())
	})
}

func spec(source string) Spec {
	return Spec{Source: source, Jobs: 12, MedianCPUS: 200, Sigma: 1, Spread: 0.5, Steps: 1000, Reports: 50, Noise: 0.01, PoolCores: 2}
}

func TestMake(t *testing.T) {
	data := Data{os.DirFS("../testdata")}
	for _, source := range Sources() {
		t.Run(source, func(t *testing.T) {
			s := spec(source)
			jobs, err := Make(s, data, 3)
			must.NoError(t, err)
			again, err := Make(s, data, 3)
			must.NoError(t, err)
			one, _ := json.Marshal(jobs)
			two, _ := json.Marshal(again)
			must.Eq(t, string(one), string(two))
			other, err := Make(s, data, 4)
			must.NoError(t, err)
			three, _ := json.Marshal(other)
			must.NotEq(t, string(one), string(three))

			must.Len(t, 12, jobs)
			must.True(t, slices.IsSortedFunc(jobs, func(a, b Job) int { return int(math.Copysign(1, a.ArriveS-b.ArriveS)) }))
			ids := make(map[string]bool)
			total := 0.0
			for _, j := range jobs {
				must.False(t, ids[j.ID])
				ids[j.ID] = true
				must.Between(t, 200.0/most, j.WorkCPUS, 200*most)
				must.Eq(t, 0, j.Curve.X[0])
				must.Eq(t, 1, j.Curve.X[len(j.Curve.X)-1])
				must.Nil(t, j.Objective)
				must.Eq(t, 0, j.AskCores)
				total += j.WorkCPUS
			}
			must.LessEq(t, 0.5*total/2+1e-9, jobs[11].ArriveS)

			s.Targets, s.Caps, s.OverS = true, []float64{1, 2}, 77
			jobs, err = Make(s, data, 3)
			must.NoError(t, err)
			for _, j := range jobs {
				must.True(t, j.Curve.Goal.Reached(*j.Objective, *j.Acceptable))
				must.SliceContains(t, []float64{1, 2}, j.CapCores)
				must.LessEq(t, 77, j.ArriveS)
			}
			s.At = []float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
			jobs, err = Make(s, data, 3)
			must.NoError(t, err)
			must.Eq(t, 11, jobs[11].ArriveS)
		})
	}
}

// Pins the jobs of a seed.
func TestMake_pinned(t *testing.T) {
	jobs, err := Make(spec(Generated), Data{}, 1)
	must.NoError(t, err)
	must.Eq(t, []float64{319.93087082075033, 46.29581498435771}, []float64{jobs[0].WorkCPUS, jobs[0].ArriveS})
}

func TestMake_badData(t *testing.T) {
	all := func() fstest.MapFS {
		out := fstest.MapFS{}
		for _, name := range []string{"curves/cifar10-made-up.csv", "curves/deepspeech2-made-up.csv", "workloads/adaptdl-1.csv", "traces/alibaba-2023-pods.csv"} {
			text, err := os.ReadFile("../testdata/" + name)
			must.NoError(t, err)
			out[name] = &fstest.MapFile{Data: text}
		}
		return out
	}
	for _, tc := range []struct {
		name, source string
		change       func(fstest.MapFS)
		want         string
	}{
		{"a list that is missing", AdaptDL, func(m fstest.MapFS) { delete(m, "workloads/adaptdl-1.csv") }, "workloads/adaptdl-1.csv"},
		{"no curves", Alibaba, func(m fstest.MapFS) {
			delete(m, "curves/cifar10-made-up.csv")
			delete(m, "curves/deepspeech2-made-up.csv")
		}, "there is no file curves/*.csv"},
		{"no rows", AdaptDL, func(m fstest.MapFS) {
			m["workloads/adaptdl-1.csv"] = &fstest.MapFile{Data: []byte("time,application,num_replicas\n")}
		}, "workloads/adaptdl-1.csv: must have a header and rows, got 1 lines"},
		{"another column", AdaptDL, func(m fstest.MapFS) {
			m["workloads/adaptdl-1.csv"] = &fstest.MapFile{Data: []byte("when\n1\n")}
		}, `workloads/adaptdl-1.csv: the column "time" is missing`},
		{"not CSV", AdaptDL, func(m fstest.MapFS) {
			m["workloads/adaptdl-1.csv"] = &fstest.MapFile{Data: []byte("a\n1,2\n")}
		}, "workloads/adaptdl-1.csv: record on line 2: wrong number of fields"},
		{"NaN", AdaptDL, func(m fstest.MapFS) {
			m["curves/cifar10-made-up.csv"] = &fstest.MapFile{Data: []byte("progress,metric\n1,NaN\n")}
		}, `curves/cifar10-made-up.csv, line 2: must be a number, got "NaN"`},
		{"backwards", AdaptDL, func(m fstest.MapFS) {
			m["curves/cifar10-made-up.csv"] = &fstest.MapFile{Data: []byte("progress,metric\n2,0.1\n1,0.2\n")}
		}, "curves/cifar10-made-up.csv, line 3: progress must be > 2, got 1"},
		{"unknown application", AdaptDL, func(m fstest.MapFS) {
			m["workloads/adaptdl-1.csv"] = &fstest.MapFile{Data: []byte("time,application,num_replicas\n1,doom,1\n")}
		}, `workloads/adaptdl-1.csv, line 2: the application "doom" is not known`},
		{"too few", Alibaba, func(m fstest.MapFS) {
			m["traces/alibaba-2023-pods.csv"] = &fstest.MapFile{Data: []byte("cpu_milli,creation_time,scheduled_time,deletion_time\n1000,1,1,9\n1000,1,1,9\n")}
		}, "jobs must be ≤ 2, which the data has, got 12"},
		{"a bad pod", Alibaba, func(m fstest.MapFS) {
			m["traces/alibaba-2023-pods.csv"] = &fstest.MapFile{Data: []byte("cpu_milli,creation_time,scheduled_time,deletion_time\n1000,x,1,9\n")}
		}, `traces/alibaba-2023-pods.csv, line 2: must be a number, got "x"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := all()
			tc.change(m)
			s := spec(tc.source)
			s.List = 1
			if tc.name == "unknown application" {
				s.Jobs = 1
			}
			_, err := Make(s, Data{m}, 1)
			must.ErrorContains(t, err, tc.want)
			must.True(t, errors.Is(err, ErrData))
			must.StrContains(t, err.Error(), "workload "+tc.source)
		})
	}
	_, err := Make(spec(AdaptDL), Data{fstest.MapFS{}}, 1)
	must.True(t, errors.Is(err, ErrData))
	_, err = Make(spec(AdaptDL), Data{}, 1)
	must.ErrorContains(t, err, "no directory is named")
	must.False(t, errors.Is(err, fs.ErrNotExist))
}
