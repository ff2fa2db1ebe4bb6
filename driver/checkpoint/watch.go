// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/taskfs"
)

// watch signals when a file is closed after writing or renamed: inotify's CLOSE_WRITE
// and MOVED_TO, which fsnotify lacks. A nil watch never signals.
type watch struct {
	queue  *os.File
	signal chan struct{} // capacity 1
	ended  chan struct{} // closed when the queue is no longer read
}

func newWatch(root *taskfs.Dir, name string) (*watch, error) {
	dir, err := root.Sub(path.Dir(name))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", name, err)
	}
	w := &watch{queue: os.NewFile(uintptr(fd), "inotify"), signal: make(chan struct{}, 1), ended: make(chan struct{})}
	// By descriptor: the path may lead to another directory by now.
	if _, err := unix.InotifyAddWatch(fd, fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), unix.IN_CLOSE_WRITE|unix.IN_MOVED_TO); err != nil {
		return nil, errors.Join(fmt.Errorf("watching %s: %w", name, err), w.queue.Close())
	}
	go w.read(path.Base(name))
	return w, nil
}

func (w *watch) read(name string) {
	defer close(w.ended)
	buf := make([]byte, 64<<10)
	for {
		n, err := w.queue.Read(buf)
		if err != nil {
			return
		}
		for rest := buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			// struct inotify_event: wd, mask, cookie, len, and the name of that length.
			size := int(binary.NativeEndian.Uint32(rest[12:16]))
			if string(bytes.TrimRight(rest[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size], "\x00")) == name {
				select {
				case w.signal <- struct{}{}:
				default:
				}
			}
			rest = rest[unix.SizeofInotifyEvent+size:]
		}
	}
}

func (w *watch) events() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.signal
}

func (w *watch) close() error {
	if w == nil {
		return nil
	}
	err := w.queue.Close()
	<-w.ended
	return err
}
