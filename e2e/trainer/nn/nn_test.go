// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package nn

import (
	"math"
	"sync/atomic"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestProducts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// on both sides of a panel's size
		size := rapid.SampledFrom([]int{1, 3, 64, 65, 130, 192, 193})
		m, k, n := size.Draw(t, "m"), rapid.IntRange(1, 9).Draw(t, "k"), size.Draw(t, "n")
		beta := rapid.SampledFrom([]float64{0, 1}).Draw(t, "beta")
		r := NewRandom(rapid.Uint64().Draw(t, "seed"))
		random := func(rows, cols int) Matrix {
			v := View(make([]float64, rows*cols), rows, cols)
			r.Normal(v.Data, 1)
			return v
		}
		a, at, b, bt, c := random(m, k), random(k, m), random(k, n), random(n, k), random(m, n)
		for name, f := range map[string]struct {
			mul func(c Matrix)
			a   func(i, l int) float64
			b   func(l, j int) float64
		}{
			"ab":  {func(c Matrix) { Mul(a, b, beta, c) }, func(i, l int) float64 { return a.Data[i*k+l] }, func(l, j int) float64 { return b.Data[l*n+j] }},
			"atb": {func(c Matrix) { MulTransA(at, b, beta, c) }, func(i, l int) float64 { return at.Data[l*m+i] }, func(l, j int) float64 { return b.Data[l*n+j] }},
			"abt": {func(c Matrix) { MulTransB(a, bt, beta, c) }, func(i, l int) float64 { return a.Data[i*k+l] }, func(l, j int) float64 { return bt.Data[j*k+l] }},
		} {
			got := View(append([]float64(nil), c.Data...), m, n)
			f.mul(got)
			for i := range m {
				for j := range n {
					want := beta * c.Data[i*n+j]
					for l := range k {
						want += f.a(i, l) * f.b(l, j)
					}
					if math.Abs(got.Data[i*n+j]-want) > 1e-9 {
						t.Fatalf("%s[%d,%d] = %v, want %v", name, i, j, got.Data[i*n+j], want)
					}
				}
			}
		}
	})
}

func TestPool(t *testing.T) {
	for _, threads := range []int{-1, 1, 2, 7} {
		p := NewPool(threads)
		must.Eq(t, max(1, threads), p.Threads())
		for _, pieces := range []int{0, 1, 2, 50} {
			var done [50]atomic.Int32
			var outside atomic.Bool
			p.Do(pieces, func(worker, piece int) {
				done[piece].Add(1)
				if worker < 0 || worker >= p.Threads() {
					outside.Store(true)
				}
			})
			must.False(t, outside.Load())
			for i := range done {
				want := int32(0)
				if i < pieces {
					want = 1
				}
				must.Eq(t, want, done[i].Load())
			}
		}
		p.Close()
	}
}

func TestRandom(t *testing.T) {
	a := NewRandom(1, 2, 3)
	first, second := a.Uint64(), a.Uint64()
	a.Seek(1, 2, 3)
	must.Eq(t, first, a.Uint64())
	must.Eq(t, second, a.Uint64())
	for _, other := range [][]uint64{{1, 2, 4}, {1, 3, 3}, {2, 2, 3}, {3, 2, 1}, {1, 2}, {1, 2, 3, 0}} {
		must.NotEq(t, first, NewRandom(other...).Uint64())
	}

	// neighbouring positions are independent: first numbers have mean 0 and variance 1
	var sum, squares float64
	const n = 20000
	for i := range uint64(n) {
		a.Seek(9, i)
		v := a.NormFloat64()
		sum += v
		squares += v * v
	}
	must.InDelta(t, 0, sum/n, 0.03)
	must.InDelta(t, 1, squares/n, 0.05)
}

func TestOptimisersFindTheMinimum(t *testing.T) {
	for _, rule := range []Rule{Momentum, Adam} {
		t.Run(string(rule), func(t *testing.T) {
			o := NewOptimiser(rule, 2)
			p, g := []float64{3, -2}, make([]float64, 2)
			for step := 1; step <= 3000; step++ {
				g[0], g[1] = 2*(p[0]-1), 20*(p[1]-0.5)
				o.Update(p, g, 0, 1, 0.01, step) // in parts, as threads do
				o.Update(p, g, 1, 2, 0.01, step)
			}
			must.InDelta(t, 1, p[0], 1e-3)
			must.InDelta(t, 0.5, p[1], 1e-3)
		})
	}
}
