// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ebbtide/ebbtide/driver/growth"
	"github.com/ebbtide/ebbtide/driver/plan"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/policies"
	"github.com/ebbtide/ebbtide/internal/fields"
	"github.com/ebbtide/ebbtide/sim/baseline"
	"github.com/ebbtide/ebbtide/sim/scenario"
)

// Variant is a simulated policy: a node's, with settings, and the shim's.
type Variant struct {
	Name      string
	decider   policy.Decider
	estimator string
	mode      plan.Mode // "" for the scenario's
	placement string    // "" for the scenario's
	specon    bool      // SpeCon moves tasks
	order     *order    // of waiting tasks, nil for Nomad's

	ideal      bool // limits apply as decided, without planner and floor
	hard       bool // and even if CPU is idle
	once       bool // decided at events only, as intervals change nothing
	exactSizes bool // knows exact sizes
	twin       bool // compares tasks with their twins
	learn      bool // measures growth
}

// presets are policies with fixed settings.
type preset struct {
	policy, estimator string
	mode              plan.Mode
	options           map[string]string
}

func presets() map[string]preset {
	return map[string]preset{
		"flowcon-published": {policy: "flowcon", estimator: growth.KindPublished, mode: plan.ModeQuota},
		"fsp-completion":    {policy: "fsp", options: map[string]string{"fsp_prefer": `"completion"`}},
		"fsp-balanced":      {policy: "fsp", options: map[string]string{"fsp_prefer": `"balanced"`}},
		"fsp-quality":       {policy: "fsp", options: map[string]string{"fsp_prefer": `"quality"`}},
	}
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
	p, ok := presets()[base]
	if !ok {
		p.policy = base
	}
	if p.estimator != "" {
		v.estimator = p.estimator
	}
	v.mode = p.mode
	if base == speconName {
		p.policy, v.specon = "none", true
	}
	v.learn = v.placement == scenario.Alg4
	if d, ok := baseline.Find(p.policy); ok {
		v.decider, v.ideal = d, true
		v.hard, v.once = p.policy == baseline.Equal, p.policy != baseline.LAS && len(s.Services) == 0
		v.exactSizes = p.policy == baseline.SRPT
		return v, v.lacks(s, base)
	}
	found, err := policies.Find(p.policy)
	if err != nil {
		return v, problem("must be one of %s, got %q", strings.Join(Names(), ", "), base)
	}
	values, err := options(s)
	if err != nil {
		return v, err
	}
	for option, value := range p.options {
		values[option] = json.RawMessage(value)
	}
	if v.decider, err = found.Configure(values); err != nil {
		return v, fmt.Errorf("options: policy %s: %w", name, err)
	}
	v.once = p.policy == "none" && !v.learn && !v.specon && len(s.Services) == 0
	v.twin = p.policy == "fsp" || p.policy == "auto"
	switch p.policy {
	case "none", "dqoes", "tradl":
	case "fsp", "auto":
		v.learn = v.learn || s.Sizes == scenario.Estimated
	default:
		v.learn = true
	}
	return v, v.lacks(s, base)
}

// byLot reports whether Nomad places tasks, by lot.
func (v Variant) byLot() bool { return v.order == nil && v.placement != scenario.Alg4 }

func options(s scenario.Scenario) (map[string]json.RawMessage, error) {
	kinds := make(map[string]string)
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
