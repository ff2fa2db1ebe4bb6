// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package train trains a model: mini-batch gradient descent whose result depends on the seed and the step alone,
// not on the number of threads, on reports or on interruptions.
package train

import (
	"fmt"
	"math"
	"slices"

	"github.com/ebbtide/ebbtide/e2e/trainer/model"
	"github.com/ebbtide/ebbtide/e2e/trainer/nn"
)

const (
	// maxShards bounds into how many parts a batch is divided, and so how many threads can share a step. The
	// division depends on the batch alone: sums of floating-point numbers would otherwise follow the threads.
	maxShards = 16
	minRows   = 4 // of a shard

	updateChunk = 2048 // parameters updated as one piece of work
)

// Config is what determines a run.
type Config struct {
	Spec      model.Spec // with the sizes, batch and learning rate to use
	Seed      uint64
	Threads   int
	DivergeAt int // from this step on the learning rate explodes; 0 = never
}

// Trainer is a model in training. It is not safe for use by several goroutines.
type Trainer struct {
	config    Config
	model     model.Model
	pool      *nn.Pool
	params    []float64
	optimiser *nn.Optimiser
	step      int

	shards    []shard
	batches   []model.Batch // one per thread
	gradient  []float64     // mean over the last step's batch
	heldOut   []model.Batch
	heldSums  []model.Sums
	trainLoss float64
}

// shard is a fixed part of every batch.
type shard struct {
	from, rows int
	gradient   []float64
	sums       model.Sums
}

// New builds the model, its data source and the start values. Close it to end its threads.
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

// heldOutRows is how many rows of the held-out part are evaluated as one piece of work.
const heldOutRows = 32

// heldOutIndex is the first index of the held-out part; no epoch reaches it.
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

// Close ends the threads.
func (t *Trainer) Close() { t.pool.Close() }

// StepsPerEpoch is how many whole batches the data set has.
func (c Config) StepsPerEpoch() int { return max(1, c.Spec.Size/c.Spec.Batch) }

// Params is the number of parameters.
func (t *Trainer) Params() int { return len(t.params) }

// Done is the number of steps taken.
func (t *Trainer) Done() int { return t.step }

// Rate is the learning rate of the next step.
func (t *Trainer) Rate() float64 {
	rate := t.config.Spec.Rate
	if half := t.config.Spec.HalfSteps; half > 0 {
		rate /= 1 + float64(t.step)/float64(half)
	}
	if d := t.config.DivergeAt; d > 0 && t.step+1 >= d {
		// After four steps the rate itself overflows; infinite weights then meet in a difference and make NaN.
		rate *= math.Pow(10, 100*float64(t.step+2-d))
	}
	return rate
}

// Step takes one step of the descent: the gradient of every shard, then the update, both on all threads.
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

// TrainLoss is the mean loss over the last step's batch, before its update; NaN before the first step.
func (t *Trainer) TrainLoss() float64 { return t.trainLoss }

// GradientNorm is the Euclidean norm of the last step's gradient.
func (t *Trainer) GradientNorm() float64 {
	sum := 0.0
	for _, v := range t.gradient {
		sum += v * v
	}
	return math.Sqrt(sum)
}

// Evaluate returns the mean loss over the held-out part and the share of right classes in [0, 1] (NaN for a model
// that does not classify). The held-out part is the same in every call.
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

// State is all that changes while a model trains, and what it belongs to.
type State struct {
	Model  string
	Step   int
	Seed   uint64 // with Step, the position of every random number
	Dim    int
	Hidden int
	Batch  int
	Size   int

	Params, M, V []float64 `json:"-"`
}

// State returns the present state. Its vectors are the trainer's own: use them before the next Step.
func (t *Trainer) State() State {
	s := t.identity()
	s.Step, s.Params, s.M, s.V = t.step, t.params, t.optimiser.M, t.optimiser.V
	return s
}

// Clone returns a copy that later steps leave alone.
func (s State) Clone() State {
	s.Params, s.M, s.V = slices.Clone(s.Params), slices.Clone(s.M), slices.Clone(s.V)
	return s
}

func (t *Trainer) identity() State {
	c := t.config
	return State{Model: c.Spec.Name, Seed: c.Seed, Dim: c.Spec.Dim, Hidden: c.Spec.Hidden, Batch: c.Spec.Batch, Size: c.Spec.Size}
}

// MismatchError says that a state belongs to a run with another setting.
type MismatchError struct {
	Field     string // name of the setting: model, seed, dim, hidden, batch, size, parameters
	Have, Got any    // in the state, in this run
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("-%s: the checkpoint was made with %v, this run has %v", e.Field, e.Have, e.Got)
}

// Check returns a *MismatchError when a state is another run's.
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

// Restore takes up a saved state; the steps after it are those of a run that was never interrupted. It fails as
// Check does, and then changes nothing.
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
