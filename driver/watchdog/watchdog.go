// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package watchdog thaws a frozen task when its lease expires, even if the plugin is
// gone: one small process per frozen task, running the plugin's binary.
//
// The watchdog polls the task's record (package private), which holds the freeze in
// force and its expiry. So it honours renewals, ends when the task is released, and any
// number of watchdogs of one task are harmless.
package watchdog

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/status"
)

// arg is a watchdog's first argument, followed by the allocation's directory, the
// task's name and its ID.
const arg = "freeze-watchdog"

const pollInterval = time.Second

// The watchdog runs before main, as Nomad's executor does, so that it stays small in
// any program.
func init() {
	if len(os.Args) != 5 || os.Args[1] != arg {
		return
	}
	if err := watch(os.Args[2], os.Args[3], os.Args[4], os.Stdout); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// Start starts a watchdog for the recorded freeze of a task with Nomad's ID run, and
// returns once it watches. The watchdog outlives this process and ends once the record
// has no freeze.
func Start(ctx context.Context, allocDir, task, run string) error {
	cmd := exec.Command("/proc/self/exe", arg, allocDir, task, run)
	cmd.Args[0] = os.Args[0]
	cmd.Dir, cmd.Env = "/", []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err == nil {
		// Do not pass on descriptors inherited from the agent; fails on Linux before
		// 5.11.
		_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("starting the watchdog of a frozen task: %w", err)
	}
	watches := make(chan error, 1)
	go func() {
		_, err := out.Read(make([]byte, 1))
		watches <- err
		_ = cmd.Wait()
	}()
	select {
	case err = <-watches:
	case <-ctx.Done():
		err = ctx.Err()
		_ = cmd.Process.Kill()
	}
	if err != nil {
		return fmt.Errorf("waiting for the watchdog of a frozen task to begin: %w", err)
	}
	return nil
}

func watch(allocDir, task, run string, ready io.Writer) error {
	plugin := os.Getppid()
	record, err := private.Load(allocDir, task)
	f := record.Frozen
	if err != nil || f == nil {
		return err
	}
	first := f.Until
	if _, err := ready.Write([]byte{'\n'}); err != nil {
		return err
	}
	for f != nil && f.Run == run {
		// A plugin that died during the task's save will not finish it.
		abandoned := f.State == status.MoveSaving && f.Until.Equal(first) && os.Getppid() != plugin
		if (abandoned || !time.Now().Before(f.Until)) && limits.Thaw(f.Cgroup) == nil {
			break // the record stays, for a restarted plugin
		}
		time.Sleep(min(pollInterval, max(time.Until(f.Until), pollInterval/100)))
		if now, err := private.Load(allocDir, task); err == nil { // otherwise the last record holds
			f = now.Frozen
		}
	}
	return nil
}
