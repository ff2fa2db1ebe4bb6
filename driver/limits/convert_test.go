// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"testing"

	"github.com/shoenig/test/must"
)

// Monotone except at 0, which the inverse relies on.
func TestConversion_monotone(t *testing.T) {
	for s := MinShares; s < MaxShares; s++ {
		must.LessEq(t, Quadratic.Weight(s+1), Quadratic.Weight(s))
	}
}

func TestConversion_vectors(t *testing.T) {
	cases := []struct {
		c      Conversion
		shares uint64
		weight uint64
	}{
		{Quadratic, 2, 1}, {Quadratic, 0, 100}, {Quadratic, 1024, 100}, {Quadratic, 256, 35}, {Quadratic, 2000, 170}, {Quadratic, 262144, 10000},
		{Linear, 2, 1}, {Linear, 0, 39}, {Linear, 1024, 39}, {Linear, 2000, 77}, {Linear, 1 << 30, 10000},
		{Identity, 1, 2}, {Identity, 0, 1024}, {Identity, 500, 500}, {Identity, 1 << 30, 262144},
	}
	for _, tc := range cases {
		must.Eq(t, tc.weight, tc.c.Weight(tc.shares), must.Sprintf("%d, %d shares", tc.c, tc.shares))
	}
	must.Eq(t, 1024, Quadratic.Shares(100))
	must.Eq(t, 2, Quadratic.Shares(0))
	must.Eq(t, 262144, Linear.Shares(99999))
}

func TestConversion_inverse(t *testing.T) {
	for _, c := range []Conversion{Quadratic, Linear} {
		for w := c.Weight(MinShares); w <= c.Weight(MaxShares); w++ {
			s := c.Shares(w)
			must.Eq(t, w, c.Weight(s))
			if s < MaxShares {
				must.Greater(t, w, c.Weight(s+1))
			}
		}
	}
}

func TestDetect(t *testing.T) {
	must.Eq(t, Identity, Detect(1, 500, 500))
	must.Eq(t, Quadratic, Detect(2, 1024, 100))
	must.Eq(t, Linear, Detect(2, 1024, 39))
	must.Eq(t, Quadratic, Detect(2, 2, 1))
}
