// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package checkpoint finds the checkpoint of a task: a new file or directory that
// matches a pattern and has stopped changing. Start with Open and Files.Wait; Copy
// carries a task's directories over.
package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/consul-template/signals"

	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/taskfs"
	"github.com/ebbtide/ebbtide/internal/fields"
)

// Config is the checkpoint block of a task's config.
type Config struct {
	// Path is a pattern (path.Match) of files or directories, by the task's paths: in
	// /local or /alloc/data, which Nomad migrates, or, if Shared, in a volume available
	// on every node.
	Path   string
	Shared bool
	// Signal makes the task save; NoSignal if it saves by itself, from time to time.
	Signal string
	// Timeout is the maximum duration of a save; without a signal, of the wait for the next one.
	Timeout time.Duration
	// Lease is how long the task then stays frozen, waiting for its move.
	Lease time.Duration
}

const (
	DefaultSignal = "SIGUSR1"
	NoSignal      = "none"
	DefaultLease  = time.Minute
)

// DefaultTimeout is the default for a signal. Without one it covers an interval between two saves:
// the best one, √(2 · save · time between failures) by Young, is 22 minutes for saves of 10 s and
// a failure a day.
func DefaultTimeout(signal string) time.Duration {
	if signal == NoSignal {
		return 30 * time.Minute
	}
	return time.Minute
}

const (
	minDuration = time.Second
	maxDuration = time.Hour
	// maxInterval between two saves without a signal.
	maxInterval = 24 * time.Hour
)

// Validate returns all errors, joined; each names the block's field.
func (c Config) Validate() error {
	var errs fields.Errors
	root, pattern, own := progress.SplitPath(c.Path)
	moves := own && (root == progress.RootLocal && pattern != "." || strings.HasPrefix(pattern, "data/"))
	_, err := path.Match(c.Path, "")
	switch {
	case c.Shared && (own || !path.IsAbs(c.Path)):
		errs.Add("checkpoint.path", "must be a pattern in a volume_mount of the task, as it is shared, got %q", c.Path)
	case !c.Shared && !moves:
		errs.Add("checkpoint.path", "must be a pattern in the task's directory (${NOMAD_TASK_DIR}/…) or in ${NOMAD_ALLOC_DIR}/data/…, which Nomad moves with the task, got %q; or set shared = true, if it lies in a volume that is the same on every node", c.Path)
	case err != nil:
		errs.Add("checkpoint.path", "must be a pattern with *, ? and […], got %q", c.Path)
	}
	longest := maxDuration
	if !c.Asked() {
		longest = maxInterval
	} else if _, ok := signals.SignalLookup[c.Signal]; !ok { // exec sends SIGINT for a name in lower case
		errs.Add("checkpoint.signal", "must be the name of a signal like SIGUSR1, or %s, got %q", NoSignal, c.Signal)
	}
	for _, d := range []struct {
		field       string
		value, most time.Duration
	}{{"timeout", c.Timeout, longest}, {"lease", c.Lease, maxDuration}} {
		if d.value < minDuration || d.value > d.most {
			errs.Add("checkpoint."+d.field, "must be a duration from %v to %v, got %v", minDuration, d.most, d.value)
		}
	}
	return errs.Err()
}

// Asked reports whether the task is asked to save. If not, its next own save is awaited.
func (c Config) Asked() bool { return c.Signal != NoSignal }

// Ends reports whether the signal ends a process without a handler: many trainers save
// and exit.
func (c Config) Ends() bool {
	return slices.Contains([]string{"SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP"}, c.Signal)
}

// Saved is a checkpoint.
type Saved struct {
	Path  string // as the task names it
	Bytes int64
}

// stamp detects changes; for a directory it sums all files in it.
type stamp struct {
	files int
	bytes int64
	last  time.Time
}

// Dirs are a task's directories on the host.
type Dirs struct {
	Local, Alloc string
	// Mounts are its volumes, by mount path.
	Mounts map[string]string
}

// find returns the directory of a valid Config on the host and in the task, and the
// pattern beneath it.
func (d Dirs) find(c Config) (host, prefix, pattern string, err error) {
	if !c.Shared {
		root, pattern, ok := progress.SplitPath(c.Path)
		if !ok {
			return "", "", "", fmt.Errorf("%q is not beneath /local or /alloc", c.Path)
		}
		host := map[string]string{progress.RootLocal: d.Local, progress.RootAlloc: d.Alloc}[root]
		return host, "/" + root, pattern, nil
	}
	name := path.Clean(c.Path)
	for at, mounted := range d.Mounts {
		rest, ok := strings.CutPrefix(name, strings.TrimSuffix(path.Clean(at), "/")+"/")
		if ok && len(at) > len(prefix) { // the innermost of nested mounts
			host, prefix, pattern = mounted, path.Clean(at), rest
		}
	}
	if prefix == "" {
		return "", "", "", fields.Error{Path: "checkpoint.path", Problem: fmt.Sprintf("%q is not in a volume_mount of the task, and shared is set", c.Path)}
	}
	return host, prefix, pattern, nil
}

func (d Dirs) Check(c Config) error {
	_, _, _, err := d.find(c)
	return err
}

// Files are the files that match a pattern. Close must be called.
type Files struct {
	root    *taskfs.Dir
	prefix  string        // of the task's names: "/alloc"
	pattern string        // beneath root
	closed  *watch        // nil: changes are only seen by polling
	every   time.Duration // polling interval
	idle    time.Duration // polling interval before anything is written
}

