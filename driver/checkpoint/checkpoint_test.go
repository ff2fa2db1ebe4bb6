// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package checkpoint

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func config(path string) Config {
	return Config{Path: path, Signal: DefaultSignal, Timeout: DefaultTimeout(DefaultSignal), Lease: DefaultLease}
}

func TestConfig_Validate(t *testing.T) {
	for _, ok := range []string{"/local/ckpt-*.pt", "local/a", "/alloc/data/ckpt/*", "alloc/data/model-[0-9].bin"} {
		must.NoError(t, config(ok).Validate(), must.Sprint(ok))
	}
	for _, bad := range []string{"", "/local", "/alloc", "/alloc/data", "/alloc/tmp/x", "/alloc/logs/*", "/etc/passwd", "/alloc/data/../../secrets/*", "/local/../x", "ckpt-*"} {
		must.ErrorContains(t, config(bad).Validate(), fmt.Sprintf("checkpoint.path: must be a pattern in the task's directory (${NOMAD_TASK_DIR}/…) or in ${NOMAD_ALLOC_DIR}/data/…, which Nomad moves with the task, got %q; or set shared", bad))
	}
	c := Config{Path: "/local/[", Signal: "SIGNOPE", Timeout: 0, Lease: 2 * time.Hour}
	must.EqError(t, c.Validate(), `checkpoint.path: must be a pattern with *, ? and […], got "/local/["
checkpoint.signal: must be the name of a signal like SIGUSR1, or none, got "SIGNOPE"
checkpoint.timeout: must be a duration from 1s to 1h0m0s, got 0s
checkpoint.lease: must be a duration from 1s to 1h0m0s, got 2h0m0s`)
	c = config("/local/a")
	c.Signal = "sigterm"
	must.EqError(t, c.Validate(), `checkpoint.signal: must be the name of a signal like SIGUSR1, or none, got "sigterm"`)
	c = Config{Path: "/local/a", Signal: NoSignal, Timeout: 24 * time.Hour, Lease: 2 * time.Hour}
	must.EqError(t, c.Validate(), "checkpoint.lease: must be a duration from 1s to 1h0m0s, got 2h0m0s")
	c.Timeout, c.Lease = 25*time.Hour, time.Hour
	must.EqError(t, c.Validate(), "checkpoint.timeout: must be a duration from 1s to 24h0m0s, got 25h0m0s")
	must.False(t, c.Ends())
	must.False(t, config("/local/a").Ends())
	c.Signal = "SIGTERM"
	must.True(t, c.Ends())
}

// place is a task's directories with files that match /alloc/data/ckpt-*.
type place struct {
	dir   string
	files *Files
}

func newPlace(t *testing.T) place {
	t.Helper()
	alloc := t.TempDir()
	p := place{dir: filepath.Join(alloc, "data")}
	must.NoError(t, os.Mkdir(p.dir, 0o755))
	p.files = open(t, config("/alloc/data/ckpt-*"), Dirs{Alloc: alloc})
	return p
}

func open(t *testing.T, c Config, dirs Dirs) *Files {
	t.Helper()
	files, err := Open(c, dirs)
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, files.Close()) })
	return files
}

func (p place) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(p.dir, name)
	must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

func (p place) look(t *testing.T) State {
	t.Helper()
	s, err := p.files.Scan()
	must.NoError(t, err)
	return s
}

func (p place) wait(t *testing.T, before State) Saved {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	saved, err := p.files.Wait(ctx, before)
	must.NoError(t, err)
	return saved
}

