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
	"syscall"
)

// Copy copies what Nomad would carry over from an allocation to the next one: the task's
// own directory, and alloc/data. What is there already stays, and links are left out.
func Copy(from, to Dirs) error {
	for _, d := range []struct{ from, to, beneath string }{{from.Alloc, to.Alloc, "data"}, {from.Local, to.Local, "."}} {
		if err := copyTree(d.from, d.to, d.beneath); err != nil {
			return fmt.Errorf("copying %s: %w", path.Join(d.from, d.beneath), err)
		}
	}
	return nil
}

func copyTree(from, to, beneath string) error {
	src, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer dst.Close()
	return fs.WalkDir(src.FS(), beneath, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			err = dst.Mkdir(name, info.Mode().Perm())
		case info.Mode().IsRegular():
			err = copyFile(src, dst, name, info.Mode().Perm())
		default:
			return nil
		}
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		if owner, ok := info.Sys().(*syscall.Stat_t); ok && err == nil {
			err = dst.Chown(name, int(owner.Uid), int(owner.Gid))
		}
		return err
	})
}

func copyFile(src, dst *os.Root, name string, mode fs.FileMode) error {
	in, err := src.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := dst.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
