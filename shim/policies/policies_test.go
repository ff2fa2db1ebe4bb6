// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policies

import (
	"testing"

	"github.com/ebbtide/ebbtide/internal/policytest"
)

// Every example is valid and yields a decision; missing fields are reported.
func TestAll(t *testing.T) {
	for _, q := range All() {
		policytest.Example(t, q)
		if q.Departures != nil {
			policytest.Departures(t, "../../docs/concepts.md", "### `"+q.Name+"`", q.Departures)
		}
	}
}
