// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package model

import (
	"math"

	"github.com/ebbtide/ebbtide/e2e/trainer/nn"
)

const logregClasses = 10

// logreg is multinomial logistic regression on features with power-law scales: gradient descent
// fits large ones quickly and small ones slowly.
type logreg struct {
	dim    int
	seed   uint64
	scale  []float64 // standard deviations of features
	truth  nn.Matrix // dim × classes: labels are drawn from softmax(x·truth)
	weight block
	bias   block
	layout layout
}

func logregSpec() Spec {
	return Spec{
		Name: "logreg", About: "multinomial logistic regression, 10 classes", Classifies: true,
		Dim: 192, Batch: 512, Size: 131072, Steps: 4096, Every: 100, HeldOut: 1024, Rate: 0.08, HalfSteps: 2500, Rule: nn.Momentum,
		build: func(s Spec, seed uint64) Model { return newLogreg(s, seed) },
	}
}

func newLogreg(s Spec, seed uint64) *logreg {
	m := &logreg{dim: s.Dim, seed: seed, scale: make([]float64, s.Dim)}
	m.weight = m.layout.block(s.Dim, logregClasses)
	m.bias = m.layout.block(1, logregClasses)
	m.truth = nn.View(make([]float64, s.Dim*logregClasses), s.Dim, logregClasses)
	nn.NewRandom(seed, streamTruth).Normal(m.truth.Data, 1.6)
	for j := range m.scale {
		m.scale[j] = math.Pow(float64(j+1), -0.6)
	}
	return m
}

func (m *logreg) Len() int              { return m.layout.n }
func (m *logreg) Targets() int          { return 1 }
func (m *logreg) Classes() int          { return logregClasses }
func (m *logreg) Init(params []float64) { clear(params) }

func (m *logreg) NewBatch(rows int) Batch {
	return &logregBatch{
		model: m, random: nn.NewRandom(),
		x: make([]float64, rows*m.dim), class: make([]int, rows), logits: make([]float64, rows*logregClasses),
	}
}

type logregBatch struct {
	model     *logreg
	random    *nn.Random
	x, logits []float64
	class     []int
}

func (b *logregBatch) Load(row int, index, _ uint64) {
	m := b.model
	b.random.Seek(m.seed, streamSample, index)
	x := b.x[row*m.dim : (row+1)*m.dim]
	for j := range x {
		x[j] = m.scale[j] * b.random.NormFloat64()
	}
	var logits [logregClasses]float64
	nn.Mul(nn.View(x, 1, m.dim), m.truth, 0, nn.View(logits[:], 1, logregClasses))
	b.class[row] = draw(logits[:], b.random.Float64())
}

func (b *logregBatch) Loss(params, gradient []float64, rows int) Sums {
	m := b.model
	x, w, y := nn.View(b.x, rows, m.dim), m.weight.of(params), nn.View(b.logits, rows, logregClasses)
	nn.Linear(x, w, m.bias.vector(params), y)
	s := crossEntropy(y, b.class, gradient != nil)
	if gradient != nil {
		nn.LinearGradient(x, w, y, m.weight.of(gradient), m.bias.vector(gradient), nn.Matrix{})
	}
	return s
}

func (b *logregBatch) Logits(rows int) nn.Matrix { return nn.View(b.logits, rows, logregClasses) }
