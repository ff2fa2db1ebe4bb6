// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package growth_test

import (
	"fmt"
	"math"

	"github.com/ebbtide/ebbtide/driver/growth"
)

// A loss that falls fast and then crawls, in intervals of ten CPU-seconds.
func Example() {
	e, err := growth.New(growth.KindRobust, growth.Min)
	if err != nil {
		fmt.Println(err)
		return
	}
	for cpu := 1.0; cpu <= 80; cpu++ {
		e.Add(growth.Point{T: cpu, CPU: cpu, Value: 0.1 + math.Exp(-cpu/10), Step: cpu})
		if int(cpu)%20 == 0 {
			m := e.Measure()
			fmt.Printf("after %2.0f CPU-seconds: loss %.3f, growth %.4f, flat %v\n", cpu, m.Value, m.Growth, m.Plateau)
		}
	}
	// Output:
	// after 20 CPU-seconds: loss 0.235, growth 0.0100, flat false
	// after 40 CPU-seconds: loss 0.118, growth 0.0016, flat false
	// after 60 CPU-seconds: loss 0.102, growth 0.0000, flat true
	// after 80 CPU-seconds: loss 0.100, growth 0.0000, flat true
}
