// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fairshare_test

import (
	"fmt"

	"github.com/ebbtide/ebbtide/device/fairshare"
)

// Three jobs of ann and one of bob, whose job needs more memory than hers, on a card of 12 GiB.
func ExampleDecide() {
	user := func(name string, rank int) map[string]fairshare.Property {
		return map[string]fairshare.Property{"user": {Value: name, Rank: rank}}
	}
	out := fairshare.Decide(fairshare.Input{
		MemoryMiB:    12288,
		Groups:       []fairshare.Group{{ID: "ann", Jobs: 3, Properties: user("ann", 1)}, {ID: "bob", Jobs: 1, Properties: user("bob", 2)}},
		Coefficients: fairshare.Coefficients{Scheme: fairshare.Equal},
		Params:       fairshare.DefaultParams(),
	})
	for _, g := range out.Groups {
		fmt.Printf("%s: Set = %.2f, %d MiB\n", g.ID, g.Set, g.MemoryMiB)
	}
	// Output:
	// ann: Set = 0.54, 6656 MiB
	// bob: Set = 0.46, 5632 MiB
}
