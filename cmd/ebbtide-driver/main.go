// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Command ebbtide-driver is the Nomad task driver plugin "ebbtide". Nomad starts
// it; it is of no use on a command line.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	// These packages look at os.Args in their init and become the helper process
	// of the decorated driver that the binary is started as a second time. They
	// come first so that the helper loads as little as possible.
	"github.com/hashicorp/nomad/drivers/docker/docklog"
	_ "github.com/hashicorp/nomad/drivers/shared/executor"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins"

	"github.com/ebbtide/ebbtide/driver"
	"github.com/ebbtide/ebbtide/version"
)

var _ = docklog.PluginName

func main() {
	if len(os.Args) > 1 && (os.Args[1] == "-version" || os.Args[1] == "--version") {
		fmt.Println("ebbtide-driver", version.String())
		return
	}

	// When the agent is killed our log goes to a pipe that nobody reads, and a
	// write to it would kill us too, and with us what we know. The signal is
	// caught rather than ignored: tasks would inherit an ignored one.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	plugins.ServeCtx(func(ctx context.Context, logger hclog.Logger) any {
		d := driver.New(ctx, driver.InstalledName(), logger)
		go d.ExitIfOrphaned()
		return d
	})
}
