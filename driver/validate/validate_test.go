// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package validate

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func lines(r Report) (all []string) {
	for _, f := range r.Findings {
		all = append(all, f.String())
	}
	return all
}

// inTask wraps a task's body into a job; it starts on line 4.
func inTask(body string) string {
	return "job \"j\" {\n  type = \"batch\"\n  group \"g\" {\n" + body + "\n  }\n}\n"
}

const (
	keys      = "ebbtide_acceptable, ebbtide_adopt, ebbtide_cooldown, ebbtide_duration, ebbtide_goal, ebbtide_gpu_group, ebbtide_gpu_input, ebbtide_gpu_memory, ebbtide_hold, ebbtide_limit, ebbtide_metric, ebbtide_migrate, ebbtide_objective, ebbtide_owner, ebbtide_priority, ebbtide_qoe_target, ebbtide_queue, ebbtide_queue_priority, ebbtide_target_hold, ebbtide_total_epochs, ebbtide_total_steps"
	unchecked = "not checked: this version's parser does not know it, but a newer Nomad may"
)

func TestJobspec(t *testing.T) {
	const saves = "    config {\n      checkpoint {\n        path = \"${NOMAD_ALLOC_DIR}/data/c\"\n      }\n    }\n"
	const moves = "    ephemeral_disk {\n      sticky  = true\n      migrate = true\n    }\n"
	for _, c := range []struct {
		name, spec string
		want       []string
	}{
		{"clean", inTask(`task "t" {
    driver = "ebbtide"
    config {
      command = "x"
    }
  }`), nil},
		{"a preset", inTask(`task "t" {
    driver = "ebbtide"
    config {
      progress {
        preset = "kears"
        metric = "loss"
      }
    }
  }`), []string{`x.hcl:8:9: error: j/g/t: progress.preset: must be one of auto, huggingface, keras, lightning, plain, tqdm, jsonl, got "kears"`}},
		{"an unknown field", inTask(`task "t" {
    driver = "ebbtide"
    config {
      progress {
        goal      = "up"
        metrics   = "x"
        promtheus = "http://localhost"
        labels {
          path = "/"
        }
      }
    }
    meta {
      ebbtide_objective = "1"
    }
  }`), []string{
			`x.hcl:8:9: error: j/g/t: progress.goal: must be "min", "max", or empty to infer it from the metric's name, got "up"`,
			`x.hcl:9:9: error: j/g/t: progress.metrics: unknown field (did you mean "metric"?); allowed are preset, metric, pattern, goal, file, format, tensorboard, prometheus, labels, step, total, quantile, scale`,
			`x.hcl:10:9: error: j/g/t: progress.promtheus: unknown field (did you mean "prometheus"?); allowed are preset, metric, pattern, goal, file, format, tensorboard, prometheus, labels, step, total, quantile, scale`,
		}},
		{"several errors", inTask(`task "t" {
    driver = "ebbtide"
    config {
      progress {
        pattern = "loss=(.*"
        goal    = "up"
        scale   = 0
        labels {
          path = "/"
        }
      }
      target {
        grace = "soon"
      }
      checkpoint {
        path  = "/var/x"
        lease = "soon"
      }
    }
    meta {
      ebbtide_limit = "no"
      ebbtide_gaol  = "min"
    }
  }`), []string{
			`x.hcl:8:9: error: j/g/t: progress.pattern: must be a regular expression (RE2 syntax: no look-around, no back-references): missing closing ): ` + "`loss=(.*`" + `, got "loss=(.*"`,
			`x.hcl:9:9: error: j/g/t: progress.goal: must be "min", "max", or empty to infer it from the metric's name, got "up"`,
			`x.hcl:10:9: error: j/g/t: progress.scale: must be > 0, got 0`,
			`x.hcl:11:9: error: j/g/t: progress.labels: are for progress.prometheus, which is not set, got "1"`,
			`x.hcl:16:9: error: j/g/t: target.grace: must be a duration from 0s to 1h, got "soon"`,
			`x.hcl:19:9: error: j/g/t: checkpoint.path: must be a pattern in the task's directory (${NOMAD_TASK_DIR}/…) or in ${NOMAD_ALLOC_DIR}/data/…, which Nomad moves with the task, got "/var/x"; or set shared = true, if it lies in a volume that is the same on every node`,
			`x.hcl:20:9: error: j/g/t: checkpoint.lease: must be a duration like 90s, got "soon"`,
			`x.hcl:24:7: error: j/g/t: meta.ebbtide_limit: must be "on" or "off", got "no"`,
			`x.hcl:25:7: error: j/g/t: meta.ebbtide_gaol: unknown key; allowed are ` + keys,
		}},
		{"types", inTask(`task "t" {
    driver = "ebbtide"
    config {
      progress {
        scale    = "much"
        quantile = 0.3
      }
      target = "x"
      checkpoint {
        shared = "perhaps"
      }
    }
  }`), []string{
			`x.hcl:8:9: error: j/g/t: progress.scale: must be a number: a number is required, got "much"`,
			`x.hcl:11:7: error: j/g/t: target: must be a block, got "x"`,
			`x.hcl:12:7: error: j/g/t: checkpoint.path: is required`,
			`x.hcl:13:9: error: j/g/t: checkpoint.shared: must be a bool: a bool is required, got "perhaps"`,
		}},
		{"no quotes", inTask(`task "t" {
    driver = "ebbtide"
    config {
      progress {
        metric = loss
      }
    }
  }`), []string{`x.hcl:8:9: error: j/g/t: progress.metric: uses the unknown variable "loss"; a string needs quotes`}},
		{"two blocks", inTask(`task "t" {
    driver = "ebbtide"
    config {
      progress {
      }
      progress {
      }
    }
  }`), []string{`x.hcl:7:7: error: j/g/t: progress: must be one block, got 2`}},
		{"a name that is nearly ours", inTask(`task "t" {
    driver = "ebbtide"
    config {
      progres {
      }
    }
  }`), []string{`x.hcl:7:7: warning: j/g/t: progres: is not a block of Ebbtide (did you mean "progress"?)`}},
		{"another driver", inTask(`task "t" {
    driver = "exec"
    config {
      progress {
      }
    }
    meta {
      ebbtide_goal = "up"
    }
  }`), []string{
			`x.hcl:7:7: warning: j/g/t: progress: is a block of driver ebbtide; the task runs under driver exec`,
			`x.hcl:11:7: warning: j/g/t: meta.ebbtide_goal: has no effect: no task here runs under driver ebbtide (or docker, which it may replace)`,
		}},
		{"docker", inTask(`task "t" {
    driver = "docker"
    config {
      image = "x"
    }
    meta {
      ebbtide_goal = "up"
    }
  }`), []string{`x.hcl:10:7: error: j/g/t: meta.ebbtide_goal: must be "min" or "max", got "up"`}},
		{"docker, plain", inTask("    task \"t\" {\n      driver = \"docker\"\n      config {\n        image = \"x\"\n      }\n    }"), nil},
		{"an objective without a metric", inTask(`task "t" {
    driver = "ebbtide"
    meta {
      ebbtide_objective = "0.1"
    }
  }`), []string{`x.hcl:7:7: error: j/g/t: meta.ebbtide_objective: needs a metric: set meta.ebbtide_metric (or progress.metric or progress.pattern) to the name of the value that is to reach 0.1`}},
		{"meta of the job", `job "j" {
  meta = {
    "ebbtide-objective" = "low"
  }
  group "g" {
    task "a" {
      driver = "ebbtide"
    }
    task "b" {
      driver = "ebbtide"
    }
  }
}`, []string{`x.hcl:3:5: error: j: meta.ebbtide_objective: must be a number, a value of the metric, got "low"`}},
		{"an objective of a service", `job "j" {
  group "g" {
    meta {
      ebbtide_objective = "0.1"
      ebbtide_metric    = "loss"
    }
    task "a" {
      driver = "ebbtide"
    }
  }
}`, []string{`x.hcl:4:7: warning: j/g: meta.ebbtide_objective: Nomad restarts the tasks of a service job whatever their exit status: set type = "batch" in the job`}},
		{"a response time of anything", inTask(`task "t" {
    driver = "ebbtide"
    meta {
      ebbtide_qoe_target = "1s"
    }
  }`), []string{`x.hcl:7:7: warning: j/g/t: meta.ebbtide_qoe_target: without a metric a loss may be taken for the response time: set progress.metric and its source`}},
		{"no output", inTask(`task "t" {
    driver = "ebbtide"
    config {
      progress {
        metric = "loss"
      }
    }
    logs {
      disabled = true
    }
  }`), []string{`x.hcl:12:7: warning: j/g/t: logs: Nomad does not collect the task's output, from which its progress is read: remove disabled, or set progress.file, .tensorboard or .prometheus`}},
		{"no output, without a block", inTask("    task \"t\" {\n      driver = \"ebbtide\"\n      logs {\n        disabled = true\n      }\n    }"),
			[]string{`x.hcl:7:9: warning: j/g/t: logs: Nomad does not collect the task's output, from which its progress is read: remove disabled, or set progress.file, .tensorboard or .prometheus`}},
		{"no output, and none needed", inTask(`task "t" {
    driver = "ebbtide"
    config {
      progress {
        file = "${NOMAD_TASK_DIR}/${attr.x}.csv"
      }
    }
    logs {
      disabled = true
    }
  }`), nil},
		{"a dynamic block in config", inTask(`task "t" {
    driver = "ebbtide"
    config {
      dynamic "progress" {
        for_each = ["loss"]
        content {
          metric = progress.value
        }
      }
    }
  }`), []string{`x.hcl:7:7: error: j/g/t: dynamic: Nomad does not expand dynamic blocks in config, and refuses the task at its start: write out the block`}},
		{"keys of a dispatch", `job "j" {
  type = "batch"
  parameterized {
    meta_required = ["ebbtide_acceptable", "ebbtide_metric"]
    meta_optional = ["lr", "ebbtide_objective", "ebbtide_target_hold", "ebbtide_priority"]
  }
  group "g" {
    task "t" {
      driver = "ebbtide"
      config {
        target {
          signal      = "SIGUSR1"
          stop_signal = "SIGINT"
        }
      }
    }
  }
}`, nil},
		{"misspelt keys of a dispatch", `job "j" {
  type = "batch"
  meta {
    ebbtide_objective = "low"
    ebbtide_goal      = "up"
  }
  parameterized {
    meta_required = ["ebbtide_gaol", "ebbtide_goal"]
    meta_optional = [
      "ebbtide_metric",
      "ebbtide-aceptable",
      "ebbtide_objective"
    ]
  }
  group "g" {
    task "t" {
      driver = "ebbtide"
    }
  }
}`, []string{
			`x.hcl:4:5: error: j: meta.ebbtide_objective: must be a number, a value of the metric, got "low"`,
			`x.hcl:8:22: error: j: meta.ebbtide_gaol: unknown key; allowed are ` + keys,
			`x.hcl:11:7: error: j: meta.ebbtide_aceptable: unknown key; allowed are ` + keys,
		}},
		{"keys of a dispatch for another driver", `job "j" {
  type = "batch"
  parameterized {
    meta_optional = ["ebbtide_goal"]
  }
  group "g" {
    task "t" {
      driver = "exec"
    }
  }
}`, []string{`x.hcl:4:22: warning: j: meta.ebbtide_goal: has no effect: no task here runs under driver ebbtide (or docker, which it may replace)`}},
		{"an empty key", inTask("    task \"t\" {\n      driver = \"ebbtide\"\n      meta {\n        ebbtide_objective = \"\"\n      }\n    }"), nil},
		{"no seat", inTask(`task "t" {
    driver = "ebbtide"
    meta {
      ebbtide_gpu_memory = "1000"
    }
  }
  task "s" {
    driver = "docker"
    meta {
      ebbtide_gpu_memory = "1000"
    }
    resources {
      device "nvidia/share" {}
    }
  }`), []string{`x.hcl:7:7: warning: j/g/t: meta.ebbtide_gpu_memory: has no effect: no task here has a seat on a shared GPU (resources { device "nvidia/share" {} })`}},

		{"moves without a checkpoint", `job "j" {
  type = "batch"
  meta {
    ebbtide_migrate = "true"
  }
  group "g" {
` + moves + `    task "t" {
      driver = "ebbtide"
      config {
        command = "x"
      }
    }
  }
}`, []string{`x.hcl:13:7: warning: j/g/t: config: the shim will not move it (ebbtide_migrate): task t has no checkpoint block in its config`}},
		{"all that keeps it here", `job "j" {
  type = "batch"
  meta {
    ebbtide_migrate = "relocate"
  }
  constraint {
    attribute = "${node.unique.name}"
    value     = "n"
  }
  update {
    canary = 1
  }
  group "g" {
    count          = 2
    shutdown_delay = "5s"
    task "t" {
      driver         = "ebbtide"
      shutdown_delay = "4s"
` + saves + `    }
  }
  group "h" {
` + moves + `    task "t" {
      driver = "ebbtide"
` + saves + `    }
  }
}`, []string{
			`x.hcl:6:3: warning: j: constraint: the shim will not move it (ebbtide_migrate): its job is constrained to a node: ${node.unique.name} = n`,
			`x.hcl:10:3: warning: j: update: the shim will not move it (ebbtide_migrate): its update block has canaries: old and new would run side by side`,
			`x.hcl:13:3: warning: j: group: the shim will not move it (ebbtide_migrate): its batch job has several groups: Nomad would re-run those that complete during the move`,
			`x.hcl:13:3: warning: j/g: ephemeral_disk: the shim will not move it (ebbtide_migrate): group g would lose its disk: set ephemeral_disk { sticky = true, migrate = true }, or save to a volume that is the same on every node (checkpoint { shared = true })`,
			`x.hcl:14:5: warning: j/g: count: the shim will not move it (ebbtide_migrate): group g has a count of 2, must be 1: Nomad would replace all of them`,
			`x.hcl:15:5: warning: j/g: shutdown_delay: the shim will not move it (ebbtide_migrate): group g has a shutdown_delay of 5s, for which it would stay frozen before its end`,
			`x.hcl:18:7: warning: j/g/t: shutdown_delay: the shim will not move it (ebbtide_migrate): task t has a shutdown_delay of 4s, for which it would stay frozen before its end`,
		}},
		{"a periodic job", `job "j" {
  type = "batch"
  meta {
    ebbtide_migrate = "true"
  }
  periodic {
    crons = ["@daily"]
  }
  group "g" {
` + moves + `    task "t" {
      driver = "ebbtide"
` + saves + `    }
  }
}`, []string{`x.hcl:6:3: warning: j: periodic: the shim will not move it (ebbtide_migrate): its job is periodic, and its children cannot be re-registered`}},
		{"a system job", `job "j" {
  type = "system"
  meta {
    ebbtide_migrate = "true"
  }
  group "g" {
` + moves + `    task "t" {
      driver = "ebbtide"
` + saves + `    }
  }
}`, []string{`x.hcl:2:3: warning: j: type: the shim will not move it (ebbtide_migrate): its job's type is "system", must be batch or service`}},
		{"the shim does not look there", inTask(`task "t" {
    driver = "ebbtide"
    meta {
      ebbtide_migrate  = "true"
      ebbtide_cooldown = "1h"
    }
  }`), []string{
			`x.hcl:7:7: warning: j/g/t: meta.ebbtide_migrate: the shim does not read it here: set ebbtide_migrate in the job's own meta`,
			`x.hcl:8:7: warning: j/g/t: meta.ebbtide_cooldown: the shim does not read it here: set ebbtide_cooldown in the job's own meta`,
		}},
		{"the shim does not read it so", `job "j" {
  meta = {
    "ebbtide-migrate" = "true"
  }
  group "g" {
    task "t" {
      driver = "ebbtide"
    }
  }
}`, []string{`x.hcl:3:5: warning: j: meta.ebbtide_migrate: the shim does not read it here: set ebbtide_migrate in the job's own meta`}},
		{"it does not wait", `job "j" {
  meta {
    ebbtide_hold = "true"
  }
  group "g" {
    task "t" {
      driver = "ebbtide"
    }
  }
}`, []string{`x.hcl:3:5: warning: j: meta.ebbtide_hold: the job is not held: it also needs constraint { attribute = "${meta.ebbtide_hold}", value = "released" }`}},
		{"it waits forever", `job "j" {
  constraint {
    attribute = "${meta.ebbtide_hold}"
    value     = "released"
  }
  group "g" {
    task "t" {
      driver = "ebbtide"
    }
  }
}`, []string{`x.hcl:2:3: warning: j: constraint: it is held indefinitely: the shim does not read the job; set ebbtide_hold = "true" in the job's own meta`}},

		{"an endpoint elsewhere", inTask(`network {
    port "http" {}
  }
  task "t" {
    driver = "ebbtide"
    config {
      progress {
        prometheus = "http://example.com/metrics"
        metric     = "loss"
      }
    }
  }
  task "u" {
    driver = "ebbtide"
    config {
      progress {
        prometheus = "http://localhost:9090/metrics"
        metric     = "loss"
      }
    }
  }
  task "v" {
    driver = "ebbtide"
    config {
      progress {
        prometheus = "http://${NOMAD_ADDR_web}/metrics"
        metric     = "loss"
      }
    }
  }`), []string{
			`x.hcl:11:9: error: j/g/t: progress.prometheus: the host must be localhost or an IP address, since names are not looked up, got "example.com"`,
			`x.hcl:20:9: error: j/g/u: progress.prometheus: in the host's network it must be a port that Nomad has given this allocation; it has localhost:20000, got "localhost:9090"`,
			`x.hcl:29:9: warning: j/g/v: progress.prometheus: the group has no port "web"; it has http`,
		}},
		{"the private directory", inTask(`task ".ebbtide" {
    driver = "ebbtide"
  }
  task "t" {
    driver = "ebbtide"
    config {
      image   = "x"
      volumes = ["../.ebbtide:/x", "local:/y"]
      mount {
        type   = "bind"
        source = ".."
        target = "/x"
      }
    }
  }`), []string{
			`x.hcl:4:1: error: j/g/.ebbtide: task ".ebbtide": a task cannot have this name: it would give the task the allocation's private directory`,
			`x.hcl:11:18: error: j/g/t: volumes: mounting "../.ebbtide" would expose the allocation's private directory, .ebbtide`,
			`x.hcl:14:9: error: j/g/t: mount: mounting ".." would expose the allocation's private directory, .ebbtide`,
		}},

		{"what is known on the node only", inTask(`task "t" {
    driver = "ebbtide"
    config {
      progress {
        metric = "${attr.metric}"
        preset = "x"
      }
      target {
        signal = "SIGUSR1"
      }
    }
    meta {
      ebbtide_objective   = "0.1"
      ebbtide_acceptable  = "${meta.acceptable}"
      ebbtide_limit       = "${meta.limit}"
      ebbtide_target_hold = "0"
      ebbtide_priority    = "0"
    }
  }`), []string{
			`x.hcl:9:9: error: j/g/t: progress.preset: must be one of auto, huggingface, keras, lightning, plain, tqdm, jsonl, got "x"`,
			`x.hcl:20:7: error: j/g/t: meta.ebbtide_priority: must be from 1 to 100, got "0"`,
		}},
		{"a dynamic block", `job "j" {
  type = "batch"
  dynamic "group" {
    for_each = ["a", "b"]
    labels   = [group.value]
    content {
      task "t" {
        driver = "ebbtide"
        config {
          progress {
            goal = "up"
          }
        }
      }
    }
  }
}`, []string{
			`x.hcl:11:13: error: j/a/t: progress.goal: must be "min", "max", or empty to infer it from the metric's name, got "up"`,
			`x.hcl:11:13: error: j/b/t: progress.goal: must be "min", "max", or empty to infer it from the metric's name, got "up"`,
		}},
		{"syntax", "job \"j\" {\n  type = \n}\n", []string{`x.hcl:2:10: error: Invalid expression; Expected the start of an expression, but found an invalid expression token.`}},
		{"no such field", "job \"j\" {\n  tipe = \"batch\"\n  group \"g\" {\n  kount = 1\n  }\n}\n", []string{
			`x.hcl:2:3: note: tipe: ` + unchecked + `; did you mean "type"? (with -address an agent is asked)`,
			`x.hcl:4:3: note: kount: ` + unchecked + `; did you mean "count"? (with -address an agent is asked)`,
		}},
		{"no value", "variable \"x\" {}\njob \"j\" {\n  type = var.x\n}\n", []string{
			`x.hcl:1:1: error: Unset variable "x"; A used variable must be set or have a default value; see https://developer.hashicorp.com/nomad/docs/reference/hcl2/variables for details.`,
		}},
		{"nothing", "", []string{`x.hcl:1:1: error: Missing job block; A job block is required`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			must.Eq(t, c.want, lines(Jobspec("x.hcl", []byte(c.spec), Options{})))
		})
	}
}

