// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package model

import (
	"math"

	"github.com/ebbtide/ebbtide/e2e/trainer/nn"
)

const (
	mlpClasses = 10
	mlpTeacher = 24 // hidden units of the labelling network
)

// mlp is a perceptron with two hidden layers, on data labelled by a random network: coarse
// boundaries are learnt quickly, fine ones slowly.
type mlp struct {
	dim, hidden    int
	seed           uint64
	teach1, teach2 nn.Matrix
	weight         [3]block
	bias           [3]block
	layout         layout
}

func mlpSpec() Spec {
	return Spec{
		Name: "mlp", About: "perceptron with two hidden layers, 10 classes", Classifies: true, HasHidden: true,
		Dim: 48, Hidden: 96, Batch: 128, Size: 65536, Steps: 8192, Every: 100, HeldOut: 1024, Rate: 0.002, HalfSteps: 1500, Rule: nn.Adam,
		build: func(s Spec, seed uint64) Model { return newMLP(s, seed) },
	}
}

func newMLP(s Spec, seed uint64) *mlp {
	m := &mlp{dim: s.Dim, hidden: s.Hidden, seed: seed}
	widths := [...]int{s.Dim, s.Hidden, s.Hidden, mlpClasses}
	for i := range m.weight {
		m.weight[i] = m.layout.block(widths[i], widths[i+1])
		m.bias[i] = m.layout.block(1, widths[i+1])
	}
	r := nn.NewRandom(seed, streamTruth)
	m.teach1 = nn.View(make([]float64, s.Dim*mlpTeacher), s.Dim, mlpTeacher)
	m.teach2 = nn.View(make([]float64, mlpTeacher*mlpClasses), mlpTeacher, mlpClasses)
	r.Normal(m.teach1.Data, 1.6/math.Sqrt(float64(s.Dim)))
	r.Normal(m.teach2.Data, 1.2)
	return m
}

func (m *mlp) Len() int     { return m.layout.n }
func (m *mlp) Targets() int { return 1 }
func (m *mlp) Classes() int { return mlpClasses }

func (m *mlp) Init(params []float64) {
	clear(params)
	r := nn.NewRandom(m.seed, streamInit)
	for _, w := range m.weight {
		w.glorot(params, r)
	}
}

func (m *mlp) NewBatch(rows int) Batch {
	b := &mlpBatch{model: m, random: nn.NewRandom(), class: make([]int, rows)}
	for i, w := range m.weight {
		b.value[i] = make([]float64, rows*w.rows)
	}
	b.logits = make([]float64, rows*mlpClasses)
	b.d = [2][]float64{make([]float64, rows*m.hidden), make([]float64, rows*m.hidden)}
	return b
}

type mlpBatch struct {
	model  *mlp
	random *nn.Random
	class  []int
	value  [3][]float64 // inputs of each layer
	logits []float64
	d      [2][]float64 // gradients of the hidden layers' outputs
}

func (b *mlpBatch) Load(row int, index, _ uint64) {
	m := b.model
	b.random.Seek(m.seed, streamSample, index)
	x := b.value[0][row*m.dim : (row+1)*m.dim]
	b.random.Normal(x, 1)
	var hidden [mlpTeacher]float64
	var logits [mlpClasses]float64
	nn.Mul(nn.View(x, 1, m.dim), m.teach1, 0, nn.View(hidden[:], 1, mlpTeacher))
	for i, v := range hidden {
		hidden[i] = math.Tanh(v)
	}
	nn.Mul(nn.View(hidden[:], 1, mlpTeacher), m.teach2, 0, nn.View(logits[:], 1, mlpClasses))
	b.class[row] = draw(logits[:], b.random.Float64())
}

func (b *mlpBatch) Loss(params, gradient []float64, rows int) Sums {
	m := b.model
	in := func(i int) nn.Matrix { return nn.View(b.value[i], rows, m.weight[i].rows) }
	logits := nn.View(b.logits, rows, mlpClasses)
	out := [...]nn.Matrix{in(1), in(2), logits}
	for i, w := range m.weight {
		nn.Linear(in(i), w.of(params), m.bias[i].vector(params), out[i])
		if i < len(m.weight)-1 {
			tanh(out[i])
		}
	}
	s := crossEntropy(logits, b.class, gradient != nil)
	if gradient == nil {
		return s
	}
	dy := logits
	for i := len(m.weight) - 1; i >= 0; i-- {
		var dx nn.Matrix
		if i > 0 {
			dx = nn.View(b.d[i-1], rows, m.hidden)
		}
		nn.LinearGradient(in(i), m.weight[i].of(params), dy, m.weight[i].of(gradient), m.bias[i].vector(gradient), dx)
		if i > 0 {
			tanhGradient(in(i), dx)
		}
		dy = dx
	}
	return s
}

func (b *mlpBatch) Logits(rows int) nn.Matrix { return nn.View(b.logits, rows, mlpClasses) }
