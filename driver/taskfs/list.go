// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package taskfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const batch = 256

// Names returns the names in the directory at path, unsorted. Beyond most names it
// returns those and ErrTooMany.
func (d *Dir) Names(path string, most int) ([]string, error) {
	var names []string
	err := d.list(path, &most, func(_ *Dir, name string) error {
		names = append(names, name)
		return nil
	})
	return names, err
}

func (d *Dir) list(path string, left *int, each func(dir *Dir, name string) error) error {
	dir, err := d.Sub(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		names, err := dir.file.Readdirnames(batch)
		for _, name := range names {
			if *left--; *left < 0 {
				return pathError("list", dir.Name(), ErrTooMany)
			}
			if err := each(dir, name); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return pathError("list", dir.Name(), err)
		}
	}
}

type Bounds struct {
	Entries int // visited entries
	Depth   int // nested directories; deeper ones are skipped
}

// Walk calls visit for top and, if it is a directory, for everything beneath it: a
// directory before its content, otherwise unsorted. Paths are beneath d. An unreadable
// directory is visited again, with the error; an error of visit ends the walk. Vanished
// entries are skipped. ErrTooMany means that there are more entries than the bound.
func (d *Dir) Walk(top string, b Bounds, visit func(path string, s Stat, err error) error) error {
	s, err := d.Stat(top)
	if err := visit(top, s, err); err != nil {
		return err
	}
	type level struct {
		path  string
		depth int
		Stat
	}
	var todo []level
	if err == nil && s.IsDir() {
		todo = []level{{top, 0, s}}
	}
	var stop error // of visit
	for ; len(todo) > 0; todo = todo[1:] {
		at := todo[0]
		err := d.list(at.path, &b.Entries, func(dir *Dir, name string) error {
			var s Stat
			if unix.Fstatat(dir.Fd(), name, &s.Stat_t, unix.AT_SYMLINK_NOFOLLOW) != nil {
				return nil
			}
			below := path.Join(at.path, name)
			if s.IsDir() && at.depth < b.Depth {
				todo = append(todo, level{below, at.depth + 1, s})
			}
			stop = visit(below, s, nil)
			return stop
		})
		switch {
		case stop != nil || errors.Is(err, ErrTooMany):
			return err
		case err == nil || at.path != top && errors.Is(err, fs.ErrNotExist):
		default:
			if err := visit(at.path, at.Stat, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// Glob returns the paths that match a pattern of path.Match, sorted. It reads at most
// most entries (ErrTooMany). Unreadable directories and unprintable names are skipped.
func (d *Dir) Glob(pattern string, most int) ([]string, error) {
	if _, err := path.Match(pattern, ""); err != nil {
		return nil, fmt.Errorf("pattern %q: %w", pattern, err)
	}
	found := []string{"."}
	for part := range strings.SplitSeq(path.Clean(pattern), "/") {
		var next []string
		for _, dir := range found {
			if !strings.ContainsAny(part, `*?[\`) {
				if most--; most < 0 {
					return nil, pathError("list", d.Name(), ErrTooMany)
				}
				if _, err := d.Stat(path.Join(dir, part)); err == nil {
					next = append(next, path.Join(dir, part))
				}
				continue
			}
			err := d.list(dir, &most, func(_ *Dir, name string) error {
				if ok, _ := path.Match(part, name); ok && Printable(name) {
					next = append(next, path.Join(dir, name))
				}
				return nil
			})
			if errors.Is(err, ErrTooMany) {
				return nil, err
			}
		}
		found = next
	}
	slices.Sort(found)
	return found, nil
}
