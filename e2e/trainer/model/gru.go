// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package model

import (
	"math"

	"github.com/ebbtide/ebbtide/e2e/trainer/nn"
)

const gruLength = 24 // symbols per sequence

// gru predicts a sequence's next symbol with a gated recurrent unit (Cho et al. 2014, with the
// reset gate applied after the recurrent product, as in cuDNN). Its data is a second-order
// Markov chain, so frequencies are learnt first, then pairs, then triples.
type gru struct {
	symbols, hidden      int
	seed                 uint64
	start                []float64 // logits of the first symbol
	next                 []float64 // symbols² × symbols: logits after a pair
	wIn, bIn, wRec, wOut block     // gates side by side: update, reset, candidate
	bOut                 block
	layout               layout
}

func gruSpec() Spec {
	return Spec{
		Name: "gru", About: "gated recurrent network that predicts the next symbol of a sequence", Classifies: true, HasHidden: true,
		Dim: 24, Hidden: 64, Batch: 32, Size: 16384, Steps: 5632, Every: 25, HeldOut: 128, Rate: 0.001, HalfSteps: 6000, Rule: nn.Adam,
		build: func(s Spec, seed uint64) Model { return newGRU(s, seed) },
	}
}

func newGRU(s Spec, seed uint64) *gru {
	n, h := s.Dim, s.Hidden
	m := &gru{symbols: n, hidden: h, seed: seed, start: make([]float64, n), next: make([]float64, n*n*n)}
	m.wIn, m.bIn = m.layout.block(n, 3*h), m.layout.block(1, 3*h)
	m.wRec = m.layout.block(h, 3*h)
	m.wOut, m.bOut = m.layout.block(h, n), m.layout.block(1, n)

	r := nn.NewRandom(seed, streamTruth)
	after := make([]float64, n*n)
	r.Normal(m.start, 1)
	r.Normal(after, 1.5)
	r.Normal(m.next, 1.5)
	for i := range m.next {
		m.next[i] += after[i%(n*n)] + m.start[i%n]
	}
	return m
}

func (m *gru) Len() int     { return m.layout.n }
func (m *gru) Targets() int { return gruLength }
func (m *gru) Classes() int { return m.symbols }

func (m *gru) Init(params []float64) {
	clear(params)
	r := nn.NewRandom(m.seed, streamInit)
	for _, w := range []block{m.wIn, m.wRec, m.wOut} {
		w.glorot(params, r)
	}
}

func (m *gru) NewBatch(rows int) Batch {
	all := func(n int) []float64 { return make([]float64, rows*gruLength*n) }
	return &gruBatch{
		model: m, random: nn.NewRandom(), symbol: make([]int, rows*(gruLength+1)), class: make([]int, rows*gruLength),
		h: make([]float64, rows*(gruLength+1)*m.hidden), gate: all(3 * m.hidden), rec: all(3 * m.hidden), logits: all(m.symbols),
		dgate: all(3 * m.hidden), drec: all(3 * m.hidden), dh: all(m.hidden), carry: make([]float64, rows*m.hidden),
	}
}

// gruBatch keeps all values of all time steps, time-major.
type gruBatch struct {
	model     *gru
	random    *nn.Random
	symbol    []int     // row-major, gruLength+1 each
	class     []int     // time-major targets
	h         []float64 // state before each step, and after the last
	gate, rec []float64 // gates after their non-linearity; recurrent part before it
	logits    []float64

	dgate, drec, dh, carry []float64
}

func (b *gruBatch) Load(row int, index, _ uint64) {
	m := b.model
	b.random.Seek(m.seed, streamSample, index)
	s := b.symbol[row*(gruLength+1) : (row+1)*(gruLength+1)]
	s[0] = draw(m.start, b.random.Float64())
	before := 0
	for t := 1; t < len(s); t++ {
		at := (before*m.symbols + s[t-1]) * m.symbols
		before = s[t-1]
		s[t] = draw(m.next[at:at+m.symbols], b.random.Float64())
	}
}

