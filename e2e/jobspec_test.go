// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/e2e/harness"
)

// testBadJobspecs: events name the invalid field, value and allowed values, and no task starts.
func testBadJobspecs(t *testing.T, c *cluster) {
	for i, tc := range []struct {
		name        string
		config      string
		meta        map[string]string
		want        []string
		hostNetwork bool // rejected in the host's network only
	}{
		{name: "unknown option in progress", config: `progress { metrik = "loss" }`, want: []string{"metrik"}},
		{name: "unknown option of the driver", config: `cpu_hard_limits = true`, want: []string{"cpu_hard_limits"}},
		{name: "unknown preset", config: `progress { preset = "tenorflow" }`, want: []string{"progress.preset", "tenorflow", "auto", "keras"}},
		{name: "bad regular expression", config: `progress { pattern = "loss=(?P<value>[0-9" }`, want: []string{"progress.pattern", "missing closing ]"}},
		{name: "missing group", config: `progress { pattern = "loss=([0-9.]+)" }`, want: []string{"progress.pattern", "value", "loss=([0-9.]+)"}},
		{name: "unknown goal", config: `progress { goal = "down" }`, want: []string{"progress.goal", "down", "min", "max"}},
		{name: "every error at once", config: `progress {
 preset = "x"
 goal = "y"
}`, want: []string{"progress.preset", "progress.goal"}},
		{name: "misspelt meta", meta: map[string]string{"ebbtide_gaol": "min"}, want: []string{"meta.ebbtide_gaol", "ebbtide_goal", "allowed"}},
		{name: "bad meta value", meta: map[string]string{"ebbtide_limit": "never"}, want: []string{"meta.ebbtide_limit", "never", "on", "off"}},
		{name: "contradiction", config: `progress { goal = "min" }`, meta: map[string]string{"ebbtide_goal": "max"}, want: []string{"ebbtide_goal", "progress.goal"}},
		{name: "unknown direction", meta: map[string]string{"ebbtide_goal": "up", "ebbtide_objective": "1"}, want: []string{"meta.ebbtide_goal", `"up"`, "min", "max"}},
		{name: "targets that are no numbers", meta: map[string]string{"ebbtide_acceptable": "good", "ebbtide_objective": "NaN"},
			want: []string{"meta.ebbtide_acceptable", `"good"`, "meta.ebbtide_objective", `"NaN"`, "must be a number"}},
		{name: "target of no metric", meta: map[string]string{"ebbtide_objective": "0.95"}, want: []string{"meta.ebbtide_objective", "needs a metric", "ebbtide_metric", "0.95"}},
		{name: "target of no direction", config: `progress { metric = "hv" }`, meta: map[string]string{"ebbtide_acceptable": "0.9"},
			want: []string{"meta.ebbtide_acceptable", "needs a direction", "hv", "ebbtide_goal"}},
		{name: "objective easier than acceptable", meta: map[string]string{"ebbtide_metric": "hv", "ebbtide_goal": "min", "ebbtide_acceptable": "0.2", "ebbtide_objective": "0.3"},
			want: []string{"meta.ebbtide_objective", "0.2", "0.3", "min"}},
		{name: "objective easier by the metric's name", meta: map[string]string{"ebbtide_metric": "accuracy", "ebbtide_acceptable": "0.9", "ebbtide_objective": "0.8"},
			want: []string{"meta.ebbtide_objective", "0.9", "0.8", "max"}},
		{name: "hold of nothing", meta: map[string]string{"ebbtide_target_hold": "3"}, want: []string{"meta.ebbtide_target_hold", "neither is set"}},
		{name: "bad hold", meta: map[string]string{"ebbtide_target_hold": "0", "ebbtide_objective": "1"}, want: []string{"meta.ebbtide_target_hold", "from 1 to 1000", `"0"`}},
		{name: "response time of 0", meta: map[string]string{"ebbtide_qoe_target": "0"}, want: []string{"meta.ebbtide_qoe_target", "> 0", `"0"`}},
		{name: "response time that is none", meta: map[string]string{"ebbtide_qoe_target": "fast"}, want: []string{"meta.ebbtide_qoe_target", `"fast"`, "250ms"}},
		{name: "both kinds", meta: map[string]string{"ebbtide_qoe_target": "1", "ebbtide_acceptable": "0.5"}, want: []string{"meta.ebbtide_qoe_target", "ebbtide_acceptable", "service or a training job"}},
		{name: "unknown signal", config: `target {
 signal = "SIGSAVE"
 grace  = "soon"
}`, meta: map[string]string{"ebbtide_acceptable": "1"}, want: []string{"target.signal", "SIGSAVE", "target.grace", "soon"}},
		{name: "signal of no target", config: `target { signal = "SIGUSR1" }`, want: []string{"target.signal", "ebbtide_acceptable", "or remove it"}},
		{name: "two sources", config: `progress {
 file = "/local/m.csv"
 tensorboard = "/alloc/runs"
}`, want: []string{"progress.tensorboard", "file"}},
		{name: "file elsewhere", config: `progress { file = "/local/../../etc/m.csv" }`, want: []string{"progress.file", "/local or /alloc"}},
		{name: "unknown format", config: `progress {
 file = "/local/m"
 format = "xml"
}`, want: []string{"progress.format", "xml", "jsonl", "csv"}},
		{name: "endpoint elsewhere", config: `progress {
 prometheus = "http://user:hunter2@192.0.2.7:9100/metrics"
 metric = "m"
}`, hostNetwork: true, want: []string{"progress.prometheus", "192.0.2.7", "a port that Nomad has given this allocation"}},
		{name: "endpoint without a metric", config: `progress { prometheus = "http://127.0.0.1:9100/metrics" }`, want: []string{"progress.metric"}},
		{name: "bad quantile", config: `progress {
 prometheus = "http://127.0.0.1:9100/metrics"
 metric = "m"
 quantile = 95
}`, want: []string{"progress.quantile", "95"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if tc.hostNetwork && c.engine == "docker" { // under docker, the container's address is known only once it runs
				tc.config += "\nnetwork_mode = \"host\""
			}
			alloc := c.finish(t, job{id: fmt.Sprintf("bad-%d", i), tasks: []task{{
				command: "/bin/sh", args: []string{"-c", "echo started; sleep 1000"}, config: tc.config, meta: tc.meta,
			}}})
			must.Eq(t, api.AllocClientStatusFailed, alloc.ClientStatus)
			events := harness.Events(alloc, "train")
			for _, want := range tc.want {
				must.StrContains(t, strings.Join(events, "\n"), want)
			}
			must.StrNotContains(t, strings.Join(events, "\n"), "hunter2")
			for _, ev := range alloc.TaskStates["train"].Events {
				must.NotEq(t, api.TaskStarted, ev.Type, must.Sprint(events))
			}
			if c.engine == "docker" {
				list, err := c.docker.Containers(deadline(t, stepDeadline), alloc.ID)
				must.NoError(t, err)
				must.SliceEmpty(t, list)
			} else {
				_, err := harness.TaskPIDs(alloc.ID, "train")
				must.Error(t, err)
			}
			out, err := c.agent.Logs(deadline(t, stepDeadline), alloc, "train", "stdout")
			must.True(t, err != nil || out == "", must.Sprint(out))
		})
	}
}
