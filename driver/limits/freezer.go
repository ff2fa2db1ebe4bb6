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

// The freezer's files: of version 1, and of version 2.
const (
	freezerState = "freezer.state"
	cgroupFreeze = "cgroup.freeze"
)

// FreezerDir is the directory with the freezer's controls, for Thaw; "" if there is
// none.
func (c *Cgroup) FreezerDir() string { return c.frz.dir }

// Freeze freezes all processes of the cgroup and returns when they are frozen. If that
// does not happen before ctx ends, they are thawed.
func (c *Cgroup) Freeze(ctx context.Context) error {
	for {
		// Version 1 may miss a process that is just being made: written again, it
		// gets that one, too.
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

// Frozen says whether all processes of the cgroup are frozen.
func (c *Cgroup) Frozen() (bool, error) {
	file, frozen := freezerState, "FROZEN"
	if c.frz.version == 2 {
		file, frozen = "cgroup.events", "frozen 1"
	}
	text, err := c.frz.read(file)
	return slices.Contains(strings.Split(text, "\n"), frozen), err
}

// Thaw thaws the processes of the cgroup. It is no error if they are not frozen, or
// are gone.
func (c *Cgroup) Thaw() error {
	if c.frz.err != nil {
		return fmt.Errorf("thawing: %w", c.frz.err)
	}
	return Thaw(c.frz.dir)
}

// Kill kills all processes of the cgroup and those below it. Frozen ones are killed
// before they run again.
func (c *Cgroup) Kill() error {
	if c.frz.err != nil {
		return fmt.Errorf("killing: %w", c.frz.err)
	}
	pids, err := cgroups.GetAllPids(c.frz.dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		err = nil // it is gone
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
	// On version 1 a frozen process takes the signal when it is thawed, before
	// anything else.
	return errors.Join(append(errs, c.Thaw())...)
}

// Thaw thaws the processes of a cgroup, given the directory with its freezer
// (FreezerDir). One that is gone is no error.
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
