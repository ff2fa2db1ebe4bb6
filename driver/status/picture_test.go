// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package status

import (
	"bytes"
	"image/png"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

var testStart = time.Date(2026, 3, 1, 9, 30, 0, 0, time.UTC)

// training is a synthetic history of n rows, every s seconds apart.
func training(n int, every float64, edit func(i int, r *Row)) []Row {
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	rows := make([]Row, n)
	cpu := 0.0
	for i := range rows {
		t := float64(i) * every
		f := float64(i) / float64(max(n, 2)-1)
		r := blankRow()
		r.Time = testStart.Add(time.Duration(t * float64(time.Second)))
		r.Step, r.Total = float64(i*10), float64(n*10)
		r.Value = 0.25 + 2.1*math.Exp(-7*f) + 0.02*rng.NormFloat64()
		r.Growth = 0.02 * math.Exp(-7*f) * (1 + 0.1*rng.NormFloat64())
		r.Progress = r.Growth / 2
		switch {
		case f < 0.45:
			r.Category, r.Limit = "NL", max(0.33, 1-1.4*f)
		case f < 0.6:
			r.Category, r.Limit = "WL", 0.37
		default:
			r.Category, r.Limit, r.Growth = "CL", 1.0/6, 0
		}
		r.Use = r.Limit * (0.93 + 0.05*rng.NormFloat64())
		cpu += r.Use * 4 * every
		r.CPUSeconds, r.Shares, r.QuotaCores, r.Throttled, r.Rule = cpu, uint64(1024*r.Limit), 0, 0, "flowcon.alg1.nl"
		if edit != nil {
			edit(i, &r)
		}
		rows[i] = r
	}
	return rows
}

var testLabels = Labels{Task: "vae", Job: "three-jobs", Alloc: "5e8c3a10-77aa", Metric: "val_loss", Goal: "min",
	Estimator: "robust", Policy: "flowcon", Mode: "weight", PoolCores: 4}

func pictures() map[string][]Row {
	nan, inf := math.NaN(), math.Inf(1)
	return map[string][]Row{
		"none": nil,
		"one":  training(1, 20, nil),
		"two":  training(2, 20, nil),
		"typical": training(120, 5, func(i int, r *Row) {
			switch i {
			case 30:
				r.Event = "ebbtide: joined by lstm-2; limits recomputed"
			case 33:
				r.Event = "checkpoint saved (step 330, 4.2 MiB)"
			case 73:
				r.Event = "converged"
			case 118:
				r.Event = "objective reached: val_loss 0.25"
			}
		}),
		"many": training(5000, 20, func(i int, r *Row) {
			if i%700 == 350 {
				r.Event = "checkpoint saved"
			}
		}),
		"gaps": training(200, 30, func(i int, r *Row) {
			if i%10 != 0 {
				r.Value = nan
			}
			if i < 40 || i > 100 && i < 130 {
				r.Growth, r.Category = nan, ""
			}
			if i > 60 && i < 80 {
				r.Use, r.Limit = nan, nan
			}
		}),
		"diverged": training(150, 5, func(i int, r *Row) {
			r.Value = 0.5 * math.Exp(float64(i)/8)
			if i > 110 {
				r.Value, r.Growth, r.Category = inf, 0, "CL"
			}
			if i == 111 {
				r.Event = "diverged: loss is not finite"
			}
		}),
		"flat":     training(50, 5, func(_ int, r *Row) { r.Value, r.Growth = 3, 0 }),
		"accuracy": training(60, 600, func(i int, r *Row) { r.Value = 0.98 - 0.9*math.Exp(-float64(i)/9); r.Use *= 1.9 }),
		"flapping": training(300, 2, func(i int, r *Row) { r.Category = []string{"NL", "WL", "CL"}[i/7%3]; r.Event = "category changed" }),
		"nonsense": {
			{Time: time.Time{}, Value: 1e308, Growth: -1e308, Use: 1e300, Limit: -5, Category: "ZZ"},
			{Time: testStart, Value: -1e308, Growth: 1e308, Use: inf, Limit: nan, Event: "\x00,\"é…"},
			{Time: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), Value: 5e-324, Growth: 5e-324, Use: nan, Limit: 1e-300},
		},
	}
}

func TestDraw(t *testing.T) {
	for name, rows := range pictures() {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // shows races on the fonts, too
			b, err := Draw(rows, testLabels)
			must.NoError(t, err)
			must.Less(t, 200<<10, len(b))
			img, err := png.Decode(bytes.NewReader(b))
			must.NoError(t, err)
			must.Eq(t, picWidth, img.Bounds().Dx())
			must.Eq(t, picHeight, img.Bounds().Dy())
			if dir := os.Getenv("EBBTIDE_PICTURES"); dir != "" {
				must.NoError(t, os.WriteFile(filepath.Join(dir, name+".png"), b, 0o644))
			}
		})
	}
}

func BenchmarkDraw5000(b *testing.B) {
	rows := training(5000, 20, nil)
	for b.Loop() {
		p, err := Draw(rows, testLabels)
		must.NoError(b, err)
		b.ReportMetric(float64(len(p))/1024, "KiB")
	}
}
