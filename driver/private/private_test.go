// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package private

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/target"
)

func allocation(t *testing.T, node, id string) string {
	t.Helper()
	dir := filepath.Join(node, id)
	must.NoError(t, os.Mkdir(dir, 0o755))
	return dir
}

func TestDir(t *testing.T) {
	alloc := allocation(t, t.TempDir(), "a1")
	d := Open(alloc)
	_, err := d.ReadFile(SnapshotName, 10)
	must.ErrorIs(t, err, fs.ErrNotExist)
	must.NoError(t, d.Remove(SnapshotName))
	for _, sync := range []bool{false, true} {
		must.NoError(t, d.WriteFile(SnapshotName, []byte("one"), sync))
		must.NoError(t, d.WriteFile(SnapshotName, []byte("four"), sync))
	}
	data, err := d.ReadFile(SnapshotName, 4)
	must.NoError(t, err)
	must.Eq(t, "four", string(data))
	_, err = d.ReadFile(SnapshotName, 3)
	must.ErrorIs(t, err, ErrTooLarge)

	dir := filepath.Join(alloc, DirName)
	for path, mode := range map[string]fs.FileMode{dir: 0o700, filepath.Join(dir, SnapshotName): 0o600} {
		st, err := os.Stat(path)
		must.NoError(t, err)
		must.Eq(t, mode, st.Mode().Perm())
	}
	must.NoError(t, d.Remove(SnapshotName))
	left, err := os.ReadDir(dir)
	must.NoError(t, err)
	must.SliceEmpty(t, left)

	must.NoError(t, os.RemoveAll(alloc))
	must.ErrorIs(t, d.WriteFile(SnapshotName, nil, false), fs.ErrNotExist)
	must.NoError(t, d.Remove(SnapshotName))
	_, err = os.Stat(alloc)
	must.ErrorIs(t, err, fs.ErrNotExist)
}

func TestSealed(t *testing.T) {
	node := t.TempDir()
	alloc := allocation(t, node, "a1")
	d, other := Open(alloc), Open(allocation(t, node, "a2"))
	must.NoError(t, d.WriteSealed("x", []byte("a\nb"), true))
	data, err := d.ReadSealed("x", 3)
	must.NoError(t, err)
	must.Eq(t, "a\nb", string(data))
	_, err = d.ReadSealed("x", 2)
	must.Error(t, err)
	_, err = d.ReadSealed("y", 2)
	must.ErrorIs(t, err, fs.ErrNotExist)

	whole, err := d.ReadFile("x", 100)
	must.NoError(t, err)
	forged := func(d Dir, name, text string) {
		t.Helper()
		must.NoError(t, d.WriteFile(name, []byte(text), false))
		_, err := d.ReadSealed(name, 100)
		must.ErrorIs(t, err, ErrForged)
	}
	forged(other, "x", string(whole)) // from another allocation
	forged(d, "y", string(whole))     // of another task
	forged(d, "x", string(whole)+"c")
	forged(d, "x", strings.Replace(string(whole), "a", "c", 1))
	forged(d, "x", "")
	forged(d, "x", "a\nb")

	must.NoError(t, d.WriteSealed("x", nil, false))
	data, err = d.ReadSealed("x", 0)
	must.NoError(t, err)
	must.SliceEmpty(t, data)
	must.NoError(t, os.Remove(filepath.Join(node, keyName)))
	_, err = d.ReadSealed("x", 0)
	must.ErrorIs(t, err, ErrForged)

	must.NoError(t, os.WriteFile(filepath.Join(node, keyName), []byte("short"), 0o600))
	must.ErrorContains(t, d.WriteSealed("x", nil, false), "the node's key: the file is too short")
	_, err = d.ReadSealed("x", 0)
	must.ErrorContains(t, err, "the node's key: the file is too short")
}

