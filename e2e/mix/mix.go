// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package mix defines the training jobs of demo and benchmarks: their jobspecs, lengths and curves.
package mix

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"
)

type Job struct {
	Name  string // unique in the mix
	Model string // of the trainer
	// Pool is its work, in seconds of the whole pool.
	Pool float64
	At   time.Duration // submission, relative to the first
}

// Models returns the models of a mix, in turn.
func Models() []string { return []string{"vae", "mlp", "gru", "logreg"} }

// styles are the models' output formats, each for another preset.
var styles = map[string]string{"vae": "hf", "mlp": "keras", "gru": "lightning", "logreg": "plain"}

// Overlapping returns n jobs of mixed models, submitted at random within a time, in order.
// Lengths are lognormal (σ = 1), as in clusters: one from the middle of each n-th of the
// distribution, so that all seeds have the same total work (seconds of the whole pool).
func Overlapping(n int, seed uint64, work float64, within time.Duration) []Job {
	r := rand.New(rand.NewPCG(seed, 12))
	jobs := make([]Job, n)
	at := make([]float64, n)
	sizes, sum := make([]float64, n), 0.0
	for i := range jobs {
		at[i] = r.Float64()
		sizes[i] = math.Exp(math.Sqrt2 * math.Erfinv(2*(float64(i)+0.5)/float64(n)-1))
		sum += sizes[i]
	}
	slices.Sort(at)
	order, models := r.Perm(n), r.Perm(n)
	count := make(map[string]int)
	for i := range jobs {
		model := Models()[models[i]%len(Models())]
		count[model]++
		jobs[i] = Job{
			Name: model, Model: model, Pool: sizes[order[i]] / sum * work,
			At: time.Duration((at[i] - at[0]) * float64(within)),
		}
		if count[model] > 1 {
			jobs[i].Name = fmt.Sprint(model, count[model])
		}
	}
	return jobs
}

// FlowCon3 returns the FlowCon paper's three-job experiment (ICPP 2019, section 5.3: a variational
// autoencoder at 0 s, MNIST in PyTorch at 40 s and in TensorFlow at 80 s, done after about 390, 280
// and 165 s), scaled down by five, with proportional work (about 67 : 26 : 7).
func FlowCon3() []Job {
	return []Job{
		{"vae", "vae", 52, 0},
		{"mlp", "mlp", 20, 8 * time.Second},
		{"logreg", "logreg", 5.5, 16 * time.Second},
	}
}

// Papers returns the FlowCon papers' single-node mixes: FlowCon3, or more jobs at random within
// 200 s, scaled down by ten. The runs of 10 and 15 jobs took 1385 and 1980 s: 13.5 s per job
// here. Single sizes are unpublished; see Overlapping. factor scales work and intervals.
func Papers(n int, seed uint64, factor float64) []Job {
	jobs := FlowCon3()
	if n != len(jobs) {
		jobs = Overlapping(n, seed, 13.5*float64(n), 20*time.Second)
	}
	for i := range jobs {
		jobs[i].Pool *= factor
		jobs[i].At = time.Duration(factor * float64(jobs[i].At))
	}
	return jobs
}

// Steps returns a job's number of steps, given its model's speed and the pool.
func (j Job) Steps(perCPUSecond float64, cores int) int {
	return max(1, int(math.Round(j.Pool*perCPUSecond*float64(cores))))
}

// Task returns the job's task. It does not declare its metric: Ebbtide detects it.
func (j Job) Task(steps, threads int, seed uint64) Task {
	return Task{
		Name: j.Name,
		Args: []string{
			"-model", j.Model, "-steps", strconv.Itoa(steps), "-threads", strconv.Itoa(threads),
			"-seed", strconv.FormatUint(seed, 10), "-style", styles[j.Model], "-curve", "/" + CurveFile,
		},
	}
}
