// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policies

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// Every example is valid and a decision, and what is missing is told.
func TestAll(t *testing.T) {
	for _, p := range All() {
		must.NotEq(t, "", p.Synopsis)
		example, err := json.Marshal(p.Example)
		must.NoError(t, err)
		asked, err := p.DecideJSON(example)
		must.NoError(t, err)
		out, err := json.Marshal(asked)
		must.NoError(t, err)
		paper, _, _ := strings.Cut(p.Name, "-")
		must.StrContains(t, string(out), `"rule":"`+paper+".")
		_, err = p.DecideJSON([]byte("{}"))
		must.ErrorContains(t, err, "is missing")
	}
}
