// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/checkpoint"
	"github.com/ebbtide/ebbtide/driver/options"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/remaining"
	"github.com/ebbtide/ebbtide/driver/target"
)

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
	must.Eq(t, plainOptions(), opts)

	opts, err = readTaskOptions(taskConfig(t,
		map[string]any{"progress": map[string]any{"preset": "keras", "metric": nil}},
		// Nomad sets every key in both spellings.
		map[string]string{"ebbtide_goal": "max", "EBBTIDE_GOAL": "max", "ebbtide_metric": "acc", "EBBTIDE_METRIC": "acc", "ebbtide_limit": "off", "owner": "me"}))
	must.NoError(t, err)
	want := plainOptions()
	want.Limit, want.Progress = false, progress.Config{Preset: "keras", Metric: "acc", Goal: "max"}
	must.Eq(t, want, opts)
}

// A dispatch of a parameterized job passes each optional key that it omits as empty.
func TestTaskOptions_dispatch(t *testing.T) {
	meta := make(map[string]string)
	for _, key := range options.MetaKeys() {
		meta[key], meta[strings.ToUpper(key)] = "", ""
	}
	cfg := taskConfig(t, map[string]any{"progress": map[string]any{"metric": "loss"}}, meta)
	opts, err := readTaskOptions(cfg)
	must.NoError(t, err)
	want := plainOptions()
	want.Progress.Metric = "loss"
	must.Eq(t, want, opts)
	notes, _, err := injectGPUShare(cfg, "exec")
	must.NoError(t, err)
	must.SliceEmpty(t, notes)
}

// A task's assumed size survives a restart of the plugin, without the rest of its
// command line.
func TestTaskWork(t *testing.T) {
	cfg := taskConfig(t, map[string]any{"command": "python3", "args": []string{"-c", "train --epochs 20 --token=s3cret"}},
		map[string]string{"ebbtide_total_steps": "1e4"})
	opts, err := readTaskOptions(cfg)
	must.NoError(t, err)
	want := remaining.Declared{Steps: 1e4, Assumed: remaining.Assumption{Epochs: 20, EpochsFrom: "--epochs"}}
	must.Eq(t, want, opts.Work)

	handle := drivers.NewTaskHandle(1)
	handle.Config = &drivers.TaskConfig{ID: "a/train/1", Name: "train"}
	kept, err := withOptions(handle, opts)
	must.NoError(t, err)
	must.StrNotContains(t, string(kept.DriverState), "s3cret")
	_, again, err := takeOptions(kept)
	must.NoError(t, err)
	must.Eq(t, want, again.Work)

	opts, err = readTaskOptions(taskConfig(t, nil, map[string]string{"ebbtide_total_epochs": "3"}))
	must.NoError(t, err)
	must.Eq(t, remaining.Declared{Epochs: 3}, opts.Work)
}

func plainOptions() *options.Task {
	return &options.Task{Limit: true, Targets: target.Targets{Hold: 1}, Act: options.Actions{Grace: 30 * time.Second}}
}

func TestTaskTargets(t *testing.T) {
	opts, err := readTaskOptions(taskConfig(t,
		map[string]any{
			"progress": map[string]any{"file": "${NOMAD_TASK_DIR}/m.jsonl", "metric": "loss"},
			"target":   map[string]any{"signal": "SIGUSR1", "stop_signal": "SIGINT", "grace": "5m"},
		},
		map[string]string{"ebbtide_acceptable": "0.3", "ebbtide_objective": "2.5e-1", "ebbtide_target_hold": "3"}))
	must.ErrorContains(t, err, "progress.file") // not interpolated
	must.NotNil(t, opts)

	opts, err = readTaskOptions(taskConfig(t,
		map[string]any{
			"progress": map[string]any{"file": "/local/m.jsonl", "metric": "loss", "scale": 0.5},
			"target":   map[string]any{"signal": "SIGUSR1", "stop_signal": "SIGINT", "grace": "5m"},
		},
		map[string]string{"ebbtide_acceptable": "0.3", "ebbtide_objective": "2.5e-1", "ebbtide_target_hold": "3"}))
	must.NoError(t, err)
	acceptable, objective := 0.3, 0.25
	must.Eq(t, &options.Task{
		Limit:    true,
		Progress: progress.Config{File: "/local/m.jsonl", Metric: "loss", Scale: 0.5},
		Targets:  target.Targets{Acceptable: &acceptable, Objective: &objective, Hold: 3},
		Act:      options.Actions{Signal: "SIGUSR1", StopSignal: "SIGINT", Grace: 5 * time.Minute},
	}, opts)

	for text, want := range map[string]float64{"0.25": 0.25, "250ms": 0.25, "1.5s": 1.5, "2": 2} {
		opts, err = readTaskOptions(taskConfig(t, map[string]any{
			"progress": map[string]any{"prometheus": "http://127.0.0.1:80/m", "metric": "response_seconds", "quantile": 0.9,
				"labels": []map[string]string{{"path": "/"}}},
		}, map[string]string{"ebbtide_qoe_target": text}))
		must.NoError(t, err)
		must.Eq(t, want, opts.Targets.QoE)
		must.Eq(t, map[string]string{"path": "/"}, opts.Progress.Labels)
		must.Eq(t, progress.GoalMin, opts.Progress.Goal)
	}
}

