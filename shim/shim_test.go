// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/shim/config"
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
