// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package harness

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// Interruptible is the context of a program that measures: it ends with a signal that asks
// the program to. A second one ends the program at once; the supervisor cleans up in any
// case.
func Interruptible() context.Context {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM, unix.SIGHUP)
	context.AfterFunc(ctx, stop)
	return ctx
}
