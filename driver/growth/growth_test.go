// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package growth

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

var nan, inf = math.NaN(), math.Inf(1)

// at returns a report of a task with one CPU-second per second.
func at(c, v float64) Point { return Point{T: c, CPU: c, Value: v, Step: nan} }

func feed(e Estimator, ps ...Point) Estimate {
	for _, p := range ps {
		e.Add(p)
	}
	return e.Measure()
}

// follow adds n reports at 1, 2, … CPU-seconds, measures after each and returns the
// last estimate.
func follow(e Estimator, n int, f func(c float64) float64) (m Estimate) {
	for i := 1; i <= n; i++ {
		m = feed(e, at(float64(i), f(float64(i))))
	}
	return m
}

func build(t *testing.T, kind string, goal Goal) Estimator {
	t.Helper()
	e, err := New(kind, goal)
	must.NoError(t, err)
	return e
}

func TestNew(t *testing.T) {
	for _, kind := range []string{"", "robust", "published"} {
		for _, goal := range []Goal{Min, Max} {
			m := build(t, kind, goal).Measure()
			must.False(t, m.Measured)
			must.Eq(t, "no report yet", m.Why)
		}
	}
	_, err := New("clever", Min)
	must.ErrorIs(t, err, ErrKind)
	must.StrContains(t, err.Error(), `"clever": must be one of robust, published`)
	_, err = New("robust", "up")
	must.ErrorIs(t, err, ErrGoal)
	must.StrContains(t, err.Error(), `"up": must be one of min, max`)
}

func TestPublished(t *testing.T) {
	e := build(t, "published", Min)

	m := feed(e, at(10, 5))
	must.False(t, m.Measured)
	must.StrContains(t, m.Why, "one report")

	// eq. 1 and 2: |ΔE| / ΔCPU, from the newest report of the last interval to the
	// newest of this one.
	m = feed(e, Point{T: 40, CPU: 15, Value: 9, Step: nan}, Point{T: 50, CPU: 20, Value: 7, Step: nan})
	must.True(t, m.Measured)
	must.InDelta(t, 0.2, m.Growth, 1e-12)
	must.InDelta(t, 0.05, m.Progress, 1e-12)
	must.Eq(t, 7, m.Value)
	must.Eq(t, 3, m.Reports)

	m = feed(e)
	must.InDelta(t, 0.2, m.Growth, 1e-12)
	must.StrContains(t, m.Why, "it extends")

	// No CPU: undefined, so the last figure stands and the interval extends.
	m = feed(e, Point{T: 60, CPU: 20, Value: 6, Step: nan})
	must.InDelta(t, 0.2, m.Growth, 1e-12)
	must.StrContains(t, m.Why, "undefined")
	m = feed(e, Point{T: 60, CPU: 30, Value: 4, Step: nan})
	must.InDelta(t, 0.3, m.Growth, 1e-12)

	m = feed(e, Point{T: nan, CPU: 31, Value: 3, Step: nan})
	must.InDelta(t, 1, m.Growth, 1e-12)
	must.Eq(t, 0, m.Progress)

	// The CPU counter restarts: no measurement across it.
	m = feed(e, at(2, 100))
	must.InDelta(t, 1, m.Growth, 1e-12)
	m = feed(e, at(4, 99))
	must.InDelta(t, 0.5, m.Growth, 1e-12)
}

func TestPublished_noCPUAtFirst(t *testing.T) {
	m := feed(build(t, "published", Min), at(0, 5), at(0, 4))
	must.False(t, m.Measured)
	must.Eq(t, 0, m.Growth)
}

func TestPublished_staysFinite(t *testing.T) {
	m := feed(build(t, "published", Min), at(0, -1e308), at(1e-300, 1e308))
	must.True(t, m.Measured)
	must.False(t, math.IsInf(m.Growth, 0))
	must.False(t, math.IsInf(m.Progress, 0))
}

