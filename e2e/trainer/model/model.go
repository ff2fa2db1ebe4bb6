// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package model defines the trainer's models, each with its data source: logistic regression, a
// perceptron, a variational autoencoder and a gated recurrent network. Samples are pure functions
// of seed and index, so no data set is stored.
package model

import (
	"fmt"
	"math"
	"strings"

	"github.com/ebbtide/ebbtide/e2e/trainer/nn"
)

// Sums are a batch's totals.
type Sums struct {
	Loss    float64 // of the batch's targets, in nats
	Correct int     // correctly classified targets; 0 for other models
	Targets int     // rows, or rows × time steps for sequences
}

// Batch is a buffer for rows and intermediate values. It is not safe for concurrent use.
type Batch interface {
	// Load fills a row with a sample. draw distinguishes visits of a sample, for models with
	// noise.
	Load(row int, index, draw uint64)
	// Loss returns the sums over the first rows, and overwrites gradient, unless nil, with that
	// of Sums.Loss. Between Loads it is a pure function of params.
	Loss(params, gradient []float64, rows int) Sums
	// Logits are the outputs of the last Loss without gradient, a row per target; without
	// columns if the model does not classify. The next Loss overwrites them.
	Logits(rows int) nn.Matrix
}

// Predict counts the most likely class per row, and returns the sum of their probabilities.
func Predict(logits nn.Matrix, counts []int64) (confidence float64) {
	for i := range logits.Rows {
		row := logits.Data[i*logits.Stride : i*logits.Stride+logits.Cols]
		best, sum := 0, 0.0
		for j, v := range row {
			if v > row[best] {
				best = j
			}
		}
		for _, v := range row {
			sum += math.Exp(v - row[best])
		}
		counts[best]++
		confidence += 1 / sum
	}
	return confidence
}

// Model is a parametrised function with its data, read-only and safe for concurrent use.
type Model interface {
	Len() int
	// Init fills params with the seed's start values.
	Init(params []float64)
	// NewBatch has room for up to rows rows.
	NewBatch(rows int) Batch
	// Targets is the number of loss terms per row.
	Targets() int
	// Classes is 0 if the model does not classify.
	Classes() int
}

// Spec is a model with default sizes.
type Spec struct {
	Name       string
	About      string
	Classifies bool // has an accuracy
	HasHidden  bool // uses Hidden
	Square     bool // Dim must be a square

	Dim       int     // input width: features, pixels, symbols
	Hidden    int     // width of hidden layers
	Batch     int     // rows per step
	Size      int     // rows per epoch
	Steps     int     // per run
	Every     int     // steps between reports
	HeldOut   int     // rows of the held-out part, for the reported loss
	Rate      float64 // initial learning rate
	HalfSteps int     // step t's learning rate is Rate/(1 + t/HalfSteps)
	Rule      nn.Rule

	build func(Spec, uint64) Model
}

// New builds the model; data and start values follow from the seed.
func (s Spec) New(seed uint64) Model { return s.build(s, seed) }

// Specs lists the models, shortest training first.
func Specs() []Spec {
	return []Spec{logregSpec(), mlpSpec(), vaeSpec(), gruSpec()}
}

func Names() string {
	var names []string
	for _, s := range Specs() {
		names = append(names, s.Name)
	}
	return strings.Join(names, ", ")
}

func ByName(name string) (Spec, error) {
	for _, s := range Specs() {
		if s.Name == name {
			return s, nil
		}
	}
	return Spec{}, fmt.Errorf("must be one of %s", Names())
}

// Streams of random numbers, the first number of a position after the seed.
const (
	streamTruth uint64 = iota + 1 // data generation
	streamInit                    // start values
	streamSample
	streamNoise
)

// layout allocates ranges of the flat parameter vector.
type layout struct{ n int }

type block struct{ at, rows, cols int }

func (l *layout) block(rows, cols int) block {
	b := block{at: l.n, rows: rows, cols: cols}
	l.n += rows * cols
	return b
}

func (b block) of(params []float64) nn.Matrix {
	return nn.View(params[b.at:b.at+b.rows*b.cols], b.rows, b.cols)
}

func (b block) vector(params []float64) []float64 { return params[b.at : b.at+b.rows*b.cols] }

// glorot draws start values (Glorot and Bengio 2010, eq. 16, with normal numbers).
func (b block) glorot(params []float64, r *nn.Random) {
	r.Normal(b.vector(params), math.Sqrt(2/float64(b.rows+b.cols)))
}

// crossEntropy sums −log softmax(logits)[class], and with gradient replaces logits by the
// gradient.
func crossEntropy(logits nn.Matrix, classes []int, gradient bool) Sums {
	s := Sums{Targets: logits.Rows}
	for i := range logits.Rows {
		row, class := logits.Data[i*logits.Stride:i*logits.Stride+logits.Cols], classes[i]
		best, top := 0, row[0]
		for j, v := range row {
			if v > top {
				best, top = j, v
			}
		}
		target, sum := row[class], 0.0
		for j, v := range row {
			e := math.Exp(v - top)
			sum += e
			if gradient {
				row[j] = e
			}
		}
		s.Loss += math.Log(sum) - (target - top)
		if best == class {
			s.Correct++
		}
		if gradient {
			for j := range row {
				row[j] /= sum
			}
			row[class]--
		}
	}
	return s
}

// tanh instead of a rectifier, as gonum skips products with zero and a step's work must be
// constant.
func tanh(m nn.Matrix) {
	for i, v := range m.Data {
		m.Data[i] = math.Tanh(v)
	}
}

// tanhGradient multiplies d by tanh's derivative, given its value.
func tanhGradient(value, d nn.Matrix) {
	for i, v := range value.Data {
		d.Data[i] *= 1 - v*v
	}
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// draw returns u's class, for u in [0, 1) and probabilities softmax(logits).
func draw(logits []float64, u float64) int {
	top := logits[0]
	for _, v := range logits {
		top = max(top, v)
	}
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(v - top)
	}
	u *= sum
	for j, v := range logits {
		if u -= math.Exp(v - top); u < 0 {
			return j
		}
	}
	return len(logits) - 1
}
