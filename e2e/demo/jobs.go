// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// cores is the size of the node on which the demo is played, so that it looks
// alike on machines of all sizes. A machine with fewer has fewer.
const cores = 2

// job is one of the demo's training jobs.
type job struct {
	name, model, role string
	at                time.Duration // of its submission, after the first one's
	steps             int
	style             string // how it prints: each is read by another preset
}

// jobs are those of the three-job experiment of the FlowCon paper (ICPP 2019,
// section 5.3: a variational autoencoder at 0 s, then MNIST in PyTorch at 40 s
// and in TensorFlow at 80 s, done after about 390, 280 and 165 s), with time
// scaled down by 5 and work in the same proportions (about 67 : 26 : 7): a long
// one that has converged early and crawls, one of middle length, and a short
// newcomer. The steps are whole epochs.
//
// The factor scales steps and times between submissions.
func jobs(factor float64) []job {
	all := []job{
		{"vae", "vae", "long, converges early and then crawls", 0, 17408, "hf"},
		{"mlp", "mlp", "middle", 8 * time.Second, 17920, "keras"},
		{"logreg", "logreg", "short newcomer", 16 * time.Second, 4096, "plain"},
	}
	for i, j := range all {
		all[i].steps = max(1, int(math.Round(factor*float64(j.steps))))
		all[i].at = time.Duration(factor * float64(j.at))
	}
	return all
}

// args are the trainer's.
func (j job) args(seed uint64, threads int) []string {
	return []string{"-model", j.model, "-steps", strconv.Itoa(j.steps), "-threads", strconv.Itoa(threads),
		"-seed", strconv.FormatUint(seed, 10), "-style", j.style, "-curve", "/" + curveFile}
}

// curveFile is where the trainer writes its own record, as seen in the chroot
// and in Nomad's file API.
const curveFile = "alloc/data/curve.csv"

// hcl is the job as a person would write it. Every job asks Nomad for the same
// CPU: without Ebbtide they share alike.
func (j job) hcl(id string, args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = strconv.Quote(a)
	}
	return fmt.Sprintf(`
job %q {
  type = "batch"
  group "train" {
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }
    task %q {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = [%s]
        progress {
          metric = "loss"
        }
      }
      resources {
        cpu    = 200
        memory = 128
      }
    }
  }
}
`, id, j.name, strings.Join(quoted, ", "))
}
