// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package options

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-uuid"

	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/internal/fields"
	"github.com/ebbtide/ebbtide/internal/optin"
)

// Keys of a job's meta that Ebbtide reads. Nomad merges the meta of job, group and task; the
// task's wins. All keys begin with Prefix.
const (
	Prefix           = "ebbtide_"
	KeyGoal          = "ebbtide_goal"
	KeyMetric        = "ebbtide_metric"
	keyMigrate       = optin.Migrate
	KeyPlacementHold = "ebbtide_hold" // read by the shim
	keyAdopt         = optin.Adopt
	// Read by the shim.
	keyCooldown      = optin.Cooldown
	KeyQueue         = optin.Queue
	keyOwner         = optin.Owner
	keyDuration      = optin.Duration
	keyQueuePriority = optin.Priority
	// Read by the device plugin.
	keyGPU        = "ebbtide_gpu_"
	KeyGPUMemory  = keyGPU + "memory"
	keyGPUGroup   = keyGPU + "group"
	keyGPUInput   = keyGPU + "input"
	keyPriority   = "ebbtide_priority"
	keyLimit      = "ebbtide_limit"
	KeyAcceptable = "ebbtide_acceptable"
	KeyObjective  = "ebbtide_objective"
	KeyTargetHold = "ebbtide_target_hold"
	KeyQoE        = "ebbtide_qoe_target"
	keySteps      = "ebbtide_total_steps"
	keyEpochs     = "ebbtide_total_epochs"
)

// MetaKey is a key with its documentation, as Markdown.
type MetaKey struct {
	Name    string
	Allowed string // including the default
	Doc     string
}

// Meta describes the keys, by name.
func Meta() []MetaKey {
	return []MetaKey{
		{KeyAcceptable, "a number", "Metric value at which the model is usable."},
		{keyAdopt, "an allocation's ID", "Set by the rollback of a move: the first allocation that starts with it on the node continues from the named allocation's checkpoint. Remains until the job is registered again or moved."},
		{keyCooldown, "duration, 0s to 8760h", "Minimum time between two moves, if longer than the shim's."},
		{keyDuration, "duration, 1s to 8760h", "How long the job takes, by its author's guess, for the [queue](queue.md). What its output shows counts once it runs."},
		{KeyGoal, "`min`, `max`", "As `progress.goal`."},
		{keyGPUGroup, "a name; default: the job", "Tasks with the same name share one part of the GPU's memory, unless it is divided by seats."},
		{keyGPUInput, "a number > 0", "Size of the input, in any unit: a property by which GPU memory is [divided](gpu-internals.md#shares)."},
		{KeyGPUMemory, "MiB, 1 to the card's memory", "Share and maximum of the task's GPU memory."},
		{KeyPlacementHold, "`true`, `false`", "The job waits for the shim to place it. Requires the constraint of [hold.hcl](../jobspecs/hold.hcl)."},
		{keyLimit, "`on`, `off`; default `on`", "`off`: never limited, not counted when CPU is divided; progress is still shown."},
		{KeyMetric, "a name", "As `progress.metric`."},
		{keyMigrate, "`true` (all), `false`, or a list of " + "`" + strings.Join(optin.All(), "`, `") + "`", "Policies by which the shim may move the job. Requires a `checkpoint` block."},
		{KeyObjective, "a number, no worse than `ebbtide_acceptable`", "Metric value at which the job is stopped as complete."},
		{keyOwner, "a name; default: the namespace", "Owner of a job in the [queue](queue.md). Owners share the cluster by weight."},
		{keyPriority, "1 to 100; default 50", "Rank on a shared GPU; unless it is divided by seats, also weight."},
		{KeyQoE, "a time > 0: `0.25`, `250ms`", "Target response time of a service. Not together with training targets."},
		{KeyQueue, "`true`, `false`", "The job waits in the [queue](queue.md). Requires the constraint of [queue.hcl](../jobspecs/queue.hcl)."},
		{keyQueuePriority, "-100 to 100; default 0", "Priority in the [queue](queue.md) among the jobs of one owner: higher ones come first."},
		{KeyTargetHold, "1 to 1000; default 1", "Consecutive reports that must reach a target."},
		{keyEpochs, "> 0, ≤ 1e12", "Epochs of the whole training; effective once the output shows the steps per epoch. Not together with `ebbtide_total_steps`."},
		{keySteps, "> 0, ≤ 1e12", "Steps of the whole training, as the output counts them. Overrides the output."},
	}
}

// MetaKeys lists the keys, for error messages.
func MetaKeys() (names []string) {
	for _, k := range Meta() {
		names = append(names, k.Name)
	}
	return names
}

