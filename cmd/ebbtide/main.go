// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Command ebbtide is Ebbtide's CLI; see package cli.
package main

import (
	"os"

	"github.com/ebbtide/ebbtide/cli"
)

func main() {
	os.Exit(cli.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
