// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/progress"
)

// taskConfig is a task's config as a plugin gets it.
func taskConfig(t *testing.T, config map[string]any, meta map[string]string) *drivers.TaskConfig {
	t.Helper()
	cfg := &drivers.TaskConfig{ID: "alloc/task/1", Name: "task", AllocID: "alloc", Env: map[string]string{"PATH": "/bin"}}
	for k, v := range meta {
		cfg.Env["NOMAD_META_"+k] = v
	}
	must.NoError(t, cfg.EncodeConcreteDriverConfig(config))
	return cfg
}

func TestTaskOptions(t *testing.T) {
	opts, err := readTaskOptions(taskConfig(t, map[string]any{"command": "x"}, nil))
	must.NoError(t, err)
	must.Eq(t, &taskOptions{Limit: true}, opts)

	opts, err = readTaskOptions(taskConfig(t,
		map[string]any{"progress": map[string]any{"preset": "keras", "metric": nil}},
		// Nomad puts every key there twice.
		map[string]string{"ebbtide_goal": "max", "EBBTIDE_GOAL": "max", "ebbtide_metric": "acc", "EBBTIDE_METRIC": "acc", "ebbtide_limit": "off", "owner": "me"}))
	must.NoError(t, err)
	must.Eq(t, &taskOptions{Progress: progress.Config{Preset: "keras", Metric: "acc", Goal: "max"}}, opts)
}

func TestTaskOptionErrors(t *testing.T) {
	for name, c := range map[string]struct {
		progress map[string]any
		meta     map[string]string
		want     []string
	}{
		"typo":          {nil, map[string]string{"ebbtide_gaol": "min"}, []string{"meta.ebbtide_gaol: unknown key; allowed are ebbtide_goal, ebbtide_limit, ebbtide_metric"}},
		"goal":          {nil, map[string]string{"ebbtide_goal": "up"}, []string{`meta.ebbtide_goal: must be "min" or "max", got "up"`}},
		"limit":         {nil, map[string]string{"ebbtide_limit": "yes"}, []string{`meta.ebbtide_limit: must be "on" or "off", got "yes"`}},
		"contradiction": {map[string]any{"goal": "min", "metric": "loss"}, map[string]string{"ebbtide_goal": "max", "ebbtide_metric": "acc"}, []string{"meta.ebbtide_goal", "meta.ebbtide_metric", "contradicts"}},
		"preset":        {map[string]any{"preset": "kearas"}, nil, []string{"progress.preset", "kearas", "keras"}},
		"pattern":       {map[string]any{"pattern": "loss=(.*"}, nil, []string{"progress.pattern", "loss=(.*"}},
		"no group":      {map[string]any{"pattern": "loss=(.*)"}, nil, []string{"progress.pattern", "value"}},
		"all at once":   {map[string]any{"preset": "x"}, map[string]string{"ebbtide_a": "1", "ebbtide_b": "2"}, []string{"progress.preset", "ebbtide_a", "ebbtide_b"}},
	} {
		t.Run(name, func(t *testing.T) {
			config := map[string]any{}
			if c.progress != nil {
				config["progress"] = c.progress
			}
			_, err := readTaskOptions(taskConfig(t, config, c.meta))
			must.Error(t, err)
			for _, want := range c.want {
				must.ErrorContains(t, err, want)
			}
		})
	}
}
