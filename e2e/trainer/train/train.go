// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package train is mini-batch gradient descent whose result depends on seed and step only, not
// on threads, reports or interruptions.
package train

import (
	"fmt"
	"math"
	"slices"

	"github.com/ebbtide/ebbtide/e2e/trainer/model"
	"github.com/ebbtide/ebbtide/e2e/trainer/nn"
)

const (
	// maxShards bounds a batch's parts, and so the useful threads. The division depends on the
	// batch alone, as floating-point sums would otherwise depend on threads.
	maxShards = 16
	minRows   = 4 // of a shard

	updateChunk = 2048 // parameters per piece of work
)

// Config determines a run.
type Config struct {
	Spec      model.Spec // with sizes, batch and learning rate
	Seed      uint64
	Threads   int
	DivergeAt int // the learning rate explodes from this step; 0 for never
}

// Trainer is not safe for concurrent use.
type Trainer struct {
	config    Config
	model     model.Model
	pool      *nn.Pool
	params    []float64
	optimiser *nn.Optimiser
	step      int

	shards    []shard
	batches   []model.Batch // one per thread
	gradient  []float64     // mean over the last batch
	heldOut   []model.Batch
	heldSums  []model.Sums
	trainLoss float64
}

// shard is a fixed part of each batch.
type shard struct {
	from, rows int
	gradient   []float64
	sums       model.Sums
}

// New creates a Trainer. Close it.
func New(c Config) *Trainer {
	m := c.Spec.New(c.Seed)
	t := &Trainer{
		config: c, model: m, pool: nn.NewPool(c.Threads),
		params: make([]float64, m.Len()), optimiser: nn.NewOptimiser(c.Spec.Rule, m.Len()), gradient: make([]float64, m.Len()),
		trainLoss: math.NaN(),
	}
	m.Init(t.params)
	count := min(maxShards, max(1, c.Spec.Batch/minRows))
	largest := 0
	for i := range count {
		from, to := i*c.Spec.Batch/count, (i+1)*c.Spec.Batch/count
		t.shards = append(t.shards, shard{from: from, rows: to - from, gradient: make([]float64, m.Len())})
		largest = max(largest, to-from)
	}
	for range t.pool.Threads() {
		t.batches = append(t.batches, m.NewBatch(largest))
	}
	t.loadHeldOut()
	return t
}

// heldOutRows is the size of a piece of the held-out part.
const heldOutRows = 32

// heldOutIndex is the held-out part's first index, beyond any epoch.
const heldOutIndex = 1 << 40

func (t *Trainer) loadHeldOut() {
	pieces := (t.config.Spec.HeldOut + heldOutRows - 1) / heldOutRows
	t.heldOut, t.heldSums = make([]model.Batch, pieces), make([]model.Sums, pieces)
	t.pool.Do(pieces, func(_, piece int) {
		b := t.model.NewBatch(t.heldRows(piece))
		for row := range t.heldRows(piece) {
			b.Load(row, uint64(heldOutIndex+piece*heldOutRows+row), 0)
		}
		t.heldOut[piece] = b
	})
}

func (t *Trainer) heldRows(piece int) int {
	return min(heldOutRows, t.config.Spec.HeldOut-piece*heldOutRows)
}

func (t *Trainer) Close() { t.pool.Close() }

// StepsPerEpoch returns the number of complete batches.
func (c Config) StepsPerEpoch() int { return max(1, c.Spec.Size/c.Spec.Batch) }

// Params returns the number of parameters.
func (t *Trainer) Params() int { return len(t.params) }

// Done returns the number of steps taken.
func (t *Trainer) Done() int { return t.step }

// Rate returns the next step's learning rate.
func (t *Trainer) Rate() float64 {
	rate := t.config.Spec.Rate
	if half := t.config.Spec.HalfSteps; half > 0 {
		rate /= 1 + float64(t.step)/float64(half)
	}
	if d := t.config.DivergeAt; d > 0 && t.step+1 >= d {
		// After four steps the rate overflows, and differences of infinite weights become NaN.
		rate *= math.Pow(10, 100*float64(t.step+2-d))
	}
	return rate
}

