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

// testBadJobspecs checks that what is wrong in a jobspec is said in the
// allocation's events, by field and value and with what is allowed, and that
// nothing was started.
func testBadJobspecs(t *testing.T, c *cluster) {
	for i, tc := range []struct {
		name   string
		config string
		meta   map[string]string
		want   []string
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
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			alloc := c.finish(t, job{id: fmt.Sprintf("bad-%d", i), tasks: []task{{
				command: "/bin/sh", args: []string{"-c", "echo started; sleep 1000"}, config: tc.config, meta: tc.meta,
			}}})
			must.Eq(t, api.AllocClientStatusFailed, alloc.ClientStatus)
			events := harness.Events(alloc, "train")
			for _, want := range tc.want {
				must.StrContains(t, strings.Join(events, "\n"), want)
			}
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
