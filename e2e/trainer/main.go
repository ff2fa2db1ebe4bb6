// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Command trainer trains a small model on generated data. It is the load of Ebbtide's tests, demo and benchmarks:
// a static binary that runs in an empty image, prints as well-known frameworks do, saves and resumes exactly.
package main

import (
	"os"

	"github.com/ebbtide/ebbtide/e2e/trainer/app"
)

func main() {
	os.Exit(app.Main(os.Args[1:], os.Stdout, os.Stderr))
}