// Step computes all shards' gradients, then the update, on all threads.
func (t *Trainer) Step() {
	perEpoch := t.config.StepsPerEpoch()
	order := newOrder(t.config.Seed, t.step/perEpoch, t.config.Spec.Size)
	first := t.step % perEpoch * t.config.Spec.Batch
	t.pool.Do(len(t.shards), func(worker, piece int) {
		s, b := &t.shards[piece], t.batches[worker]
		for row := range s.rows {
			b.Load(row, order.at(first+s.from+row), uint64(t.step+1))
		}
		s.sums = b.Loss(t.params, s.gradient, s.rows)
	})

	targets := float64(t.config.Spec.Batch * t.model.Targets())
	rate := t.Rate()
	t.step++
	chunks := (len(t.params) + updateChunk - 1) / updateChunk
	t.pool.Do(chunks, func(_, piece int) {
		lo, hi := piece*updateChunk, min((piece+1)*updateChunk, len(t.params))
		sum := t.gradient[lo:hi]
		clear(sum)
		for i := range t.shards {
			for j, v := range t.shards[i].gradient[lo:hi] {
				sum[j] += v
			}
		}
		for j := range sum {
			sum[j] /= targets
		}
		t.optimiser.Update(t.params, t.gradient, lo, hi, rate, t.step)
	})
	t.trainLoss = total(len(t.shards), func(i int) model.Sums { return t.shards[i].sums }).Loss / targets
}

// TrainLoss returns the last batch's mean loss before the update; NaN before the first step.
func (t *Trainer) TrainLoss() float64 { return t.trainLoss }

// GradientNorm returns the last gradient's Euclidean norm.
func (t *Trainer) GradientNorm() float64 {
	sum := 0.0
	for _, v := range t.gradient {
		sum += v * v
	}
	return math.Sqrt(sum)
}

// Evaluate returns the mean loss over the fixed held-out part, and the accuracy in [0, 1], NaN
// if the model does not classify.
func (t *Trainer) Evaluate() (loss, accuracy float64) {
	t.pool.Do(len(t.heldOut), func(_, piece int) {
		t.heldSums[piece] = t.heldOut[piece].Loss(t.params, nil, t.heldRows(piece))
	})
	s := total(len(t.heldSums), func(i int) model.Sums { return t.heldSums[i] })
	accuracy = math.NaN()
	if t.config.Spec.Classifies {
		accuracy = float64(s.Correct) / float64(s.Targets)
	}
	return s.Loss / float64(s.Targets), accuracy
}

func total(n int, part func(int) model.Sums) model.Sums {
	var sum model.Sums
	for i := range n {
		p := part(i)
		sum.Loss += p.Loss
		sum.Correct += p.Correct
		sum.Targets += p.Targets
	}
	return sum
}

// State is everything that changes in training, and its settings.
type State struct {
	Model  string
	Step   int
	Seed   uint64 // with Step, the position of all random numbers
	Dim    int
	Hidden int
	Batch  int
	Size   int

	Params, M, V []float64 `json:"-"`
}

// State returns the current state, sharing vectors: use it before the next Step.
func (t *Trainer) State() State {
	s := t.identity()
	s.Step, s.Params, s.M, s.V = t.step, t.params, t.optimiser.M, t.optimiser.V
	return s
}

// Clone returns a deep copy.
func (s State) Clone() State {
	s.Params, s.M, s.V = slices.Clone(s.Params), slices.Clone(s.M), slices.Clone(s.V)
	return s
}

func (t *Trainer) identity() State {
	c := t.config
	return State{Model: c.Spec.Name, Seed: c.Seed, Dim: c.Spec.Dim, Hidden: c.Spec.Hidden, Batch: c.Spec.Batch, Size: c.Spec.Size}
}

// MismatchError means that a state belongs to other settings.
type MismatchError struct {
	Field     string // model, seed, dim, hidden, batch, size, parameters
	Have, Got any    // in the state, and in this run
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("-%s: the checkpoint was made with %v, this run has %v", e.Field, e.Have, e.Got)
}

// Check returns a *MismatchError for another run's state.
func (t *Trainer) Check(s State) error {
	want := t.identity()
	for _, f := range []struct {
		name      string
		have, got any
	}{
		{"model", s.Model, want.Model},
		{"seed", s.Seed, want.Seed},
		{"dim", s.Dim, want.Dim},
		{"hidden", s.Hidden, want.Hidden},
		{"batch", s.Batch, want.Batch},
		{"size", s.Size, want.Size},
		{"parameters", len(s.Params), len(t.params)},
		{"parameters", len(s.M), len(t.optimiser.M)},
		{"parameters", len(s.V), len(t.optimiser.V)},
	} {
		if f.have != f.got {
			return &MismatchError{Field: f.name, Have: f.have, Got: f.got}
		}
	}
	return nil
}

// Restore continues from a state as if never interrupted. It fails as Check does, unchanged.
func (t *Trainer) Restore(s State) error {
	if err := t.Check(s); err != nil {
		return err
	}
	copy(t.params, s.Params)
	copy(t.optimiser.M, s.M)
	copy(t.optimiser.V, s.V)
	t.step = s.Step
	return nil
}
