// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package flowcon

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/shoenig/test/must"
)

func TestPolicy_checks(t *testing.T) {
	must.NoError(t, Example().Validate())
	must.NoError(t, adaptive().check())

	for _, tc := range []struct {
		name   string
		change func(*input)
		want   string // "" = valid
	}{
		{"interval", func(in *input) { in.IntervalS = 0 }, `interval_s: must be > 0, got 0`},
		{"interval Inf", func(in *input) { in.IntervalS = math.Inf(1) }, `interval_s: must be ≥ 0, got +Inf`},
		{"initial interval", func(in *input) { in.InitialIntervalS = -20 }, `initial_interval_s: must be ≥ 0, got -20`},
		{"alpha", func(in *input) { in.Params.Alpha = FixedAlpha(-1) }, `alpha: must be "adaptive" or a number ≥ 0, got -1`},
		{"beta", func(in *input) { in.Params.Beta = 0.5 }, `beta: must be ≥ 1, got 0.5`},
		{"beta NaN", func(in *input) { in.Params.Beta = math.NaN() }, `beta: must be ≥ 1, got NaN`},
		{"beta Inf", func(in *input) { in.Params.Beta = math.Inf(1) }, `beta: must be ≥ 1, got +Inf`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := input{Example(), DefaultParams()}
			tc.change(&in)
			if tc.want == "" {
				must.NoError(t, in.check())
			} else {
				must.EqError(t, in.check(), tc.want)
			}
		})
	}
}

func TestPolicy_Configure(t *testing.T) {
	for _, tc := range []struct{ values, want string }{
		{`{}`, `{"alpha":"adaptive","beta":2}`},
		{`{"alpha": "0.05", "beta": 200}`, `{"alpha":0.05,"beta":200}`},
		{`{"alpha": "5%", "beta": 0.5}`, "alpha: must be \"adaptive\" or a number ≥ 0, got \"5%\"\nbeta: must be ≥ 1, got 0.5"},
	} {
		var values map[string]json.RawMessage
		must.NoError(t, json.Unmarshal([]byte(tc.values), &values))
		d, err := Policy().Configure(values)
		if err != nil {
			must.EqError(t, err, tc.want)
			continue
		}
		must.Eq(t, tc.want, string(d.Params))
		must.NoError(t, d.Check(Example()))
		must.NotNil(t, d.Decide(Example()).Alpha)
	}
}

func TestAlpha(t *testing.T) {
	must.Eq(t, Alpha{}, DefaultParams().Alpha)
	for text, want := range map[string]string{
		`"adaptive"`: `"adaptive"`, `0.05`: `0.05`, `"0.05"`: `0.05`, `"5e-2"`: `0.05`, `0`: `0`,
	} {
		a := FixedAlpha(7)
		must.NoError(t, json.Unmarshal([]byte(text), &a))
		data, err := json.Marshal(a)
		must.NoError(t, err)
		must.Eq(t, want, string(data))
	}
	_, ok := Alpha{}.Fixed()
	must.False(t, ok)
	for _, bad := range []string{`-1`, `"-1"`, `""`, `"NaN"`, `"Inf"`, `"5%"`, `null`, `true`, `[1]`, `{}`, `"Adaptive"`, `1e999`} {
		var a Alpha
		must.EqError(t, a.UnmarshalJSON([]byte(bad)), `must be "adaptive" or a number ≥ 0, got `+bad)
	}
}
