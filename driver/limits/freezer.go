// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
)

const (
	freezerState = "freezer.state"
	cgroupFreeze = "cgroup.freeze"
)

// FreezerDir returns the directory of the freezer, for Thaw; "" if there is none.
func (c *Cgroup) FreezerDir() string { return c.frz.dir }

// Freeze returns once all processes of the cgroup are frozen. If ctx ends first, it
// thaws them.
func (c *Cgroup) Freeze(ctx context.Context) error {
	for {
		// Version 1 may miss a process during fork; writing again freezes it.
		err := c.frz.freeze()
		var frozen bool
		if err == nil {
			frozen, err = c.Frozen()
		}
		if err == nil && frozen {
			return nil
		}
		if err == nil {
			select {
			case <-time.After(5 * time.Millisecond):
				continue
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		return errors.Join(fmt.Errorf("freezing %s: %w", c.frz.dir, err), c.Thaw())
	}
}

func (c control) freeze() error {
	if c.version == 1 {
		return c.write(freezerState, "FROZEN")
	}
	return c.write(cgroupFreeze, "1")
}

func (c *Cgroup) Frozen() (bool, error) {
	file, frozen := freezerState, "FROZEN"
	if c.frz.version == 2 {
		file, frozen = "cgroup.events", "frozen 1"
	}
	text, err := c.frz.read(file)
	return slices.Contains(strings.Split(text, "\n"), frozen), err
}

// Thaw thaws the cgroup; no error if it is not frozen or is gone.
func (c *Cgroup) Thaw() error {
	if c.frz.err != nil {
		return fmt.Errorf("thawing: %w", c.frz.err)
	}
	return Thaw(c.frz.dir)
}

// Kill kills all processes in the cgroup and its children; frozen ones die before they
// run again.
func (c *Cgroup) Kill() error {
	if c.frz.err != nil {
		return fmt.Errorf("killing: %w", c.frz.err)
	}
	pids, err := cgroups.GetAllPids(c.frz.dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		err = nil // already gone
	}
	errs := []error{err}
	for _, pid := range pids {
		if pid < 1 { // 0: a process of another namespace
			continue
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("killing process %d: %w", pid, err))
		}
	}
	// On version 1 a frozen process handles the signal first when thawed.
	return errors.Join(append(errs, c.Thaw())...)
}

// Thaw thaws a cgroup by its FreezerDir; no error if it is gone.
func Thaw(dir string) error {
	c := control{dir: dir}
	file, value := freezerState, "THAWED"
	if _, err := os.Stat(filepath.Join(dir, cgroupFreeze)); err == nil {
		file, value = cgroupFreeze, "0"
	}
	err := c.write(file, value)
	if errors.Is(err, ErrGone) {
		return nil
	}
	return err
}
