// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"encoding/json"
	"errors"
	"fmt"
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
	err := d.updateRecord(t, func(r *private.Record) {
		r.Left = &private.Left{Namespace: cfg.Namespace, Job: cfg.JobID, Group: cfg.TaskGroupName, Path: saved}
	})
	if err != nil {
		d.logger.Warn("cannot record the checkpoint that the task leaves; a move back would not find it", "task", cfg.Name, "alloc_id", cfg.AllocID, "error", err)
	}
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
	from := *cfg
	from.AllocDir = filepath.Join(filepath.Dir(cfg.AllocDir), opts.Adopt)
	rec, err := private.Load(from.AllocDir, cfg.Name)
	switch {
	case err != nil:
		return "", err
	case rec.Left == nil:
		return "", fmt.Errorf("allocation %s has left no checkpoint on this node", opts.Adopt)
	case rec.Left.Namespace != cfg.Namespace || rec.Left.Job != cfg.JobID || rec.Left.Group != cfg.TaskGroupName:
		return "", fmt.Errorf("allocation %s belongs to job %s in namespace %s", opts.Adopt, rec.Left.Job, rec.Left.Namespace)
	case rec.Left.TakenBy != "":
		return "", nil
	}
	if has, err := saved(*c, &from); !has || err != nil {
		return "", errors.Join(fmt.Errorf("%s no longer exists", rec.Left.Path), err)
	}
	own, err := checkpoint.Open(*c, dirsOf(cfg))
	if err != nil {
		return "", err
	}
	if err := errors.Join(own.Remove(), own.Close()); err != nil {
		return "", err
	}
	if err := checkpoint.Copy(dirsOf(&from), dirsOf(cfg)); err != nil {
		return "", err
	}
	rec.Left.TakenBy = filepath.Base(cfg.AllocDir)
	if err := rec.Save(from.AllocDir, cfg.Name); err != nil {
		return "", err
	}
	return fmt.Sprintf("resumes from %s, left by allocation %s on this node", rec.Left.Path, opts.Adopt), nil
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
