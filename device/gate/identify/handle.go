// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package identify

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Handle refers to a process, safe against reuse of its pid. It needs Linux 5.3.
type Handle struct {
	file *os.File // a pidfd
}

// Open returns a handle on the process with this start time; ErrGone if it has exited.
func (f Finder) Open(pid int, start uint64) (*Handle, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("opening process %d: %w", pid, err)
	}
	h, err := newHandle(fd)
	if err != nil {
		return nil, err
	}
	// Read with the handle open: the pid is not reused.
	switch s, err := f.Start(pid); {
	case err == nil && s == start && !h.ended():
		return h, nil
	case err == nil:
		err = ErrGone
		fallthrough
	default:
		h.Close()
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
}

// newHandle wraps a pidfd, which Go's runtime polls without a thread.
func newHandle(fd int) (*Handle, error) {
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("making a pidfd non-blocking: %w", err)
	}
	return &Handle{os.NewFile(uintptr(fd), "pidfd")}, nil
}

// Wait returns nil when the process has exited, or an error after Close.
func (h *Handle) Wait() error {
	raw, err := h.file.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool { return ended(fd) })
}

// Kill kills the process. A process that has exited is no error.
func (h *Handle) Kill() error {
	raw, err := h.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("killing a process: %w", err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	if err == nil && !errors.Is(failed, unix.ESRCH) {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("killing a process: %w", err)
	}
	return nil
}

// Close ends Wait.
func (h *Handle) Close() { _ = h.file.Close() }

func (h *Handle) ended() bool {
	raw, err := h.file.SyscallConn()
	if err != nil {
		return false
	}
	over := false
	return raw.Control(func(fd uintptr) { over = ended(fd) }) == nil && over
}

func ended(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n == 1 && p[0].Revents&unix.POLLIN != 0
}