// JSON in HCL's and in the API's form.
func TestJobspec_JSON(t *testing.T) {
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"HCL": {`{
  "job": {
    "j": {
      "type": "batch",
      "group": {
        "g": {
          "task": {
            "t": {
              "driver": "ebbtide",
              "config": {
                "progress": [{
                  "goal": "up"
                }]
              },
              "meta": {
                "ebbtide_limit": "no"
              }
            }
          }
        }
      }
    }
  }
}`, []string{
			`x.json:12:19: error: j/g/t: progress.goal: must be "min", "max", or empty to infer it from the metric's name, got "up"`,
			`x.json:16:17: error: j/g/t: meta.ebbtide_limit: must be "on" or "off", got "no"`,
		}},
		"API": {`{
  "Job": {
    "ID": "j",
    "Type": "batch",
    "Meta": {"ebbtide_migrate": "true"},
    "TaskGroups": [
      {"Name": "f", "Tasks": []},
      {"Name": "g",
       "ShutdownDelay": 5000000000,
       "EphemeralDisk": {"Sticky": true, "Migrate": true},
       "Tasks": [{
        "Name": "t", "Driver": "ebbtide",
        "Config": {
          "progress": [{
            "goal": "up"}],
          "checkpoint": [{"path": "${NOMAD_TASK_DIR}/x"}]
        }
      }]
    }]
  }
}`, []string{
			`x.json:7:7: warning: j: group: the shim will not move it (ebbtide_migrate): its batch job has several groups: Nomad would re-run those that complete during the move`,
			`x.json:9:8: warning: j/g: shutdown_delay: the shim will not move it (ebbtide_migrate): group g has a shutdown_delay of 5s, for which it would stay frozen before its end`,
			`x.json:15:13: error: j/g/t: progress.goal: must be "min", "max", or empty to infer it from the metric's name, got "up"`,
		}},
		"without a wrapper": {`{"ID": "j", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "ebbtide",
			"Meta": {"ebbtide_limit": "no"}}]}]}`, []string{`x.json:2:13: error: j/g/t: meta.ebbtide_limit: must be "on" or "off", got "no"`}},
		"a hole": {`{"Job": {"TaskGroups": [null]}}`, []string{`x.json:1:1: error: is not valid JSON: the job or a list element is null`}},
		"syntax": {"{\n  \"Job\": {]\n}", []string{`x.json:2:11: error: is not valid JSON: invalid character ']' looking for beginning of object key string`}},
		"a type": {"{\"Job\": {\n  \"ID\": 7}}", []string{`x.json:2:9: error: is not valid JSON: json: cannot unmarshal number into Go struct field Job.Job.ID of type string`}},
		"cut":    {`{"Job": {`, []string{`x.json:1:9: error: is not valid JSON: unexpected end of JSON input`}},
	} {
		t.Run(name, func(t *testing.T) {
			must.Eq(t, c.want, lines(Jobspec("x.json", []byte(c.spec), Options{})))
		})
	}
}