// NaN and ±Inf mark a task as diverged and never enter a sum; three consecutive finite
// reports end it.
func TestDiverged(t *testing.T) {
	for _, kind := range []string{"robust", "published"} {
		for _, bad := range []float64{nan, inf, -inf} {
			e := build(t, kind, Min)
			before := follow(e, 10, func(c float64) float64 { return 10 - c })
			must.Positive(t, before.Growth)
			m := feed(e, at(11, bad))
			must.True(t, m.Measured)
			must.True(t, m.Diverged)
			must.Eq(t, 0, m.Growth)
			must.Eq(t, 0, m.Progress)
			must.Eq(t, 10, m.Reports)
			must.Eq(t, math.Float64bits(bad), math.Float64bits(m.Value))
			must.StrContains(t, m.Why, "diverged")
			must.True(t, feed(e, at(12, 3)).Diverged)
			must.True(t, feed(e, at(13, 2.5)).Diverged)
			m = feed(e, at(14, 2))
			must.False(t, m.Diverged)
			must.False(t, math.IsNaN(m.Growth))
			must.Eq(t, 13, m.Reports)
		}
		e := build(t, kind, Max)
		m := feed(e, at(1, nan))
		must.True(t, m.Diverged)
		must.True(t, m.Measured)
		must.Eq(t, 0, m.Reports)
	}
	// So does a finite value whose square overflows.
	m := feed(build(t, "robust", Min), at(1, 1), at(2, 1e200))
	must.True(t, m.Diverged)
}

func TestUnusablePoints(t *testing.T) {
	for _, kind := range []string{"robust", "published"} {
		for _, c := range []float64{nan, inf, -inf, -1} {
			e := build(t, kind, Min)
			m := feed(e, at(1, 5), at(2, 4), at(3, 3), at(c, nan), at(c, 9))
			must.Eq(t, 3, m.Reports)
			must.Eq(t, 3, m.Value)
			must.False(t, m.Diverged)
		}
	}
}

func TestRobust_unmeasured(t *testing.T) {
	e := build(t, "robust", Min)
	m := feed(e, at(1, 5))
	must.False(t, m.Measured)
	must.StrContains(t, m.Why, "1 of 3")
	m = feed(e, at(2, 4))
	must.False(t, m.Measured)
	m = feed(e, at(3, 3))
	must.True(t, m.Measured)
	must.Positive(t, m.Growth)
	same := e.Measure()
	must.StrContains(t, same.Why, "no new report")
	must.Eq(t, m.Growth, same.Growth)
	e = build(t, "robust", Min)
	m = feed(e, at(1, 5), at(1, 4), at(1, 3), at(1, 2), at(1, 1))
	must.False(t, m.Measured)
	must.Eq(t, 5, m.Reports)
}

func TestRobust_slope(t *testing.T) {
	for _, tc := range []struct {
		name string
		n    int
		f    func(c float64) float64
		tol  float64
	}{
		{"linear", 60, func(c float64) float64 { return 100 - c }, 0.01},
		{"exponential", 60, func(c float64) float64 { return math.Exp(-c / 20) }, 0.15},
		{"hyperbolic", 60, func(c float64) float64 { return 1 / (1 + c/5) }, 0.15},
		{"power", 60, func(c float64) float64 { return math.Pow(1+c/3, -0.5) }, 0.25},
		{"epochs", 10, func(c float64) float64 { return math.Exp(-c / 4) }, 0.25},
		{"long", 5000, func(c float64) float64 { return math.Exp(-c / 2000) }, 0.15},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := float64(tc.n)
			h := n / 20
			want := (tc.f(n) - tc.f(n+h)) / h / (tc.f(1) - tc.f(n))
			m := follow(build(t, "robust", Min), tc.n, tc.f)
			must.InDelta(t, want, m.Growth, tc.tol*want)
			must.InDelta(t, m.Growth, m.Progress, 1e-9)
			must.False(t, m.Plateau)
			up := follow(build(t, "robust", Max), tc.n, func(c float64) float64 { return 3 - 2*tc.f(c) })
			must.InDelta(t, m.Growth, up.Growth, 1e-9)
		})
	}
}

// Growth is per CPU-second: a starved task does not look converged, only its progress
// per second falls.
func TestRobust_starved(t *testing.T) {
	f := func(c float64) float64 { return math.Exp(-c / 20) }
	fast, slow := build(t, "robust", Min), build(t, "robust", Min)
	var a, b Estimate
	for i := 1; i <= 40; i++ {
		c := float64(i)
		a = feed(fast, Point{T: c, CPU: c, Value: f(c), Step: nan})
		b = feed(slow, Point{T: 10 * c, CPU: c, Value: f(c), Step: nan})
	}
	must.Eq(t, a.Growth, b.Growth)
	must.InDelta(t, a.Progress/10, b.Progress, 1e-9)
	c := build(t, "robust", Min)
	m := feed(c, Point{T: nan, CPU: 1, Value: 3}, Point{T: nan, CPU: 2, Value: 2, Step: 1}, Point{T: nan, CPU: 3, Value: 1, Step: 2})
	must.Positive(t, m.Growth)
	must.Eq(t, 0, m.Progress)
}

