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

// A moved task leaves its checkpoint behind, and Nomad copies its disk. If the target
// dies before the task has resumed there, Nomad looks for a disk on the target alone;
// if the copy failed, the task starts there without it. So a failed move sends the job
// back to its source and names, in its meta, the allocation whose checkpoint the task
// is to resume from (shim/move).
//
// That happens only on request, because another run of the job must not resume from an
// earlier one, and only once: later allocations continue from what the first has saved
// since.

func (d *Driver) recordLeft(t *task, saved string) {
	cfg := t.handle.Config
	err := d.updateRecord(t, func(r *private.Record) {
		r.Left = &private.Left{Namespace: cfg.Namespace, Job: cfg.JobID, Group: cfg.TaskGroupName, Path: saved}
	})
	if err != nil {
		d.logger.Warn("cannot record the checkpoint that the task leaves; a move back would not find it", "task", cfg.Name, "alloc_id", cfg.AllocID, "error", err)
	}
}

// adopt replaces a task's directories by those that an earlier allocation left on this
// node, as Nomad would migrate them. It returns an event's text, "" if another
// allocation has adopted them before.
func (d *Driver) adopt(cfg *drivers.TaskConfig, opts *options.Task) (note string, err error) {
	c := opts.Checkpoint
	if opts.Adopt == "" || c == nil || c.Shared {
		return "", nil
	}
	// The tasks of a group share a directory: one must not start while it is filled.
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