// A target ends a job or makes it yield, so its metric and direction are required.
func TestTaskTargetsNameTheirMetric(t *testing.T) {
	const metric = ": needs a metric: set meta.ebbtide_metric (or progress.metric or progress.pattern) to the name of the value that is to reach "
	direction := func(name, value string) string {
		return `: needs a direction: the name "` + name + `" does not imply whether it falls or rises to ` + value + `: set meta.ebbtide_goal to "min" or "max"`
	}
	both := map[string]string{"ebbtide_acceptable": "0.9", "ebbtide_objective": "0.95"}
	with := func(key, value string) map[string]string {
		return map[string]string{"ebbtide_objective": "0.95", key: value}
	}
	for name, c := range map[string]struct {
		progress map[string]any
		meta     map[string]string
		want     string // "" = accepted
	}{
		"nothing":               {nil, both, "meta.ebbtide_acceptable" + metric + "0.9\nmeta.ebbtide_objective" + metric + "0.95"},
		"a direction alone":     {nil, with("ebbtide_goal", "max"), "meta.ebbtide_objective" + metric + "0.95"},
		"a preset":              {map[string]any{"preset": "keras"}, with("ebbtide_goal", "max"), "meta.ebbtide_objective" + metric + "0.95"},
		"a file":                {map[string]any{"file": "/local/m.csv"}, with("ebbtide_goal", "max"), "meta.ebbtide_objective" + metric + "0.95"},
		"a name that says it":   {map[string]any{"metric": "accuracy"}, both, ""},
		"in meta":               {nil, with("ebbtide_metric", "val_loss"), ""},
		"a name that does not":  {map[string]any{"metric": "hv"}, both, "meta.ebbtide_acceptable" + direction("hv", "0.9") + "\nmeta.ebbtide_objective" + direction("hv", "0.95")},
		"and a direction":       {map[string]any{"metric": "hv"}, with("ebbtide_goal", "max"), ""},
		"and one in progress":   {map[string]any{"metric": "hv", "goal": "min"}, with("ebbtide_target_hold", "2"), ""},
		"a pattern":             {map[string]any{"pattern": "(?P<value>.*)"}, with("ebbtide_target_hold", "2"), "meta.ebbtide_objective" + direction("value", "0.95")},
		"with a direction":      {map[string]any{"pattern": "(?P<value>.*)"}, with("ebbtide_goal", "max"), ""},
		"with a name":           {map[string]any{"pattern": "(?P<value>.*)", "metric": "accuracy"}, both, ""},
		"a column":              {map[string]any{"file": "/local/m.csv", "metric": "val loss"}, with("ebbtide_target_hold", "2"), ""},
		"a tag":                 {map[string]any{"tensorboard": "/alloc/runs", "metric": "eval/score"}, both, ""},
		"a metric of endpoints": {map[string]any{"prometheus": "http://127.0.0.1:80/m", "metric": "epochs_done"}, both, "meta.ebbtide_acceptable" + direction("epochs_done", "0.9") + "\nmeta.ebbtide_objective" + direction("epochs_done", "0.95")},
		"the wrong way round":   {map[string]any{"metric": "loss"}, both, "meta.ebbtide_objective: objective: must be ≤ acceptable = 0.9, because goal is \"min\": lower values are better; got 0.95, which is easier"},
		"a service":             {nil, map[string]string{"ebbtide_qoe_target": "1"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			config := map[string]any{}
			if c.progress != nil {
				config["progress"] = c.progress
			}
			opts, err := readTaskOptions(taskConfig(t, config, c.meta))
			if c.want == "" {
				must.NoError(t, err)
				return
			}
			must.EqError(t, err, c.want)
			// Recovery applies the same checks to targets an earlier version accepted.
			handle := drivers.NewTaskHandle(1)
			handle.Config = &drivers.TaskConfig{ID: "a/train/1", Name: "train"}
			kept, err := withOptions(handle, opts)
			must.NoError(t, err)
			_, _, err = takeOptions(kept)
			must.EqError(t, err, c.want)
		})
	}
}

