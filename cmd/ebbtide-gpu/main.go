// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Command ebbtide-gpu is the Nomad device plugin "ebbtide-gpu", started by Nomad. It
// re-executes itself as the helper that calls CUDA.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins"

	"github.com/ebbtide/ebbtide/device"
	"github.com/ebbtide/ebbtide/device/checkpoint/driver"
	"github.com/ebbtide/ebbtide/device/checkpoint/libcuda"
	"github.com/ebbtide/ebbtide/internal/version"
)

func main() {
	if len(os.Args) > 1 && (os.Args[1] == "-version" || os.Args[1] == "--version") {
		fmt.Println("ebbtide-gpu", version.String())
		return
	}
	if len(os.Args) > 2 && os.Args[1] == driver.Argument {
		os.Exit(libcuda.Helper(os.Args[2]))
	}
	plugins.ServeCtx(func(ctx context.Context, log hclog.Logger) any { return device.New(ctx, log) })
}
