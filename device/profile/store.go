// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/internal/jsonfile"
)

// MaxProfiles is the maximum number of profiles. The least recently updated is dropped for a new one.
const MaxProfiles = 1000

// maxFile bounds the size of a file, in bytes. A profile has about 10 KiB.
const maxFile = 1 << 20

var fileName = regexp.MustCompile(`^[0-9a-f]{32}\.json$`)

// Store keeps profiles on disk, a file per key. It is safe for concurrent use.
type Store struct {
	dir string

	writing sync.Mutex // readers do not wait for the disk

	mu       sync.RWMutex
	profiles map[Key]entry
}

type entry struct {
	Profile
	summary Summary
	since   time.Time
}

// Open opens the store in a directory, creating it if needed. Unreadable files are skipped and
// reported in one error.
func Open(dir string, report func(error)) (*Store, error) {
	s := &Store{dir: dir, profiles: make(map[Key]entry)}
	if err := os.MkdirAll(s.folder(), 0o700); err != nil {
		return nil, fmt.Errorf("creating the directory of profiles: %w", err)
	}
	files, err := os.ReadDir(s.folder())
	if err != nil {
		return nil, fmt.Errorf("reading the directory of profiles: %w", err)
	}
	var bad []error
	for _, file := range files {
		name := file.Name()
		if strings.HasSuffix(name, jsonfile.Unfinished) { // left by a plugin that was killed
			_ = os.Remove(filepath.Join(s.folder(), name))
			continue
		}
		e, err := s.read(name)
		if err != nil {
			bad = append(bad, err)
			continue
		}
		s.profiles[e.Key] = e
		if err := s.remove(s.dropOldest()); err != nil {
			bad = append(bad, err)
		}
	}
	if len(bad) > 0 {
		const few = 3
		report(fmt.Errorf("%d files of profiles are ignored, such as: %w", len(bad), errors.Join(bad[:min(few, len(bad))]...)))
	}
	return s, nil
}

func (s *Store) folder() string { return filepath.Join(s.dir, "profiles") }

func (s *Store) read(name string) (entry, error) {
	var e entry
	if !fileName.MatchString(name) {
		return e, fmt.Errorf("%s: is not the name of a profile", name)
	}
	path := filepath.Join(s.folder(), name)
	since, err := load(path, &e.Profile)
	if err == nil {
		err = e.validate()
	}
	if err == nil && e.Key.name() != name {
		err = errors.New("key: does not match the file's name")
	}
	if err != nil {
		return e, fmt.Errorf("%s: %w", name, err)
	}
	e.since, e.summary = since, e.Summary()
	return e, nil
}

func load(path string, into any) (time.Time, error) {
	// No symlink to elsewhere, and no pipe that would block.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return time.Time{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return time.Time{}, err
	case !info.Mode().IsRegular() || info.Size() > maxFile:
		return time.Time{}, fmt.Errorf("must be a file of at most %d bytes", maxFile)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	return info.ModTime(), err
}

// Add adds a run to the profile of its key, and stores it. It counts at once, and after an error
// until the store is reopened.
func (s *Store) Add(k Key, r Run) error {
	if err := r.validate(); err != nil {
		return fmt.Errorf("adding a run of %s: %w", k.Application(), err)
	}
	s.mu.Lock()
	e := s.profiles[k]
	e.Key = k
	e.Profile, e.since = e.add(r), time.Now()
	e.summary = e.Summary()
	s.profiles[k] = e
	gone := s.dropOldest()
	s.mu.Unlock()
	s.writing.Lock()
	defer s.writing.Unlock()
	// Others may have added runs meanwhile.
	gone = slices.DeleteFunc(gone, func(k Key) bool { _, back := s.Profile(k); return back })
	if err := s.remove(gone); err != nil {
		return err
	}
	p, ok := s.Profile(k)
	if !ok {
		return nil
	}
	if err := jsonfile.Replace(filepath.Join(s.folder(), k.name()), p, true); err != nil {
		return fmt.Errorf("writing the profile of %s: %w", k.Application(), err)
	}
	return nil
}

func (s *Store) dropOldest() (gone []Key) {
	for len(s.profiles) > MaxProfiles {
		var oldest Key
		var since time.Time
		for k, e := range s.profiles {
			if since.IsZero() || e.since.Before(since) || e.since.Equal(since) && k.name() < oldest.name() {
				oldest, since = k, e.since
			}
		}
		delete(s.profiles, oldest)
		gone = append(gone, oldest)
	}
	return gone
}

func (s *Store) remove(gone []Key) error {
	for _, k := range gone {
		if err := os.Remove(filepath.Join(s.folder(), k.name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing the oldest profile: %w", err)
		}
	}
	return nil
}

// Profile returns the profile of a key.
func (s *Store) Profile(k Key) (Profile, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	e, ok := s.profiles[k]
	return e.Profile, ok // safe to share: runs are never modified
}

// Summaries returns the figures of all profiles, sorted.
func (s *Store) Summaries() []Summary {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]Summary, 0, len(s.profiles))
	for _, e := range s.profiles {
		out = append(out, e.summary)
	}
	slices.SortFunc(out, func(a, b Summary) int {
		return cmp.Or(strings.Compare(a.Key.Application(), b.Key.Application()), strings.Compare(a.Key.Arguments, b.Key.Arguments))
	})
	return out
}

// Load reads what Save has stored by that name in a directory. The error wraps fs.ErrNotExist if
// there is nothing.
func Load(dir, name string, into any) error {
	if _, err := load(filepath.Join(dir, name+".json"), into); err != nil {
		return fmt.Errorf("reading %s: %w", name, err)
	}
	return nil
}

// Save atomically stores something that must survive the plugin, as a JSON file in a directory. The
// name consists of letters.
func Save(dir, name string, v any) error {
	if err := jsonfile.Replace(filepath.Join(dir, name+".json"), v, true); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}
