// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"slices"
	"strings"

	"github.com/hashicorp/nomad/drivers/docker"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/ebbtide/ebbtide/driver/private"
)

// checkMounts rejects mounts that would expose the allocation's private directory:
// Nomad's docker driver mounts any part of the allocation's directory, even with
// volumes disabled.
func checkMounts(cfg *drivers.TaskConfig, task *docker.TaskConfig) error {
	var sources []string
	if task.VolumeDriver == "" {
		for _, v := range task.Volumes {
			source, _, _ := strings.Cut(v, ":")
			sources = append(sources, source)
		}
	}
	for _, m := range slices.Concat(task.Mounts, task.MountsList) {
		if m.Type == "bind" {
			sources = append(sources, m.Source)
		}
	}
	for _, source := range sources {
		if err := private.CheckMount(cfg.AllocDir, cfg.TaskDir().Dir, source); err != nil {
			return err
		}
	}
	return nil
}
