// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul-template/signals"
	"github.com/hashicorp/go-uuid"
	"github.com/hashicorp/nomad/client/taskenv"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/ebbtide/ebbtide/driver/checkpoint"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/remaining"
	"github.com/ebbtide/ebbtide/driver/remaining/history"
	"github.com/ebbtide/ebbtide/driver/target"
	"github.com/ebbtide/ebbtide/internal/optin"
)

// taskOptions is what a jobspec says to Ebbtide: technical settings in the
// task's config, wishes about the job itself in meta.
type taskOptions struct {
	Progress progress.Config
	Limit    bool // false: the job asked never to be limited
	Targets  target.Targets
	// Work is what is known of the task's size before it reports.
	Work remaining.Declared `json:",omitzero"`
	// Run says which runs are like this one; Nomad's drivers change the config that it is of.
	Run history.Key `json:",omitzero"`
	Act actions
	// Migrate says that the job may be moved to another node.
	Migrate bool `json:",omitempty"`
	// Adopt is the allocation whose checkpoint it goes on from; "" = its own.
	Adopt string `json:",omitempty"`
	// Identity is the file in which the plugin of its card is told what it is; "" = no seat.
	Identity string `json:",omitempty"`
	// GPU is the file in which is reported how it fares on a shared card; "" = no seat.
	GPU string `json:",omitempty"`
	// Checkpoint says how the task saves its state; nil = it cannot be moved.
	Checkpoint *checkpoint.Config `json:",omitempty"`
}

// actions are what the driver does when a target is reached.
type actions struct {
	Signal     string        // sent at the acceptable target; "" = none
	StopSignal string        // sent at the objective; "" = the decorated driver's usual one
	Grace      time.Duration // from then until the task is killed
}

// defaultGrace is how long a task may take to save its last state: six times
// Nomad's default kill_timeout, for here it is a result that would be lost.
const defaultGrace = 30 * time.Second

// taskBlocks are Ebbtide's own blocks in a task's config.
type taskBlocks struct {
	// The decorated drivers' own, which may tell how long the training is to be.
	Command string   `codec:"command"`
	Args    []string `codec:"args"`

	Progress *struct {
		Preset      string             `codec:"preset"`
		Metric      string             `codec:"metric"`
		Pattern     string             `codec:"pattern"`
		Goal        string             `codec:"goal"`
		File        string             `codec:"file"`
		Format      string             `codec:"format"`
		TensorBoard string             `codec:"tensorboard"`
		Prometheus  string             `codec:"prometheus"`
		Labels      hclutils.MapStrStr `codec:"labels"`
		Step        string             `codec:"step"`
		Total       string             `codec:"total"`
		Quantile    any                `codec:"quantile"` // a number, see number
		Scale       any                `codec:"scale"`
	} `codec:"progress"`
	Target *struct {
		Signal     string `codec:"signal"`
		StopSignal string `codec:"stop_signal"`
		Grace      string `codec:"grace"`
	} `codec:"target"`
	Checkpoint *struct {
		Path    string `codec:"path"`
		Shared  bool   `codec:"shared"`
		Signal  string `codec:"signal"`
		Timeout string `codec:"timeout"`
		Lease   string `codec:"lease"`
	} `codec:"checkpoint"`
}

// progressSchema is the schema of the task's progress block.
func progressSchema() *hclspec.Spec {
	return hclspec.NewObject(map[string]*hclspec.Spec{
		"preset":      hclspec.NewAttr("preset", "string", false),
		"metric":      hclspec.NewAttr("metric", "string", false),
		"pattern":     hclspec.NewAttr("pattern", "string", false),
		"goal":        hclspec.NewAttr("goal", "string", false),
		"file":        hclspec.NewAttr("file", "string", false),
		"format":      hclspec.NewAttr("format", "string", false),
		"tensorboard": hclspec.NewAttr("tensorboard", "string", false),
		"prometheus":  hclspec.NewAttr("prometheus", "string", false),
		"labels":      hclspec.NewAttr("labels", "list(map(string))", false),
		"step":        hclspec.NewAttr("step", "string", false),
		"total":       hclspec.NewAttr("total", "string", false),
		"quantile":    hclspec.NewAttr("quantile", "number", false),
		"scale":       hclspec.NewAttr("scale", "number", false),
	})
}

// targetSchema is the schema of the task's target block.
func targetSchema() *hclspec.Spec {
	return hclspec.NewObject(map[string]*hclspec.Spec{
		"signal":      hclspec.NewAttr("signal", "string", false),
		"stop_signal": hclspec.NewAttr("stop_signal", "string", false),
		"grace":       hclspec.NewAttr("grace", "string", false),
	})
}