func TestTaskCheckpoint(t *testing.T) {
	read := func(block map[string]any) (*checkpoint.Config, error) {
		opts, err := readTaskOptions(taskConfig(t, map[string]any{"checkpoint": block}, nil))
		return opts.Checkpoint, err
	}
	c, err := read(map[string]any{"path": "/alloc/data/ckpt-*"})
	must.NoError(t, err)
	must.Eq(t, &checkpoint.Config{Path: "/alloc/data/ckpt-*", Signal: "SIGUSR1", Timeout: time.Minute, Lease: time.Minute}, c)
	c, err = read(map[string]any{"path": "/local/x", "signal": "SIGTERM", "timeout": "5m", "lease": "2s"})
	must.NoError(t, err)
	must.Eq(t, &checkpoint.Config{Path: "/local/x", Signal: "SIGTERM", Timeout: 5 * time.Minute, Lease: 2 * time.Second}, c)
	c, err = read(map[string]any{"path": "/local/x", "signal": "none"})
	must.NoError(t, err)
	must.Eq(t, &checkpoint.Config{Path: "/local/x", Signal: "none", Timeout: 30 * time.Minute, Lease: time.Minute}, c)
	_, err = read(map[string]any{"path": "/alloc/data/../../x", "signal": "USR", "timeout": "soon", "lease": "0s"})
	for _, want := range []string{
		`checkpoint.path: must be a pattern`, `checkpoint.signal: must be the name of a signal`,
		`checkpoint.timeout: must be a duration like 90s, got "soon"`, "checkpoint.lease: must be a duration from 1s to 1h0m0s, got 0s",
	} {
		must.ErrorContains(t, err, want)
	}
}

