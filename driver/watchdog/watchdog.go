// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package watchdog thaws a frozen task when its lease ends, should the plugin not be there
// to do it: one small process for each frozen task, the plugin's binary started again.
//
// It talks to nobody. The record of the task (package private) says which freeze is in
// force and until when, and is read again and again: a lease that was extended is
// honoured, and a task that was released needs no watchdog. So a plugin that was
// restarted may start another one, and neither disturbs the other.
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

// arg is the first argument of a watchdog. The allocation's directory, the task's name and its
// ID follow.
const arg = "freeze-watchdog"

// every is how often the record is read.
const every = time.Second

// It begins before main, as Nomad's executor does: whatever program the package is in, the
// watchdog is a small process without the rest.
func init() {
	if len(os.Args) != 5 || os.Args[1] != arg {
		return
	}
	if err := watch(os.Args[2], os.Args[3], os.Args[4], os.Stdout); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// Start starts a watchdog over the freeze that is recorded of a task for run, its ID in
// Nomad, and returns once it watches. It outlives this process, and ends when the
// record says that the task is not frozen any more.
func Start(ctx context.Context, allocDir, task, run string) error {
	cmd := exec.Command("/proc/self/exe", arg, allocDir, task, run)
	cmd.Args[0] = os.Args[0]
	cmd.Dir, cmd.Env = "/", []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err == nil {
		// What the agent let us inherit is not for a process that outlives both. Linux
		// before 5.11 cannot do this.
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

// watch returns when the task is thawed, by us or by others. It writes a byte to ready once
// it knows what to watch.
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
		// A plugin that died while its task saved will not finish that.
		abandoned := f.State == status.MoveSaving && f.Until.Equal(first) && os.Getppid() != plugin
		if (abandoned || !time.Now().Before(f.Until)) && limits.Thaw(f.Cgroup) == nil {
			break // the record stays, for a plugin that comes back
		}
		time.Sleep(min(every, max(time.Until(f.Until), every/100)))
		if now, err := private.Load(allocDir, task); err == nil { // otherwise what was read before holds
			f = now.Frozen
		}
	}
	return nil
}