// checkpointSchema is the schema of the task's checkpoint block.
func checkpointSchema() *hclspec.Spec {
	return hclspec.NewObject(map[string]*hclspec.Spec{
		"path":    hclspec.NewAttr("path", "string", true),
		"shared":  hclspec.NewAttr("shared", "bool", false),
		"signal":  hclspec.NewAttr("signal", "string", false),
		"timeout": hclspec.NewAttr("timeout", "string", false),
		"lease":   hclspec.NewAttr("lease", "string", false),
	})
}

// TaskConfigSchema is the decorated driver's schema with Ebbtide's blocks added.
func (d *Driver) TaskConfigSchema() (*hclspec.Spec, error) {
	spec, err := d.first().TaskConfigSchema()
	if err != nil {
		return nil, err
	}
	return withOurBlocks(spec), nil
}

// withOurBlocks adds Ebbtide's blocks to the schema of a decorated driver's task.
func withOurBlocks(spec *hclspec.Spec) *hclspec.Spec {
	for name, block := range map[string]*hclspec.Spec{"progress": progressSchema(), "target": targetSchema(), "checkpoint": checkpointSchema()} {
		spec = withBlock(spec, name, block)
	}
	return spec
}

// Keys of a job's meta that Ebbtide reads. Meta of job, group and task is merged
// by Nomad, the task's winning.
const (
	metaPrefix  = "ebbtide_"
	metaGoal    = "ebbtide_goal"
	metaMetric  = "ebbtide_metric"
	metaMigrate = optin.Migrate
	metaWaits   = "ebbtide_hold" // the shim's
	metaAdopt   = "ebbtide_adopt"
	metaOften   = optin.Cooldown // the shim's
	// The device plugin's.
	metaGPU        = "ebbtide_gpu_"
	metaGPUMemory  = metaGPU + "memory"
	metaGPUGroup   = metaGPU + "group"
	metaGPUInput   = metaGPU + "input"
	metaPriority   = "ebbtide_priority"
	metaLimit      = "ebbtide_limit"
	metaAcceptable = "ebbtide_acceptable"
	metaObjective  = "ebbtide_objective"
	metaHold       = "ebbtide_target_hold"
	metaQoE        = "ebbtide_qoe_target"
	metaSteps      = "ebbtide_total_steps"
	metaEpochs     = "ebbtide_total_epochs"
)

// metaKeys lists them, for error messages.
func metaKeys() []string {
	return []string{metaAcceptable, metaAdopt, metaOften, metaGoal, metaGPUGroup, metaGPUInput, metaGPUMemory, metaWaits, metaLimit, metaMetric, metaMigrate, metaObjective, metaPriority, metaQoE, metaHold, metaEpochs, metaSteps}
}

// readTaskOptions reads and checks what the jobspec says to Ebbtide. Every error
// found is reported, before anything is started.
func readTaskOptions(cfg *drivers.TaskConfig) (*taskOptions, error) {
	var blocks taskBlocks
	if err := cfg.DecodeDriverConfig(&blocks); err != nil {
		return nil, fmt.Errorf("decoding the task's config: %w", err)
	}
	opts := &taskOptions{Limit: true, Targets: target.Targets{Hold: 1}, Act: actions{Grace: defaultGrace}}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if p := blocks.Progress; p != nil {
		opts.Progress = progress.Config{
			Preset: p.Preset, Metric: p.Metric, Pattern: p.Pattern, Goal: p.Goal,
			File: p.File, Format: p.Format, TensorBoard: p.TensorBoard,
			Prometheus: p.Prometheus, Labels: p.Labels, Step: p.Step, Total: p.Total,
		}
		for _, n := range []struct {
			field string
			value any
			into  *float64
		}{{"quantile", p.Quantile, &opts.Progress.Quantile}, {"scale", p.Scale, &opts.Progress.Scale}} {
			if n.value == nil {
				continue
			}
			v, err := number(n.value)
			if err != nil {
				bad("progress.%s: %w", n.field, err)
			} else if *n.into = v; v == 0 {
				bad("progress.%s: must be > 0, got 0", n.field)
			}
		}
	}
	opts.Work.Assumed = remaining.Assume(append([]string{blocks.Command}, blocks.Args...), cfg.Env)
	meta := readMeta(cfg.Env)
	for _, key := range sortedKeys(meta) {
		opts.readMeta(key, meta[key], bad)
	}
	if err := opts.Progress.Validate(); err != nil {
		errs = append(errs, err)
	}
	opts.readTarget(&blocks, bad)
	opts.readCheckpoint(cfg, &blocks, bad)
	return opts, errors.Join(append(errs, opts.checkTargets())...)
}

