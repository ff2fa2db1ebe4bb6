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

// grace is how long calls under way may take when the helper is to end. To bring a full
// card's memory back takes some 15 s.
const grace = time.Minute

// Helper is the helper's main function: it loads the library at a path ("": the system's)
// and does on its standard input's word what package driver asks for. It ends with its
// input, or with a SIGTERM, which its parent's end sends. It returns the exit status.
func Helper(path string) int {
	// Whatever the library prints must not come between the answers.
	fd, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 3)
	if err == nil {
		err = unix.Dup3(2, 1, 0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "keeping the standard output apart:", err)
		return 1
	}
	out := os.NewFile(uintptr(fd), "answers")
	// SIGINT is a terminal's to all that runs in it. SIGPIPE would come of a last word to a
	// parent that is gone, in the middle of a call.
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
