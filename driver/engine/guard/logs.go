// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package guard

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/nomad/client/allocdir"
	"github.com/hashicorp/nomad/client/taskenv"
	"github.com/hashicorp/nomad/plugins/drivers"
)

// logs is the directory of the tasks' logs in an allocation's. Nomad's log collector and the
// helpers of its drivers, which run as root, follow symbolic links in it.
var logs = filepath.Join(allocdir.SharedAllocName, allocdir.LogDirName)

// withLogsReadOnly returns a copy of a task's configuration with the logs mounted read-only, as by
// Nomad 2.0.1. It rejects an allocation in which a task has replaced a directory that its container
// will be given: the driver would follow the link.
func withLogsReadOnly(cfg *drivers.TaskConfig) (*drivers.TaskConfig, error) {
	dir := cfg.TaskDir()
	for _, path := range []string{dir.SharedAllocDir, dir.LogDir, dir.LocalDir, dir.SecretsDir} {
		if st, err := os.Lstat(path); err != nil {
			return nil, fmt.Errorf("inspecting a directory of the allocation: %w", err)
		} else if !st.IsDir() {
			return nil, fmt.Errorf("a task has replaced the directory %s", path)
		}
	}
	guarded := *cfg
	guarded.Mounts = append(slices.Clip(cfg.Mounts), readOnly(dir.LogDir, filepath.Join(cfg.Env[taskenv.AllocDir], allocdir.LogDirName)))
	return &guarded, nil
}

func readOnly(source, target string) *drivers.MountConfig {
	return &drivers.MountConfig{HostPath: source, TaskPath: target, Readonly: true}
}