func TestRobust_constant(t *testing.T) {
	e := build(t, "robust", Max)
	for i := 1; i <= 20; i++ {
		m := feed(e, at(float64(i), 0.1))
		must.Eq(t, i >= minReports, m.Measured)
		must.Eq(t, 0, m.Growth)
		must.Eq(t, i >= plateauReports, m.Plateau)
	}
	var m Estimate
	for i := 21; i <= 40; i++ {
		m = feed(e, at(float64(i), 0.1+0.02*float64(i-20)))
	}
	must.Positive(t, m.Growth)
	must.False(t, m.Plateau)
}

func TestRobust_worse(t *testing.T) {
	e := build(t, "robust", Min)
	f := func(c float64) float64 {
		return math.Exp(-c/8) + 0.01*math.Max(0, c-40)
	}
	for i := 1; i <= 80; i++ {
		m := feed(e, at(float64(i), f(float64(i))))
		if i > 55 {
			must.Eq(t, 0, m.Growth, must.Sprintf("report %d: %s", i, m.Why))
		}
	}
	m := follow(build(t, "robust", Max), 6, func(c float64) float64 { return -c })
	must.Eq(t, 0, m.Growth)
	must.False(t, m.Plateau)
	must.Eq(t, "no improvement so far", m.Why)
}

func TestRobust_plateauNeedsReports(t *testing.T) {
	e := build(t, "robust", Min)
	vals := []float64{9, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}
	for i, v := range vals {
		m := feed(e, at(float64(i+1), v))
		if i+1 < plateauReports {
			must.False(t, m.Plateau)
		}
		if i == len(vals)-1 {
			must.True(t, m.Plateau)
			must.Eq(t, 0, m.Growth)
		}
	}
}

func TestRobust_outliers(t *testing.T) {
	f := func(c float64) float64 { return math.Exp(-c / 20) }
	clean := follow(build(t, "robust", Min), 50, f)
	for _, spike := range []float64{1000, -1000} {
		m := follow(build(t, "robust", Min), 50, func(c float64) float64 {
			if c == 12 || c == 30 || c == 45 {
				return spike
			}
			return f(c)
		})
		must.InDelta(t, clean.Growth, m.Growth, 0.5*clean.Growth)
		newest := follow(build(t, "robust", Min), 50, func(c float64) float64 {
			if c == 50 {
				return spike
			}
			return f(c)
		})
		must.InDelta(t, clean.Growth, newest.Growth, 0.5*clean.Growth)
	}
}

func TestRobust_duplicates(t *testing.T) {
	f := func(c float64) float64 { return math.Exp(-c / 20) }
	one, two := build(t, "robust", Min), build(t, "robust", Min)
	var a, b Estimate
	for i := 1; i <= 30; i++ {
		c := float64(i)
		p := Point{T: c, CPU: c, Value: f(c), Step: c}
		again := p
		again.CPU += 0.2
		a, b = feed(one, p), feed(two, p, p, again)
	}
	must.Eq(t, a, b)
	must.Eq(t, 30, b.Reports)
}

func TestRobust_batches(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	e := build(t, "robust", Min)
	var m Estimate
	for i := 1; i <= 30; i++ {
		for range 50 {
			e.Add(Point{T: float64(i), CPU: float64(i), Value: math.Exp(-float64(i)/20) + 0.1*rng.NormFloat64(), Step: nan})
		}
		m = e.Measure()
	}
	must.Eq(t, 1500, m.Reports)
	want := (math.Exp(-30./20) - math.Exp(-31.5/20)) / 1.5 / (math.Exp(-1./20) - math.Exp(-30./20))
	must.InDelta(t, want, m.Growth, 0.5*want)
}

// Restart from scratch: CPU and step return to 0, the loss jumps up. No negative CPU
// and no false growth; the new segment counts alone.
func TestRobust_restart(t *testing.T) {
	f := func(c float64) float64 { return math.Exp(-c / 10) }
	for _, tc := range []struct {
		name        string
		cpu0, step0 float64 // origin of the second process
		steps       bool
	}{
		{"both", 0, 0, true},
		{"cpu only", 0, 0, false},
		{"step only", 60, 0, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newRobust(Min)
			point := func(cpu, step, v float64) Point {
				if !tc.steps {
					step = nan
				}
				return Point{T: nan, CPU: cpu, Value: v, Step: step}
			}
			var m Estimate
			for i := 1; i <= 60; i++ {
				c := float64(i)
				m = feed(e, point(c, c, f(c)))
			}
			must.True(t, m.Plateau)
			span := e.hist.rangeNow(len(e.hist.cells))
			for i := 1; i <= 40; i++ {
				c := float64(i)
				m = feed(e, point(tc.cpu0+c, tc.step0+c, f(c)))
				must.Less(t, 0.25, m.Growth)
				if i < 3 {
					must.Eq(t, 0, m.Growth, must.Sprint("held until judged"))
					must.StrContains(t, m.Why, "restarted")
				}
				if i == 5 {
					must.Positive(t, m.Growth) // it learns again
				}
				if i >= 3 {
					must.Eq(t, i, len(e.hist.cells))
					must.InDelta(t, span, e.hist.rangeNow(len(e.hist.cells)), 1e-9) // the range is kept
				}
			}
			must.InDelta(t, 100, e.hist.end(), 1e-6) // CPU-seconds of both
		})
	}
}

