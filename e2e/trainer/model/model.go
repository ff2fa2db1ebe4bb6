// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package model holds what the trainer trains: multinomial logistic regression, a multi-layer perceptron, a
// variational autoencoder and a gated recurrent network, each with the source of its generated data. A sample is
// a pure function of the seed and its index: no data set is stored, whatever its size, and a run starts at once.
package model

import (
	"fmt"
	"math"
	"strings"

	"github.com/ebbtide/ebbtide/e2e/trainer/nn"
)

// Sums is what a batch adds up to.
type Sums struct {
	Loss    float64 // sum of the loss over the batch's targets, in nats
	Correct int     // targets whose most likely class is the right one; 0 for a model that does not classify
	Targets int     // rows, or rows × time steps for a sequence model
}

// Batch is room for some rows of data and all intermediate values. It belongs to one goroutine at a time.
type Batch interface {
	// Load fills a row with the sample of an index. The draw distinguishes visits to the same sample, for models
	// that use noise while they train.
	Load(row int, index, draw uint64)
	// Loss returns the sums over the first rows rows. Unless gradient is nil it is overwritten with the gradient
	// of Sums.Loss by params. Between two Loads, Loss is a pure function of params.
	Loss(params, gradient []float64, rows int) Sums
	// Logits are the model's answers to the rows of the last Loss without gradient, a target a row; without
	// columns for a model that does not classify. The next Loss overwrites them.
	Logits(rows int) nn.Matrix
}

// Predict counts, by class, what logits hold to be the most likely, and returns the sum of the probabilities that
// they give it.
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

// Model is a parametrised function with its data. It is read-only after New and safe for use by many goroutines.
type Model interface {
	// Len is the number of parameters.
	Len() int
	// Init fills params with the start values of this seed.
	Init(params []float64)
	// NewBatch makes room for up to rows rows.
	NewBatch(rows int) Batch
	// Targets is the number of loss terms per row.
	Targets() int
	// Classes is how many classes it tells apart; 0 for a model that does not classify.
	Classes() int
}

// Spec names a model and holds its defaults; every size can be overridden.
type Spec struct {
	Name       string
	About      string
	Classifies bool // has an accuracy
	HasHidden  bool // Hidden means something
	Square     bool // Dim must be a square number

	Dim       int     // width of the input: features, pixels, symbols
	Hidden    int     // width of the hidden layers
	Batch     int     // rows per step
	Size      int     // rows per epoch
	Steps     int     // steps of a run
	Every     int     // steps between two reports
	HeldOut   int     // rows of the held-out part, which the reported loss is taken from
	Rate      float64 // learning rate at the start
	HalfSteps int     // the learning rate of step t is Rate/(1 + t/HalfSteps)
	Rule      nn.Rule

	build func(Spec, uint64) Model
}

// New builds the model with the sizes in s; data and start values follow from the seed.
func (s Spec) New(seed uint64) Model { return s.build(s, seed) }

// Specs lists the models, from the shortest training to the longest.
func Specs() []Spec {
	return []Spec{logregSpec(), mlpSpec(), vaeSpec(), gruSpec()}
}

// Names lists the models' names, separated by commas.
func Names() string {
	var names []string
	for _, s := range Specs() {
		names = append(names, s.Name)
	}
	return strings.Join(names, ", ")
}

// ByName finds a model.
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
	streamTruth uint64 = iota + 1 // what generates the data
	streamInit                    // start values
	streamSample
	streamNoise
)

// layout hands out ranges of the flat parameter vector.
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

// glorot draws start values as Glorot and Bengio 2010, eq. 16, with normal numbers.
func (b block) glorot(params []float64, r *nn.Random) {
	r.Normal(b.vector(params), math.Sqrt(2/float64(b.rows+b.cols)))
}

// crossEntropy adds up −log softmax(logits)[class] per row, and replaces logits by the gradient when asked to.
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

// tanh replaces m by its hyperbolic tangent. It is used instead of a rectifier because gonum skips products with
// zero, and the work of a step should not depend on how far the training has come.
func tanh(m nn.Matrix) {
	for i, v := range m.Data {
		m.Data[i] = math.Tanh(v)
	}
}

// tanhGradient multiplies d by the derivative of tanh, given its value.
func tanhGradient(value, d nn.Matrix) {
	for i, v := range value.Data {
		d.Data[i] *= 1 - v*v
	}
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// draw returns the class that u in [0, 1) falls on, for probabilities softmax(logits).
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
