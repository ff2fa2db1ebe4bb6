// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

// Command init is the only program of e2e/cgroup2's virtual machine. It makes the mounts, runs
// /test with the arguments in /args (one per line) in a cgroup like a Nomad agent's, prints the
// exit status after a marker, and powers off.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// marker precedes the exit status, as in e2e/cgroup2.
const marker = "EBBTIDE-GUEST-EXIT"

func main() {
	code, err := run()
	if err != nil {
		fmt.Println("init:", err)
	}
	fmt.Printf("\n%s %d\n", marker, code)
	unix.Sync()
	// Returning as process 1 would panic the kernel; qemu exits on either.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func run() (code int, err error) {
	for _, m := range []struct{ source, target, fstype string }{
		{"proc", "/proc", "proc"},
		{"sysfs", "/sys", "sysfs"},
		{"dev", "/dev", "devtmpfs"},
		{"tmp", "/tmp", "tmpfs"},
		{"cgroup2", "/sys/fs/cgroup", "cgroup2"},
	} {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return 1, err
		}
		if err := unix.Mount(m.source, m.target, m.fstype, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return 1, fmt.Errorf("mounting %s: %w", m.target, err)
		}
	}
	const root = "/sys/fs/cgroup"
	if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+cpu +memory"), 0); err != nil {
		return 1, fmt.Errorf("enabling the controllers: %w", err)
	}
	agent := filepath.Join(root, "system.slice", "nomad.service")
	if err := os.MkdirAll(agent, 0o755); err != nil {
		return 1, err
	}
	dir, err := os.Open(agent)
	if err != nil {
		return 1, err
	}
	var uname unix.Utsname
	if err := unix.Uname(&uname); err == nil {
		fmt.Printf("init: Linux %s, cgroup v2\n", unix.ByteSliceToString(uname.Release[:]))
	}
	args, err := os.ReadFile("/args")
	if err != nil {
		return 1, err
	}
	cmd := exec.Command("/test", strings.Fields(string(args))...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	cmd.Env = []string{"PATH=/", "HOME=/tmp", "TMPDIR=/tmp", "EBBTIDE_REQUIRE_CGROUP=2"}
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode(), nil
	default:
		return 1, fmt.Errorf("running /test: %w", err)
	}
}
