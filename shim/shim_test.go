// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/leader"
)

func TestHealth(t *testing.T) {
	s := New(config.Default(), nil, "me", hclog.NewNullLogger())
	must.NoError(t, s.health())
	s.setLockErr(true)
	must.ErrorContains(t, s.health(), "the leader is unknown")
	s.setLockErr(false)
	must.NoError(t, s.health())

	s.setLeads(true)
	s.setLockErr(true) // a renewal failed and is retried
	must.NoError(t, s.health())
	s.setDisconnected(true)
	must.ErrorContains(t, s.health(), "not connected to the cluster's event stream")
	s.setLeads(false)
	must.NoError(t, s.health())
}

// A shim that no longer leads reports no figures of the leader.
func TestLead_ends(t *testing.T) {
	client, err := api.NewClient(api.DefaultConfig())
	must.NoError(t, err)
	s := New(config.Default(), client, "me", hclog.NewNullLogger())
	s.metrics.Orphans.Set(1)
	s.metrics.Held.Set(1)
	queue := []prometheus.Gauge{s.metrics.Queued, s.metrics.QueuedLate, s.metrics.Suspended}
	for _, figure := range queue {
		figure.Set(1)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must.ErrorIs(t, s.lead(ctx, &leader.Term{}), context.Canceled)
	must.Zero(t, testutil.ToFloat64(s.metrics.Orphans))
	must.Zero(t, testutil.ToFloat64(s.metrics.Held))
	for _, figure := range queue {
		must.Zero(t, testutil.ToFloat64(figure))
	}
}
