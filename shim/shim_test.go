// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"errors"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/web"
)

// A leader is well that follows the cluster, and a standby that knows that it is one.
func TestHealth(t *testing.T) {
	s := &Shim{config: config.Default(), metrics: web.NewMetrics()}
	must.NoError(t, s.health())
	down := errors.New("connection refused")
	s.apartIs(down)
	must.ErrorIs(t, s.health(), down)
	s.apartIs(nil) // another one leads
	must.NoError(t, s.health())

	s.leadsIs(true)
	s.apartIs(down) // a renewal failed, and is tried again
	must.NoError(t, s.health())
	s.problemIs(down)
	must.ErrorIs(t, s.health(), down)
	s.leadsIs(false)
	must.NoError(t, s.health())
}
