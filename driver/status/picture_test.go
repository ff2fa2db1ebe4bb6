// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package status

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/shoenig/test/must"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"pgregory.net/rapid"
)

// maxStrokes bounds the cost of any picture.
const maxStrokes = 4 * defaultMaxRows

var testStart = time.Date(2026, 3, 1, 9, 30, 0, 0, time.UTC)

// training returns a synthetic history of n rows at intervals of `every` seconds.
func training(n int, every float64, edit func(i int, r *Row)) []Row {
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	rows := make([]Row, n)
	cpu := 0.0
	for i := range rows {
		t := float64(i) * every
		f := float64(i) / float64(max(n, 2)-1)
		r := NewRow()
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
		"service": training(150, 5, func(i int, r *Row) {
			r.Category, r.Growth, r.Value = "", nan, 0.2+0.2*math.Sin(float64(i)/20)
			r.Class = []string{"G", "S", "B"}[i/10%3]
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
		"steps alone": training(150, 5, func(i int, r *Row) {
			r.Value, r.Growth, r.Category = nan, nan, ""
			r.Step, r.Total, r.Ahead = float64(10*i), 2000, float64(i)
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
		"NaN":      training(40, 5, func(_ int, r *Row) { t := r.Time; *r = NewRow(); r.Time = t }),
		"+Inf":     training(40, 5, every(inf)),
		"-Inf":     training(40, 5, every(-inf)),
		"zero":     training(40, 5, every(0)),
		"max":      training(40, 5, every(math.MaxFloat64)),
		"tiny":     training(40, 5, every(math.SmallestNonzeroFloat64)),
		"close": training(40, 5, func(i int, r *Row) {
			r.Value = 1 + 1e-6*float64(i%3) // an axis of close neighbours
			r.Growth = math.Nextafter(1e-3, float64(i%2))
		}),
		"range": training(40, 5, func(i int, r *Row) {
			r.Value = math.Pow(10, float64(5*i-100))
			r.Growth = -r.Value
			r.Use, r.Limit = r.Value, -r.Value
		}),
		"same time": training(40, 0, nil),
		"backwards": training(40, -5, nil),
		"centuries": training(40, 86400*365*8, nil),
		"clock set back": training(40, 5, func(i int, r *Row) {
			if i > 20 {
				r.Time = r.Time.Add(-time.Hour)
			}
		}),
		"every second unknown": training(5000, 20, func(i int, r *Row) {
			if i%2 == 0 {
				r.Value, r.Growth, r.Use, r.Limit = nan, nan, nan, nan
			}
		}),
		"every row diverged": training(5000, 20, func(_ int, r *Row) { r.Value = inf }),
		"every row another":  training(5000, 20, func(i int, r *Row) { r.Category = []string{"NL", "WL", "CL"}[i%3] }),
		"every row an event": training(5000, 20, func(i int, r *Row) { r.Event = strings.Repeat("✓", i%99) }),
		"too many rows":      training(6*defaultMaxRows, 1, func(i int, r *Row) { r.Category, r.Event = []string{"NL", "WL"}[i%2], "e" }),
		"nonsense": {
			{Time: time.Time{}, Value: 1e308, Growth: -1e308, Use: 1e300, Limit: -5, Category: "ZZ"},
			{Time: testStart, Value: -1e308, Growth: 1e308, Use: inf, Limit: nan, Event: "\x00,\"é…"},
			{Time: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), Value: 5e-324, Growth: 5e-324, Use: nan, Limit: 1e-300},
		},
	}
}

func every(f float64) func(int, *Row) {
	return func(_ int, r *Row) {
		r.CPUSeconds, r.Step, r.Total, r.Value, r.Growth, r.Progress = f, f, f, f, f, f
		r.Limit, r.QuotaCores, r.Use, r.Throttled = f, f, f, f
	}
}

func TestDraw(t *testing.T) {
	watchdog(t)
	for name, rows := range pictures() {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // also shows races in the fonts
			b, err := Draw(rows, testLabels)
			must.NoError(t, err)
			must.Less(t, 200<<10, len(b))
			isPicture(t, b)
			if dir := os.Getenv("EBBTIDE_PICTURES"); dir != "" {
				must.NoError(t, os.WriteFile(filepath.Join(dir, name+".png"), b, 0o644))
			}
		})
	}
}

// checked is a canvas that rejects values that are not finite, on which the library
// hangs or panics.
type checked struct {
	bad     error
	strokes int // paths, which determine the cost
	texts   []string
}

func (c *checked) Size() (x, y vg.Length)              { return picWidth, picHeight }
func (c *checked) SetLineWidth(vg.Length)              {}
func (c *checked) SetLineDash([]vg.Length, vg.Length)  {}
func (c *checked) SetColor(color.Color)                {}
func (c *checked) Rotate(float64)                      {}
func (c *checked) Translate(vg.Point)                  {}
func (c *checked) Scale(_, _ float64)                  {}
func (c *checked) Push()                               {}
func (c *checked) Pop()                                {}
func (c *checked) DrawImage(vg.Rectangle, image.Image) {}
func (c *checked) Stroke(p vg.Path)                    { c.path(p) }
func (c *checked) Fill(p vg.Path)                      { c.path(p) }

func (c *checked) FillString(_ font.Face, at vg.Point, text string) {
	c.texts = append(c.texts, text)
	c.point(at, 2000) // a long title may exceed the picture
	if strings.ContainsAny(text, "\n\r\x00") || !utf8.ValidString(text) {
		c.bad = fmt.Errorf("text %q", text)
	}
}

func (c *checked) path(p vg.Path) {
	c.strokes++
	for _, part := range p {
		c.point(part.Pos, 20)
		if len(part.Control) > 0 {
			c.bad = errors.New("a curve")
		}
	}
}

func (c *checked) point(p vg.Point, beyond float64) {
	x, y := float64(p.X), float64(p.Y)
	if !(x >= -beyond && x <= picWidth+beyond && y >= -beyond && y <= picHeight+beyond) { // also if NaN
		c.bad = fmt.Errorf("point %v, %v", x, y)
	}
}

// Only finite coordinates inside the picture reach the library, and the number of
// strokes is bounded.
func TestPaint(t *testing.T) {
	watchdog(t)
	for name, rows := range pictures() {
		c := &checked{}
		labels := testLabels
		labels.Targets = []Mark{{"acceptable", 0.3}, {"target", 0.25}, {"odd", math.Inf(1)}}
		paint(draw.New(c), inOrder(rows), labels)
		must.NoError(t, c.bad, must.Sprint(name))
		must.SliceContains(t, c.texts, "vae: val_loss")
		if name == "steps alone" {
			must.SliceContains(t, c.texts, "steps")
			must.SliceContains(t, c.texts, "step 1490 of 2000")
			must.SliceNotContains(t, c.texts, "acceptable 0.3")
		}
		must.Less(t, maxStrokes, c.strokes, must.Sprint(name))
	}
	c := &checked{}
	paint(draw.New(c), nil, Labels{Task: strings.Repeat("\n\xff", 1<<20), Job: "\xff\x00", Alloc: "1234567é", Metric: "\r\n", Goal: "max",
		Estimator: "?", Policy: "none", Mode: "quota", PoolCores: math.Inf(1)})
	must.NoError(t, c.bad)
}

func TestPaint_odd(t *testing.T) {
	watchdog(t)
	number := rapid.SampledFrom(append([]float64{0.5, 1.000001, 1.000002, 1e-90, 1e-100, 1e99, -1e99, 3e-7}, oddNumbers...))
	word := rapid.SampledFrom([]string{"", "NL", "WL", "CL", "ZZ", "\x00,\"\xff✓"})
	after := rapid.SampledFrom([]time.Duration{0, 0, 1, time.Second, time.Hour, -time.Minute, 1e6 * time.Hour, math.MaxInt64})
	rapid.Check(t, func(t *rapid.T) {
		rows := make([]Row, rapid.IntRange(0, 30).Draw(t, "rows"))
		at := testStart
		for i := range rows {
			at = at.Add(after.Draw(t, "after"))
			rows[i] = Row{Time: at, Step: number.Draw(t, "step"), Total: number.Draw(t, "total"), Value: number.Draw(t, "value"),
				Growth: number.Draw(t, "growth"), Use: number.Draw(t, "use"), Limit: number.Draw(t, "limit"),
				Category: word.Draw(t, "category"), Event: word.Draw(t, "event"), Class: word.Draw(t, "class")}
		}
		c := &checked{}
		paint(draw.New(c), inOrder(rows), Labels{Task: "t", Metric: word.Draw(t, "metric"), PoolCores: number.Draw(t, "cores"),
			Targets: []Mark{{word.Draw(t, "target"), number.Draw(t, "value")}}})
		must.NoError(t, c.bad)
	})
}

// Rows may be unsorted, and are not modified.
func TestDraw_order(t *testing.T) {
	rows := training(50, 5, nil)
	want, err := Draw(rows, testLabels)
	must.NoError(t, err)
	slices.Reverse(rows)
	before := slices.Clone(rows)
	got, err := Draw(rows, testLabels)
	must.NoError(t, err)
	must.True(t, bytes.Equal(want, got))
	eqRows(t, before, rows)
}

func BenchmarkDraw5000(b *testing.B) {
	rows := training(5000, 20, nil)
	for b.Loop() {
		p, err := Draw(rows, testLabels)
		must.NoError(b, err)
		b.ReportMetric(float64(len(p))/1024, "KiB")
	}
}
