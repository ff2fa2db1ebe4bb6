// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// The window of the paper's figure 11 with its measurements, without optional fields.
const (
	figure11 = `"groups": [
    {"id": "1", "jobs": 12, "properties": {"application": {"value": "App_1", "rank": 1}, "size": {"value": "10M", "rank": 1}, "user": {"value": "User_1", "rank": 2}}},
    {"id": "2", "jobs": 5, "properties": {"application": {"value": "App_1", "rank": 1}, "size": {"value": "20M", "rank": 2}, "user": {"value": "User_2", "rank": 3}}},
    {"id": "3", "jobs": 8, "properties": {"application": {"value": "App_2", "rank": 1}, "user": {"value": "User_3", "rank": 1}}},
    {"id": "4", "jobs": 2, "properties": {"application": {"value": "App_2", "rank": 1}, "user": {"value": "User_3", "rank": 1}}},
    {"id": "5", "jobs": 3, "properties": {"application": {"value": "App_2", "rank": 1}, "size": {"value": "50M", "rank": 3}, "user": {"value": "User_3", "rank": 1}}}
  ], "coefficients": "equal"`
	fairShareSnapshot = `{"memory_mib": 12288, ` + figure11 + `}`
	adaptSnapshot     = `{"profiles": 30, ` + figure11 + `, "measured": [
    {"group": "2", "granted_mib": 2885, "peak_mib": 2885, "denied": 2},
    {"group": "1", "granted_mib": 2693, "peak_mib": 900}
  ]}`
)

func TestDecide_gpu(t *testing.T) {
	decidesAs(t, "fairshare", fairShareSnapshot)
	decidesAs(t, "fairshare-adapt", adaptSnapshot)
}

func TestDecide_badWindow(t *testing.T) {
	for _, tc := range []struct{ old, new, want string }{
		{`"memory_mib": 12288, `, ``, "memory_mib: is missing: the card's memory, in MiB"},
		{`12288`, `-1`, "memory_mib: must be ≥ 1 and ≤ 4294967296, got -1"},
		{`12288`, `1.5`, "memory_mib: must be a whole number, got 1.5"},
		{`"equal"`, `"equl"`, `coefficients: must be "count-only", "equal" or an object of numbers, got "equl"`},
		{`"equal"`, `{"count": NaN}`, `coefficients: must be "count-only", "equal" or an object of numbers, got {"count": NaN}`},
		{`"equal"`, `null`, `coefficients: must be "count-only", "equal" or an object of numbers, got null`},
		{`"equal"`, `{"count": 0.5, "colour": 0.5}`, `coefficients.colour: unknown property, must be one of: application, count, size, user`},
		{`"id": "2"`, `"id": "1"`, `groups[1].id: must be unique, "1" is the id of groups[0] too`},
		{`"rank": 2`, `"rank": -2`, `groups[0].properties.user.rank: must be ≥ 1 and ≤ 4294967296, got -2`},
		{`"equal"`, `"equal", "containers": [{"id": "a", "group": "9"}]`, `containers[0].group: must be the id of one of groups, got "9"`},
	} {
		status, stdout, stderr := ebbtide(strings.Replace(fairShareSnapshot, tc.old, tc.new, 1), "decide", "--policy", "fairshare")
		must.StrContains(t, stderr, tc.want+"\n")
		must.Eq(t, exitUsage, status)
		must.Eq(t, "", stdout)
	}
}
