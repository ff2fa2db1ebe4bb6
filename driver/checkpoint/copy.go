// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/taskfs"
)

// copied bounds a Copy, for each of its directories.
var copied = taskfs.Bounds{Entries: 10_000_000, Depth: 256}

// Copy copies what Nomad would migrate to the next allocation: the task's own
// directory, and alloc/data. Existing files are kept; anything but files and
// directories is skipped.
func Copy(from, to Dirs) error { return transfer(from, to, copyFile) }

// Link is like Copy, but gives the files a second name, where the file system allows it.
func Link(from, to Dirs) error {
	return transfer(from, to, func(src, dst *taskfs.Dir, name string) error {
		err := src.Link(dst, name)
		switch {
		case errors.Is(err, fs.ErrExist):
			return nil
		case errors.Is(err, unix.EXDEV):
			return copyFile(src, dst, name)
		}
		return err
	})
}

type transferFile func(src, dst *taskfs.Dir, name string) error

func transfer(from, to Dirs, file transferFile) error {
	for _, d := range []struct{ from, to, beneath string }{{from.Alloc, to.Alloc, "data"}, {from.Local, to.Local, "."}} {
		if err := transferTree(d.from, d.to, d.beneath, file); err != nil {
			return fmt.Errorf("copying %s: %w", path.Join(d.from, d.beneath), err)
		}
	}
	return nil
}

func transferTree(from, to, beneath string, file transferFile) error {
	src, err := taskfs.Open(filepath.Split(from))
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := taskfs.Open(filepath.Split(to))
	if err != nil {
		return err
	}
	defer dst.Close()
	return src.Walk(beneath, copied, func(name string, s taskfs.Stat, err error) error {
		switch {
		case err != nil:
			return err
		case s.IsDir():
			return copyDir(dst, name, s)
		case s.IsRegular():
			return file(src, dst, name)
		}
		return nil
	})
}

func copyDir(dst *taskfs.Dir, name string, s taskfs.Stat) error {
	if _, err := dst.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	made, err := dst.MkdirAll(name, fs.FileMode(s.Mode).Perm())
	if err != nil {
		return err
	}
	defer made.Close()
	return unix.Fchown(made.Fd(), int(s.Uid), int(s.Gid))
}

func copyFile(src, dst *taskfs.Dir, name string) error {
	in, s, err := src.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := dst.Create(name, fs.FileMode(s.Mode).Perm())
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(copyData(out, in, s.Size), out.Chown(int(s.Uid), int(s.Gid)), out.Close())
}

// copyData copies a file's content up to a size and keeps its holes, which may exceed
// any disk.
func copyData(out, in *os.File, size int64) error {
	for at := int64(0); ; {
		data, err := in.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || data >= size {
			return out.Truncate(size)
		}
		if err != nil {
			return err
		}
		if at, err = in.Seek(data, unix.SEEK_HOLE); err != nil {
			return err
		}
		at = min(at, size)
		for _, f := range []*os.File{in, out} {
			if _, err := f.Seek(data, io.SeekStart); err != nil {
				return err
			}
		}
		if _, err := io.CopyN(out, in, at-data); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
}
