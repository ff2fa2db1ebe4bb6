// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package latency

import (
	"math"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestEmpty(t *testing.T) {
	var d Digest
	must.Eq(t, int64(0), d.Count())
	must.Eq(t, 0.0, d.Max())
	must.True(t, math.IsNaN(d.Mean()))
	must.True(t, math.IsNaN(d.Quantile(0.5)))
}

func TestStrangeValues(t *testing.T) {
	var d Digest
	for _, v := range []float64{math.NaN(), -1, 0} {
		d.Add(v)
	}
	must.Eq(t, 0.0, d.Mean())
	must.Eq(t, 0.0, d.Quantile(1))
	d.Add(1e300)
	must.Eq(t, 1e300, d.Max())
	must.Greater(t, 9e8, d.Quantile(1))
}

func TestQuantiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(1e-6, 1e4), 1, 200).Draw(t, "values")
		q := rapid.Float64Range(0, 1).Draw(t, "q")
		var d Digest
		sum := 0.0
		for _, v := range values {
			d.Add(v)
			sum += v
		}
		slices.Sort(values)
		want := values[max(0, int(math.Ceil(q*float64(len(values))))-1)]
		if got := d.Quantile(q); math.Abs(got/want-1) > 0.0101 {
			t.Fatalf("quantile %v is %v, want %v", q, got, want)
		}
		if got := d.Mean(); math.Abs(got*float64(len(values))/sum-1) > 1e-9 {
			t.Fatalf("mean %v, want %v", got, sum/float64(len(values)))
		}
		if d.Max() != values[len(values)-1] || d.Count() != int64(len(values)) {
			t.Fatalf("max %v, count %d", d.Max(), d.Count())
		}
	})
}
