// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package result

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/mix"
	"github.com/ebbtide/ebbtide/sim/metrics"
)

// falling has n reports, one per second from t0: 1, 1/2, 1/3, …
func falling(t0 float64, n int) mix.Curve {
	var out mix.Curve
	for i := range n {
		out = append(out, mix.Point{T: t0 + float64(i), Step: float64(i), Value: 1 / float64(i+1)})
	}
	return out
}

func TestCompare(t *testing.T) {
	cpu := []Sample{{T: 1, CPU: 3}, {T: 5, CPU: 10}, {T: 6, CPU: status.Unknown()}}
	p := Pair{
		Seed: 3,
		With: Run{Policy: "auto", Jobs: []Job{
			{Name: "a", Finished: 20, Curve: falling(0, 10), Samples: cpu},
			{Name: "b", Submitted: 5, Started: 6, Finished: 15, Curve: falling(6, 10)},
		}},
		None: Run{Policy: "none", Jobs: []Job{
			{Name: "a", Finished: 20, Curve: falling(0, 10), Samples: cpu},
			{Name: "b", Submitted: 5, Started: 7, Finished: 25, Curve: falling(8, 10), Samples: cpu},
		}},
	}
	c, err := Compare(p, 2)
	must.NoError(t, err)
	must.Eq(t, "auto", c.Summary.Policy)
	must.Eq(t, 0.75, c.Summary.Time(metrics.Completion).Ratio.Mean)
	must.Eq(t, 0.8, c.Summary.Time(metrics.Makespan).Ratio.Mean)
	must.InDelta(t, (6+7)/(6+9.0), c.Summary.Time(metrics.Quality95).Ratio.Mean, 1e-12)
	must.Eq(t, 1, c.Summary.Ratio.Max)
	must.Eq(t, 50-20, c.None.IdleCPUS)
	must.Eq(t, 40-10, c.With.IdleCPUS)

	p.None.Jobs[1].Name = "x"
	_, err = Compare(p, 2)
	must.ErrorContains(t, err, `job "b" is not in the run of policy none`)
}

func TestNoise(t *testing.T) {
	run := func(t0 float64) Run {
		return Run{Jobs: []Job{{Curve: falling(t0, 20)}, {Submitted: 8.5}}}
	}
	must.Eq(t, 0.0, noise(Pair{With: run(0), None: run(0)}))
	must.InDelta(t, 0.25, noise(Pair{With: run(0), None: run(2)}), 1e-12) // 8 steps, 6 steps
	must.True(t, math.IsNaN(noise(Pair{With: run(0)})))
	must.True(t, math.IsNaN(noise(Pair{With: run(9), None: run(9)})))
}

func TestSamples(t *testing.T) {
	start := time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)
	got := Samples([]status.Row{{Time: start.Add(1500 * time.Millisecond), CPUSeconds: 2, Limit: 0.25}}, start)
	must.Eq(t, []Sample{{T: 1.5, CPU: 2, Limit: 0.25}}, got)
	_, err := json.Marshal(Sample{CPU: status.Unknown()})
	must.NoError(t, err)
}
