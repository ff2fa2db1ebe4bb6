// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package options defines a jobspec's settings for a task, in its config and in meta: names,
// defaults and allowed values. It is separate from package driver, which links Nomad's drivers, for
// the command line.
package options

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/consul-template/signals"

	"github.com/ebbtide/ebbtide/driver/checkpoint"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/remaining"
	"github.com/ebbtide/ebbtide/driver/remaining/history"
	"github.com/ebbtide/ebbtide/driver/target"
	"github.com/ebbtide/ebbtide/internal/fields"
)

// Task holds a jobspec's settings for a task: technical ones from the task's config, properties of
// the job from meta.
type Task struct {
	Progress progress.Config
	Limit    bool // false: never limited
	Targets  target.Targets
	// Work is the task's declared size.
	Work remaining.Declared `json:",omitzero"`
	// Run identifies comparable runs. It is computed before Nomad's drivers change the config.
	Run history.Key `json:",omitzero"`
	Act Actions
	// Migrate allows moves to another node.
	Migrate bool `json:",omitempty"`
	// Adopt is the allocation whose checkpoint the task resumes from; "" = its own.
	Adopt string `json:",omitempty"`
	// Identity is the file that identifies the task to the device plugin; "" = no seat.
	Identity string `json:",omitempty"`
	// GPU is the device plugin's report on the task; "" = no seat.
	GPU string `json:",omitempty"`
	// Checkpoint describes how the task saves its state; nil = it cannot be moved.
	Checkpoint *checkpoint.Config `json:",omitempty"`
}

// Actions are the driver's actions at targets.
type Actions struct {
	Signal     string        // sent at the acceptable target; "" = none
	StopSignal string        // sent at the objective; "" = the decorated driver's default
	Grace      time.Duration // time from StopSignal until the task is killed
}

// defaultGrace is the time to save the last state. It is six times Nomad's default kill_timeout,
// because a result could be lost.
const defaultGrace = 30 * time.Second

// Input is a jobspec's settings for a task, with variables interpolated.
type Input struct {
	Blocks Blocks
	// Meta has Ebbtide's keys (see Ours), merged from job, group and task.
	Meta map[string]string
	// Env is the task's environment.
	Env map[string]string
	// Dirs are the directories in which the task may save its state.
	Dirs checkpoint.Dirs
}

// Read reads and validates a jobspec's settings. It reports every error, with the path of its
// field: "progress.metric", "meta.ebbtide_goal".
func Read(in Input) (*Task, fields.Errors) {
	o := &Task{Limit: true, Targets: target.Targets{Hold: 1}, Act: Actions{Grace: defaultGrace}}
	var errs fields.Errors
	if p := in.Blocks.Progress; p != nil {
		o.readProgress(p, &errs)
	}
	o.Work.Assumed = remaining.Assume(append([]string{in.Blocks.Command}, in.Blocks.Args...), in.Env)
	for _, key := range slices.Sorted(maps.Keys(in.Meta)) {
		o.readMeta(key, in.Meta[key], &errs)
	}
	merge(&errs, o.Progress.Validate())
	o.readTarget(&in.Blocks, &errs)
	o.readCheckpoint(in.Dirs, &in.Blocks, &errs)
	merge(&errs, o.CheckTargets())
	return o, errs
}

// merge adds the errors joined in err.
func merge(errs *fields.Errors, err error) {
	if err == nil {
		return
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			merge(errs, e)
		}
		return
	}
	var field fields.Error
	var setting *progress.FieldError
	switch {
	case errors.As(err, &setting):
		errs.Add("progress."+setting.Field, "%s, got %q", setting.Problem, setting.Value)
	case errors.As(err, &field):
		*errs = append(*errs, field)
	default:
		errs.Add("", "%v", err)
	}
}

func (o *Task) readProgress(p *Progress, errs *fields.Errors) {
	o.Progress = progress.Config{
		Preset: p.Preset, Metric: p.Metric, Pattern: p.Pattern, Goal: p.Goal,
		File: p.File, Format: p.Format, TensorBoard: p.TensorBoard,
		Prometheus: p.Prometheus, Step: p.Step, Total: p.Total,
	}
	for _, labels := range p.Labels {
		if o.Progress.Labels == nil {
			o.Progress.Labels = make(map[string]string)
		}
		maps.Copy(o.Progress.Labels, labels)
	}
	for _, n := range []struct {
		field string
		value any
		into  *float64
	}{{"quantile", p.Quantile, &o.Progress.Quantile}, {"scale", p.Scale, &o.Progress.Scale}} {
		if n.value == nil {
			continue
		}
		v, err := Number(n.value)
		if err != nil {
			errs.Add("progress."+n.field, "%v", err)
		} else if *n.into = v; v == 0 {
			errs.Add("progress."+n.field, "must be > 0, got 0")
		}
	}
}

// Number converts a number of a config. Nomad passes one that a float64 cannot represent exactly,
// such as 0.3, as text.
func Number(value any) (float64, error) {
	switch v := value.(type) {
	case float64:
		return v, nil
	case int64:
		return float64(v), nil
	case uint64:
		return float64(v), nil
	case string:
		if f, err := strconv.ParseFloat(v, 64); err == nil {
			return f, nil
		}
	}
	return 0, fmt.Errorf("must be a number, got %q", fmt.Sprint(value))
}

