// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

const trainJob = `variable "goal" {
  default = "min"
}
job "j" {
  type = "batch"
  group "g" {
    task "train" {
      driver = "ebbtide"
      config {
        progress {
          metric = "loss"
          goal   = var.goal
          scale  = 10
        }
      }
    }
    task "table" {
      driver = "ebbtide"
      config {
        progress {
          file   = "${NOMAD_TASK_DIR}/m.csv"
          metric = "loss"
        }
      }
    }
    task "board" {
      driver = "ebbtide"
      config {
        progress {
          tensorboard = "${NOMAD_TASK_DIR}/runs"
        }
      }
    }
  }
}
`

// inDir creates files in a directory and changes to it.
func inDir(t *testing.T, files map[string]string) {
	t.Chdir(t.TempDir())
	for name, text := range files {
		must.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		must.NoError(t, os.WriteFile(name, []byte(text), 0o644))
	}
}

func TestValidate(t *testing.T) {
	const goal = `error: j/g/train: progress.goal: must be "min", "max", or empty to infer it from the metric's name, got "up"`
	inDir(t, map[string]string{
		"j.hcl":       trainJob,
		"bad.hcl":     "job \"b\" {\n  type = \n}\n",
		"newer.hcl":   "job \"n\" {\n  tipe = 1\n}\n",
		"warn.hcl":    "job \"w\" {\n  meta {\n    ebbtide_goal = \"min\"\n  }\n}\n",
		"up.vars":     "goal = \"up\"\n",
		"d/train.log": "step=1 loss=0.5\nstep=2 loss=0.25\n",
		"d/m.csv":     "step,loss\n1,0.5\n",
		"empty.log":   "",
	})
	const plans = "j.hcl: j/g/train\n  progress: reads loss (min) from its output\n  cpu: a training task\n  moves: none, as no task has a checkpoint block\n" +
		"j.hcl: j/g/table\n  progress: reads loss (min) from the file /local/m.csv\n  cpu: a training task\n  moves: none, as no task has a checkpoint block\n" +
		"j.hcl: j/g/board\n  progress: reads the training loss, or the closest metric, from TensorBoard's files in /local/runs\n  cpu: a training task\n  moves: none, as no task has a checkpoint block\n" +
		"0 errors, 0 warnings in 1 file\n"
	const warning = "warn.hcl:3:5: warning: w: meta.ebbtide_goal: has no effect: no task here runs under driver ebbtide (or docker, which it may replace)\n" +
		"warn.hcl: no task runs under Ebbtide\n0 errors, 1 warning in 1 file\n"
	const newer = "newer.hcl:2:3: note: tipe: not checked: this version's parser does not know it, but a newer Nomad may; did you mean \"type\"? (with -address an agent is asked)\n" +
		"newer.hcl: no task runs under Ebbtide\n0 errors, 0 warnings in 1 file\n"
	t.Setenv("NOMAD_ADDR", "")
	for _, c := range []struct {
		name   string
		args   []string
		in     string
		status int
		out    string
		err    string // contained
	}{
		{"clean", []string{"j.hcl"}, "", exitOK, plans, ""},
		{"a variable", []string{"-var", "goal=up", "j.hcl"}, "", exitError, "j.hcl:12:11: " + goal + "\n1 error, 0 warnings in 1 file\n", ""},
		{"a file of variables", []string{"-var-file", "up.vars", "j.hcl"}, "", exitError, "j.hcl:12:11: " + goal + "\n1 error, 0 warnings in 1 file\n", ""},
		{"standard input", []string{"-var=goal=up", "-"}, trainJob, exitError, "<stdin>:12:11: " + goal + "\n1 error, 0 warnings in 1 file\n", ""},
		{"several", []string{"bad.hcl", "warn.hcl"}, "", exitError, "bad.hcl:2:10: error: Invalid expression; Expected the start of an expression, but found an invalid expression token.\n" +
			"warn.hcl:3:5: warning: w: meta.ebbtide_goal: has no effect: no task here runs under driver ebbtide (or docker, which it may replace)\n" +
			"warn.hcl: no task runs under Ebbtide\n1 error, 1 warning in 2 files\n", ""},
		{"newer than the parser", []string{"-strict", "newer.hcl"}, "", exitOK, newer, ""},
		{"a bad address", []string{"-address=x", "newer.hcl"}, "", exitUsage, "", "the address of Nomad's API must be a URL like"},
		{"a warning", []string{"warn.hcl"}, "", exitOK, warning, ""},
		{"strict", []string{"-strict", "warn.hcl"}, "", exitError, warning, ""},

		{"a log", []string{"-log", "d/train.log", "-task", "train", "j.hcl"}, "", exitOK, plans +
			`{"step":1,"total_steps":null,"value":5,"metric":"loss","line":1}` + "\n" +
			`{"step":2,"total_steps":null,"value":2.5,"metric":"loss","line":2}` + "\n", "2 reports in 2 lines"},
		{"a log on standard input", []string{"-log=-", "-task=j/g/train", "j.hcl"}, "acc=1\n", exitError, plans, "  progress.metric with one of: acc (1)"},
		{"an empty log", []string{"-log=empty.log", "-task=train", "j.hcl"}, "", exitError, plans, "  the sample is empty"},
		{"a table", []string{"-log", "d/m.csv", "-task", "table", "j.hcl"}, "", exitOK, plans +
			`{"step":1,"total_steps":null,"value":0.5,"metric":"loss","line":2}` + "\n", "1 report in 2 lines"},
		{"TensorBoard", []string{"-log", "d/m.csv", "-task", "board", "j.hcl"}, "", exitUsage, plans, "is read from TensorBoard's files in /local/runs, not from a log"},
		{"which task", []string{"-log", "d/train.log", "j.hcl"}, "", exitUsage, plans, "-log requires -task: one of j/g/train, j/g/table, j/g/board"},
		{"no such task", []string{"-log", "d/train.log", "-task", "x", "j.hcl"}, "", exitUsage, plans, `-task: must be one of j/g/train, j/g/table, j/g/board, got "x"`},
		{"a log of a job with errors", []string{"-log", "d/train.log", "bad.hcl"}, "", exitError,
			"bad.hcl:2:10: error: Invalid expression; Expected the start of an expression, but found an invalid expression token.\n1 error, 0 warnings in 1 file\n", ""},
		{"no such log", []string{"-log", "none.log", "-task", "train", "j.hcl"}, "", exitUsage, plans, "opening the sample: open none.log: no such file"},

		{"no file", []string{"none.hcl"}, "", exitUsage, "", "reading the jobspec: open none.hcl: no such file"},
		{"no file of variables", []string{"-var-file=none", "j.hcl"}, "", exitUsage, "", "reading the variables: open none"},
		{"no name", nil, "", exitUsage, "", "must have at least one jobspec"},
		{"no value", []string{"-var", "goal", "j.hcl"}, "", exitUsage, "", "must be NAME=VALUE"},
		{"an unknown option", []string{"-vars", "x", "j.hcl"}, "", exitUsage, "", "allowed are -address, -ca-cert, -client-cert, -client-key, -json, -log, -region, -strict, -task, -tls-server-name, -token, -var, -var-file"},
		{"a log of two", []string{"-log=x", "j.hcl", "warn.hcl"}, "", exitUsage, "", "-log: allowed with one jobspec, got 2"},
		{"a log as JSON", []string{"-log=x", "-json", "j.hcl"}, "", exitUsage, "", "-log and -json"},
		{"a task of nothing", []string{"-task=x", "j.hcl"}, "", exitUsage, "", "-task: must be used with -log"},
		{"twice standard input", []string{"-log=-", "-"}, "", exitUsage, "", "cannot both be standard input"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, out, errs := ebbtide(c.in, append([]string{"validate"}, c.args...)...)
			must.Eq(t, c.status, status, must.Sprint(out, errs))
			must.Eq(t, c.out, out)
			must.StrContains(t, errs, c.err)
			if c.err == "" {
				must.Eq(t, "", errs)
			}
		})
	}
}