func TestJobspec_variables(t *testing.T) {
	const spec = `variable "goal" {}
job "j" {
  type = "batch"
  group "g" {
    task "t" {
      driver = "ebbtide"
      config {
        progress {
          goal = var.goal
        }
      }
    }
  }
}`
	wrong := []string{`x.hcl:9:11: error: j/g/t: progress.goal: must be "min", "max", or empty to infer it from the metric's name, got "up"`}
	must.Eq(t, wrong, lines(Jobspec("x.hcl", []byte(spec), Options{Vars: []string{"goal=up"}})))
	must.Eq(t, wrong, lines(Jobspec("x.hcl", []byte(spec), Options{Env: []string{"NOMAD_VAR_goal=up"}})))
	path := filepath.Join(t.TempDir(), "vars.hcl")
	must.NoError(t, os.WriteFile(path, []byte("goal = \"up\"\n"), 0o644))
	must.Eq(t, wrong, lines(Jobspec("x.hcl", []byte(spec), Options{VarFiles: []string{path}})))
	must.SliceEmpty(t, lines(Jobspec("x.hcl", []byte(spec), Options{Vars: []string{"goal=min"}})))
	must.Len(t, 1, lines(Jobspec("x.hcl", []byte(spec), Options{Vars: []string{"goal=min", "gaol=min"}})))
}

