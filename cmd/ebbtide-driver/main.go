// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Command ebbtide-driver is the Nomad task driver plugin "ebbtide", started by Nomad.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"

	// Before the helpers.
	_ "github.com/ebbtide/ebbtide/internal/sigpipe"

	// These packages check os.Args in init and turn the process into the decorated driver's
	// helper. They come first so that the helper loads as little as possible.
	"github.com/hashicorp/nomad/drivers/docker/docklog"
	_ "github.com/hashicorp/nomad/drivers/shared/executor"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins"

	"github.com/ebbtide/ebbtide/driver"
	"github.com/ebbtide/ebbtide/internal/version"
)

var _ = docklog.PluginName

func main() {
	if len(os.Args) > 1 && (os.Args[1] == "-version" || os.Args[1] == "--version") {
		info, _ := debug.ReadBuildInfo()
		fmt.Println("ebbtide-driver", version.String(), "with the drivers of Nomad", version.Nomad(info))
		return
	}

	plugins.ServeCtx(func(ctx context.Context, logger hclog.Logger) any {
		d := driver.New(ctx, driver.InstalledName(), logger)
		go d.ExitIfOrphaned()
		return d
	})
}