func (b *gruBatch) Loss(params, gradient []float64, rows int) Sums {
	m, h := b.model, b.model.hidden
	wIn, bIn, wRec := m.wIn.of(params), m.bIn.vector(params), m.wRec.of(params)
	state := func(t int) nn.Matrix { return nn.View(b.h[t*rows*h:], rows, h) }
	clear(state(0).Data)
	for t := range gruLength {
		prev, cur := state(t), state(t+1)
		rec := nn.View(b.rec[t*rows*3*h:], rows, 3*h)
		nn.Mul(prev, wRec, 0, rec)
		for i := range rows {
			x := b.symbol[i*(gruLength+1)+t]
			b.class[t*rows+i] = b.symbol[i*(gruLength+1)+t+1]
			in, r := wIn.Data[x*3*h:(x+1)*3*h], rec.Data[i*3*h:(i+1)*3*h]
			g := b.gate[(t*rows+i)*3*h : (t*rows+i+1)*3*h]
			for j := range h {
				z := sigmoid(in[j] + bIn[j] + r[j])
				reset := sigmoid(in[h+j] + bIn[h+j] + r[h+j])
				c := math.Tanh(in[2*h+j] + bIn[2*h+j] + reset*r[2*h+j])
				g[j], g[h+j], g[2*h+j] = z, reset, c
				cur.Data[i*h+j] = (1-z)*c + z*prev.Data[i*h+j]
			}
		}
	}
	n := rows * gruLength
	after, logits := nn.View(b.h[rows*h:], n, h), nn.View(b.logits, n, m.symbols)
	nn.Linear(after, m.wOut.of(params), m.bOut.vector(params), logits)
	s := crossEntropy(logits, b.class, gradient != nil)
	if gradient == nil {
		return s
	}

	dh := nn.View(b.dh, n, h)
	nn.LinearGradient(after, m.wOut.of(params), logits, m.wOut.of(gradient), m.bOut.vector(gradient), dh)
	carry := nn.View(b.carry, rows, h) // gradient of the state after step t
	clear(carry.Data)
	dwIn := m.wIn.of(gradient)
	clear(dwIn.Data)
	for t := gruLength - 1; t >= 0; t-- {
		prev := state(t)
		for i := range rows {
			at := (t*rows + i) * 3 * h
			g, r := b.gate[at:at+3*h], b.rec[at:at+3*h]
			dg, dr := b.dgate[at:at+3*h], b.drec[at:at+3*h]
			for j := range h {
				z, reset, c := g[j], g[h+j], g[2*h+j]
				d := dh.Data[(t*rows+i)*h+j] + carry.Data[i*h+j]
				dc := d * (1 - z) * (1 - c*c)
				dz := d * (prev.Data[i*h+j] - c) * z * (1 - z)
				dreset := dc * r[2*h+j] * reset * (1 - reset)
				dg[j], dg[h+j], dg[2*h+j] = dz, dreset, dc
				dr[j], dr[h+j], dr[2*h+j] = dz, dreset, dc*reset
				carry.Data[i*h+j] = d * z
			}
			x := b.symbol[i*(gruLength+1)+t]
			row := dwIn.Data[x*3*h : (x+1)*3*h]
			for j, v := range dg {
				row[j] += v
			}
		}
		nn.MulTransB(nn.View(b.drec[t*rows*3*h:], rows, 3*h), wRec, 1, carry)
	}
	nn.MulTransA(nn.View(b.h, n, h), nn.View(b.drec, n, 3*h), 0, m.wRec.of(gradient))
	nn.ColumnSums(nn.View(b.dgate, n, 3*h), m.bIn.vector(gradient))
	return s
}

func (b *gruBatch) Logits(rows int) nn.Matrix {
	return nn.View(b.logits, rows*gruLength, b.model.symbols)
}