func TestJobspec_plan(t *testing.T) {
	r := Jobspec("x.hcl", []byte(`job "j" {
  type = "batch"
  meta {
    ebbtide_migrate = "relocate"
  }
  group "g" {
    ephemeral_disk {
      sticky  = true
      migrate = true
    }
    task "t" {
      driver = "ebbtide"
      config {
        progress {
          metric = "val_loss"
        }
        checkpoint {
          path = "${NOMAD_ALLOC_DIR}/data/c"
        }
      }
      meta {
        ebbtide_acceptable = "0.3"
        ebbtide_objective  = "0.2"
      }
    }
  }
}`), Options{})
	must.SliceEmpty(t, r.Findings)
	must.Len(t, 1, r.Tasks)
	must.Eq(t, []string{
		"progress: reads val_loss (min) from its output",
		"cpu: a training task; yields CPU from 0.3 on when the node is full; complete at 0.2",
		"moves: by the shim (relocate) and by ebbtide move",
	}, r.Tasks[0].Actions)
	var out strings.Builder
	must.NoError(t, Write(&out, []Report{r}))
	must.StrContains(t, out.String(), "x.hcl: j/g/t\n  progress: reads val_loss")
	must.StrHasSuffix(t, "0 errors, 0 warnings in 1 file\n", out.String())
}

