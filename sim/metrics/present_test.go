// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package metrics

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestPresent(t *testing.T) {
	r := Run{Jobs: []Job{
		{ArriveS: 20, EndS: at(25)}, {ArriveS: 0, EndS: at(10)}, {ArriveS: 5, EndS: at(8)}, {ArriveS: 9, EndS: at(11)}, {ArriveS: 50},
	}}
	must.Eq(t, 11+5, r.Present())
	must.Eq(t, 0, Run{}.Present())
}