// readMeta reads one key.
func (o *taskOptions) readMeta(key, value string, bad func(string, ...any)) {
	switch key {
	case metaGoal:
		if value != progress.GoalMin && value != progress.GoalMax {
			bad(`meta.%s: must be "min" or "max", got %q`, key, value)
		} else if g := o.Progress.Goal; g != "" && g != value {
			bad("meta.%s: %q contradicts progress.goal = %q; set one of them", key, value, g)
		} else {
			o.Progress.Goal = value
		}
	case metaMetric:
		if m := o.Progress.Metric; m != "" && m != value {
			bad("meta.%s: %q contradicts progress.metric = %q; set one of them", key, value, m)
		}
		o.Progress.Metric = value
	case metaLimit:
		switch value {
		case "on", "off":
			o.Limit = value == "on"
		default:
			bad(`meta.%s: must be "on" or "off", got %q`, key, value)
		}
	case metaGPUGroup:
		// any name
	case metaGPUMemory:
		if n, err := strconv.Atoi(value); err != nil || n < 1 {
			bad("meta.%s: must be a whole number of MiB ≥ 1, got %q", key, value)
		}
	case metaGPUInput:
		if v, err := strconv.ParseFloat(value, 64); err != nil || !(v > 0) || math.IsInf(v, 0) {
			bad("meta.%s: must be a number > 0, the size of what the job works on, got %q", key, value)
		}
	case metaPriority:
		if n, err := strconv.Atoi(value); err != nil || n < 1 || n > 100 {
			bad("meta.%s: must be from 1 to 100, got %q", key, value)
		}
	case metaAdopt:
		if _, err := uuid.ParseUUID(value); err != nil {
			bad("meta.%s: must be the ID of an allocation, got %q", key, value)
		}
		o.Adopt = value
	case metaMigrate:
		policies, err := optin.Policies(value)
		if err != nil {
			bad("meta.%s: %w", key, err)
		}
		o.Migrate = slices.Contains(policies, optin.SpeConMigrate)
	case metaOften:
		if _, err := optin.ReadCooldown(value); err != nil {
			bad("meta.%s: %w", key, err)
		}
	case metaWaits:
		if value != "true" && value != "false" {
			bad(`meta.%s: must be "true" or "false", got %q`, key, value)
		}
	case metaAcceptable, metaObjective:
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			bad("meta.%s: must be a number, the value of the metric that is wanted, got %q", key, value)
		} else if key == metaAcceptable {
			o.Targets.Acceptable = &v
		} else {
			o.Targets.Objective = &v
		}
	case metaHold:
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 || n > maxHold {
			bad("meta.%s: must be a number of reports in a row from 1 to %d, got %q", key, maxHold, value)
		} else {
			o.Targets.Hold = n
		}
	case metaSteps, metaEpochs:
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || !(v > 0) || v > maxTotal {
			bad("meta.%s: must be a number > 0 and ≤ %g, how many there are in the whole training, got %q", key, maxTotal, value)
		} else if key == metaSteps {
			o.Work.Steps = v
		} else {
			o.Work.Epochs = v
		}
	case metaQoE:
		v, err := seconds(value)
		if err != nil {
			bad("meta.%s: must be a response time > 0, in seconds or with a unit (0.25, 250ms), got %q", key, value)
		}
		o.Targets.QoE = v
	default:
		bad("meta.%s: unknown key; allowed are %s", key, strings.Join(metaKeys(), ", "))
	}
}

const (
	maxHold  = 1000 // bounds ebbtide_target_hold
	maxTotal = 1e12 // bounds ebbtide_total_steps and ebbtide_total_epochs
)

// seconds reads a time > 0: a number of seconds, or a duration with its unit.
func seconds(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		d, derr := time.ParseDuration(text)
		if derr != nil {
			return 0, derr
		}
		v = d.Seconds()
	}
	if !(v > 0) || math.IsInf(v, 0) {
		return 0, fmt.Errorf("%v is not > 0", v)
	}
	return v, nil
}

