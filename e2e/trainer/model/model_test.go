// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package model

import (
	"math"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/e2e/trainer/nn"
)

// small returns all models small enough to check each gradient.
func small(t *testing.T) map[string]Model {
	models := map[string]Model{}
	for _, s := range Specs() {
		s.Dim, s.Hidden = 9, 5
		models[s.Name] = s.New(7)
	}
	must.MapLen(t, 4, models)
	return models
}

func loaded(m Model, rows int) Batch {
	b := m.NewBatch(rows)
	for i := range rows {
		b.Load(i, uint64(100+i), 3)
	}
	return b
}

// start avoids Init's symmetries, so that no derivative is zero by chance.
func start(m Model) []float64 {
	p, shift := make([]float64, m.Len()), make([]float64, m.Len())
	m.Init(p)
	nn.NewRandom(5).Normal(shift, 0.3)
	for i, v := range shift {
		p[i] += v
	}
	return p
}

func TestGradients(t *testing.T) {
	for name, m := range small(t) {
		t.Run(name, func(t *testing.T) {
			const rows, h = 3, 1e-5
			b, p, g := loaded(m, 4), start(m), make([]float64, m.Len()) // one spare row
			for i := range g {
				g[i] = math.NaN()
			}
			value := b.Loss(p, g, rows)
			must.Eq(t, rows*m.Targets(), value.Targets)
			must.Eq(t, value, b.Loss(p, nil, rows))
			largest := 0.0
			for i := range p {
				at := p[i]
				p[i] = at + h
				up := b.Loss(p, nil, rows).Loss
				p[i] = at - h
				down := b.Loss(p, nil, rows).Loss
				p[i] = at
				numeric := (up - down) / (2 * h)
				if d := math.Abs(numeric - g[i]); !(d <= 1e-6*(1+math.Abs(numeric))) {
					t.Errorf("parameter %d: gradient %v, by differences %v", i, g[i], numeric)
				}
				largest = max(largest, math.Abs(g[i]))
			}
			must.Greater(t, 0.1, largest)
		})
	}
}

func TestLossAddsUpOverRows(t *testing.T) {
	for name, m := range small(t) {
		t.Run(name, func(t *testing.T) {
			p := start(m)
			whole := loaded(m, 6).Loss(p, nil, 6)
			var sum Sums
			one := m.NewBatch(1)
			for i := range 6 {
				one.Load(0, uint64(100+i), 3)
				s := one.Loss(p, nil, 1)
				sum.Loss += s.Loss
				sum.Correct += s.Correct
				sum.Targets += s.Targets
			}
			must.InDelta(t, whole.Loss, sum.Loss, 1e-9*math.Abs(whole.Loss))
			must.Eq(t, whole.Correct, sum.Correct)
			must.Eq(t, whole.Targets, sum.Targets)
		})
	}
}

func TestSamples(t *testing.T) {
	for _, s := range Specs() {
		t.Run(s.Name, func(t *testing.T) {
			loss := func(seed, index, draw uint64) float64 {
				m := s.New(seed)
				p := make([]float64, m.Len())
				s.New(1).Init(p) // the same parameters for all seeds
				nn.NewRandom(3).Normal(p, 0.1)
				b := m.NewBatch(1)
				b.Load(0, 77, 77) // earlier contents must not matter
				b.Load(0, index, draw)
				return b.Loss(p, nil, 1).Loss
			}
			must.Eq(t, loss(1, 5, 2), loss(1, 5, 2))
			must.NotEq(t, loss(1, 5, 2), loss(1, 6, 2))
			must.NotEq(t, loss(1, 5, 2), loss(2, 5, 2))
			if s.Name == "vae" {
				must.NotEq(t, loss(1, 5, 2), loss(1, 5, 3))
			} else {
				must.Eq(t, loss(1, 5, 2), loss(1, 5, 3))
			}
		})
	}
}

func TestCrossEntropy(t *testing.T) {
	logits := func() nn.Matrix { return nn.View([]float64{1, 2, 0, 800, -800, 0}, 2, 3) }
	l := logits()
	s := crossEntropy(l, []int{1, 0}, true)
	must.InDelta(t, math.Log(1+math.Exp(-1)+math.Exp(-2)), s.Loss, 1e-12)
	must.Eq(t, 2, s.Correct)
	must.InDelta(t, math.Exp(1)/(math.Exp(1)+math.Exp(2)+1), l.Data[0], 1e-12)
	must.InDelta(t, 0, l.Data[3], 1e-12)
	must.Eq(t, 1600, crossEntropy(logits(), []int{2, 1}, false).Loss-math.Log(1+math.Exp(-1)+math.Exp(-2))-2)
}

func TestDraw(t *testing.T) {
	logits := []float64{math.Log(1), math.Log(2), math.Log(7)}
	for u, want := range map[float64]int{0: 0, 0.09: 0, 0.11: 1, 0.29: 1, 0.31: 2, 0.999: 2, 1: 2} {
		must.Eq(t, want, draw(logits, u))
	}
}

func TestByName(t *testing.T) {
	s, err := ByName("gru")
	must.NoError(t, err)
	must.Eq(t, "gru", s.Name)
	_, err = ByName("rnn")
	must.EqError(t, err, "must be one of logreg, mlp, vae, gru")
}

// BenchmarkStep is a step on one thread at default sizes.
func BenchmarkStep(b *testing.B) {
	for _, s := range Specs() {
		b.Run(s.Name, func(b *testing.B) {
			m := s.New(1)
			p, g := make([]float64, m.Len()), make([]float64, m.Len())
			m.Init(p)
			batch := m.NewBatch(s.Batch)
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				for row := range s.Batch {
					batch.Load(row, uint64(n*s.Batch+row), 1)
				}
				batch.Loss(p, g, s.Batch)
			}
		})
	}
}

func TestPredict(t *testing.T) {
	for name, m := range small(t) {
		t.Run(name, func(t *testing.T) {
			const rows = 6
			b, p := loaded(m, rows), start(m)
			s := b.Loss(p, nil, rows)
			logits := b.Logits(rows)
			must.Eq(t, m.Classes(), logits.Cols)
			if m.Classes() == 0 {
				must.Eq(t, "vae", name)
				return
			}
			must.Eq(t, s.Targets, logits.Rows)
			counts := make([]int64, m.Classes())
			confidence := Predict(logits, counts) / float64(s.Targets)
			must.Greater(t, 1/float64(m.Classes()), confidence)
			must.Less(t, 1, confidence)
			sum := int64(0)
			for _, n := range counts {
				sum += n
			}
			must.Eq(t, int64(s.Targets), sum)
			must.Eq(t, s, b.Loss(p, nil, rows)) // the logits are unchanged
		})
	}
	counts := make([]int64, 3)
	confidence := Predict(nn.View([]float64{0, 800, 0, -800, -800, 0}, 2, 3), counts) // no overflow
	must.Eq(t, 2.0, confidence)
	must.Eq(t, []int64{0, 1, 1}, counts)
}
