// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/ebbtide/ebbtide/driver/checkpoint"
	"github.com/ebbtide/ebbtide/driver/options"
	"github.com/ebbtide/ebbtide/driver/private"
)

// A move back to the source. A moved task leaves its checkpoint behind, and Nomad copies its disk.
// If the target fails before the task has resumed there, Nomad searches only the target for a disk;
// if the copy failed, the task starts there without one. A failed move therefore sends the job back
// to its source, with the allocation to resume from in the job's meta (shim/move).
//
// Adoption needs this request, because another run of the job must not resume from an earlier one,
// and happens once: later allocations continue from the first one's checkpoints.

func (d *Driver) recordLeft(t *task, saved string) {
	cfg := t.handle.Config
	err := private.Update(cfg.AllocDir, cfg.Name, func(r *private.Record) { r.Left = leaves(cfg, saved) })
	if err != nil {
		d.logger.Warn("cannot record the checkpoint that the task leaves; a move back would not find it", "task", cfg.Name, "alloc_id", cfg.AllocID, "error", err)
	}
}

func leaves(cfg *drivers.TaskConfig, path string) *private.Left {
	return &private.Left{Namespace: cfg.Namespace, Job: cfg.JobID, Group: cfg.TaskGroupName, Path: path}
}

// adopt replaces a task's directories with those that an earlier allocation left on this node, as
// Nomad would migrate them. It returns an event's text, "" if another allocation has already
// adopted them.
func (d *Driver) adopt(cfg *drivers.TaskConfig, opts *options.Task) (note string, err error) {
	c := opts.Checkpoint
	if opts.Adopt == "" || c == nil || c.Shared {
		return "", nil
	}
	// Tasks of a group share a directory: none may start while it is being filled.
	d.adopting.Lock()
	defer d.adopting.Unlock()
	from, rec, err := left(cfg, opts.Adopt)
	if err != nil {
		return "", err
	}
	switch is := rec.Left; {
	case is == nil:
		// Both are gone: the task has resumed from it before, or starts anew.
		if has, err := saved(*c, cfg); has || err != nil {
			return "", err
		}
		return "", fmt.Errorf("allocation %s has left no checkpoint on this node", opts.Adopt)
	case is.Namespace != cfg.Namespace || is.Job != cfg.JobID || is.Group != cfg.TaskGroupName:
		return "", fmt.Errorf("allocation %s belongs to job %s in namespace %s", opts.Adopt, is.Job, is.Namespace)
	case is.TakenBy != "":
		return "", nil
	}
	if has, err := saved(*c, from); !has || err != nil {
		return "", errors.Join(fmt.Errorf("%s no longer exists", rec.Left.Path), err)
	}
	own, err := checkpoint.Open(*c, dirsOf(cfg))
	if err != nil {
		return "", err
	}
	if err := errors.Join(own.Remove(), own.Close()); err != nil {
		return "", err
	}
	if err := checkpoint.Copy(dirsOf(from), dirsOf(cfg)); err != nil {
		return "", err
	}
	if err := taken(cfg, opts.Adopt); err != nil {
		return "", err
	}
	return fmt.Sprintf("resumes from %s, left by allocation %s on this node", rec.Left.Path, opts.Adopt), nil
}

// left returns where an allocation has left a task's checkpoint: what was kept, or else its own
// directory, and the task's record there, which is empty without one.
func left(cfg *drivers.TaskConfig, alloc string) (at *drivers.TaskConfig, rec private.Record, err error) {
	for _, dir := range leftIn(cfg, alloc) {
		at = atDir(cfg, dir)
		if rec, err = private.Load(dir, cfg.Name); err != nil || rec.Left != nil {
			break
		}
	}
	return at, rec, err
}

func leftIn(cfg *drivers.TaskConfig, alloc string) []string {
	allocs := filepath.Dir(cfg.AllocDir)
	return []string{keptDir(allocs, alloc, cfg.Name), filepath.Join(allocs, alloc)}
}

// taken records that a task has resumed from what the allocation left.
func taken(cfg *drivers.TaskConfig, alloc string) error {
	for _, dir := range leftIn(cfg, alloc) {
		rec, err := private.Load(dir, cfg.Name)
		if err != nil {
			return err
		}
		if rec.Left == nil {
			continue
		}
		err = private.Update(dir, cfg.Name, func(r *private.Record) {
			if r.Left != nil {
				r.Left.TakenBy = filepath.Base(cfg.AllocDir)
			}
		})
		if err != nil {
			return err
		}
	}
	return os.RemoveAll(keptDir(filepath.Dir(cfg.AllocDir), alloc, cfg.Name))
}

// atDir returns the task as if its allocation's directory were another.
func atDir(cfg *drivers.TaskConfig, dir string) *drivers.TaskConfig {
	at := *cfg
	at.AllocDir = dir
	return &at
}

func saved(c checkpoint.Config, cfg *drivers.TaskConfig) (bool, error) {
	there, err := restored(c, cfg)
	return len(there) > 0, err
}

func restored(c checkpoint.Config, cfg *drivers.TaskConfig) (private.Restored, error) {
	files, err := checkpoint.Open(c, dirsOf(cfg))
	if err != nil {
		return nil, err
	}
	there, err := files.Scan()
	return files.Sizes(there), errors.Join(err, files.Close())
}

func (d *Driver) recordRestored(cfg *drivers.TaskConfig, opts *options.Task) {
	if opts.Checkpoint == nil {
		return
	}
	found, err := restored(*opts.Checkpoint, cfg)
	if len(found) > 0 {
		d.metrics.Restores.Count(nil)
	}
	var data []byte
	if err == nil {
		data, err = json.Marshal(found)
	}
	if err == nil {
		err = private.Open(cfg.AllocDir).WriteFile(private.RestoredName(cfg.Name), data, false)
	}
	if err != nil {
		d.logger.Warn("cannot record the restored checkpoints; a move to this node cannot be verified", "task", cfg.Name, "alloc_id", cfg.AllocID, "error", err)
	}
}
