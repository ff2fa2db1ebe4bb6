// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package mix holds the training jobs that the demo and the benchmarks run: which they
// are, how they look to Nomad, how long they are on this machine, and the curves that
// they leave.
package mix

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"
)

// Job is a training job of a mix.
type Job struct {
	Name  string // unique in the mix
	Model string // of the trainer
	// Pool is its work: how many seconds it takes with the whole pool to itself.
	Pool float64
	At   time.Duration // of its submission, after the first one's
}

// Models are those of a mix, in the order in which they take turns.
func Models() []string { return []string{"vae", "mlp", "gru", "logreg"} }

// styles is how each model prints. Each is read by another preset.
var styles = map[string]string{"vae": "hf", "mlp": "keras", "gru": "lightning", "logreg": "plain"}

// Overlapping returns n jobs of mixed models and lengths. Their lengths are lognormal
// (σ = 1), as those of jobs in clusters are: one from the middle of each n-th of the
// distribution, so that all seeds have the same work in sum (seconds of the whole pool).
// Which job has which length and model, and when it is submitted, is random: at any time
// within so long, the first at 0. Jobs are in the order of their submission.
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

// FlowCon3 is the three-job experiment of the FlowCon paper (ICPP 2019, section 5.3: a
// variational autoencoder at 0 s, then MNIST in PyTorch at 40 s and in TensorFlow at 80 s,
// done after about 390, 280 and 165 s), with time scaled down by five and work in the same
// proportions (about 67 : 26 : 7).
func FlowCon3() []Job {
	return []Job{
		{"vae", "vae", 52, 0},
		{"mlp", "mlp", 20, 8 * time.Second},
		{"logreg", "logreg", 5.5, 16 * time.Second},
	}
}

// Papers returns the single-node mixes of the FlowCon papers: of three jobs the one above;
// of more, random submissions within 200 s, scaled down by ten. The papers' runs of 10 and
// 15 jobs took 1385 and 1980 s: 13.5 s a job here. Sizes of single jobs are not published;
// see Overlapping. The factor scales work and the times between submissions.
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

// Steps is how many steps a job has on a machine where its model does so many per
// CPU-second and the pool has so many cores.
func (j Job) Steps(perCPUSecond float64, cores int) int {
	return max(1, int(math.Round(j.Pool*perCPUSecond*float64(cores))))
}

// Task is the job's task, with the trainer's arguments. It says nothing of what it prints:
// Ebbtide finds out.
func (j Job) Task(steps, threads int, seed uint64) Task {
	return Task{
		Name: j.Name,
		Args: []string{
			"-model", j.Model, "-steps", strconv.Itoa(steps), "-threads", strconv.Itoa(threads),
			"-seed", strconv.FormatUint(seed, 10), "-style", styles[j.Model], "-curve", "/" + CurveFile,
		},
	}
}
