// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// mistaken makes every mistake that docs/jobs.md lists.
const mistaken = `
job "a" {
  type = "service"
  meta {
    ebbtide_migrate = "true"
  }
  group "g" {
    task "typos" {
      driver = "ebbtide"
      config {
        image = "train:3"
        progress {
          preset = "hf"
        }
      }
      meta {
        ebbtide_objectiv   = "0.95"
        ebbtide_acceptable = "0.9"
      }
    }
    task "service" {
      driver = "ebbtide"
      config {
        image = "train:3"
        progress {
          metric = "accuracy"
        }
      }
      meta {
        ebbtide_objective  = "0.95"
        ebbtide_cooldown   = "1h"
        ebbtide_gpu_memory = "8192"
      }
    }
  }
}
`

// docs/jobs.md shows the actual output of ebbtide validate.
func TestJobsPage(t *testing.T) {
	data, err := os.ReadFile("../docs/jobs.md")
	must.NoError(t, err)
	page := string(data)
	t.Chdir(t.TempDir())
	status := 0
	run := func(job string, options ...string) string {
		must.NoError(t, os.WriteFile("train.nomad.hcl", []byte(job), 0o600))
		var out, errs bytes.Buffer
		status = Run(append(append([]string{"validate"}, options...), "train.nomad.hcl"), strings.NewReader(""), &out, &errs)
		return out.String() + errs.String()
	}

	job := regexp.MustCompile("(?s)```hcl\n(job .*?)```").FindStringSubmatch(page)
	must.SliceNotEmpty(t, job)
	shown := regexp.MustCompile(`(?m)^ +\$ ebbtide validate train\.nomad\.hcl\n((?: .+\n)+)`).FindStringSubmatch(page)
	must.SliceNotEmpty(t, shown)
	must.Eq(t, strings.ReplaceAll("\n"+shown[1], "\n       ", "\n"), "\n"+run(job[1]))

	hook := regexp.MustCompile(`(?m)^ +entry: ebbtide validate (.+)`).FindStringSubmatch(page)
	must.SliceNotEmpty(t, hook)
	run(job[1], strings.Fields(hook[1])...)
	must.Eq(t, exitOK, status)
	run(mistaken, strings.Fields(hook[1])...)
	must.Eq(t, exitError, status)

	_, mistakes, ok := strings.Cut(page, "## Frequent mistakes\n")
	must.True(t, ok)
	found := strings.Split(run(mistaken), "\n")
	rows := regexp.MustCompile("(?m)^\\| `(.*?)` \\|").FindAllStringSubmatch(mistakes, -1)
	must.SliceNotEmpty(t, rows)
	for _, row := range rows {
		begin, _, _ := strings.Cut(row[1], "…")
		test.True(t, slices.ContainsFunc(found, func(line string) bool { return strings.Contains(line, strings.TrimSpace(begin)) }),
			test.Sprintf("ebbtide validate does not say %q:\n%s", row[1], strings.Join(found, "\n")))
	}
}
