// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"strconv"
	"strings"
)

// Files that tasks write, as they see them (with a slash before) and beneath the
// allocation's directory.
const (
	curveFile = "alloc/data/curve.csv"
	loadFile  = "alloc/data/load.csv"
)

// trainerTask is a task as a person would write it.
type trainerTask struct {
	name     string
	args     []string
	progress string // the block's body; "" = no block
	target   string // likewise
	meta     map[string]string
}

// shares are what every task asks Nomad for: without Ebbtide they share alike.
const shares = 100

// job is a batch job of one group. With network it has a port named http.
func job(id string, network bool, tasks ...trainerTask) string {
	var b strings.Builder
	fmt.Fprintf(&b, `
job %q {
  type = "batch"
  group "g" {
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }
    ephemeral_disk {
      size = 50
    }
`, id)
	if network {
		b.WriteString("    network {\n      port \"http\" {}\n    }\n")
	}
	for _, t := range tasks {
		t.write(&b)
	}
	b.WriteString("  }\n}\n")
	return b.String()
}

func (t trainerTask) write(b *strings.Builder) {
	quoted := make([]string, len(t.args))
	for i, a := range t.args {
		quoted[i] = strconv.Quote(a)
	}
	fmt.Fprintf(b, `    task %q {
      driver       = "ebbtide"
      kill_timeout = "5s"
      config {
        command = "/bin/trainer"
        args    = [%s]
`, t.name, strings.Join(quoted, ", "))
	for _, block := range [][2]string{{"progress", t.progress}, {"target", t.target}} {
		if block[1] != "" {
			fmt.Fprintf(b, "        %s {\n          %s\n        }\n", block[0], block[1])
		}
	}
	b.WriteString("      }\n")
	if len(t.meta) > 0 {
		b.WriteString("      meta {\n")
		for _, key := range []string{"ebbtide_acceptable", "ebbtide_objective", "ebbtide_qoe_target", "ebbtide_limit"} {
			if v, ok := t.meta[key]; ok {
				fmt.Fprintf(b, "        %s = %q\n", key, v)
			}
		}
		b.WriteString("      }\n")
	}
	fmt.Fprintf(b, `      logs {
        max_files     = 2
        max_file_size = 2
      }
      resources {
        cpu    = %d
        memory = 96
      }
    }
`, shares)
}

// number writes a number so that nothing of it is lost.
func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// serviceJob is a service and the closed loop that asks it. An objective of 0 says
// nothing of how fast it is to be.
func serviceJob(id string, seed uint64, work, objective float64) string {
	service := trainerTask{
		name: serviceName,
		args: []string{
			"serve", "-model", serviceModel, "-train-steps", "20", "-threads", "1", "-work", number(work), "-seed", strconv.FormatUint(seed, 10),
			"-listen", "${NOMAD_ADDR_http}", "-report", "250ms",
		},
		progress: `metric = "response_s"`,
	}
	if objective > 0 {
		service.meta = map[string]string{"ebbtide_qoe_target": number(objective)}
	}
	load := trainerTask{
		name: "load",
		args: []string{"load", "-target", "http://${NOMAD_ADDR_http}", "-record", "/" + loadFile, "-silent"},
		meta: map[string]string{"ebbtide_limit": "off"},
	}
	return job(id, true, service, load)
}

// The service in its job, and what it serves.
const (
	serviceName  = "predict"
	serviceModel = "mlp"
)

// trainingJob is a training; targets may be missing (0).
func trainingJob(id, name, model string, steps, threads int, seed uint64, acceptable, objective float64) string {
	t := trainerTask{
		name: name,
		args: []string{
			"-model", model, "-steps", strconv.Itoa(steps), "-threads", strconv.Itoa(threads), "-seed", strconv.FormatUint(seed, 10),
			"-style", "plain", "-curve", "/" + curveFile,
		},
		progress: `metric = "loss"`,
	}
	if objective != 0 {
		t.target = `grace = "5s"`
		t.meta = map[string]string{"ebbtide_acceptable": number(acceptable), "ebbtide_objective": number(objective)}
	}
	return job(id, false, t)
}

// quietJob trains and says nothing, with one thread.
func quietJob(id string, seed uint64) string {
	return job(id, false, trainerTask{
		name: "quiet",
		args: []string{"-model", "logreg", "-threads", "1", "-steps", "0", "-seed", strconv.FormatUint(seed, 10), "-style", "silent"},
	})
}
