// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package validate

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// newer is a job for a newer Nomad than the linked parser's. What is ours stays strict.
const newer = `variable "limit" {}
job "j" {
  type = "batch"
  group "g" {
    max_walk_duration = var.limit
    queue "fifo" {
      priority = 3 // }
    }
    dynamic "gang" {
      for_each = [1, 2]
      content {
        size = gang.value
      }
    }
    task "t" {
      driver = "ebbtide"
      config {
        progress {
          metrics = "loss"
        }
      }
      meta {
        ebbtide_gaol = "min"
      }
      template {
        data        = "x"
        destination = "local/x"
        note        = <<EOT
a }
EOT
        change_script {
          command             = "/bin/true"
          run_on_every_render = true
        }
        splay = "1s" # a
      }
    }
  }
}
`

func TestJobspec_newer(t *testing.T) {
	ours := []string{
		`x.hcl:19:11: error: j/g/t: progress.metrics: unknown field (did you mean "metric"?); allowed are preset, metric, pattern, goal, file, format, tensorboard, prometheus, labels, step, total, quantile, scale`,
		`x.hcl:23:9: error: j/g/t: meta.ebbtide_gaol: unknown key; allowed are ` + keys,
	}
	note := func(place, field, why string) string {
		return "x.hcl:" + place + ": note: " + field + ": " + unchecked + " (" + why + ")"
	}
	with := func(why string) []string {
		return []string{
			note("5:5", "max_walk_duration", why), note("6:5", "queue", why), note("9:13", "gang", why), ours[0], ours[1],
			note("28:9", "note", why), note("33:11", "run_on_every_render", why),
		}
	}
	o := Options{Vars: []string{"limit=1h"}}
	run := func() []string { return lines(Jobspec("x.hcl", []byte(newer), o)) }
	must.Eq(t, with("with -address an agent is asked"), run())
}

// With an agent its parser decides.
func TestJobspec_agent(t *testing.T) {
	const spec = `variables {
  limit = "1m"
}
variable "sizes" {
  type = list(number)
}
variable "name" {}
variable "other" {
  default = "x"
}
job "j" {
  contraint {}
  group "g" {
    max_walk_duration = var.limit
  }
}
`
	file := filepath.Join(t.TempDir(), "x.vars")
	must.NoError(t, os.WriteFile(file, []byte("limit = \"1h\"\nname = \"from a file\"\n"), 0o644))
	job, vars := "", ""
	run := func(problems string, err error) []string {
		return lines(Jobspec("x.hcl", []byte(spec), Options{
			Env: []string{"NOMAD_VAR_limit=2h", "NOMAD_VAR_name=environment", "NOMAD_VAR_undeclared=1", "NOMAD_ADDR=x"}, VarFiles: []string{file},
			Vars: []string{"sizes=[1, 2]", `name=say "${x}"`},
			Parse: func(j, v string) (string, error) {
				job, vars = j, v
				return problems, err
			},
		}))
	}
	const known = `input.hcl:12,3-12: Unsupported block type; Blocks of type "contraint" are not expected here. Did you mean "constraint"?`
	must.SliceEmpty(t, run("", nil))
	must.Eq(t, spec, job)
	must.Eq(t, "limit = \"1h\"\nname  = \"say \\\"$${x}\\\"\"\nsizes = [1, 2]\n", sortedLines(vars))
	must.Eq(t, []string{`x.hcl:12:3: error: Unsupported block type; Blocks of type "contraint" are not expected here. Did you mean "constraint"?`}, run(known, nil))

	notes := func(why string) []string {
		return []string{
			`x.hcl:12:3: note: contraint: ` + unchecked + `; did you mean "constraint"? (` + why + `)`,
			`x.hcl:14:5: note: max_walk_duration: ` + unchecked + ` (` + why + `)`,
		}
	}
	must.Eq(t, notes("the agent was not asked: connection refused"), run("", errors.New("connection refused")))
	must.Eq(t, notes(`the agent cannot parse the job: Unset variable "yyyy"; Set it`), run(`input.hcl:1,1-2: Unset variable "yyyy"; Set it`, nil))
}

func sortedLines(text string) string {
	all := strings.SplitAfter(text, "\n")
	slices.Sort(all)
	return strings.Join(all, "")
}

// A known block or attribute in the other's form is no matter of the version.
func TestJobspec_form(t *testing.T) {
	for spec, want := range map[string]string{
		"job \"j\" {\n  update = 1\n}":                            `x.hcl:2:3: error: Unsupported argument; An argument named "update" is not expected here. Did you mean to define a block of type "update"?`,
		"job \"j\" {\n  priority {}\n}":                           `x.hcl:2:3: error: Unsupported block type; Blocks of type "priority" are not expected here. Did you mean to define argument "priority"? If so, use the equals sign to assign it a value.`,
		"resource \"a\" {\n  b = 1\n}":                            "x.hcl:1:1: error: Missing job block; A job block is required",
		`{"job": {"j": {"x": {"a": [1]}, "yyyy": 2, "zzzz": 3}}}`: "",
	} {
		r := Jobspec("x.hcl", []byte(spec), Options{})
		errs := slices.DeleteFunc(r.Findings, func(f Finding) bool { return f.Severity == Note })
		must.Eq(t, want != "", len(errs) == 1, must.Sprint(spec))
		if want != "" {
			must.Eq(t, want, errs[0].String())
		}
	}
}

func TestJobspec_newerJSON(t *testing.T) {
	const spec = `{
  "job": {
    "j": {
      "aaaa": {"b": [1, {"c": "}"}]},
      "type": "batch",
      "group": {
        "g": {
          "max_walk_duration": "1h" ,
          "task": {
            "t": {
              "driver": "ebbtide",
              "meta": {"ebbtide_limit": "no"},
              "zzzz": 1
            }
          }
        }
      },
      "yyyy": null, "zzzz": 2
    }
  }
}`
	why := ": " + unchecked + " (with -address an agent is asked)"
	must.Eq(t, []string{
		"x.json:4:7: note: aaaa" + why, "x.json:8:11: note: max_walk_duration" + why,
		`x.json:12:24: error: j/g/t: meta.ebbtide_limit: must be "on" or "off", got "no"`, "x.json:13:15: note: zzzz" + why,
		"x.json:18:7: note: yyyy" + why, "x.json:18:21: note: zzzz" + why,
	}, lines(Jobspec("x.json", []byte(spec), Options{})))
}