// After a resume from a good checkpoint, or with steps per epoch, the curve keeps its
// history.
func TestRobust_resume(t *testing.T) {
	f := func(c float64) float64 { return 1 / (1 + c/10) }
	straight, epochs, resumed := newRobust(Min), newRobust(Min), newRobust(Min)
	var a, b, c Estimate
	for i := 1; i <= 60; i++ {
		x := float64(i)
		a = feed(straight, Point{T: x, CPU: x, Value: f(x), Step: x})
		b = feed(epochs, Point{T: x, CPU: x, Value: f(x), Step: float64(i % 10)})
		cpu := x
		if i > 30 {
			cpu -= 30
		}
		c = feed(resumed, Point{T: x, CPU: cpu, Value: f(x), Step: x})
	}
	must.Len(t, 60, epochs.hist.cells)
	must.Len(t, 60, resumed.hist.cells)
	must.InDelta(t, a.Growth, b.Growth, 1e-9)
	must.InDelta(t, a.Growth, c.Growth, 1e-9)
}

// Crash loop with fewer than three reports per life: the segments are dropped, and
// nothing reads as growth.
func TestRobust_crashLoop(t *testing.T) {
	e := newRobust(Min)
	follow(e, 30, func(c float64) float64 { return math.Exp(-c / 5) })
	must.True(t, e.Measure().Plateau)
	for range 50 {
		m := feed(e, Point{T: nan, CPU: 0, Value: 1, Step: 0})
		must.Eq(t, 0, m.Growth)
		m = feed(e, Point{T: nan, CPU: 1, Value: 0.9, Step: 1})
		must.Eq(t, 0, m.Growth, must.Sprint(m.Why))
		must.True(t, m.Measured)
		must.Less(t, 40, len(e.hist.cells))
	}
}

// Two series under one name, each with its own step: the step is ignored from then on.
func TestRobust_twoSeries(t *testing.T) {
	e := newRobust(Min)
	var m Estimate
	for i := 1; i <= 60; i++ {
		c := float64(i)
		v := 1 / (1 + c/10)
		feed(e, Point{T: nan, CPU: c, Value: v, Step: 100 * c})
		m = feed(e, Point{T: nan, CPU: c + 0.5, Value: v + 0.5, Step: c})
	}
	must.Greater(t, 100, len(e.hist.cells))
	must.Positive(t, m.Reports)
	must.StrNotContains(t, m.Why, "restarted")
}

func TestRobust_jitter(t *testing.T) {
	e := newRobust(Min)
	feed(e, at(10, 3), at(9.9, 2.9), at(20, 2), at(30, 1))
	must.InDelta(t, 30, e.hist.end(), 1e-9)
	must.Eq(t, 0, e.hist.offset)
}

// A late drop of the learning rate ends a plateau; the next one follows.
func TestRobust_stepDrop(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	e := build(t, "robust", Min)
	var before, drop, after bool
	for i := 1; i <= 300; i++ {
		c := float64(i)
		v := math.Exp(-c/8) + 0.3*math.Exp(-math.Max(0, c-150)/15) + 0.005*rng.NormFloat64()
		m := feed(e, at(c, v))
		before = before || i > 100 && i < 150 && m.Plateau
		drop = drop || i > 153 && i < 175 && m.Growth > 0.002
		after = i == 300 && m.Growth < 0.0002
	}
	must.True(t, before)
	must.True(t, drop)
	must.True(t, after)
}

