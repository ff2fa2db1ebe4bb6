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

// CurveFile is the trainer's record: with a leading slash in tasks, and below the allocation's
// directory.
const CurveFile = "alloc/data/curve.csv"

// Shares is a task's default CPU in MHz. All tasks of a run request the same.
const Shares = 100

// NodeMHz is the total of jobs with their own node: less than two slow cores have, and enough
// relative to other load.
const NodeMHz = 2400

type Task struct {
	Name string
	// Args are the trainer's; Image is for containers.
	Args  []string
	Image string
	// Config is the config block's body; "" runs the trainer.
	Config string
	// Progress and Target are the blocks' bodies; "" for none.
	Progress, Target string
	Meta, Env        map[string]string
	CPU              int // MHz; 0 for Shares
	MemoryMiB        int
	// Moves means that the trainer saves on request and resumes, so it can be moved.
	Moves bool
}

// checkpoint is the state of a movable task.
const checkpoint = "/alloc/data/model.ckpt"

// Jobspec returns a batch job of one group. With network it has a port named http.
func Jobspec(id string, network bool, tasks ...Task) string {
	return JobspecWith(id, network, "", tasks...)
}

// JobspecWith adds body to the job block.
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
