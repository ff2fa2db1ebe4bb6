// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/driver/growth"
	"github.com/ebbtide/ebbtide/driver/plan"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/policies"
	"github.com/ebbtide/ebbtide/driver/policy/specon"
	"github.com/ebbtide/ebbtide/internal/fields"
	"github.com/ebbtide/ebbtide/sim/baseline"
	"github.com/ebbtide/ebbtide/sim/scenario"
)

// Variant is a simulated policy: a node's, with settings, and the shim's.
type Variant struct {
	Name      string
	decider   policy.Decider
	estimator string
	published bool      // a paper's preset: all nodes count alike
	mode      plan.Mode // "" for the scenario's
	intervalS float64   // 0 for the scenario's
	quotaMin  float64   // cores; 0 for the default
	placement string    // "" for the scenario's
	specon    bool      // SpeCon moves tasks
	sorting   specon.Params
	sortS     float64 // SpeCon's interval
	order     *order  // of waiting tasks, nil for Nomad's

	ideal      bool // limits apply as decided, without planner and floor
	hard       bool // and even if CPU is idle
	once       bool // decided at events only, as intervals change nothing
	exactSizes bool // knows exact sizes
	twin       bool // compares tasks with their twins
	learn      bool // measures growth
}

// presets returns settings of the agent's options, as literals: the preferences of fair finish, and the
// papers' (policies.Presets). One that is called like a policy has a suffix.
func presets() map[string]map[string]string {
	out := make(map[string]map[string]string)
	for _, prefer := range []string{"completion", "balanced", "quality"} {
		out["fsp-"+prefer] = map[string]string{"policy": `"fsp"`, "fsp_prefer": `"` + prefer + `"`}
	}
	for _, p := range policies.Presets() {
		if name := p.Name; slices.Contains(append(policies.Names(), speconName), name) {
			out[name+"-published"] = p.Options
		} else {
			out[name] = p.Options
		}
	}
	return out
}

const speconName = "specon"

