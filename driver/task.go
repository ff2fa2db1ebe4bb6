// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/client/taskenv"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/ebbtide/ebbtide/driver/checkpoint"
	"github.com/ebbtide/ebbtide/driver/options"
)

// TaskConfigSchema returns the decorated driver's schema with Ebbtide's blocks.
func (d *Driver) TaskConfigSchema() (*hclspec.Spec, error) {
	spec, err := d.first().TaskConfigSchema()
	if err != nil {
		return nil, err
	}
	return withBlocks(spec), nil
}

func withBlocks(spec *hclspec.Spec) *hclspec.Spec {
	for _, block := range options.Schema() {
		attrs := make(map[string]*hclspec.Spec)
		for _, f := range block.Fields {
			attrs[f.Name] = hclspec.NewAttr(f.Name, f.Type, f.Required)
		}
		spec = withBlock(spec, block.Name, hclspec.NewObject(attrs))
	}
	return spec
}

// readTaskOptions reads and validates the jobspec's settings for Ebbtide, before anything starts.
// It reports all errors.
func readTaskOptions(cfg *drivers.TaskConfig) (*options.Task, error) {
	var blocks options.Blocks
	if err := cfg.DecodeDriverConfig(&blocks); err != nil {
		return nil, fmt.Errorf("decoding the task's config: %w", err)
	}
	opts, errs := options.Read(options.Input{Blocks: blocks, Meta: readMeta(cfg.Env), Env: cfg.Env, Dirs: dirsOf(cfg)})
	return opts, errs.Err()
}

func dirsOf(cfg *drivers.TaskConfig) checkpoint.Dirs {
	dir := cfg.TaskDir()
	dirs := checkpoint.Dirs{Local: dir.LocalDir, Alloc: dir.SharedAllocDir, Mounts: make(map[string]string, len(cfg.Mounts))}
	for _, m := range cfg.Mounts {
		dirs.Mounts[m.TaskPath] = m.HostPath
	}
	return dirs
}

func readMeta(env map[string]string) map[string]string {
	meta := make(map[string]string)
	for name, value := range env {
		if key, ok := strings.CutPrefix(name, taskenv.MetaPrefix); ok {
			meta[key] = value
		}
	}
	return options.Ours(meta)
}

func sortedKeys[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}
