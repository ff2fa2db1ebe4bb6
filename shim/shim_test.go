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
	s.apartIs(true)
	must.ErrorContains(t, s.health(), "it is not known which shim leads")
	s.apartIs(false)
	must.NoError(t, s.health())

	s.leadsIs(true)
	s.apartIs(true) // a renewal failed and is retried
	must.NoError(t, s.health())
	s.problemIs(true)
	must.ErrorContains(t, s.health(), "the cluster is not followed")
	s.leadsIs(false)
	must.NoError(t, s.health())
}