func Names() []string {
	names := slices.Concat(policies.Names(), baseline.Names(), []string{speconName})
	for name := range presets() {
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Find returns the policy of a -policy argument: one of Names, optionally with "@" and a
// placement. The error lists what is allowed, or says what the scenario lacks.
func Find(name string, s scenario.Scenario) (Variant, error) {
	base, placement, own := strings.Cut(name, "@")
	v := Variant{Name: name, estimator: growth.KindRobust, placement: s.Placement}
	if own {
		v.placement = placement
	}
	if !slices.Contains(scenario.Placements(), v.placement) {
		return v, problem("placement of %q must be one of %s", name, strings.Join(scenario.Placements(), ", "))
	}
	v.order = orders()[v.placement]
	preset := presets()[base]
	chosen, err := v.apply(base, preset)
	if err != nil {
		return v, err
	}
	v.published = preset != nil && slices.Contains(policies.PresetNames(), strings.TrimSuffix(base, "-published"))
	v.specon = base == speconName || base == speconName+"-published"
	if base == speconName {
		chosen = "none"
	}
	v.learn = v.placement == scenario.Alg4
	if d, ok := baseline.Find(chosen); ok {
		v.decider, v.ideal = d, true
		v.hard, v.once = chosen == baseline.Equal, chosen != baseline.LAS && len(s.Services) == 0
		v.exactSizes = chosen == baseline.SRPT
		return v, v.lacks(s, base)
	}
	found, err := policies.Find(chosen)
	if err != nil {
		return v, problem("must be one of %s, got %q", strings.Join(Names(), ", "), base)
	}
	values, err := options(s)
	if err != nil {
		return v, err
	}
	for option, value := range preset {
		values[option] = json.RawMessage(value)
	}
	if err := v.sort(values); err != nil {
		return v, err
	}
	if v.decider, err = found.Configure(values); err != nil {
		return v, fmt.Errorf("options: policy %s: %w", name, err)
	}
	v.once = chosen == "none" && !v.learn && !v.specon && len(s.Services) == 0
	v.twin = chosen == "fsp" || chosen == "auto"
	switch chosen {
	case "none", "dqoes", "tradl":
	case "fsp", "auto":
		v.learn = v.learn || s.Sizes == scenario.Estimated
	default:
		v.learn = true
	}
	return v, v.lacks(s, base)
}

// apply sets what a preset has for the node, and returns its policy: base without one.
func (v *Variant) apply(base string, preset map[string]string) (chosen string, err error) {
	set := struct {
		Policy, Estimator, Interval string
		Mode                        plan.Mode
		QuotaMinCores               float64
	}{Policy: base, Estimator: v.estimator}
	for option, into := range map[string]any{
		"policy": &set.Policy, "estimator": &set.Estimator, "interval": &set.Interval, "mode": &set.Mode, "quota_min_cores": &set.QuotaMinCores,
	} {
		if value, ok := preset[option]; ok {
			err = errors.Join(err, json.Unmarshal([]byte(value), into))
		}
	}
	if set.Interval != "" {
		every, parseErr := time.ParseDuration(set.Interval)
		v.intervalS, err = every.Seconds(), errors.Join(err, parseErr)
	}
	if err != nil {
		return "", fmt.Errorf("preset %s: %w", base, err)
	}
	v.estimator, v.mode, v.quotaMin = set.Estimator, set.Mode, set.QuotaMinCores
	return set.Policy, nil
}

// sort sets SpeCon's threshold and interval, as by the agent's options.
func (v *Variant) sort(values map[string]json.RawMessage) error {
	v.sorting = specon.DefaultParams()
	every := "30s"
	for option, into := range map[string]any{"specon_alpha": &v.sorting.Alpha, "specon_interval": &every} {
		if value, ok := values[option]; ok {
			if err := json.Unmarshal(value, into); err != nil {
				return problem("option %s: %v", option, err)
			}
		}
	}
	interval, err := time.ParseDuration(every)
	if err != nil || interval <= 0 || !(v.sorting.Alpha > 0) {
		return problem("specon_interval and specon_alpha must be > 0, got %q and %v", every, v.sorting.Alpha)
	}
	v.sortS = interval.Seconds()
	return nil
}

// byLot reports whether Nomad places tasks, by lot.
func (v Variant) byLot() bool { return v.order == nil && v.placement != scenario.Alg4 }

func options(s scenario.Scenario) (map[string]json.RawMessage, error) {
	kinds := map[string]string{"specon_alpha": policy.KindNumber, "specon_interval": policy.KindString}
	for _, o := range policies.Options() {
		kinds[o.Name] = o.Kind
	}
	out := make(map[string]json.RawMessage)
	for name, value := range s.Options {
		switch kind, ok := kinds[name]; {
		case !ok:
			var errs fields.Errors
			errs.Add(fields.Member("options", name), "must be one of %s", strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
			return nil, errs
		case kind == policy.KindString || !json.Valid([]byte(value)):
			text, err := json.Marshal(value)
			if err != nil {
				return nil, fmt.Errorf("encoding option %s: %w", name, err)
			}
			out[name] = text
		default:
			out[name] = json.RawMessage(value)
		}
	}
	return out, nil
}

// lacks reports what the policy needs and the scenario lacks.
func (v Variant) lacks(s scenario.Scenario, name string) error {
	targets := slices.ContainsFunc(s.Workloads, func(w scenario.Workload) bool { return w.Targets })
	switch {
	case name == "tradl" && !targets:
		return problem("%q needs jobs with targets, got a scenario without; set targets = true in a workload", v.Name)
	case name == "dqoes" && len(s.Services) == 0:
		return problem("%q needs services, got a scenario without; add a service", v.Name)
	case v.specon && s.NodeCount() < 2:
		return problem("%q moves tasks and needs 2 nodes at least, got %d", v.Name, s.NodeCount())
	}
	return nil
}

func problem(format string, args ...any) error {
	var errs fields.Errors
	errs.Add("policy", format, args...)
	return errs
}
