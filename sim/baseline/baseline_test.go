// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package baseline

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy"
)

func TestFind(t *testing.T) {
	left := func(x policy.CPUSeconds) *policy.CPUSeconds { return &x }
	s := policy.Snapshot{PoolCores: 4, Tasks: []policy.Task{
		{ID: "a", Entitlement: 1, CPUS: 30, RemainingCPUS: left(10), CapCores: 1},
		{ID: "b", Entitlement: 1, CPUS: 10, RemainingCPUS: left(90)},
		{ID: "c", Entitlement: 1, CPUS: 20, RemainingCPUS: left(50), CapCores: 2},
	}}
	for name, want := range map[string][]policy.Share{
		Equal: {1.0 / 3, 1.0 / 3, 1.0 / 3},
		LAS:   {least, 1, least},
		SRPT:  {0.25, 0.25, 0.5}, // a, c and then b, each up to its cap
	} {
		d, ok := Find(name)
		must.True(t, ok)
		must.NoError(t, d.Check(s))
		var got []policy.Share
		for _, x := range d.Decide(s).Tasks {
			got = append(got, *x.Limit)
		}
		must.Eq(t, want, got, must.Sprint(name))
	}
	_, ok := Find("fsp")
	must.False(t, ok)
	must.Len(t, 3, Names())
}