// Ebbtide's example jobs have no findings.
func TestJobspecs(t *testing.T) {
	files, err := filepath.Glob("../../jobspecs/*.hcl")
	must.NoError(t, err)
	must.SliceNotEmpty(t, files)
	for _, name := range files {
		body, err := os.ReadFile(name)
		must.NoError(t, err)
		must.SliceEmpty(t, lines(Jobspec(name, body, Options{})))
	}
}

func FuzzJobspec(f *testing.F) {
	f.Add([]byte(inTask("task \"t\" {\n driver = \"ebbtide\"\n config {\n progress {\n metric = \"${x}\"\n}\n}\n}")))
	f.Add([]byte(`{"Job": {"ID": "j", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "ebbtide", "Config": {"progress": [{"goal": "${x"}]}}]}]}}`))
	f.Add([]byte(newer))
	f.Add([]byte(`{"job": {"j": {"x": {"a": [1]}, "y": 2, "group": {"g": {"z": null}}}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r := Jobspec("x.hcl", body, Options{Parse: func(string, string) (string, error) { return "", nil }})
		must.NoError(t, Write(io.Discard, []Report{r}))
	})
}

func FuzzPlaces(f *testing.F) {
	f.Add([]byte(`{"Job": {"TaskGroups": [null, {"Name": "x"}]}}`))
	f.Add([]byte("job \"x\" {\n  a = [{b = 1}]\n}"))
	f.Fuzz(func(t *testing.T, body []byte) {
		p := positionsOf(body)
		must.NotNil(t, p)
		must.NotNil(t, scope{places: []*position{nil, p}}.find("job", "group"))
	})
}
