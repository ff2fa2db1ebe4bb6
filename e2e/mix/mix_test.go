// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package mix

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestOverlapping(t *testing.T) {
	a := Overlapping(6, 1, 85, 30*time.Second)
	must.Eq(t, a, Overlapping(6, 1, 85, 30*time.Second))
	must.NotEq(t, a, Overlapping(6, 2, 85, 30*time.Second))
	names, sum, least, most := make(map[string]bool), 0.0, math.Inf(1), 0.0
	for i, j := range a {
		names[j.Name] = true
		sum += j.Pool
		least, most = min(least, j.Pool), max(most, j.Pool)
		must.Between(t, 0, j.At, 30*time.Second)
		must.True(t, i == 0 || j.At >= a[i-1].At)
	}
	must.MapLen(t, 6, names)
	must.Eq(t, time.Duration(0), a[0].At)
	must.InDelta(t, 85, sum, 1e-9)
	// A lognormal distribution with σ = 1 has its 1/12 and 11/12 quantiles at e^±1.383.
	must.InDelta(t, math.Exp(2*1.3830), most/least, 0.01)
}

func TestPapers(t *testing.T) {
	three := Papers(3, 1, 0.5)
	must.Len(t, 3, three)
	must.Eq(t, 4*time.Second, three[1].At)
	must.Eq(t, 26, three[0].Pool)
	must.Eq(t, three, Papers(3, 2, 0.5)) // the paper's times
	sum := 0.0
	for _, j := range Papers(10, 1, 1) {
		sum += j.Pool
	}
	must.InDelta(t, 135, sum, 1e-9)
}

func TestTask(t *testing.T) {
	j := Job{Name: "mlp2", Model: "mlp", Pool: 3}
	must.Eq(t, 600, j.Steps(100, 2))
	must.Eq(t, 1, Job{}.Steps(100, 2))
	hcl := Jobspec("mlp2-none", false, j.Task(600, 2, 7))
	for _, want := range []string{`job "mlp2-none"`, `task "mlp2"`, `"-steps", "600"`, `"-seed", "7"`, `"-curve", "/alloc/data/curve.csv"`} {
		must.StrContains(t, hcl, want)
	}
	hcl = Jobspec("x", true, Task{Name: "x", Config: `image = "i"`, Meta: map[string]string{"b": "2", "a": "1"}, Env: map[string]string{"X": "y"}, MemoryMiB: 512})
	must.StrContains(t, hcl, "        a = \"1\"\n        b = \"2\"\n")
	must.StrContains(t, hcl, `port "http"`)
	must.StrContains(t, hcl, "      env {\n        X = \"y\"\n      }\n")
	must.StrContains(t, hcl, "memory = 512")
	must.StrNotContains(t, hcl, "trainer")
}

func TestReadCurve(t *testing.T) {
	text := "step,wall_s,cpu_s,loss,accuracy\n0,0.1,0.2,2.5,NaN\n10,1.5,1.1,nan,NaN\n20,2.5,2.0,1.25,NaN\n30,3"
	got, err := ReadCurve(strings.NewReader(text), 10)
	must.NoError(t, err)
	must.Eq(t, Curve{{Step: 0, T: 10.1, CPU: 0.2, Value: 2.5}, {Step: 20, T: 12.5, CPU: 2, Value: 1.25}}, got)

	for name, bad := range map[string]string{
		"reading the header":     "",
		`no column "wall_s"`:     "step,loss\n1,2\n",
		"parsing \"x\"":          "step,wall_s,cpu_s,loss\n1,x,2,3\n",
		"wrong number of fields": "step,wall_s,cpu_s,loss\n1,2\n",
	} {
		_, err := ReadCurve(strings.NewReader(bad), 0)
		must.ErrorContains(t, err, name)
	}
}

func TestQuality(t *testing.T) {
	c := Curve{{T: 1, Value: 1}, {T: 2, Value: 0.5}, {T: 3, Value: 0.1}, {T: 4, Value: 0.3}, {T: 5, Value: 0.1}}
	must.Eq(t, 3, *c.Quality(0.95))
	must.Eq(t, 3, *c.Quality(1))
	must.Eq(t, 2, *c.Quality(0.5))
	must.Eq(t, 1, c.Left(1))
	must.Eq(t, 0, c.Left(0.1))
	must.Eq(t, 0, Curve{{Value: 2}, {Value: 2}}.Left(2))
	must.Nil(t, Curve(nil).Quality(0.5))
	must.True(t, math.IsNaN(c.Reached(0.05)))
}
