// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tradl

import (
	"encoding/json"
	"errors"
	"math"
	"testing"

	"github.com/shoenig/test/must"
)

func (in input) check() error { return errors.Join(in.Validate(), CheckParams(in.Params)) }

func TestPolicy_checks(t *testing.T) {
	must.NoError(t, Example().Validate())

	for _, tc := range []struct {
		name   string
		change func(*input)
		want   string // "" = valid
	}{
		{"full", func(in *input) { in.Params.Full = 0 }, `full: must be > 0 and ≤ 1, got 0`},
		{"full too large", func(in *input) { in.Params.Full = 1.1 }, `full: must be > 0 and ≤ 1, got 1.1`},
		{"full NaN", func(in *input) { in.Params.Full = math.NaN() }, `full: must be > 0 and ≤ 1, got NaN`},
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

func TestExample(t *testing.T) {
	var rules []string
	for _, d := range Decide(Example(), DefaultParams()).Tasks {
		rules = append(rules, d.Rule)
	}
	must.Eq(t, []string{RuleTraining, RuleHalf, RuleEven, RuleObjective, RuleTraining, RuleUnmeasured}, rules)
}

func TestPolicy_Configure(t *testing.T) {
	d, err := Policy().Configure(nil)
	must.NoError(t, err)
	must.Eq(t, `{"full":0.9}`, string(d.Params))
	_, err = Policy().Configure(map[string]json.RawMessage{"tradl_full": json.RawMessage("1.1")})
	must.EqError(t, err, "tradl_full: must be > 0 and ≤ 1, got 1.1")
}
