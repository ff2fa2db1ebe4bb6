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
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The freezer's files: of version 1, and of version 2.
const (
	freezerState = "freezer.state"
	cgroupFreeze = "cgroup.freeze"
)

// FreezerDir is the directory with the freezer's controls, for Thaw; "" if there is
// none.
func (c *Cgroup) FreezerDir() string { return c.frz }

// Freeze stops all processes of the cgroup where they are and returns when they stand
// still. If that does not happen before ctx ends, they run on.
func (c *Cgroup) Freeze(ctx context.Context) error {
	if c.frzErr != nil {
		return fmt.Errorf("freezing: %w", c.frzErr)
	}
	for {
		// Version 1 may miss a process that is just being made: written again, it
		// gets that one, too.
		err := c.setFrozen(true)
		var still bool
		if err == nil {
			still, err = c.Frozen()
		}
		if err == nil && still {
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
		return errors.Join(fmt.Errorf("freezing %s: %w", c.frz, err), c.Thaw())
	}
}

// Frozen says whether all processes of the cgroup stand still.
func (c *Cgroup) Frozen() (bool, error) {
	if c.frzErr != nil {
		return false, fmt.Errorf("reading the freezer: %w", c.frzErr)
	}
	if c.version == 1 {
		text, err := c.read(c.frz, freezerState)
		return strings.TrimSpace(text) == "FROZEN", err
	}
	text, err := c.read(c.frz, "cgroup.events")
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "frozen 1" {
			return true, err
		}
	}
	return false, err
}

// Thaw lets the processes of the cgroup run on. It is no error if they do already.
func (c *Cgroup) Thaw() error {
	if c.frzErr != nil {
		return fmt.Errorf("thawing: %w", c.frzErr)
	}
	return c.setFrozen(false)
}

// Kill ends all processes of the cgroup and those below it without letting them run
// any more, also when they are frozen.
func (c *Cgroup) Kill() error {
	if c.frzErr != nil {
		return fmt.Errorf("killing: %w", c.frzErr)
	}
	err := filepath.WalkDir(c.frz, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		text, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return err
		}
		for _, field := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(field)
			if err != nil || pid < 1 { // 0: a process of another namespace
				continue
			}
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("killing process %d: %w", pid, err)
			}
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		err = nil // it is gone
	}
	// On version 1 a frozen process takes the signal when it is thawed, before
	// anything else.
	return errors.Join(err, c.Thaw())
}

func (c *Cgroup) setFrozen(frozen bool) error {
	if c.version == 1 {
		return writeFile(c.frz, freezerState, map[bool]string{true: "FROZEN", false: "THAWED"}[frozen])
	}
	return writeFile(c.frz, cgroupFreeze, map[bool]string{true: "1", false: "0"}[frozen])
}

// Thaw lets the processes of a cgroup run on, given the directory with its freezer
// (FreezerDir). One that is gone is no error.
func Thaw(dir string) error {
	file, value := freezerState, "THAWED"
	if _, err := os.Stat(filepath.Join(dir, cgroupFreeze)); err == nil {
		file, value = cgroupFreeze, "0"
	}
	err := writeFile(dir, file, value)
	if errors.Is(err, ErrGone) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
