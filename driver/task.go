// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/hashicorp/nomad/client/taskenv"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/ebbtide/ebbtide/driver/progress"
)

// taskOptions is what a jobspec says to Ebbtide: technical settings in the
// task's config, wishes about the job itself in meta.
type taskOptions struct {
	Progress progress.Config
	Limit    bool // false: the job asked never to be limited
}

// taskBlocks are Ebbtide's own blocks in a task's config.
type taskBlocks struct {
	Progress *struct {
		Preset  string `codec:"preset"`
		Metric  string `codec:"metric"`
		Pattern string `codec:"pattern"`
		Goal    string `codec:"goal"`
	} `codec:"progress"`
}

// progressSchema is the schema of the task's progress block.
func progressSchema() *hclspec.Spec {
	return hclspec.NewObject(map[string]*hclspec.Spec{
		"preset":  hclspec.NewAttr("preset", "string", false),
		"metric":  hclspec.NewAttr("metric", "string", false),
		"pattern": hclspec.NewAttr("pattern", "string", false),
		"goal":    hclspec.NewAttr("goal", "string", false),
	})
}

// TaskConfigSchema is the decorated driver's schema with Ebbtide's blocks added.
func (d *Driver) TaskConfigSchema() (*hclspec.Spec, error) {
	spec, err := d.first().TaskConfigSchema()
	if err != nil {
		return nil, err
	}
	return withBlock(spec, "progress", progressSchema()), nil
}

// Keys of a job's meta that Ebbtide reads. Meta of job, group and task is merged
// by Nomad, the task's winning.
const (
	metaPrefix = "ebbtide_"
	metaGoal   = "ebbtide_goal"
	metaMetric = "ebbtide_metric"
	metaLimit  = "ebbtide_limit"
)

// metaKeys lists them with what each takes, for error messages.
func metaKeys() map[string]string {
	return map[string]string{
		metaGoal:   `"min" or "max"`,
		metaMetric: "the name of a metric in the task's output",
		metaLimit:  `"on" or "off"`,
	}
}

// readTaskOptions reads and checks what the jobspec says to Ebbtide. Every error
// found is reported, before anything is started.
func readTaskOptions(cfg *drivers.TaskConfig) (*taskOptions, error) {
	var blocks taskBlocks
	if err := cfg.DecodeDriverConfig(&blocks); err != nil {
		return nil, fmt.Errorf("decoding the task's config: %w", err)
	}
	opts := &taskOptions{Limit: true}
	if p := blocks.Progress; p != nil {
		opts.Progress = progress.Config{Preset: p.Preset, Metric: p.Metric, Pattern: p.Pattern, Goal: p.Goal}
	}

	var errs []error
	meta := readMeta(cfg.Env)
	for _, key := range sortedKeys(meta) {
		value := meta[key]
		switch key {
		case metaGoal:
			if value != "min" && value != "max" {
				errs = append(errs, fmt.Errorf(`meta.%s: must be "min" or "max", got %q`, key, value))
			} else if g := opts.Progress.Goal; g != "" && g != value {
				errs = append(errs, fmt.Errorf("meta.%s: %q contradicts progress.goal = %q; set one of them", key, value, g))
			} else {
				opts.Progress.Goal = value
			}
		case metaMetric:
			if m := opts.Progress.Metric; m != "" && m != value {
				errs = append(errs, fmt.Errorf("meta.%s: %q contradicts progress.metric = %q; set one of them", key, value, m))
			}
			opts.Progress.Metric = value
		case metaLimit:
			switch value {
			case "on", "off":
				opts.Limit = value == "on"
			default:
				errs = append(errs, fmt.Errorf(`meta.%s: must be "on" or "off", got %q`, key, value))
			}
		default:
			errs = append(errs, fmt.Errorf("meta.%s: unknown key; allowed are %s", key, strings.Join(sortedKeys(metaKeys()), ", ")))
		}
	}
	if err := opts.Progress.Validate(); err != nil {
		errs = append(errs, err)
	}
	return opts, errors.Join(errs...)
}

// readMeta collects the ebbtide_* meta from a task's environment, where Nomad
// puts every key twice: as written and in upper case.
func readMeta(env map[string]string) map[string]string {
	meta := make(map[string]string)
	for name, value := range env {
		key, ok := strings.CutPrefix(name, taskenv.MetaPrefix)
		if !ok {
			continue
		}
		if lower := strings.ToLower(key); strings.HasPrefix(lower, metaPrefix) {
			meta[lower] = value
		}
	}
	return meta
}

// sortedKeys returns a map's keys in order, so that messages are repeatable.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
