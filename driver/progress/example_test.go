// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress_test

import (
	"fmt"

	"github.com/ebbtide/ebbtide/driver/progress"
)

// What a trainer prints, and what is read.
func ExampleParser() {
	p, err := progress.NewParser(progress.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, line := range []string{
		"loading data",
		"Epoch 1/3  loss: 2.31 - accuracy: 0.11",
		"Epoch 2/3  loss: 1.07 - accuracy: 0.52",
		"checkpoint written in 0.4 s",
	} {
		if r, ok := p.Parse([]byte(line)); ok {
			fmt.Printf("%s = %v at %v of %v\n", r.Metric, r.Value, r.Step, r.Total)
		}
	}
	// Output:
	// loss = 2.31 at 1 of 3
	// loss = 1.07 at 2 of 3
}
