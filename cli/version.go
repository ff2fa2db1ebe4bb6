// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/hashicorp/cli"

	"github.com/ebbtide/ebbtide/cli/doctor"
	"github.com/ebbtide/ebbtide/cli/setup"
	"github.com/ebbtide/ebbtide/internal/version"
)

type versionCommand struct{ io IO }

func newVersion(io IO) cli.Command { return versionCommand{io: io} }

func (versionCommand) Synopsis() string { return "Print the version of this build" }

func (versionCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide version

  Prints the version of Ebbtide, and the Go version and platform it was built
  with and for. Then, for each task driver plugin next to this program and in
  ` + setup.DefaultPlugins + `, the version of Nomad whose drivers it contains.
`)
}

func (c versionCommand) Run(args []string) int {
	if len(args) > 0 {
		fmt.Fprintf(c.io.Err, "ebbtide version: takes no arguments, got %q\n", args)
		return exitUsage
	}
	fmt.Fprintf(c.io.Out, "ebbtide %s %s %s/%s\n", version.String(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	dirs := []string{setup.DefaultPlugins}
	if self, err := os.Executable(); err == nil {
		dirs = append([]string{filepath.Dir(self)}, dirs...)
	}
	for _, dir := range dirs {
		files, _ := doctor.Plugins(dir) // there may be none
		for _, f := range files {
			if f.Ours {
				fmt.Fprintf(c.io.Out, "%s contains the drivers of Nomad %s\n", filepath.Join(dir, f.Name), f.Nomad)
			}
		}
	}
	return exitOK
}
