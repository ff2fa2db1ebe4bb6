// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestCategory_Valid(t *testing.T) {
	for _, c := range []Category{New, NL, WL, CL} {
		must.True(t, c.Valid(), must.Sprint(c))
	}
	for _, c := range []Category{"nl", "PC", " "} {
		must.False(t, c.Valid(), must.Sprint(c))
	}
}
