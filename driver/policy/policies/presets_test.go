// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policies

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy"
)

// Each preset names options of its policy, with valid values, or options of the agent.
func TestPresets(t *testing.T) {
	agents := []string{"policy", "estimator", "mode", "quota_min_cores", "interval", "max_interval", "specon_alpha", "specon_interval"}
	for _, p := range Presets() {
		must.SliceContains(t, PresetNames(), p.Name)
		options, err := FindPreset(p.Name)
		must.NoError(t, err)
		must.Eq(t, p.Options, options)
		var name string
		must.NoError(t, json.Unmarshal([]byte(options["policy"]), &name))
		chosen, err := Find(name)
		must.NoError(t, err)
		values := make(map[string]json.RawMessage)
		for option, literal := range options {
			if slices.Contains(agents, option) {
				continue
			}
			must.True(t, slices.ContainsFunc(chosen.Options, func(o policy.Option) bool { return o.Name == option }), must.Sprint(option))
			values[option] = json.RawMessage(literal)
		}
		_, err = chosen.Configure(values)
		must.NoError(t, err, must.Sprint(p.Name))
	}
	options, err := FindPreset("")
	must.NoError(t, err)
	must.Nil(t, options)
	_, err = FindPreset("flowcon")
	must.ErrorContains(t, err, `must be one of flowcon-2019, flowcon-2022, specon, tradl, dqoes, got "flowcon"`)
}
