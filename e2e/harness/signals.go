// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package harness

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// Interruptible returns a context that ends on a signal. A second signal ends the program; the
// supervisor cleans up in any case.
func Interruptible() context.Context {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM, unix.SIGHUP)
	context.AfterFunc(ctx, stop)
	return ctx
}
