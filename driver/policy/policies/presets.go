// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policies

import (
	"fmt"
	"strings"
)

// Preset is a paper's published setting of the agent's options.
type Preset struct {
	Name, Paper string
	Options     map[string]string // literals by name, as in policy.Option.Default
}

// Presets returns the papers' settings. Limits are hard ones, as by `docker update --cpus`, and growth
// is measured from raw values. FlowCon of 2019 varies α from 1 to 15 % and the interval from 20 to
// 60 s; 5 % and 20 s are those of its first results.
func Presets() []Preset {
	published := func(name, paper, policy string, more map[string]string) Preset {
		all := map[string]string{
			"policy": `"` + policy + `"`, "estimator": `"published"`, "mode": `"quota"`, "quota_min_cores": "0.01", "interval": `"20s"`, "max_interval": `"24h"`,
		}
		for option, value := range more {
			all[option] = value
		}
		return Preset{Name: name, Paper: paper, Options: all}
	}
	return []Preset{
		published("flowcon-2019", "FlowCon (ICPP 2019)", "flowcon", map[string]string{"alpha": `"0.05"`, "beta": "2"}),
		published("flowcon-2022", "FlowCon (IEEE TCC 2022), adaptive α", "flowcon", map[string]string{"alpha": `"adaptive"`, "beta": "2"}),
		published("specon", "SpeCon: no limits; the shim moves tasks", "none", map[string]string{"specon_alpha": "0.01", "specon_interval": `"30s"`}),
		published("tradl", "TRADL", "tradl", map[string]string{"tradl_full": "0.9"}),
		published("dqoes", "DQoES", "dqoes", map[string]string{"dqoes_alpha": "0.1", "dqoes_beta": "0.1", "dqoes_step": `"published"`, "dqoes_headroom": "false"}),
	}
}

func PresetNames() []string {
	var names []string
	for _, p := range Presets() {
		names = append(names, p.Name)
	}
	return names
}

// FindPreset returns a preset's options by its name, none for "".
func FindPreset(name string) (map[string]string, error) {
	for _, p := range Presets() {
		if p.Name == name {
			return p.Options, nil
		}
	}
	if name == "" {
		return nil, nil
	}
	return nil, fmt.Errorf("must be one of %s, got %q", strings.Join(PresetNames(), ", "), name)
}
