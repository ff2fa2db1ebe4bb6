// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package metricsserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Address is where metrics are served. The zero value disables serving.
type Address struct{ network, path string }

const (
	unixPrefix = "unix:"
	// maxSocketPath is the longest path of a Unix socket, in bytes (sun_path).
	maxSocketPath = 107
	// socketMode lets root and the socket's group scrape. The group is root's unless the directory
	// is setgid.
	socketMode = 0o660
)

// Parse parses an address; "" disables serving. The error states the allowed values and the value.
func Parse(text string) (Address, error) {
	if text == "" {
		return Address{}, nil
	}
	if path, ok := strings.CutPrefix(text, unixPrefix); ok {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path || len(path) > maxSocketPath {
			return Address{}, fmt.Errorf("must be unix: with the absolute path of a socket, of at most %d bytes, got %q", maxSocketPath, text)
		}
		return Address{"unix", path}, nil
	}
	// A name could resolve to another address later.
	a, err := netip.ParseAddrPort(text)
	if err != nil || !a.Addr().IsLoopback() || a.Port() == 0 {
		return Address{}, fmt.Errorf("must be a loopback address with a port, like 127.0.0.1:9464 or [::1]:9464, or unix: with the absolute path of a socket, or empty, got %q", text)
	}
	return Address{"tcp", a.String()}, nil
}

// String returns the address in the form of the configuration.
func (a Address) String() string {
	if a.network == "unix" {
		return unixPrefix + a.path
	}
	return a.path
}

// listen opens the address. It replaces a socket that a killed process has left.
func (a Address) listen(ctx context.Context) (net.Listener, error) {
	var c net.ListenConfig
	if a.network == "unix" {
		// Linux gives the file the mode that the socket has when bound.
		c.Control = func(_, _ string, conn syscall.RawConn) (err error) {
			failed := conn.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), socketMode) })
			return errors.Join(failed, err)
		}
	}
	l, err := c.Listen(ctx, a.network, a.path)
	if errors.Is(err, unix.EADDRINUSE) && a.abandoned(ctx) {
		if err := os.Remove(a.path); err != nil {
			return nil, fmt.Errorf("replacing the socket: %w", err)
		}
		l, err = c.Listen(ctx, a.network, a.path)
	}
	return l, err
}

// abandoned reports whether the address is a socket without a listening process.
func (a Address) abandoned(ctx context.Context) bool {
	info, err := os.Lstat(a.path)
	if a.network != "unix" || err != nil || info.Mode().Type() != os.ModeSocket {
		return false
	}
	conn, err := new(net.Dialer).DialContext(ctx, a.network, a.path)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, unix.ECONNREFUSED)
}
