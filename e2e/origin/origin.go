// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package origin identifies a measurement's commit and machine.
package origin

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Dirty marks a commit with uncommitted changes.
const Dirty = "-dirty"

// Commit returns the working tree's commit. Results are excluded: they change during measurement.
func Commit(ctx context.Context, root string) (string, error) {
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", root}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	commit, err := git("rev-parse", "--short=12", "HEAD")
	if err != nil {
		return "", fmt.Errorf("asking git for the commit, which belongs to the results: %w", err)
	}
	changes, err := git("status", "--porcelain", "--", ".", ":(exclude)docs/results")
	if err != nil {
		return "", fmt.Errorf("asking git for changes: %w", err)
	}
	if changes != "" {
		commit += Dirty
	}
	return commit, nil
}

// Machine describes cores, processor and kernel.
func Machine() string {
	model := "unknown CPU"
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for _, line := range strings.Split(string(data), "\n") {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	var u unix.Utsname
	kernel := "unknown"
	if unix.Uname(&u) == nil {
		kernel = unix.ByteSliceToString(u.Release[:])
	}
	return fmt.Sprintf("%d cores (%s), Linux %s", runtime.NumCPU(), model, kernel)
}