// Noise around a constant is a plateau, and more noise is no growth.
func TestRobust_noise(t *testing.T) {
	for _, goal := range []Goal{Min, Max} {
		for _, sigma := range []float64{1e-3, 0.1, 100} {
			var share float64
			for seed := range uint64(8) {
				rng := rand.New(rand.NewPCG(seed, 5))
				e := build(t, "robust", goal)
				for i := 1; i <= 200; i++ {
					m := feed(e, at(float64(i), 5+sigma*rng.NormFloat64()))
					if i > 100 && m.Growth > 0 {
						share++
					}
				}
			}
			must.Less(t, 0.1, share/8/100)
		}
	}
	var previous float64 = inf
	for _, sigma := range []float64{0.01, 0.05, 0.2, 1} {
		var sum float64
		for seed := range uint64(15) {
			rng := rand.New(rand.NewPCG(seed, 6))
			sum += follow(build(t, "robust", Min), 100, func(c float64) float64 {
				return math.Exp(-c/40) + sigma*rng.NormFloat64()
			}).Growth
		}
		must.Less(t, 1.1*previous, sum)
		previous = sum
	}
}

// Memory is bounded, measuring allocates nothing, and a long curve keeps its shape.
func TestRobust_bounded(t *testing.T) {
	e := newRobust(Min)
	f := func(c float64) float64 { return 1 / (1 + c/1000) }
	for i := 1; i <= 20000; i++ {
		e.Add(at(float64(i), f(float64(i))))
		must.LessEq(t, maxCells, len(e.hist.cells))
		if i%100 == 0 {
			e.Measure()
		}
	}
	must.Eq(t, maxCells+1, cap(e.hist.cells))
	total := 0.0
	for i, c := range e.hist.cells {
		total += c.n
		must.InDelta(t, f(c.c), c.u, 0.05)
		if i > 0 {
			must.Greater(t, e.hist.cells[i-1].c, c.c)
		}
	}
	must.Eq(t, 20000, total)
	next := 20000.0
	allocs := testing.AllocsPerRun(50, func() {
		next++
		e.Add(at(next, f(next)))
		e.Measure()
	})
	must.LessEq(t, 2, allocs)
}

func TestRobust_deterministic(t *testing.T) {
	run := func() (out []Estimate) {
		rng := rand.New(rand.NewPCG(7, 8))
		e := build(t, "robust", Min)
		for i := 1; i <= 300; i++ {
			out = append(out, feed(e, at(float64(i), math.Exp(-float64(i)/60)+0.02*rng.NormFloat64())))
		}
		return out
	}
	must.Eq(t, run(), run())
}

func TestRobust_uneven(t *testing.T) {
	e := newRobust(Min)
	e.Add(at(1, 10))
	var m Estimate
	for i := range 40 {
		c := 1e6 + float64(i)*1e-3
		m = feed(e, at(c, 5-1e-3*float64(i)))
	}
	must.False(t, math.IsNaN(m.Growth))
	must.GreaterEq(t, 0, m.Growth)
}

func TestMedian(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for n := 1; n < 60; n++ {
		for range 20 {
			x := make([]float64, n)
			for i := range x {
				x[i] = float64(rng.IntN(12))
			}
			s := slices.Clone(x)
			slices.Sort(s)
			must.Eq(t, (s[(n-1)/2]+s[n/2])/2, median(x))
		}
	}
}

func TestNoise(t *testing.T) {
	must.Eq(t, 0, noise(nil, nil))
	// Two cells at one place have no second difference.
	must.Eq(t, 0, noise([]cell{{c: 1, n: 1}, {c: 1, n: 1}, {c: 1, n: 1}}, nil))
	rng := rand.New(rand.NewPCG(11, 12))
	var cells []cell
	for i := range 2000 {
		cells = append(cells, cell{c: float64(i), u: 3*float64(i) + rng.NormFloat64(), n: 1})
	}
	must.InDelta(t, 1, noise(cells, nil), 0.1)
}

func TestWhy(t *testing.T) {
	m := follow(build(t, "robust", Min), 20, func(c float64) float64 { return math.Exp(-c / 20) })
	must.True(t, strings.Contains(m.Why, "curve"), must.Sprint(m.Why))
}

func BenchmarkMeasure(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	e := newRobust(Min)
	c := 0.0
	step := func() {
		c++
		e.Add(at(c, 1/(1+c/1000)+0.3*math.Sin(c/40)+0.02*rng.NormFloat64()))
	}
	for range 5000 {
		step()
	}
	b.ReportAllocs()
	for b.Loop() {
		step()
		e.Measure()
	}
}

func BenchmarkAdd(b *testing.B) {
	e := newRobust(Min)
	c := 0.0
	b.ReportAllocs()
	for b.Loop() {
		c++
		e.Add(at(c, 1/(1+c/1000)))
	}
}
