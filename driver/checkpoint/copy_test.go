// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package checkpoint

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

func allocation(t *testing.T) Dirs {
	base := t.TempDir()
	d := Dirs{Local: filepath.Join(base, "task/local"), Alloc: filepath.Join(base, "alloc")}
	must.NoError(t, os.MkdirAll(d.Local, 0o755))
	must.NoError(t, os.MkdirAll(filepath.Join(d.Alloc, "data"), 0o755))
	return d
}

func TestCopy(t *testing.T) {
	from, to, outside := allocation(t), allocation(t), t.TempDir()
	file := func(dir, name, text string, mode os.FileMode) {
		path := filepath.Join(dir, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
		must.NoError(t, os.WriteFile(path, []byte(text), mode))
		must.NoError(t, os.Chmod(path, mode))
	}
	file(from.Local, "ckpt/a.pt", "a", 0o640)
	file(from.Local, "bad\n", "odd", 0o600)
	file(from.Alloc, "data/b.pt", "b", 0o600)
	file(from.Alloc, "data/has", "theirs", 0o600)
	file(from.Alloc, "logs/not", "x", 0o600)
	file(to.Alloc, "data/has", "mine", 0o600)
	file(outside, "secret", "secret", 0o600)
	for name, target := range map[string]string{"link": filepath.Join(outside, "secret"), "dir": outside} {
		must.NoError(t, os.Symlink(target, filepath.Join(from.Local, name)))
	}
	must.NoError(t, unix.Mkfifo(filepath.Join(from.Local, "pipe"), 0o600))
	// A link in the destination does not redirect the copy.
	must.NoError(t, os.Symlink(outside, filepath.Join(to.Alloc, "data/sub")))
	file(from.Alloc, "data/none", "", 0o600)
	// Larger than any disk.
	huge := filepath.Join(from.Local, "huge")
	file(from.Local, "huge", "begin", 0o600)
	f, err := os.OpenFile(huge, os.O_WRONLY, 0)
	must.NoError(t, err)
	_, err = f.WriteAt([]byte("end"), 1<<42)
	must.NoError(t, err)
	must.NoError(t, f.Truncate(1<<43))
	must.NoError(t, f.Close())

	must.NoError(t, Copy(from, to))
	read := func(dir, name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		must.NoError(t, err)
		return string(b)
	}
	must.Eq(t, "a", read(to.Local, "ckpt/a.pt"))
	must.Eq(t, "odd", read(to.Local, "bad\n"))
	must.Eq(t, "b", read(to.Alloc, "data/b.pt"))
	must.Eq(t, "mine", read(to.Alloc, "data/has"))
	for path, mode := range map[string]os.FileMode{"ckpt": os.ModeDir | 0o750, "ckpt/a.pt": 0o640} {
		info, err := os.Stat(filepath.Join(to.Local, path))
		must.NoError(t, err)
		must.Eq(t, mode, info.Mode())
	}
	entries, err := os.ReadDir(to.Local)
	must.NoError(t, err)
	must.Len(t, 3, entries) // neither links nor the pipe
	must.FileNotExists(t, filepath.Join(to.Alloc, "logs/not"))

	info, err := os.Stat(filepath.Join(to.Local, "huge"))
	must.NoError(t, err)
	must.Eq(t, 1<<43, info.Size())
	must.Less(t, 1<<20, info.Sys().(*syscall.Stat_t).Blocks*512)

	file(from.Alloc, "data/sub/x", "x", 0o600)
	must.ErrorContains(t, Copy(from, to), "a symbolic link found")
	must.FileNotExists(t, filepath.Join(outside, "x"))
}
