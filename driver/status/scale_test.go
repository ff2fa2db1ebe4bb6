// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package status

import (
	"math"
	"strconv"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestShort(t *testing.T) {
	for _, c := range []struct {
		v, step float64
		want    string
	}{
		{0, 0, "0"}, {0, 1, "0"}, {math.Copysign(0, -1), 0.5, "0"}, {1e-12, 1, "0"},
		{1, 0, "1"}, {0.123456, 0, "0.1235"}, {-2.5, 0, "-2.5"}, {123456, 0, "1.235e+05"},
		{2, 1, "2"}, {0.2, 0.1, "0.2"}, {0.5, 0.25, "0.5"}, {1.5, 0.05, "1.50"}, {-40, 20, "-40"}, {250000, 50000, "250000"},
		{1e6, 0, "1e6"}, {2.5e6, 5e5, "2.5e6"}, {1e7, 1e6, "1e7"}, {-3e-5, 1e-5, "-3e-5"}, {1e-100, 0, "1e-100"}, {1e100, 0, "1e100"},
		{1.000005, 5e-6, "1.000005"}, {-9.000002, 1e-6, "-9.000002"}, {1, 5e-6, "1"}, // close neighbours
		{12.000005, 5e-6, "1.2000005e1"},
		{math.Inf(1), 0, "+Inf"}, {math.Inf(-1), 1, "-Inf"}, {math.NaN(), 0, "NaN"},
	} {
		must.Eq(t, c.want, short(c.v, c.step), must.Sprint(c.v, c.step))
	}
}

func TestNiceStep(t *testing.T) {
	for raw, want := range map[float64]float64{0: 0, -1: 0, 1: 1, 1.1: 2, 2: 2, 2.1: 5, 5: 5, 5.1: 10, 0.03: 0.05, 700: 1000, 1e-300: 1e-300} {
		must.InDelta(t, want, niceStep(raw), want*1e-9+1e-310)
	}
}

func TestTimeUnit(t *testing.T) {
	for _, c := range []struct {
		span, seconds float64
		name          string
	}{
		{0, 1, "s"}, {299, 1, "s"}, {300, 60, "min"}, {5*3600 - 1, 60, "min"}, {5 * 3600, 3600, "h"},
		{5*86400 - 1, 3600, "h"}, {5 * 86400, 86400, "days"}, {1e12, 86400, "days"},
	} {
		seconds, name := timeUnit(c.span)
		must.Eq(t, c.seconds, seconds)
		must.Eq(t, c.name, name)
	}
}

func TestAutoScale(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		values  []float64
		zero    bool
		log     bool
		within  []float64 // values that the axis must cover
		without []float64
	}{
		{values: nil, within: []float64{0, 1}},
		{values: []float64{nan, inf, -inf, 1e200}, within: []float64{0, 1}, without: []float64{2}},
		{values: []float64{3, 3, 3}, within: []float64{3}, without: []float64{2, 4}},
		{values: []float64{0, 0}, within: []float64{-0.9, 0, 0.9}, without: []float64{-2, 2}},
		{values: []float64{0, 0, nan}, zero: true, within: []float64{0, 0.9}, without: []float64{-0.1, 2}},
		{values: []float64{0, 1e-95}, zero: true, within: []float64{0, 0.9}, without: []float64{-0.1, 2}},
		{values: []float64{-2, 5, nan}, within: []float64{-2, 5}, without: []float64{-4, 7}},
		{values: []float64{0.5, 2}, zero: true, within: []float64{0, 2}, without: []float64{-0.1, 3}},
		{values: []float64{1, 1000}, log: true, within: []float64{1, 1000}, without: []float64{0.01, 1e4}},
		{values: []float64{0, 1, 1000}, within: []float64{0, 1000}},
		{values: []float64{0, 1, 1000}, zero: true, log: true, within: []float64{1, 1000}},
		{values: []float64{-1, 1, 1000}, zero: true, within: []float64{-1, 1000}},
		{values: []float64{1e-50, 1}, log: true, within: []float64{1, 1e-6}, without: []float64{1e-50}},
		{values: []float64{1e-90, 1e100}, log: true, within: []float64{1e100}},
	} {
		s := autoScale(c.values, 200, c.zero, 6)
		must.Eq(t, c.log, s.log, must.Sprint(c.values))
		for _, v := range c.within {
			must.True(t, s.min <= v && v <= s.max, must.Sprint(c.values, v, s))
		}
		for _, v := range c.without {
			must.False(t, s.min <= v && v <= s.max, must.Sprint(c.values, v, s))
		}
	}
}

// Every position is on the axis, and every label is true.
func TestScale(t *testing.T) {
	value := rapid.OneOf(rapid.Float64(), rapid.SampledFrom(oddNumbers), rapid.Float64Range(1, 1.00001), rapid.Float64Range(-10, 100),
		rapid.Float64Range(0, 1e-95))
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(value, 0, 5).Draw(t, "values")
		s := autoScale(values, rapid.SampledFrom([]float64{30, 200}).Draw(t, "ratio"), rapid.Bool().Draw(t, "zero"),
			rapid.SampledFrom([]float64{6, 12}).Draw(t, "decades"))
		must.Less(t, s.max, s.min)
		for _, v := range values {
			if plotted(v) {
				must.Between(t, 0, s.at(v), 1)
			}
		}
		must.Eq(t, 0, s.at(s.min))
		must.Eq(t, 1, s.at(s.max))
		ticks := s.ticks(5)
		must.LessEq(t, 52, len(ticks))
		for i, tk := range ticks {
			slack := 1e-6 * (s.max - s.min)
			must.Between(t, s.min-slack, tk.at, s.max+slack)
			label, err := strconv.ParseFloat(tk.label, 64)
			must.NoError(t, err)
			near := math.Abs(tk.at) * 1e-3 // logarithmic: 1, 2 or 5 times a power of ten
			if i > 0 {
				must.Greater(t, ticks[i-1].at, tk.at)
				must.NotEq(t, ticks[i-1].label, tk.label)
				near = min(near, (tk.at-ticks[i-1].at)/2)
			}
			must.True(t, math.Abs(label-tk.at) <= max(near, 1e-6*(s.max-s.min)), must.Sprint(tk))
		}
	})
}

func FuzzShort(f *testing.F) {
	f.Add(1.000005, 5e-6)
	f.Add(1e300, 5e-324)
	f.Fuzz(func(t *testing.T, v, step float64) {
		got, err := strconv.ParseFloat(short(v, step), 64)
		if plotted(v) { // it stays a number of the same size
			must.NoError(t, err)
			must.True(t, math.Abs(got-v) <= max(1e-3*math.Abs(v), math.Abs(step)), must.Sprint(v, step, got))
		}
	})
}