func TestWait_new(t *testing.T) {
	p := newPlace(t)
	p.write(t, "ckpt-1", "old")
	p.write(t, "other", "x")
	before := p.look(t)
	must.MapLen(t, 1, before)
	go func() {
		for i := range 10 { // grows for a while
			time.Sleep(100 * time.Millisecond)
			f, err := os.OpenFile(filepath.Join(p.dir, "ckpt-2"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
			if err == nil {
				_, _ = fmt.Fprintf(f, "part %d\n", i)
				_ = f.Close()
			}
		}
	}()
	must.Eq(t, Saved{Path: "/alloc/data/ckpt-2", Bytes: 70}, p.wait(t, before))
}

func TestWait_overwritten(t *testing.T) {
	p := newPlace(t)
	p.write(t, "ckpt-a", "old")
	before := p.look(t)
	p.write(t, "ckpt-a", "newer")
	must.Eq(t, Saved{Path: "/alloc/data/ckpt-a", Bytes: 5}, p.wait(t, before))
}

// Without a signal, files are looked for less often until one is written.
func TestWait_idle(t *testing.T) {
	p := newPlace(t)
	p.files.idle = time.Hour
	before := p.look(t)
	p.write(t, "ckpt-1", "new")
	must.Eq(t, "/alloc/data/ckpt-1", p.wait(t, before).Path)
}

func TestWait_directory(t *testing.T) {
	p := newPlace(t)
	p.write(t, "ckpt-1/model.bin", "old")
	before := p.look(t)
	p.write(t, "ckpt-2/model.bin", "abc")
	p.write(t, "ckpt-2/rng/state", "de")
	must.Eq(t, Saved{Path: "/alloc/data/ckpt-2", Bytes: 5}, p.wait(t, before))
	before = p.look(t)
	p.write(t, "ckpt-1/model.bin", "once more")
	must.Eq(t, Saved{Path: "/alloc/data/ckpt-1", Bytes: 9}, p.wait(t, before))
}

func TestWait_several(t *testing.T) {
	p := newPlace(t)
	before := p.look(t)
	p.write(t, "ckpt-9", "first")
	p.write(t, "ckpt-10", "second")
	at := time.Now()
	must.NoError(t, os.Chtimes(filepath.Join(p.dir, "ckpt-9"), at, at.Add(-time.Second)))
	must.NoError(t, os.Chtimes(filepath.Join(p.dir, "ckpt-10"), at, at))
	must.Eq(t, "/alloc/data/ckpt-10", p.wait(t, before).Path)
}

func TestWait_fails(t *testing.T) {
	p := newPlace(t)
	fails := func(before State, want string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := p.files.Wait(ctx, before)
		must.ErrorIs(t, err, context.DeadlineExceeded)
		must.ErrorContains(t, err, want)
	}
	fails(p.look(t), "no file matches /alloc/data/ckpt-*")
	p.write(t, "ckpt-1", "old")
	fails(p.look(t), "none of the 1 files that match /alloc/data/ckpt-* is new")
	before := p.look(t)
	p.write(t, "ckpt-2", "")
	fails(before, "was still being written, or is empty")
}

func TestLook_link(t *testing.T) {
	p := newPlace(t)
	outside := filepath.Join(t.TempDir(), "secret")
	must.NoError(t, os.WriteFile(outside, []byte("secret"), 0o644))
	must.NoError(t, os.Symlink(outside, filepath.Join(p.dir, "ckpt-link")))
	for _, s := range p.look(t) {
		must.Eq(t, 0, s.bytes)
	}
}

// A path without wildcards is complete when closed or renamed, without polling.
func TestWait_closed(t *testing.T) {
	p := newPlace(t)
	p.files = open(t, config("/alloc/data/model.ckpt"), Dirs{Alloc: filepath.Dir(p.dir)})
	p.files.every = time.Hour
	name := filepath.Join(p.dir, "model.ckpt")
	for i, write := range []func(){
		func() {
			f, err := os.Create(name)
			must.NoError(t, err)
			_, _ = f.WriteString("first")
			time.Sleep(10 * time.Millisecond)
			_, _ = f.WriteString(" part")
			_ = f.Close()
		},
		func() {
			p.write(t, "tmp", "whole")
			_ = os.Rename(filepath.Join(p.dir, "tmp"), name)
		},
		func() { // a renamed directory is complete, too
			_ = os.Remove(name)
			p.write(t, "next/weights", "in a directory")
			_ = os.Rename(filepath.Join(p.dir, "next"), name)
		},
	} {
		before := p.look(t)
		go write()
		must.Eq(t, Saved{Path: "/alloc/data/model.ckpt", Bytes: []int64{10, 5, 14}[i]}, p.wait(t, before))
	}
	p.files.every = Stable / scans
	must.NoError(t, os.RemoveAll(name))
	before := p.look(t)
	p.write(t, "model.ckpt", "")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := p.files.Wait(ctx, before)
	must.ErrorContains(t, err, "was still being written, or is empty")

	p.files = open(t, config("/alloc/data/later/model.ckpt"), Dirs{Alloc: filepath.Dir(p.dir)})
	before = p.look(t)
	p.write(t, "later/model.ckpt", "abc")
	must.Eq(t, Saved{Path: "/alloc/data/later/model.ckpt", Bytes: 3}, p.wait(t, before))
}

func TestShared(t *testing.T) {
	shared := func(path string) Config {
		c := config(path)
		c.Shared = true
		return c
	}
	for _, bad := range []string{"", "ckpt", "/alloc/data/c", "/local/c"} {
		must.ErrorContains(t, shared(bad).Validate(), fmt.Sprintf("checkpoint.path: must be a pattern in a volume_mount of the task, as it is shared, got %q", bad))
	}
	must.NoError(t, shared("/models/vae/*.ckpt").Validate())

	outer, inner := t.TempDir(), t.TempDir()
	dirs := Dirs{Mounts: map[string]string{"/models": outer, "/models/vae/": inner, "/mod": t.TempDir()}}
	p := place{dir: inner, files: open(t, shared("/models/vae/*.ckpt"), dirs)}
	before := p.look(t)
	p.write(t, "a.ckpt", "abc")
	must.Eq(t, Saved{Path: "/models/vae/a.ckpt", Bytes: 3}, p.wait(t, before))
	_, err := Open(shared("/elsewhere/*.ckpt"), dirs)
	must.EqError(t, err, `checkpoint.path: "/elsewhere/*.ckpt" is not in a volume_mount of the task, and shared is set`)
	_, err = Open(shared("/models/../etc/*"), dirs)
	must.ErrorContains(t, err, "not in a volume_mount")
}
