// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/e2e/harness"
)

// TestBadConfigs: with an invalid plugin configuration the agent reports field, value and allowed
// values, does not start, and leaves no plugin behind.
func TestBadConfigs(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	for i, tc := range []struct {
		name   string
		config string
		want   []string
	}{
		{"unknown engine", `engine = "podman"`, []string{"engine", "podman", "docker", "exec"}},
		{"unknown policy", `policy = "flowcom"`, []string{"policy", "flowcom", "flowcon", "none"}},
		{"unknown mode", `mode = "hard"`, []string{"mode", "hard", "weight", "quota"}},
		{"unknown estimator", `estimator = "magic"`, []string{"estimator", "magic", "robust", "published"}},
		{"alpha out of range", `alpha = "-0.1"`, []string{"alpha", "-0.1", "adaptive"}},
		{"alpha no number", `alpha = "lots"`, []string{"alpha", "lots", "adaptive"}},
		{"beta out of range", `beta = 0.5`, []string{"beta", "0.5", "1"}},
		{"negative pool", `pool_cores = -1`, []string{"pool_cores", "-1", "≥ 0"}},
		{"interval too short", `interval = "1ms"`, []string{"interval", "1ms"}},
		{"interval no duration", `interval = "20"`, []string{"interval", `20`}},
		{"misspelt option", `intervall = "20s"`, []string{"intervall"}},
		{"misspelt option of docker", `docker { endpont = "unix:///x" }`, []string{"endpont"}},
		{"every error at once", "engine = \"podman\"\n policy = \"x\"\n pool_cores = -2", []string{"engine", "policy", "pool_cores"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ctx := deadline(t, startDeadline)
			a, err := h.PrepareAgent(ctx, harness.AgentConfig{Name: fmt.Sprintf("bad%d", i), PluginName: "ebbtide-driver", Plugin: tc.config})
			must.NoError(t, err)
			must.NoError(t, a.Launch(ctx))
			must.NoError(t, harness.Poll(ctx, "the agent has refused", func(context.Context) error {
				log, err := a.Log()
				if err != nil {
					return err
				}
				for _, want := range tc.want {
					if !strings.Contains(errorLines(log), want) {
						return fmt.Errorf("%q is not in %s", want, errorLines(log))
					}
				}
				return nil
			}))
			must.NoError(t, a.Process().Wait(ctx))
			must.NoError(t, harness.Poll(ctx, "no plugin is left", func(context.Context) error {
				if pids := a.PluginPIDs("ebbtide-driver"); len(pids) > 0 {
					return fmt.Errorf("processes %v are left", pids)
				}
				return nil
			}))
		})
	}
}

func errorLines(log string) string {
	if i := strings.Index(log, "[ERROR]"); i >= 0 {
		return log[i:]
	}
	if i := strings.Index(log, "rror"); i >= 0 {
		return log[i:]
	}
	return ""
}

// TestDockerUnreachable: without Docker the agent starts with an unhealthy driver, which recovers
// automatically.
func TestDockerUnreachable(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	d := dockerWithImages(t, h)
	must.NoError(t, d.Down(deadline(t, stepDeadline)))
	ctx := deadline(t, startDeadline)
	a, err := h.StartAgent(ctx, harness.AgentConfig{PluginName: "ebbtide-driver", Plugin: "engine = \"docker\"\n docker {\n" + d.PluginConfig("", "") + "\n}"})
	must.NoError(t, err)
	info, err := a.WaitDriver(ctx, "ebbtide", false)
	must.NoError(t, err)
	must.StrContains(t, strings.ToLower(info.HealthDescription), "docker")
	must.NoError(t, d.Up(ctx))
	_, err = a.WaitDriver(ctx, "ebbtide", true)
	must.NoError(t, err)
}
