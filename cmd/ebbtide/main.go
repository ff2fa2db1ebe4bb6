// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Command ebbtide is the command line of Ebbtide: what-if runs of the policies,
// checks of a trainer's output and of a Nomad agent. The work is in package cli.
package main

import (
	"os"

	"github.com/ebbtide/ebbtide/cli"
)

func main() {
	os.Exit(cli.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
