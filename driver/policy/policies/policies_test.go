// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policies

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
)

func TestFind(t *testing.T) {
	for _, name := range Names() {
		decide, err := Find(name)
		must.NoError(t, err)
		out := decide(flowcon.Example())
		must.Len(t, len(flowcon.Example().Tasks), out.Tasks)
		must.StrHasPrefix(t, name+".", out.Tasks[0].Rule)
	}

	_, err := Find("flowkon")
	must.EqError(t, err, `unknown policy "flowkon", must be one of: flowcon, none`)
}
