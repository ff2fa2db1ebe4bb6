// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policies

import (
	"testing"

	"github.com/ebbtide/ebbtide/internal/policytest"
)

func TestAll(t *testing.T) {
	for _, q := range All() {
		policytest.Example(t, q)
	}
	policytest.Departures(t, "../../docs/gpu-internals.md", "### Departures from the paper", departures())
}
