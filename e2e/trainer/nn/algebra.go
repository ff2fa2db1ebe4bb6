// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package nn has the models' algebra: products on the calling goroutine, a fixed pool of
// workers, position-addressed random numbers, and two optimisers. Everything is float64, so
// that gradients can be checked by finite differences.
package nn

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
)

// gonum starts goroutines for products beyond four of its 64×64 blocks. Smaller panels stay on the
// calling goroutine, so only -threads determines the CPUs used.
const (
	panelRows    = 64
	panelColumns = 192
)

// Matrix is a row-major view.
type Matrix = blas64.General

// View returns a view of data, which it does not copy.
func View(data []float64, rows, cols int) Matrix {
	return Matrix{Rows: rows, Cols: cols, Stride: cols, Data: data[:rows*cols]}
}

// Mul computes c = a·b + beta·c.
func Mul(a, b Matrix, beta float64, c Matrix) {
	product(blas.NoTrans, blas.NoTrans, a, b, beta, c)
}

// MulTransB computes c = a·bᵀ + beta·c.
func MulTransB(a, b Matrix, beta float64, c Matrix) {
	product(blas.NoTrans, blas.Trans, a, b, beta, c)
}

// MulTransA computes c = aᵀ·b + beta·c.
func MulTransA(a, b Matrix, beta float64, c Matrix) {
	product(blas.Trans, blas.NoTrans, a, b, beta, c)
}

func product(ta, tb blas.Transpose, a, b Matrix, beta float64, c Matrix) {
	for i := 0; i < c.Rows; i += panelRows {
		rows := min(panelRows, c.Rows-i)
		pa := a
		if ta == blas.Trans {
			pa.Cols, pa.Data = rows, a.Data[i:]
		} else {
			pa.Rows, pa.Data = rows, a.Data[i*a.Stride:]
		}
		for j := 0; j < c.Cols; j += panelColumns {
			cols := min(panelColumns, c.Cols-j)
			pb := b
			if tb == blas.Trans {
				pb.Rows, pb.Data = cols, b.Data[j*b.Stride:]
			} else {
				pb.Cols, pb.Data = cols, b.Data[j:]
			}
			pc := Matrix{Rows: rows, Cols: cols, Stride: c.Stride, Data: c.Data[i*c.Stride+j:]}
			blas64.Gemm(ta, tb, 1, pa, pb, beta, pc)
		}
	}
}

// Linear computes y = x·w + b for each row.
func Linear(x, w Matrix, b []float64, y Matrix) {
	for i := range y.Rows {
		copy(y.Data[i*y.Stride:i*y.Stride+y.Cols], b)
	}
	Mul(x, w, 1, y)
}

// LinearGradient overwrites dw = xᵀ·dy, db = column sums of dy and, unless dx.Data is nil, dx =
// dy·wᵀ.
func LinearGradient(x, w, dy, dw Matrix, db []float64, dx Matrix) {
	MulTransA(x, dy, 0, dw)
	ColumnSums(dy, db)
	if dx.Data != nil {
		MulTransB(dy, w, 0, dx)
	}
}

// ColumnSums overwrites sums.
func ColumnSums(m Matrix, sums []float64) {
	clear(sums)
	for i := range m.Rows {
		for j, v := range m.Data[i*m.Stride : i*m.Stride+m.Cols] {
			sums[j] += v
		}
	}
}
