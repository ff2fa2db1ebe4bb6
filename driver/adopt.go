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

// A task that is moved leaves behind what it has saved: Nomad copies its disk. If the
// target dies for good before the task runs on from there, Nomad looks for a disk on the
// target alone; and if the disk could not be copied, the task begins anew there. So a move
// that fails sends the job back to the node that it came from, and names in its meta the
// allocation from which the task is to take its checkpoint (shim/move).
//
// That is only done where it was asked for: another run of the same job must not begin
// with what an earlier one has left. And it is done once: later allocations go on from
// what the first one has saved since.

// leave writes down that a task that is being moved has left its checkpoint behind.
func (d *Driver) leave(t *task, saved string) {
	cfg := t.handle.Config
	err := d.change(t, func(r *private.Record) {
		r.Left = &private.Left{Namespace: cfg.Namespace, Job: cfg.JobID, Group: cfg.TaskGroupName, Path: saved}
	})
	if err != nil {
		d.logger.Warn("nobody will find what the task has saved, should its target be lost", "task", cfg.Name, "alloc_id", cfg.AllocID, "error", err)
	}
}

// adopt brings a task what an earlier allocation of it has left on this node, as Nomad
// would carry it over, in place of what it has: that is of a task that began anew. It says
// what it has done, for people; "" if nothing, for another allocation was there before.
func (d *Driver) adopt(cfg *drivers.TaskConfig, opts *options.Task) (note string, err error) {
	c := opts.Checkpoint
	if opts.Adopt == "" || c == nil || c.Shared {
		return "", nil
	}
	// The tasks of a group share a directory: one does not begin while it is filled.
	d.adopting.Lock()
	defer d.adopting.Unlock()
	from := *cfg
	from.AllocDir = filepath.Join(filepath.Dir(cfg.AllocDir), opts.Adopt)
	rec, err := private.Load(from.AllocDir, cfg.Name)
	switch {
	case err != nil:
		return "", err
	case rec.Left == nil:
		return "", fmt.Errorf("allocation %s has left nothing on this node", opts.Adopt)
	case rec.Left.Namespace != cfg.Namespace || rec.Left.Job != cfg.JobID || rec.Left.Group != cfg.TaskGroupName:
		return "", fmt.Errorf("allocation %s is one of job %s in namespace %s", opts.Adopt, rec.Left.Job, rec.Left.Namespace)
	case rec.Left.TakenBy != "":
		return "", nil
	}
	if has, err := saved(*c, &from); !has || err != nil {
		return "", errors.Join(fmt.Errorf("%s is not there any more", rec.Left.Path), err)
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
	return fmt.Sprintf("goes on from %s, which allocation %s has left on this node", rec.Left.Path, opts.Adopt), nil
}

// saved says whether a task finds a checkpoint.
func saved(c checkpoint.Config, cfg *drivers.TaskConfig) (bool, error) {
	there, err := restored(c, cfg)
	return len(there) > 0, err
}

// restored are the checkpoints that a task finds.
func restored(c checkpoint.Config, cfg *drivers.TaskConfig) (private.Restored, error) {
	files, err := checkpoint.Open(c, dirsOf(cfg))
	if err != nil {
		return nil, err
	}
	there, err := files.Scan()
	return files.Sizes(there), errors.Join(err, files.Close())
}

// witness writes down what a task finds before it is started, where the task cannot write:
// a move is done when the target's task has found what the source's has saved.
func (d *Driver) witness(cfg *drivers.TaskConfig, opts *options.Task) {
	if opts.Checkpoint == nil {
		return
	}
	found, err := restored(*opts.Checkpoint, cfg)
	var data []byte
	if err == nil {
		data, err = json.Marshal(found)
	}
	if err == nil {
		err = private.Open(cfg.AllocDir).WriteFile(private.RestoredName(cfg.Name), data, false)
	}
	if err != nil {
		d.logger.Warn("a move to here will not be seen to have brought its checkpoint", "task", cfg.Name, "alloc_id", cfg.AllocID, "error", err)
	}
}
