// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/base"
	"github.com/shoenig/test/must"
)

func TestOrphaned(t *testing.T) {
	for _, tc := range []struct {
		name       string
		parents    []int // consecutive results of getppid
		configured int   // index at which the plugin is configured; 0 = never
		want       bool
	}{
		{"parent gone", []int{7, 7, 7, 1}, 0, true},
		{"parent gone to a subreaper", []int{7, 7, 4242}, 0, true},
		{"the init process is the parent", []int{1, 1, 1, 1, 1}, 5, false},
		{"configured", []int{7, 7, 7}, 3, false},
		{"configured, then the parent gone", []int{7, 7, 1}, 3, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var configured atomic.Bool
			calls := 0
			got := orphaned(configured.Load, func() int {
				calls++
				configured.Store(calls == tc.configured)
				return tc.parents[calls-1]
			}, time.Microsecond)
			must.Eq(t, tc.want, got)
			must.Eq(t, len(tc.parents), calls, must.Sprint("it repeats until it knows"))
		})
	}
}

func TestConfigured(t *testing.T) {
	d := newDriver(t, Name)
	spec, err := d.ConfigSchema()
	must.NoError(t, err)
	for _, c := range []struct {
		text string
		ok   bool
		want bool
	}{
		{`policy = "flowcom"`, false, false},
		{`engine = "exec"`, true, true},
		{`policy = "flowcom"`, false, true},
	} {
		data, err := encodeHCL(t, spec, c.text)
		must.NoError(t, err)
		err = d.SetConfig(&base.Config{PluginConfig: data})
		must.Eq(t, c.ok, err == nil)
		must.Eq(t, c.want, d.configured())
	}
}
