// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/checkpoint"
	"github.com/ebbtide/ebbtide/driver/options"
	"github.com/ebbtide/ebbtide/driver/private"
)

func TestAdopt(t *testing.T) {
	const old = "0a11ed00-0000-0000-0000-000000000001"
	allocs := t.TempDir()
	write := func(alloc, name, text string) {
		path := filepath.Join(allocs, alloc, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.NoError(t, os.WriteFile(path, []byte(text), 0o640))
	}
	leave := func(l private.Left) {
		must.NoError(t, private.Update(filepath.Join(allocs, old), "train", func(r *private.Record) { r.Left = &l }))
	}
	left := private.Left{Namespace: "ml", Job: "vae", Group: "g", Path: "/alloc/data/ckpt/best"}
	write(old, "alloc/data/ckpt/best/weights", "abc")
	leave(left)
	write(old, "alloc/data/ckpt/best/rng/state", "de")
	write(old, "train/local/config", "old")
	must.NoError(t, os.Symlink("/etc/passwd", filepath.Join(allocs, old, "alloc/data/ckpt/best/link")))

	task := func(alloc string) (*drivers.TaskConfig, *options.Task) {
		cfg := &drivers.TaskConfig{AllocDir: filepath.Join(allocs, alloc), Name: "train", Namespace: "ml", JobID: "vae", TaskGroupName: "g"}
		for _, dir := range []string{"alloc/data", "train/local"} {
			must.NoError(t, os.MkdirAll(filepath.Join(cfg.AllocDir, dir), 0o755))
		}
		c := &checkpoint.Config{Path: "/alloc/data/ckpt/*", Signal: "SIGUSR1", Timeout: time.Minute, Lease: time.Minute}
		return cfg, &options.Task{Adopt: old, Checkpoint: c}
	}
	cfg, opts := task("new")
	note, err := new(Driver).adopt(cfg, opts)
	must.NoError(t, err)
	must.Eq(t, "resumes from /alloc/data/ckpt/best, left by allocation "+old+" on this node", note)
	data, err := os.ReadFile(filepath.Join(cfg.AllocDir, "alloc/data/ckpt/best/rng/state"))
	must.NoError(t, err)
	must.Eq(t, "de", string(data))
	_, err = os.Lstat(filepath.Join(cfg.AllocDir, "alloc/data/ckpt/best/link"))
	must.ErrorIs(t, err, os.ErrNotExist)

	for _, alloc := range []string{"new", "newer"} {
		cfg, opts = task(alloc)
		note, err = new(Driver).adopt(cfg, opts)
		must.NoError(t, err)
		must.Eq(t, "", note)
	}
	cfg, opts = task("untold")
	opts.Adopt = ""
	note, err = new(Driver).adopt(cfg, opts)
	must.NoError(t, err)
	must.Eq(t, "", note)

	cfg, opts = task("other")
	cfg.JobID = "other"
	_, err = new(Driver).adopt(cfg, opts)
	must.ErrorContains(t, err, "belongs to job vae in namespace ml")
	cfg, opts = task("nothing")
	must.NoError(t, os.RemoveAll(filepath.Join(allocs, old, ".ebbtide")))
	_, err = new(Driver).adopt(cfg, opts)
	must.ErrorContains(t, err, "has left no checkpoint on this node")

	leave(left)
	cfg, opts = task("rendered")
	write("rendered", "train/local/config", "new")
	write("rendered", "alloc/data/ckpt/best/weights", "from the start")
	write(old, "train/local/config", "old")
	_, err = new(Driver).adopt(cfg, opts)
	must.NoError(t, err)
	data, err = os.ReadFile(filepath.Join(cfg.AllocDir, "train/local/config"))
	must.NoError(t, err)
	must.Eq(t, "new", string(data))
	data, err = os.ReadFile(filepath.Join(cfg.AllocDir, "alloc/data/ckpt/best/weights"))
	must.NoError(t, err)
	must.Eq(t, "abc", string(data))

	// The restored checkpoint is recorded for the move.
	d := New(t.Context(), Name, hclog.NewNullLogger())
	d.recordRestored(cfg, opts)
	found, err := private.Open(cfg.AllocDir).ReadFile(private.RestoredName("train"), 1<<10)
	must.NoError(t, err)
	must.Eq(t, `{"/alloc/data/ckpt/best":5}`, string(found))

	leave(left)
	must.NoError(t, os.RemoveAll(filepath.Join(allocs, old, "alloc/data/ckpt")))
	cfg, opts = task("gone")
	_, err = new(Driver).adopt(cfg, opts)
	must.ErrorContains(t, err, "/alloc/data/ckpt/best no longer exists")
}
