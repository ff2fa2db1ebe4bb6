// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tensorboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Bounds of a walk.
const (
	maxDepth   = 8
	maxFiles   = 1000
	maxEntries = 100_000 // of all directories together
)

// entry is an event file as a directory has it.
type entry struct {
	path string // below the directory of the source
	stat stat
}

// stat tells whether a file has changed.
type stat struct {
	size  int64
	time  int64 // of the last change, in ns
	inode uint64
}

// listing is what a walk has found.
type listing struct {
	entries []entry // the newest, in the order of base name and path
	dropped int     // files beyond maxFiles
	partial bool    // stopped at maxEntries
}

// walk looks for event files. The error is that of the topmost directory, or else of
// the first that could not be read; the listing has what was found all the same.
func walk(ctx context.Context, root *os.Root, top string, most int) (l listing, err error) {
	type level struct {
		rel   string
		depth int
	}
	seen := 0
	for todo := []level{{".", 0}}; len(todo) > 0; todo = todo[1:] {
		at := todo[0]
		if e := ctx.Err(); e != nil {
			return l, e
		}
		dir, e := root.OpenFile(path.Join(top, at.rel), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
		if e != nil {
			if at.depth == 0 {
				return l, e
			}
			if !errors.Is(e, fs.ErrNotExist) && err == nil { // it may have been removed since
				err = e
			}
			continue
		}
		for {
			names, e := dir.ReadDir(256)
			for _, d := range names {
				rel := path.Join(at.rel, d.Name())
				switch {
				case d.IsDir() && at.depth < maxDepth:
					todo = append(todo, level{rel, at.depth + 1})
				case d.Type().IsRegular() && strings.Contains(d.Name(), "tfevents"):
					var st unix.Stat_t
					if unix.Fstatat(int(dir.Fd()), d.Name(), &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
						l.entries = append(l.entries, entry{rel, stat{st.Size, st.Mtim.Nano(), st.Ino}})
					}
				}
			}
			seen += len(names)
			if e != nil && !errors.Is(e, io.EOF) && err == nil {
				err = e
			}
			if e != nil || seen > most {
				break
			}
		}
		dir.Close()
		if seen > most {
			l.partial = true
			break
		}
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

// place returns the run that a file belongs to, and on which data it was measured:
// "" if its directory does not say.
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