func (o *Task) readTarget(blocks *Blocks, errs *fields.Errors) {
	t := blocks.Target
	if t == nil {
		return
	}
	for _, s := range []struct{ field, value string }{{"signal", t.Signal}, {"stop_signal", t.StopSignal}} {
		// Nomad's exec driver turns an unknown signal, or one in lower case, into SIGINT.
		if _, ok := signals.SignalLookup[s.value]; s.value != "" && !ok {
			errs.Add("target."+s.field, "must be the name of a signal like SIGUSR1, got %q", s.value)
		}
	}
	o.Act.Signal, o.Act.StopSignal = t.Signal, t.StopSignal
	if t.Grace != "" {
		d, err := time.ParseDuration(t.Grace)
		if err != nil || d < 0 || d > time.Hour {
			errs.Add("target.grace", "must be a duration from 0s to 1h, got %q", t.Grace)
		}
		o.Act.Grace = d
	}
	if t.Signal != "" && o.Targets.Acceptable == nil {
		errs.Add("target.signal", "%q is sent at the acceptable target: set meta.%s, or remove it", t.Signal, KeyAcceptable)
	}
	if t.StopSignal != "" && o.Targets.Objective == nil {
		errs.Add("target.stop_signal", "%q is sent at the objective: set meta.%s, or remove it", t.StopSignal, KeyObjective)
	}
}

func (o *Task) readCheckpoint(dirs checkpoint.Dirs, blocks *Blocks, errs *fields.Errors) {
	b := blocks.Checkpoint
	if b == nil {
		return
	}
	c := checkpoint.Config{Path: b.Path, Shared: b.Shared, Signal: cmp.Or(b.Signal, checkpoint.DefaultSignal), Lease: checkpoint.DefaultLease}
	c.Timeout = checkpoint.DefaultTimeout(c.Signal)
	for _, d := range []struct {
		field, text string
		into        *time.Duration
	}{{"timeout", b.Timeout, &c.Timeout}, {"lease", b.Lease, &c.Lease}} {
		if d.text == "" {
			continue
		}
		v, err := time.ParseDuration(d.text)
		if err != nil {
			errs.Add("checkpoint."+d.field, "must be a duration like 90s, got %q", d.text)
			continue
		}
		*d.into = v
	}
	err := c.Validate()
	if err == nil {
		err = dirs.Check(c)
	}
	merge(errs, err)
	o.Checkpoint = &c
}

// CheckTargets validates the targets together. A target ends a job or makes it yield, so its metric
// and direction must be explicit.
func (o *Task) CheckTargets() error {
	var errs fields.Errors
	t := o.Targets
	if t.QoE > 0 && t.Any() {
		errs.Add("meta."+KeyQoE, "cannot be used together with %s or %s: a task is a service or a training job", KeyAcceptable, KeyObjective)
	}
	if o.Work.Steps > 0 && o.Work.Epochs > 0 {
		errs.Add("meta."+keyEpochs, "cannot be used together with %s; set one of them", keySteps)
	}
	if t.QoE > 0 && o.Work.Steps+o.Work.Epochs > 0 {
		errs.Add("meta."+KeyQoE, "cannot be used together with %s or %s: a service has no end", keySteps, keyEpochs)
	}
	if t.Hold > 1 && !t.Any() {
		errs.Add("meta."+KeyTargetHold, "applies to %s and %s, and neither is set", KeyAcceptable, KeyObjective)
	}
	if t.QoE > 0 && o.Progress.Goal == progress.GoalMax {
		errs.Add("meta."+KeyGoal, "%q contradicts meta.%s: a response time is to fall", o.Progress.Goal, KeyQoE)
	} else if t.QoE > 0 {
		o.Progress.Goal = progress.GoalMin // regardless of the metric's name
	}
	metric, goal := o.Progress.Declared()
	if t.QoE > 0 && o.Progress.Prometheus != "" && metric == "" {
		errs.Add("meta."+KeyQoE, "needs a metric: set progress.metric to the name of the response time")
	}
	for _, x := range []struct {
		key   string
		value *float64
	}{{KeyAcceptable, t.Acceptable}, {KeyObjective, t.Objective}} {
		switch {
		case x.value == nil:
		case metric == "":
			errs.Add("meta."+x.key, "needs a metric: set meta.%s (or progress.metric or progress.pattern) to the name of the value that is to reach %v", KeyMetric, *x.value)
		case goal == "":
			errs.Add("meta."+x.key, `needs a direction: the name %q does not imply whether it falls or rises to %v: set meta.%s to "min" or "max"`, metric, *x.value, KeyGoal)
		}
	}
	if g := policy.Goal(goal); metric != "" && g.Valid() {
		if err := policy.CheckTargets(g, t.Acceptable, t.Objective).Err(); err != nil {
			errs.Add("meta."+KeyObjective, "%v", err)
		}
	}
	return errs.Err()
}
