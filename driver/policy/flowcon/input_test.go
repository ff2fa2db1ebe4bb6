// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package flowcon

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy"
)

func TestInput_Validate(t *testing.T) {
	must.NoError(t, Example().Validate())
	must.NoError(t, adaptive().Validate())

	for _, tc := range []struct {
		name   string
		change func(*Input)
		want   string // "" = valid
	}{
		{"id empty", func(in *Input) { in.Tasks[1].ID = "" }, `tasks[1].id: must not be empty`},
		{"ids empty twice", func(in *Input) { in.Tasks[0].ID, in.Tasks[1].ID = "", "" },
			"tasks[0].id: must not be empty\ntasks[1].id: must not be empty"},
		{"id repeated", func(in *Input) { in.Tasks[2].ID = "vae" }, `tasks[2].id: must be unique, "vae" is the id of tasks[0] too`},
		{"category", func(in *Input) { in.Tasks[0].Category = "nl" },
			`tasks[0].category: must be one of "NL", "WL", "CL" or "" for a new task, got "nl"`},
		{"growth", func(in *Input) { in.Tasks[2].Growth = num(-1) }, `tasks[2].growth: must be ≥ 0, got -1`},
		{"growth NaN", func(in *Input) { in.Tasks[2].Growth = num(math.NaN()) }, `tasks[2].growth: must be ≥ 0, got NaN`},
		{"growth Inf", func(in *Input) { in.Tasks[2].Growth = num(math.Inf(1)) }, `tasks[2].growth: must be ≥ 0, got +Inf`},
		{"growth 0", func(in *Input) { in.Tasks[2].Growth = num(0) }, ``},
		{"progress", func(in *Input) { in.Tasks[0].Progress = num(-0.5) }, `tasks[0].progress: must be ≥ 0, got -0.5`},
		{"limit 0", func(in *Input) { in.Tasks[0].Limit = 0 }, `tasks[0].limit: must be > 0 and ≤ 1, got 0`},
		{"limit 0 of a new task", func(in *Input) { in.Tasks[4].Limit = 0 }, ``},
		{"limit negative of a new task", func(in *Input) { in.Tasks[4].Limit = -1 }, `tasks[4].limit: must be > 0 and ≤ 1, got -1`},
		{"limit too large", func(in *Input) { in.Tasks[0].Limit = 1.5 }, `tasks[0].limit: must be > 0 and ≤ 1, got 1.5`},
		{"limit NaN", func(in *Input) { in.Tasks[0].Limit = math.NaN() }, `tasks[0].limit: must be > 0 and ≤ 1, got NaN`},
		{"use", func(in *Input) { in.Tasks[0].Use = -0.1 }, `tasks[0].use: must be ≥ 0, got -0.1`},
		{"use above the pool", func(in *Input) { in.Tasks[0].Use = 1.2 }, ``},
		{"interval", func(in *Input) { in.IntervalS = 0 }, `interval_s: must be > 0, got 0`},
		{"interval Inf", func(in *Input) { in.IntervalS = math.Inf(1) }, `interval_s: must be > 0, got +Inf`},
		{"initial interval", func(in *Input) { in.InitialIntervalS = -20 }, `initial_interval_s: must be > 0, got -20`},
		{"event", func(in *Input) { in.Event = "jion" }, `event: must be one of "", "join", "leave", got "jion"`},
		{"alpha", func(in *Input) { in.Params.Alpha = FixedAlpha(-1) }, `params.alpha: must be "adaptive" or a number ≥ 0, got -1`},
		{"beta", func(in *Input) { in.Params.Beta = 0.5 }, `params.beta: must be ≥ 1, got 0.5`},
		{"beta NaN", func(in *Input) { in.Params.Beta = math.NaN() }, `params.beta: must be ≥ 1, got NaN`},
		{"beta Inf", func(in *Input) { in.Params.Beta = math.Inf(1) }, `params.beta: must be ≥ 1, got +Inf`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := Example()
			tc.change(&in)
			if tc.want == "" {
				must.NoError(t, in.Validate())
			} else {
				must.EqError(t, in.Validate(), tc.want)
			}
		})
	}

	t.Run("all at once", func(t *testing.T) {
		in := Input{Tasks: []Task{{Limit: 2, Use: -1, Category: policy.NL}}, Event: "?"}
		must.Len(t, 7, strings.Split(in.Validate().Error(), "\n"))
	})
}

func TestAlpha(t *testing.T) {
	must.Eq(t, Alpha{}, DefaultParams().Alpha)

	for _, tc := range []struct{ text, json string }{
		{"adaptive", `"adaptive"`},
		{"0.05", `0.05`},
		{"0", `0`},
	} {
		a, err := ParseAlpha(tc.text)
		must.NoError(t, err)
		must.Eq(t, tc.text, a.String())
		data, err := json.Marshal(a)
		must.NoError(t, err)
		must.Eq(t, tc.json, string(data))
		back := FixedAlpha(7)
		must.NoError(t, json.Unmarshal(data, &back))
		must.Eq(t, a, back)
	}
	a, err := ParseAlpha("5e-2")
	must.NoError(t, err)
	value, ok := a.Fixed()
	must.True(t, ok)
	must.Eq(t, 0.05, value)
	_, ok = Alpha{}.Fixed()
	must.False(t, ok)

	for _, bad := range []string{"", "-1", "NaN", "Inf", "5%", "Adaptive"} {
		_, err := ParseAlpha(bad)
		must.ErrorContains(t, err, `must be "adaptive" or a number ≥ 0`, must.Sprint(bad))
	}
	for _, bad := range []string{`-1`, `"0.05"`, `null`, `true`, `[1]`, `{}`, `"Adaptive"`, `1e999`} {
		var a Alpha
		must.EqError(t, a.UnmarshalJSON([]byte(bad)), `must be "adaptive" or a number ≥ 0, got `+bad)
	}
}