// Plugins that start concurrently agree on the key, and files are never torn.
func TestTogether(t *testing.T) {
	node := t.TempDir()
	alloc := allocation(t, node, "a1")
	var wait sync.WaitGroup
	for i := range 8 {
		wait.Go(func() {
			for range 20 {
				if err := Open(alloc).WriteSealed("x", []byte(strings.Repeat(string(rune('a'+i)), 1000)), false); err != nil {
					t.Error(err)
				}
				if _, err := Open(alloc).ReadSealed("x", 1000); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	for _, dir := range []string{node, filepath.Join(alloc, DirName)} {
		names, err := filepath.Glob(filepath.Join(dir, "*.tmp"))
		must.NoError(t, err)
		must.SliceEmpty(t, names)
	}
}

// Symlinks, FIFOs and odd names neither lead outside the allocation's directory nor
// block.
func TestDir_hostile(t *testing.T) {
	node := t.TempDir()
	alloc, outside := allocation(t, node, "a1"), allocation(t, node, "outside")
	secret := filepath.Join(outside, "secret")
	must.NoError(t, os.WriteFile(secret, []byte("s"), 0o600))
	d := Open(alloc)
	must.NoError(t, d.WriteFile("plain", nil, false))
	in := func(name string) string { return filepath.Join(alloc, DirName, name) }
	must.NoError(t, os.Symlink(secret, in("link")))
	must.NoError(t, os.Symlink("../../outside/secret", in("up")))
	must.NoError(t, syscall.Mkfifo(in("fifo"), 0o600))
	must.NoError(t, os.Mkdir(in("dir"), 0o700))
	for _, name := range []string{"link", "up", "fifo", "dir", "../../outside/secret", "", strings.Repeat("x", 300), "a\x00b"} {
		_, err := d.ReadFile(name, 10)
		must.Error(t, err, must.Sprint(name))
	}
	for _, name := range []string{"link", "up", "fifo"} {
		must.NoError(t, d.WriteFile(name, []byte("mine"), false))
		data, err := d.ReadFile(name, 10)
		must.NoError(t, err)
		must.Eq(t, "mine", string(data))
	}
	for _, name := range []string{"dir", "../../outside/secret", "", strings.Repeat("x", 300)} {
		must.Error(t, d.WriteFile(name, nil, false), must.Sprint(name))
	}
	must.Error(t, d.Remove("../../outside/secret"))

	must.NoError(t, os.RemoveAll(filepath.Join(alloc, DirName)))
	must.NoError(t, os.Symlink(outside, filepath.Join(alloc, DirName)))
	must.Error(t, d.WriteFile("secret", nil, false))
	must.Error(t, d.Remove("secret"))
	_, err := d.ReadFile("secret", 10)
	must.Error(t, err)
	data, err := os.ReadFile(secret)
	must.NoError(t, err)
	must.Eq(t, "s", string(data))
}

func TestNames(t *testing.T) {
	of := map[string]string{SnapshotName: "the snapshot"}
	for _, task := range []string{"snapshot", "a", "a.status", "a.status.json", "a.state", "a.record", "a.history", "snapshot.json", ".", "..", "é x"} {
		for kind, name := range map[string]string{"status": StatusName(task), "state": StateName(task), "record": recordName(task)} {
			must.MapNotContainsKey(t, of, name)
			of[name] = kind
		}
		back, ok := StatusTask(StatusName(task))
		must.True(t, ok)
		must.Eq(t, task, back)
		_, ok = StatusTask(StateName(task))
		must.False(t, ok)
	}
	for _, bad := range []string{".", "..", ".ebbtide"} {
		must.ErrorContains(t, CheckTask(bad), "a task cannot have this name")
	}
	for _, good := range []string{"train", "...", ".ebbtide.x", "a b"} {
		must.NoError(t, CheckTask(good))
	}
}

func TestRecord(t *testing.T) {
	node := t.TempDir()
	alloc := allocation(t, node, "a1")
	r, err := Load(alloc, "train")
	must.NoError(t, err)
	must.Eq(t, Record{}, r)
	want := Record{Run: "a1/train/1", Objective: &target.Reached{State: "objective", Metric: "loss", Value: 0.1, Time: time.Unix(1, 0).UTC()}}
	must.NoError(t, Update(alloc, "train", func(r *Record) { *r = want }))
	r, err = Load(alloc, "train")
	must.NoError(t, err)
	must.Eq(t, want, r)
	must.NoError(t, Open(alloc).WriteFile(recordName("train"), []byte(`{"objective":{}}`), false))
	_, err = Load(alloc, "train")
	must.ErrorIs(t, err, ErrForged)
	must.ErrorContains(t, err, `the record of task "train"`)
	must.ErrorIs(t, Update(alloc, "train", func(r *Record) { *r = want }), ErrForged, must.Sprint("what it holds is unknown"))
	_, err = Load(alloc, "train")
	must.ErrorIs(t, err, ErrForged)
	must.ErrorIs(t, Update(filepath.Join(node, "gone"), "train", func(*Record) {}), fs.ErrNotExist)
}

// No change is lost, although writers read the record first.
func TestUpdate_together(t *testing.T) {
	alloc := allocation(t, t.TempDir(), "a1")
	must.NoError(t, Update(alloc, "train", func(r *Record) { r.Frozen = new(Frozen) }))
	var all sync.WaitGroup
	const writers, changes = 8, 10
	for range writers {
		all.Go(func() {
			for range changes {
				if err := Update(alloc, "train", func(r *Record) { r.Frozen.Bytes++ }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	r, err := Load(alloc, "train")
	must.NoError(t, err)
	must.Eq(t, writers*changes, r.Frozen.Bytes)
}
