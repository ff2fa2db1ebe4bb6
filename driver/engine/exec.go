// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hashicorp/nomad/client/lib/cgroupslib"
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"
)

// execEngine decorates Nomad's exec driver: tasks are processes in a chroot.
type execEngine struct{}

func NewExec() Engine { return execEngine{} }

func (execEngine) Name() string                        { return Exec }
func (execEngine) Reconnects() bool                    { return false }
func (execEngine) OutlivesDaemon(context.Context) bool { return true } // there is no daemon

type execState struct {
	Pid int
}

// Prepare kills earlier copies of the task. Nomad starts a second copy if it could not recover the
// first, as when agent and plugin died together; the first one's executor may survive, and both
// copies would write the same checkpoint.
func (execEngine) Prepare(ctx context.Context, cfg *drivers.TaskConfig) (string, error) {
	dir := execCgroup(cfg)
	if dir == "" {
		return "", nil
	}
	cg := cgroupslib.OpenPath(dir)
	killed := 0
	for deadline := time.Now().Add(5 * time.Second); ; {
		pids, err := cg.PIDs()
		if errors.Is(err, os.ErrNotExist) || (err == nil && pids.Empty()) {
			break
		}
		if err != nil {
			return "", fmt.Errorf("looking for an earlier copy of task %q in %s: %w", cfg.Name, dir, err)
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("an earlier copy of task %q in %s does not end after SIGKILL", cfg.Name, dir)
		}
		for pid := range pids.Items() {
			if err := unix.Kill(pid, unix.SIGKILL); err == nil {
				killed++
			}
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	if killed > 0 {
		return "killed an earlier copy of this task that was still running", nil
	}
	return "", nil
}

func execCgroup(cfg *drivers.TaskConfig) string {
	switch cgroupslib.GetMode() {
	case cgroupslib.CG1:
		return cgroupslib.PathCG1(cfg.AllocID, cfg.Name, "freezer")
	case cgroupslib.CG2:
		cores := cfg.Resources != nil && cfg.Resources.LinuxResources != nil && cfg.Resources.LinuxResources.CpusetCpus != ""
		return cgroupslib.LinuxResourcesPath(cfg.AllocID, cfg.Name, cores)
	}
	return ""
}

func (execEngine) Inspect(_ context.Context, handle *drivers.TaskHandle) (State, error) {
	var st execState
	if err := handle.GetDriverState(&st); err != nil {
		return State{}, fmt.Errorf("decoding the handle of task %q: %w", handle.Config.Name, err)
	}
	if st.Pid <= 0 || unix.Kill(st.Pid, 0) != nil {
		return State{}, ErrGone
	}
	return State{Running: true, PID: st.Pid}, nil
}

// CgroupName returns Nomad's scope for the task.
func (execEngine) CgroupName(handle *drivers.TaskHandle) (string, error) {
	return cgroupslib.ScopeCG1(handle.Config.AllocID, handle.Config.Name), nil
}
