// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fields

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestIDs(t *testing.T) {
	var errs Errors
	ids := IDs{List: "tasks"}
	for i, id := range []string{"a", "", "b", "a", "a", ""} {
		ids.Check(&errs, i, id)
	}
	must.EqError(t, errs.Err(), "tasks[1].id: must not be empty\n"+
		"tasks[3].id: must be unique, \"a\" is the id of tasks[0] too\n"+
		"tasks[4].id: must be unique, \"a\" is the id of tasks[0] too\n"+
		"tasks[5].id: must not be empty")
}
