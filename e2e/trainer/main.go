// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Command trainer trains a small model on generated data, as the load of tests, demo and
// benchmarks. It is static, runs in an empty image, prints like well-known frameworks, and
// saves and resumes exactly.
package main

import (
	"os"

	"github.com/ebbtide/ebbtide/e2e/trainer/app"
)

func main() {
	os.Exit(app.Main(os.Args[1:], os.Stdout, os.Stderr))
}
