// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tensorboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/ebbtide/ebbtide/driver/taskfs"
)

const (
	maxDepth   = 8
	maxFiles   = 1000
	maxEntries = 100_000 // in all directories together
)

type entry struct {
	path string // relative to the source's directory
	stat stat
}

type stat struct {
	size  int64
	time  int64 // last change, in ns
	inode uint64
}

type listing struct {
	entries []entry // the newest, by base name and path
	dropped int     // files beyond maxFiles
	partial bool    // reached maxEntries
}

// walk lists event files. The error is that of the topmost directory, or the first other one; the
// listing is valid nevertheless.
func walk(ctx context.Context, root *taskfs.Dir, top string, most int) (l listing, err error) {
	dir, err := root.Sub(top)
	if err != nil {
		return l, err
	}
	defer dir.Close()
	end := dir.Walk(".", taskfs.Bounds{Entries: most, Depth: maxDepth}, func(at string, s taskfs.Stat, e error) error {
		switch {
		case e != nil:
			err = cmp.Or(err, e)
		case s.IsRegular() && strings.Contains(path.Base(at), "tfevents") && taskfs.Printable(at):
			l.entries = append(l.entries, entry{at, stat{s.Size, s.Mtim.Nano(), s.Ino}})
		}
		return ctx.Err()
	})
	if l.partial = errors.Is(end, taskfs.ErrTooMany); !l.partial && err == nil {
		err = end
	}
	if len(l.entries) > maxFiles {
		slices.SortFunc(l.entries, func(a, b entry) int {
			return cmp.Or(cmp.Compare(b.stat.time, a.stat.time), cmp.Compare(b.path, a.path))
		})
		l.dropped = len(l.entries) - maxFiles
		l.entries = l.entries[:maxFiles:maxFiles]
	}
	slices.SortFunc(l.entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(path.Base(a.path), path.Base(b.path)), cmp.Compare(a.path, b.path))
	})
	return l, err
}

func (l listing) note() string {
	switch {
	case l.partial:
		return fmt.Sprintf("there are more than %d files below it, and not all were looked at: name the directory of the event files", maxEntries)
	case l.dropped > 0:
		return fmt.Sprintf("only the newest %d event files are read, %d are not", maxFiles, l.dropped)
	}
	return ""
}

// place returns the run of a file and its data set; "" if the directory does not name one.
func place(file string) (run, data string) {
	run = path.Dir(file)
	if run == "." {
		return run, ""
	}
	words := strings.FieldsFunc(strings.ToLower(path.Base(run)), func(r rune) bool {
		return r == '_' || r == '-' || r == '.'
	})
	for i, w := range words {
		if i > 0 && i < len(words)-1 {
			continue
		}
		switch w {
		case "train", "training":
			if i == len(words)-1 {
				return path.Dir(run), "train"
			}
		case "validation", "val", "valid", "eval", "evaluation", "test", "testing", "dev", "holdout":
			return path.Dir(run), w
		}
	}
	return run, ""
}