func TestTaskOptionErrors(t *testing.T) {
	for name, c := range map[string]struct {
		progress map[string]any
		meta     map[string]string
		want     []string
	}{
		"typo":          {nil, map[string]string{"ebbtide_gaol": "min"}, []string{"meta.ebbtide_gaol: unknown key; allowed are ebbtide_acceptable, ebbtide_adopt, ebbtide_cooldown, ebbtide_duration, ebbtide_goal, ebbtide_gpu_group, ebbtide_gpu_input, ebbtide_gpu_memory, ebbtide_hold, ebbtide_limit, ebbtide_metric, ebbtide_migrate, ebbtide_objective, ebbtide_owner, ebbtide_priority, ebbtide_qoe_target, ebbtide_queue, ebbtide_queue_priority, ebbtide_target_hold, ebbtide_total_epochs, ebbtide_total_steps"}},
		"goal":          {nil, map[string]string{"ebbtide_goal": "up"}, []string{`meta.ebbtide_goal: must be "min" or "max", got "up"`}},
		"limit":         {nil, map[string]string{"ebbtide_limit": "yes"}, []string{`meta.ebbtide_limit: must be "on" or "off", got "yes"`}},
		"migrate":       {nil, map[string]string{"ebbtide_migrate": "yes"}, []string{`meta.ebbtide_migrate: must be "true", "false", or some of relocate, flowcon-place, specon-migrate, specon-rebalance, got "yes"`}},
		"cooldown":      {nil, map[string]string{"ebbtide_cooldown": "often"}, []string{`meta.ebbtide_cooldown: must be a duration from 0s to 8760h0m0s, such as 1h, got "often"`}},
		"queue":         {nil, map[string]string{"ebbtide_queue_priority": "high"}, []string{`meta.ebbtide_queue_priority: must be a whole number from -100 to 100, got "high"`}},
		"GPU":           {nil, map[string]string{"ebbtide_gpu_memory": "1G", "ebbtide_priority": "0", "ebbtide_gpu_group": "us"}, []string{`meta.ebbtide_gpu_memory: must be a whole number of MiB ≥ 1, got "1G"`, `meta.ebbtide_priority: must be from 1 to 100, got "0"`}},
		"GPU input":     {nil, map[string]string{"ebbtide_gpu_input": "0"}, []string{`meta.ebbtide_gpu_input: must be a number > 0, the size of the input, got "0"`}},
		"total steps":   {nil, map[string]string{"ebbtide_total_steps": "0"}, []string{`meta.ebbtide_total_steps: must be a number > 0 and ≤ 1e+12, the total of the whole training, got "0"`}},
		"total epochs":  {nil, map[string]string{"ebbtide_total_epochs": "NaN"}, []string{`meta.ebbtide_total_epochs: must be a number > 0 and ≤ 1e+12, the total of the whole training, got "NaN"`}},
		"two totals":    {nil, map[string]string{"ebbtide_total_epochs": "3", "ebbtide_total_steps": "9"}, []string{"meta.ebbtide_total_epochs: cannot be used together with ebbtide_total_steps; set one of them"}},
		"no end":        {nil, map[string]string{"ebbtide_total_epochs": "3", "ebbtide_qoe_target": "1"}, []string{"meta.ebbtide_qoe_target: cannot be used together with ebbtide_total_steps or ebbtide_total_epochs: a service has no end"}},
		"adopt":         {nil, map[string]string{"ebbtide_adopt": "../x"}, []string{`meta.ebbtide_adopt: must be the ID of an allocation, got "../x"`}},
		"waits":         {nil, map[string]string{"ebbtide_hold": "1"}, []string{`meta.ebbtide_hold: must be "true" or "false", got "1"`}},
		"contradiction": {map[string]any{"goal": "min", "metric": "loss"}, map[string]string{"ebbtide_goal": "max", "ebbtide_metric": "acc"}, []string{"meta.ebbtide_goal", "meta.ebbtide_metric", "contradicts"}},
		"preset":        {map[string]any{"preset": "kearas"}, nil, []string{"progress.preset", "kearas", "keras"}},
		"pattern":       {map[string]any{"pattern": "loss=(.*"}, nil, []string{"progress.pattern", "loss=(.*"}},
		"no group":      {map[string]any{"pattern": "loss=(.*)"}, nil, []string{"progress.pattern", "value"}},
		"acceptable":    {nil, map[string]string{"ebbtide_acceptable": "low"}, []string{`meta.ebbtide_acceptable: must be a number`, `"low"`}},
		"NaN":           {nil, map[string]string{"ebbtide_objective": "NaN"}, []string{`meta.ebbtide_objective`, `"NaN"`}},
		"hold":          {nil, map[string]string{"ebbtide_target_hold": "0", "ebbtide_objective": "1"}, []string{"meta.ebbtide_target_hold", "from 1 to 1000", `"0"`}},
		"hold alone":    {nil, map[string]string{"ebbtide_target_hold": "2"}, []string{"meta.ebbtide_target_hold", "neither is set"}},
		"too easy":      {map[string]any{"metric": "hv", "goal": "min"}, map[string]string{"ebbtide_acceptable": "0.2", "ebbtide_objective": "0.3"}, []string{"meta.ebbtide_objective", "0.3", "0.2"}},
		"easy by name":  {map[string]any{"metric": "accuracy"}, map[string]string{"ebbtide_acceptable": "0.9", "ebbtide_objective": "0.8"}, []string{"meta.ebbtide_objective", "0.8"}},
		"qoe 0":         {nil, map[string]string{"ebbtide_qoe_target": "0"}, []string{"meta.ebbtide_qoe_target", "> 0", `"0"`}},
		"qoe text":      {nil, map[string]string{"ebbtide_qoe_target": "fast"}, []string{"meta.ebbtide_qoe_target", `"fast"`}},
		"qoe steps":     {map[string]any{"prometheus": "http://localhost/", "step": "s"}, map[string]string{"ebbtide_qoe_target": "1"}, []string{"meta.ebbtide_qoe_target: needs a metric"}},
		"both kinds":    {nil, map[string]string{"ebbtide_qoe_target": "1", "ebbtide_objective": "0.5"}, []string{"meta.ebbtide_qoe_target", "ebbtide_objective", "service or a training job"}},
		"two sources":   {map[string]any{"file": "/local/a.csv", "tensorboard": "/alloc/runs"}, nil, []string{"progress.tensorboard", "file"}},
		"outside":       {map[string]any{"file": "/var/log/a.csv"}, nil, []string{"progress.file", "/local or /alloc", "/var/log/a.csv"}},
		"dots":          {map[string]any{"file": "/local/../../etc/a.csv"}, nil, []string{"progress.file", "/local or /alloc"}},
		"format":        {map[string]any{"file": "/local/a", "format": "xml"}, nil, []string{"progress.format", "jsonl, csv", "xml"}},
		"no format":     {map[string]any{"file": "/local/a.log"}, nil, []string{"progress.file", "progress.format"}},
		"no metric":     {map[string]any{"prometheus": "http://localhost/metrics"}, nil, []string{"progress.metric", "must name"}},
		"no URL":        {map[string]any{"prometheus": "localhost:80", "metric": "m"}, nil, []string{"progress.prometheus", "localhost:80"}},
		"a password":    {map[string]any{"prometheus": "ftp://u:secret@h/?token=x", "metric": "m"}, nil, []string{"progress.prometheus", "ftp://h/\""}},
		"step":          {map[string]any{"step": "train_step"}, nil, []string{"progress.step", "train_step"}},
		"quantile":      {map[string]any{"prometheus": "http://localhost/", "metric": "m", "quantile": 95}, nil, []string{"progress.quantile", "95"}},
		"scale":         {map[string]any{"scale": 0}, nil, []string{"progress.scale", "> 0"}},
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
