// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package mix

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// CurveFile is where the trainer writes its own record: with a slash before as tasks see
// it, and beneath the allocation's directory.
const CurveFile = "alloc/data/curve.csv"

// Shares are the MHz that a task asks Nomad for if it says nothing else. In a run all ask
// for the same: without Ebbtide they share alike.
const Shares = 100

// NodeMHz is what jobs that have a node to themselves ask for together: less than two slow
// cores have, and enough to hold against other work on the machine.
const NodeMHz = 2400

// Task is a task as a person would write it.
type Task struct {
	Name string
	// Args are the trainer's, and Image is the one that has it where tasks are containers.
	Args  []string
	Image string
	// Config is the body of another task's config block; "" runs the trainer.
	Config string
	// Progress and Target are the bodies of these blocks; "" = no block.
	Progress, Target string
	Meta, Env        map[string]string
	CPU              int // MHz; 0 = Shares
	MemoryMiB        int // 0 = 96
	// Moves says that the trainer saves its state when it is asked to, and goes on from it,
	// so that the shim can move it.
	Moves bool
}

// checkpoint is where a task that moves saves its state.
const checkpoint = "/alloc/data/model.ckpt"

// Jobspec is a batch job of one group. With network it has a port named http.
func Jobspec(id string, network bool, tasks ...Task) string {
	return JobspecWith(id, network, "", tasks...)
}

// JobspecWith has more in the job's block.
func JobspecWith(id string, network bool, body string, tasks ...Task) string {
	var b strings.Builder
	sticky := ""
	if slices.ContainsFunc(tasks, func(t Task) bool { return t.Moves }) {
		sticky = "\n      sticky = true\n      migrate = true"
	}
	fmt.Fprintf(&b, `
job %q {
  type = "batch"%s
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
      size = 50%s
    }
`, id, body, sticky)
	if network {
		b.WriteString("    network {\n      port \"http\" {}\n    }\n")
	}
	for _, t := range tasks {
		t.write(&b)
	}
	b.WriteString("  }\n}\n")
	return b.String()
}

func (t Task) write(b *strings.Builder) {
	config := t.Config
	if config == "" {
		args := t.Args
		if t.Moves {
			args = append(slices.Clone(args), "-checkpoint", checkpoint, "-resume")
		}
		quoted := make([]string, len(args))
		for i, a := range args {
			quoted[i] = strconv.Quote(a)
		}
		config = fmt.Sprintf("command = \"/bin/trainer\"\n        args    = [%s]", strings.Join(quoted, ", "))
		if t.Image != "" {
			config += fmt.Sprintf("\n        image        = %q\n        network_mode = \"none\"", t.Image)
		}
	}
	fmt.Fprintf(b, `    task %q {
      driver       = "ebbtide"
      kill_timeout = "5s"
      config {
        %s
`, t.Name, config)
	save := ""
	if t.Moves {
		save = fmt.Sprintf("path = %q", checkpoint)
	}
	for _, block := range [][2]string{{"progress", t.Progress}, {"target", t.Target}, {"checkpoint", save}} {
		if block[1] != "" {
			fmt.Fprintf(b, "        %s {\n          %s\n        }\n", block[0], block[1])
		}
	}
	b.WriteString("      }\n")
	for _, block := range []struct {
		name   string
		values map[string]string
	}{{"meta", t.Meta}, {"env", t.Env}} {
		if len(block.values) == 0 {
			continue
		}
		fmt.Fprintf(b, "      %s {\n", block.name)
		for _, key := range slices.Sorted(maps.Keys(block.values)) {
			fmt.Fprintf(b, "        %s = %q\n", key, block.values[key])
		}
		b.WriteString("      }\n")
	}
	fmt.Fprintf(b, `      logs {
        max_files     = 2
        max_file_size = 2
      }
      resources {
        cpu    = %d
        memory = %d
      }
    }
`, cmp.Or(t.CPU, Shares), cmp.Or(t.MemoryMiB, 96))
}