// readTarget reads the target block.
func (o *taskOptions) readTarget(blocks *taskBlocks, bad func(string, ...any)) {
	t := blocks.Target
	if t == nil {
		return
	}
	for _, s := range []struct{ field, value string }{{"signal", t.Signal}, {"stop_signal", t.StopSignal}} {
		// Nomad's exec driver turns what it does not know into SIGINT.
		if _, err := signals.Parse(s.value); s.value != "" && err != nil {
			bad("target.%s: must be the name of a signal like SIGUSR1, got %q", s.field, s.value)
		}
	}
	o.Act.Signal, o.Act.StopSignal = t.Signal, t.StopSignal
	if t.Grace != "" {
		d, err := time.ParseDuration(t.Grace)
		if err != nil || d < 0 || d > time.Hour {
			bad("target.grace: must be a duration from 0s to 1h, got %q", t.Grace)
		}
		o.Act.Grace = d
	}
	if t.Signal != "" && o.Targets.Acceptable == nil {
		bad("target.signal: %q is sent at meta.%s, which is not set", t.Signal, metaAcceptable)
	}
	if t.StopSignal != "" && o.Targets.Objective == nil {
		bad("target.stop_signal: %q is sent at meta.%s, which is not set", t.StopSignal, metaObjective)
	}
}

// readCheckpoint reads the checkpoint block.
func (o *taskOptions) readCheckpoint(cfg *drivers.TaskConfig, blocks *taskBlocks, bad func(string, ...any)) {
	b := blocks.Checkpoint
	if b == nil {
		return
	}
	c := checkpoint.Config{Path: b.Path, Shared: b.Shared, Signal: b.Signal, Timeout: checkpoint.DefaultTimeout, Lease: checkpoint.DefaultLease}
	if c.Signal == "" {
		c.Signal = checkpoint.DefaultSignal
	}
	for _, d := range []struct {
		field, text string
		into        *time.Duration
	}{{"timeout", b.Timeout, &c.Timeout}, {"lease", b.Lease, &c.Lease}} {
		if d.text == "" {
			continue
		}
		v, err := time.ParseDuration(d.text)
		if err != nil {
			bad("checkpoint.%s: must be a duration like 90s, got %q", d.field, d.text)
			continue
		}
		*d.into = v
	}
	err := c.Validate()
	if err == nil {
		err = dirsOf(cfg).Check(c)
	}
	if err != nil {
		bad("%w", err)
	}
	o.Checkpoint = &c
}

// dirsOf are the directories in which a task may save its state.
func dirsOf(cfg *drivers.TaskConfig) checkpoint.Dirs {
	dir := cfg.TaskDir()
	dirs := checkpoint.Dirs{Local: dir.LocalDir, Alloc: dir.SharedAllocDir, Mounts: make(map[string]string, len(cfg.Mounts))}
	for _, m := range cfg.Mounts {
		dirs.Mounts[m.TaskPath] = m.HostPath
	}
	return dirs
}

// checkTargets checks what the targets say together. A target ends a job or makes it
// yield, so it is told which value is meant, and which way that value is to go.
func (o *taskOptions) checkTargets() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	t := o.Targets
	if t.QoE > 0 && t.Any() {
		bad("meta.%s: cannot be used together with %s or %s: a task is a service or a training job", metaQoE, metaAcceptable, metaObjective)
	}
	if o.Work.Steps > 0 && o.Work.Epochs > 0 {
		bad("meta.%s: cannot be used together with %s; set one of them", metaEpochs, metaSteps)
	}
	if t.QoE > 0 && o.Work.Steps+o.Work.Epochs > 0 {
		bad("meta.%s: cannot be used together with %s or %s: a service has no end", metaQoE, metaSteps, metaEpochs)
	}
	if t.Hold > 1 && !t.Any() {
		bad("meta.%s: is for %s and %s, which are not set", metaHold, metaAcceptable, metaObjective)
	}
	if t.QoE > 0 && o.Progress.Goal == progress.GoalMax {
		bad("meta.%s: %q contradicts meta.%s: a response time is to be small", metaGoal, o.Progress.Goal, metaQoE)
	} else if t.QoE > 0 {
		o.Progress.Goal = progress.GoalMin // whatever the metric is called
	}
	metric, goal := o.Progress.Declared()
	for _, x := range []struct {
		key   string
		value *float64
	}{{metaAcceptable, t.Acceptable}, {metaObjective, t.Objective}} {
		switch {
		case x.value == nil:
		case metric == "":
			bad("meta.%s: needs a metric: set meta.%s (or progress.metric / progress.pattern) to the name of the value that is to reach %v", x.key, metaMetric, *x.value)
		case goal == "":
			bad(`meta.%s: needs a direction: %q does not say whether it is to fall or to rise to %v: set meta.%s = "min" or "max"`, x.key, metric, *x.value, metaGoal)
		}
	}
	if g := policy.Goal(goal); metric != "" && g.Valid() {
		if err := policy.CheckTargets(g, t.Acceptable, t.Objective).Err(); err != nil {
			bad("meta.%s: %w", metaObjective, err)
		}
	}
	return errors.Join(errs...)
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
