// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"strconv"

	"github.com/ebbtide/ebbtide/e2e/mix"
)

// loadFile is a load's record, below the allocation's directory.
const loadFile = "alloc/data/load.csv"

// number formats with full precision.
func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// serviceJob returns a service with its closed-loop client; objective 0 means none.
func serviceJob(id string, seed uint64, work, objective float64) string {
	service := mix.Task{
		Name: serviceName,
		Args: []string{
			"serve", "-model", serviceModel, "-train-steps", "20", "-threads", "1", "-work", number(work), "-seed", strconv.FormatUint(seed, 10),
			"-listen", "${NOMAD_ADDR_http}", "-report", "250ms",
		},
		Progress: `metric = "response_s"`,
	}
	if objective > 0 {
		service.Meta = map[string]string{"ebbtide_qoe_target": number(objective)}
	}
	load := mix.Task{
		Name: "load",
		Args: []string{"load", "-target", "http://${NOMAD_ADDR_http}", "-record", "/" + loadFile, "-silent"},
		Meta: map[string]string{"ebbtide_limit": "off"},
	}
	return mix.Jobspec(id, true, service, load)
}

// Names in the service's job.
const (
	serviceName  = "predict"
	serviceModel = "mlp"
)

// trainingJob returns a training job; targets are optional (0).
func trainingJob(id, name, model string, steps, threads int, seed uint64, acceptable, objective float64) string {
	t := mix.Task{
		Name: name,
		Args: []string{
			"-model", model, "-steps", strconv.Itoa(steps), "-threads", strconv.Itoa(threads), "-seed", strconv.FormatUint(seed, 10),
			"-style", "plain", "-curve", "/" + mix.CurveFile,
		},
		Progress: `metric = "loss"`,
	}
	if objective != 0 {
		t.Target = `grace = "5s"`
		t.Meta = map[string]string{"ebbtide_acceptable": number(acceptable), "ebbtide_objective": number(objective)}
	}
	return mix.Jobspec(id, false, t)
}

// quietJob trains silently with one thread.
func quietJob(id string, seed uint64) string {
	return mix.Jobspec(id, false, mix.Task{
		Name: "quiet",
		Args: []string{"-model", "logreg", "-threads", "1", "-steps", "0", "-seed", strconv.FormatUint(seed, 10), "-style", "silent"},
	})
}
