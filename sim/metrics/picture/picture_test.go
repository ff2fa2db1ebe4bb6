// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package picture

import (
	"bytes"
	"encoding/xml"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/sim/metrics"
)

func TestRatios(t *testing.T) {
	end := func(s float64) *float64 { return &s }
	runs := []metrics.Run{
		{Scenario: "s", Policy: "none", PoolCores: 1, Jobs: []metrics.Job{{ID: "a", EndS: end(10)}, {ID: "b", EndS: end(20)}}},
		{Scenario: "s", Policy: "fsp", PoolCores: 1, Jobs: []metrics.Job{{ID: "a", EndS: end(5)}, {ID: "b", EndS: end(20)}}},
	}
	draw := func(runs []metrics.Run) []byte {
		var w bytes.Buffer
		must.NoError(t, Ratios(&w, "a < b", runs, ""))
		must.NoError(t, xml.Unmarshal(w.Bytes(), new(struct{})))
		return w.Bytes()
	}
	one := draw(runs)
	must.Eq(t, one, draw(runs))
	runs[1].Jobs[0].EndS = end(9)
	must.NotEq(t, one, draw(runs)) // the line has moved
	must.StrContains(t, string(one), "fsp: half of the jobs at most ×0.50, worst ×1.00.")
	must.StrContains(t, string(draw(runs[:1])), "a &lt; b") // no line at all
	must.Error(t, Ratios(&bytes.Buffer{}, "title", runs[1:], ""))
}