func Open(c Config, dirs Dirs) (*Files, error) {
	base, prefix, pattern, err := dirs.find(c)
	if err != nil {
		return nil, err
	}
	dir := ""
	if !c.Shared { // a volume's path is the operator's
		base, dir = filepath.Split(base)
	}
	root, err := taskfs.Open(base, dir)
	if err != nil {
		return nil, fmt.Errorf("opening the directory of checkpoints: %w", err)
	}
	f := &Files{root: root, prefix: prefix, pattern: pattern, every: Stable / scans, idle: Stable / scans}
	if !c.Asked() {
		f.idle = time.Second // for hours, perhaps over a network
	}
	if !strings.ContainsAny(pattern, `*?[\`) {
		// An optimisation only.
		f.closed, _ = newWatch(root, pattern)
	}
	return f, nil
}

func (f *Files) Close() error { return errors.Join(f.closed.close(), f.root.Close()) }

// State maps the existing matches to their stamps.
type State map[string]stamp

const (
	maxEntries = 100_000
	maxDepth   = 32
)

// Scan returns the state of all matches. Vanished and unreadable files are skipped; a
// link is a file without content.
func (f *Files) Scan() (State, error) {
	names, err := f.root.Glob(f.pattern, maxEntries)
	state := make(State, len(names))
	left := maxEntries
	for _, name := range names {
		var s stamp
		err = f.root.Walk(name, taskfs.Bounds{Entries: left, Depth: maxDepth}, func(_ string, e taskfs.Stat, err error) error {
			if err != nil {
				return nil
			}
			left--
			if e.Modified().After(s.last) {
				s.last = e.Modified()
			}
			if e.IsRegular() {
				s.files++
				s.bytes += e.Size
			}
			return nil
		})
		if err != nil {
			break
		}
		state[name] = s
	}
	if err != nil {
		return nil, fmt.Errorf("looking for checkpoints among at most %d files: %w", maxEntries, err)
	}
	return state, nil
}

func (f *Files) Remove() error {
	names, err := f.root.Glob(f.pattern, maxEntries)
	if err != nil {
		return err
	}
	var all []string // a directory before its content
	for _, name := range names {
		bounds := taskfs.Bounds{Entries: maxEntries - len(all), Depth: maxDepth}
		err := f.root.Walk(name, bounds, func(name string, _ taskfs.Stat, err error) error {
			all = append(all, name)
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, name := range slices.Backward(all) {
		if err := f.root.Remove(name); err != nil {
			return err
		}
	}
	return nil
}

// Sizes returns the sizes of the matches in bytes, by the task's paths.
func (f *Files) Sizes(s State) map[string]int64 {
	sizes := make(map[string]int64, len(s))
	for name, is := range s {
		sizes[path.Join(f.prefix, name)] = is.bytes
	}
	return sizes
}

// Stable is how long a checkpoint must be unchanged, and scans the number of scans in
// that time.
const (
	Stable = 500 * time.Millisecond
	scans  = 5
)

// Wait waits for a match that is new or changed since before, is not empty and has
// stopped changing. Of several it returns the one written last.
//
// A path without wildcards is complete as soon as it is closed after writing, or
// renamed: the task loses as little work as possible. With wildcards, the number of
// files per checkpoint is unknown.
func (f *Files) Wait(ctx context.Context, before State) (Saved, error) {
	unchanged := make(map[string]int)
	var last State
	for {
		now, err := f.Scan()
		if err != nil {
			return Saved{}, err
		}
		for name := range now {
			if now[name] == last[name] {
				unchanged[name]++
			} else {
				unchanged[name] = 0
			}
		}
		last = now
		name, busy := f.newest(now, before, unchanged)
		if name != "" && !busy {
			return Saved{Path: path.Join(f.prefix, name), Bytes: now[name].bytes}, nil
		}
		pause := f.every
		if name == "" {
			pause = f.idle
		}
		select {
		case <-f.closed.events():
			if now, err := f.Scan(); err == nil {
				if s := now[f.pattern]; s != before[f.pattern] && s.bytes > 0 {
					return Saved{Path: path.Join(f.prefix, f.pattern), Bytes: s.bytes}, nil
				}
			}
		case <-time.After(pause):
		case <-ctx.Done():
			return Saved{}, f.why(now, before, ctx.Err())
		}
	}
}

// newest returns the match written last since before, and whether any is still being written.
func (f *Files) newest(now, before State, unchanged map[string]int) (name string, busy bool) {
	for _, n := range slices.Sorted(maps.Keys(now)) {
		if now[n] == before[n] || now[n].bytes == 0 {
			continue
		}
		busy = busy || unchanged[n] < scans
		if name == "" || now[n].last.After(now[name].last) {
			name = n
		}
	}
	return name, busy
}

func (f *Files) why(now, before State, err error) error {
	pattern := path.Join(f.prefix, f.pattern)
	changed := 0
	for name := range now {
		if now[name] != before[name] {
			changed++
		}
	}
	switch {
	case changed > 0:
		return fmt.Errorf("the checkpoint %s was still being written, or is empty: %w", pattern, err)
	case len(now) > 0:
		return fmt.Errorf("none of the %d files that match %s is new: %w", len(now), pattern, err)
	}
	return fmt.Errorf("no file matches %s: %w", pattern, err)
}