// Key normalises a key of a job's meta; ours is false if it is not one of Ebbtide's. Nomad exports
// each key to the environment twice, once in upper case, and replaces characters that variable
// names cannot contain.
func Key(name string) (key string, ours bool) {
	key = strings.Map(func(r rune) rune {
		if r == '_' || 'a' <= r && r <= 'z' || '0' <= r && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(name))
	return key, strings.HasPrefix(key, Prefix)
}

// Ours returns Ebbtide's keys of a task's meta, by their normalised names. A known key with an empty
// value is unset: Nomad passes an optional key that a dispatch omits so.
func Ours(meta map[string]string) map[string]string {
	ours := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(meta)) {
		key, ok := Key(name)
		if ok && (meta[name] != "" || !slices.Contains(MetaKeys(), key)) {
			ours[key] = meta[name]
		}
	}
	return ours
}

func (o *Task) readMeta(key, value string, errs *fields.Errors) {
	switch key {
	case KeyGoal:
		if value != progress.GoalMin && value != progress.GoalMax {
			errs.Add("meta."+key, `must be "min" or "max", got %q`, value)
		} else if g := o.Progress.Goal; g != "" && g != value {
			errs.Add("meta."+key, "%q contradicts progress.goal = %q; set one of them", value, g)
		} else {
			o.Progress.Goal = value
		}
	case KeyMetric:
		if m := o.Progress.Metric; m != "" && m != value {
			errs.Add("meta."+key, "%q contradicts progress.metric = %q; set one of them", value, m)
		}
		o.Progress.Metric = value
	case keyLimit:
		switch value {
		case "on", "off":
			o.Limit = value == "on"
		default:
			errs.Add("meta."+key, `must be "on" or "off", got %q`, value)
		}
	case keyGPUGroup:
		// any name
	case KeyGPUMemory:
		if n, err := strconv.Atoi(value); err != nil || n < 1 {
			errs.Add("meta."+key, "must be a whole number of MiB ≥ 1, got %q", value)
		}
	case keyGPUInput:
		if v, err := strconv.ParseFloat(value, 64); err != nil || !(v > 0) || math.IsInf(v, 0) {
			errs.Add("meta."+key, "must be a number > 0, the size of the input, got %q", value)
		}
	case keyPriority:
		if n, err := strconv.Atoi(value); err != nil || n < 1 || n > 100 {
			errs.Add("meta."+key, "must be from 1 to 100, got %q", value)
		}
	case keyAdopt:
		if _, err := uuid.ParseUUID(value); err != nil {
			errs.Add("meta."+key, "must be the ID of an allocation, got %q", value)
		}
		o.Adopt = value
	case keyMigrate:
		policies, err := optin.Policies(value)
		if err != nil {
			errs.Add("meta."+key, "%v", err)
		}
		o.Migrate = slices.Contains(policies, optin.SpeConMigrate)
	case keyCooldown:
		if _, err := optin.ReadCooldown(value); err != nil {
			errs.Add("meta."+key, "%v", err)
		}
	case keyOwner:
		if err := optin.CheckOwner(value); err != nil {
			errs.Add("meta."+key, "%v", err)
		}
	case keyDuration:
		if _, err := optin.ReadDuration(value); err != nil {
			errs.Add("meta."+key, "%v", err)
		}
	case keyQueuePriority:
		if _, err := optin.ReadPriority(value); err != nil {
			errs.Add("meta."+key, "%v", err)
		}
	case KeyPlacementHold, KeyQueue:
		if value != "true" && value != "false" {
			errs.Add("meta."+key, `must be "true" or "false", got %q`, value)
		}
	case KeyAcceptable, KeyObjective:
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			errs.Add("meta."+key, "must be a number, a value of the metric, got %q", value)
		} else if key == KeyAcceptable {
			o.Targets.Acceptable = &v
		} else {
			o.Targets.Objective = &v
		}
	case KeyTargetHold:
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 || n > maxHold {
			errs.Add("meta."+key, "must be from 1 to %d consecutive reports, got %q", maxHold, value)
		} else {
			o.Targets.Hold = n
		}
	case keySteps, keyEpochs:
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || !(v > 0) || v > maxTotal {
			errs.Add("meta."+key, "must be a number > 0 and ≤ %g, the total of the whole training, got %q", maxTotal, value)
		} else if key == keySteps {
			o.Work.Steps = v
		} else {
			o.Work.Epochs = v
		}
	case KeyQoE:
		v, err := seconds(value)
		if err != nil {
			errs.Add("meta."+key, "must be a response time > 0, in seconds or with a unit, such as 0.25 or 250ms, got %q", value)
		}
		o.Targets.QoE = v
	default:
		errs.Add("meta."+key, "unknown key; allowed are %s", strings.Join(MetaKeys(), ", "))
	}
}

const (
	maxHold  = 1000 // bounds ebbtide_target_hold
	maxTotal = 1e12 // bounds ebbtide_total_steps and ebbtide_total_epochs
)

// seconds parses a time > 0: a number of seconds, or a duration with unit.
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

// WithoutSeat returns the keys that have no effect for a task without a seat on a shared card.
func WithoutSeat(meta map[string]string) (keys []string) {
	for key := range meta {
		if strings.HasPrefix(key, keyGPU) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}
