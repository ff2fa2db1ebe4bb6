// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package libcuda

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/device/checkpoint/driver"
)

// grace bounds the calls in progress when the helper is to end. Restoring a full card takes about
// 15 s.
const grace = time.Minute

// Helper is the helper's main function: it loads the library at a path ("": the system's) and
// serves package driver's requests on its standard input. It ends with its input, or on SIGTERM,
// which it gets when its parent dies. It returns the exit status.
func Helper(path string) int {
	// The library's own output must not mix with the answers.
	fd, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 3)
	if err == nil {
		err = unix.Dup3(2, 1, 0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "duplicating the standard output:", err)
		return 1
	}
	out := os.NewFile(uintptr(fd), "answers")
	// A terminal sends SIGINT to all its processes; writing to a dead parent would raise SIGPIPE
	// during a call.
	signal.Ignore(unix.SIGINT, unix.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()

	var cuda int
	var unsupported string
	l, err := Open(path)
	if err != nil {
		unsupported = err.Error()
	} else {
		cuda = l.CUDA()
	}
	if err := driver.Serve(ctx, os.Stdin, out, l, cuda, unsupported, grace); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