func TestValidate_agent(t *testing.T) {
	inDir(t, map[string]string{"newer.hcl": "variable \"x\" {}\njob \"n\" {\n  tipe = var.x\n}\n"})
	answer := func(w http.ResponseWriter) {}
	var asked api.JobsParseRequest
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		must.Eq(t, "/v1/jobs/parse", r.URL.Path)
		must.NoError(t, json.NewDecoder(r.Body).Decode(&asked))
		answer(w)
	}))
	defer agent.Close()
	t.Setenv("NOMAD_ADDR", agent.URL)
	for _, c := range []struct {
		answer func(http.ResponseWriter)
		status int
		out    string
	}{
		{func(w http.ResponseWriter) { _, _ = w.Write([]byte("{}")) }, exitOK, ""},
		{func(w http.ResponseWriter) {
			http.Error(w, `Failed to parse job: input.hcl:3,3-7: Unsupported argument; An argument named "tipe" is not expected here.`, http.StatusBadRequest)
		}, exitError, `newer.hcl:3:3: error: Unsupported argument; An argument named "tipe" is not expected here.` + "\n"},
		{func(w http.ResponseWriter) { http.Error(w, "Permission denied", http.StatusForbidden) }, exitOK,
			`newer.hcl:3:3: note: tipe: not checked: this version's parser does not know it, but a newer Nomad may; did you mean "type"? (the agent was not asked: Unexpected response code: 403 (Permission denied))` + "\n"},
	} {
		answer = c.answer
		status, out, errs := ebbtide("", "validate", "-var=x=1", "newer.hcl")
		must.Eq(t, c.status, status)
		must.Eq(t, "", errs)
		must.StrHasPrefix(t, c.out, out)
		must.Eq(t, strings.Count(c.out, "\n"), strings.Count(out, "newer.hcl:3:"))
	}
	must.Eq(t, "x = \"1\"\n", asked.Variables)
}

func TestValidate_JSON(t *testing.T) {
	inDir(t, map[string]string{"j.hcl": trainJob})
	status, out, _ := ebbtide("", "validate", "-json", "-var=goal=up", "j.hcl")
	must.Eq(t, exitError, status)
	var got struct {
		Files []struct {
			File     string
			Findings []map[string]any
			Tasks    []any
		}
		Counts map[string]int
	}
	must.NoError(t, json.Unmarshal([]byte(out), &got))
	must.Eq(t, map[string]int{"files": 1, "errors": 1, "warnings": 0}, got.Counts)
	must.Eq(t, []map[string]any{{
		"file": "j.hcl", "line": 12.0, "column": 11.0, "severity": "error", "at": "j/g/train", "field": "progress.goal",
		"problem": `must be "min", "max", or empty to infer it from the metric's name, got "up"`,
	}}, got.Files[0].Findings)
	must.NotNil(t, got.Files[0].Tasks)
}
