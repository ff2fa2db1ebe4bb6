// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/ebbtide/ebbtide/driver/checkpoint"
	"github.com/ebbtide/ebbtide/driver/private"
)

// A task that is moved leaves behind what it has saved: Nomad copies its disk. If the
// target dies for good before the task runs on from there, Nomad looks for a disk on the
// target alone. So whoever moves the task sends it back to the node that it came from,
// and names in its meta the allocation from which it is to take its checkpoint
// (shim/move).
//
// That is only done where it was asked for: another run of the same job must not begin
// with what an earlier one has left.

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
// would carry it over, unless it has a checkpoint of its own. It says what it has done, for
// people; "" if nothing.
func (d *Driver) adopt(cfg *drivers.TaskConfig, opts *taskOptions) (note string, err error) {
	c := opts.Checkpoint
	if opts.Adopt == "" || c == nil || c.Shared {
		return "", nil
	}
	// The tasks of a group share a directory: one does not begin while it is filled.
	d.adopting.Lock()
	defer d.adopting.Unlock()
	if has, err := saved(*c, cfg); has || err != nil {
		return "", err
	}
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
	}
	if err := checkpoint.Copy(dirsOf(&from), dirsOf(cfg)); err != nil {
		return "", err
	}
	if has, err := saved(*c, cfg); !has || err != nil {
		return "", errors.Join(fmt.Errorf("%s is not there any more", rec.Left.Path), err)
	}
	return fmt.Sprintf("goes on from %s, which allocation %s has left on this node", rec.Left.Path, opts.Adopt), nil
}

// saved says whether a task finds a checkpoint.
func saved(c checkpoint.Config, cfg *drivers.TaskConfig) (bool, error) {
	files, err := checkpoint.Open(c, dirsOf(cfg))
	if err != nil {
		return false, err
	}
	there, err := files.Look()
	return len(there) > 0, errors.Join(err, files.Close())
}
