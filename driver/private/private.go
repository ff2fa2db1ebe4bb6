// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package private stores the files that Ebbtide acts on in an allocation's directory on the host,
// next to the directories that Nomad exposes to tasks: tasks can neither see nor write them, but
// Nomad's file API can read them (/v1/client/fs/cat/<allocation>?path=.ebbtide/…). They are removed
// with the allocation and not copied when Nomad migrates a disk.
//
// A jobspec has more access than a task: Nomad's docker driver mounts any part of the allocation's
// directory on request, and templates are rendered through symlinks. Files that the driver itself
// reads back are therefore sealed with a key of the node, which detects forged files and copies
// from other allocations.
package private

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// DirName is the name of the private directory in an allocation's directory.
const DirName = ".ebbtide"

// SnapshotName is the name of the node's last policy snapshot, JSON, in one allocation
// of the node.
const SnapshotName = "snapshot.json"

// TwinsName is the name of the sealed state of ended tasks, in the snapshot's directory.
const TwinsName = "twins.node"

const statusSuffix = ".status.json"

// StatusName returns the name of the private copy of a task's status.
func StatusName(task string) string { return task + statusSuffix }

// StatusTask is the inverse of StatusName; false if name is not a status.
func StatusTask(name string) (task string, ok bool) { return strings.CutSuffix(name, statusSuffix) }

// RestoredName returns the name of a task's Restored, JSON.
func RestoredName(task string) string { return task + ".restored.json" }

// Restored maps the checkpoints present at a task's last start, by the task's paths, to their sizes
// in bytes.
type Restored map[string]int64

// StateName returns the name of a task's sealed state for a later process.
func StateName(task string) string { return task + ".state" }

// recordName returns the name of a task's sealed Record. No suffix ends with another, so names are
// unique.
func recordName(task string) string { return task + ".record" }

// CheckTask rejects task names that are valid in Nomad, but would expose the private directory to
// the task.
func CheckTask(name string) error {
	switch name {
	case ".", "..", DirName:
		return fmt.Errorf("task %q: a task cannot have this name: it would give the task the allocation's private directory", name)
	}
	return nil
}

// CheckMount rejects the source of a bind mount, absolute or relative to the task's
// directory, that would expose the private directory.
func CheckMount(allocDir, taskDir, source string) error {
	path := source
	if !filepath.IsAbs(path) {
		path = filepath.Join(taskDir, path)
	}
	in, err := filepath.Rel(allocDir, path)
	if err == nil && (in == "." || in == DirName || strings.HasPrefix(in, DirName+"/")) {
		return fmt.Errorf("mounting %q would expose the allocation's private directory, %s", source, DirName)
	}
	return nil
}

var (
	// ErrForged means that a sealed file was not written by this node's plugin for this
	// allocation, or that the node's key has changed.
	ErrForged   = errors.New("not sealed by this node")
	ErrTooLarge = errors.New("file too large")
)

type Dir struct{ alloc string }

// Open returns the private directory of the allocation in allocDir (…/alloc/<alloc
// id>). The first write creates it.
func Open(allocDir string) Dir { return Dir{allocDir} }

// WriteFile replaces a file atomically; with sync it survives a crash of the machine.
// The error wraps fs.ErrNotExist if the allocation's directory is gone.
func (d Dir) WriteFile(name string, data []byte, sync bool) error {
	root, err := d.open(true)
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	defer root.Close()
	if err := write(root, name, data, sync, root.Rename); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}

// ReadFile reads a file of at most limit bytes. The error wraps fs.ErrNotExist or
// ErrTooLarge.
func (d Dir) ReadFile(name string, limit int) ([]byte, error) {
	root, err := d.open(false)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	defer root.Close()
	data, err := read(root, name, limit)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	return data, nil
}

// WriteSealed is like WriteFile, for ReadSealed.
func (d Dir) WriteSealed(name string, data []byte, sync bool) error {
	seal, err := d.seal(name, data)
	if err != nil {
		return fmt.Errorf("sealing %s: %w", name, err)
	}
	return d.WriteFile(name, append(append(seal, '\n'), data...), sync)
}

// ReadSealed returns the data of WriteSealed. Errors are ReadFile's and ErrForged.
func (d Dir) ReadSealed(name string, limit int) ([]byte, error) {
	file, err := d.ReadFile(name, limit+2*sha256.Size+1)
	if err != nil {
		return nil, err
	}
	is, data, _ := bytes.Cut(file, []byte{'\n'})
	should, err := d.seal(name, data)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if !hmac.Equal(is, should) {
		return nil, fmt.Errorf("reading %s: %w", name, ErrForged)
	}
	return data, nil
}

// Remove removes a file, if it exists.
func (d Dir) Remove(name string) error {
	root, err := d.open(false)
	if err == nil {
		err = errors.Join(root.Remove(name), root.Close())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing %s: %w", name, err)
	}
	return nil
}

// MkdirTemp creates a directory and returns its path.
func (d Dir) MkdirTemp(prefix string) (string, error) {
	root, err := d.open(true)
	if err != nil {
		return "", fmt.Errorf("creating a directory: %w", err)
	}
	defer root.Close()
	name := prefix + rand.Text()
	if err := root.Mkdir(name, 0o700); err != nil {
		return "", fmt.Errorf("creating %s: %w", name, err)
	}
	return filepath.Join(d.alloc, DirName, name), nil
}

// open opens the directory, but never a symlink out of the allocation's directory.
func (d Dir) open(create bool) (*os.Root, error) {
	alloc, err := os.OpenRoot(d.alloc)
	if err != nil {
		return nil, err
	}
	defer alloc.Close()
	if create {
		if err := alloc.Mkdir(DirName, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	return alloc.OpenRoot(DirName)
}

// lock locks the directory against other callers, in this process and others. Its files may still be
// read, and replaced.
func (d Dir) lock() (unlock func(), err error) {
	root, err := d.open(true)
	if err != nil {
		return nil, fmt.Errorf("locking: %w", err)
	}
	defer root.Close()
	dir, err := root.Open(".")
	if err != nil {
		return nil, fmt.Errorf("locking: %w", err)
	}
	for {
		switch err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX); {
		case err == nil:
			return func() { _ = dir.Close() }, nil // which unlocks it
		case !errors.Is(err, syscall.EINTR):
			return nil, fmt.Errorf("locking: %w", errors.Join(err, dir.Close()))
		}
	}
}

func (d Dir) seal(name string, data []byte) ([]byte, error) {
	key, err := key(filepath.Dir(d.alloc))
	if err != nil {
		return nil, err
	}
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s\x00%s\x00", filepath.Base(d.alloc), name)
	mac.Write(data)
	return hex.AppendEncode(nil, mac.Sum(nil)), nil
}

// keyName is the name of the node's key, in the parent directory of all allocations.
const keyName = ".ebbtide.key"

// key reads the node's key, creating it if necessary. Concurrent processes agree on the
// first one.
func key(allocs string) ([]byte, error) {
	root, err := os.OpenRoot(allocs)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	data, err := read(root, keyName, sha256.Size)
	if errors.Is(err, fs.ErrNotExist) {
		data = make([]byte, sha256.Size)
		_, _ = rand.Read(data) // never fails
		if err = write(root, keyName, data, true, root.Link); errors.Is(err, fs.ErrExist) {
			data, err = read(root, keyName, sha256.Size)
		}
	}
	if err == nil && len(data) != sha256.Size {
		err = errors.New("the file is too short")
	}
	if err != nil {
		return nil, fmt.Errorf("the node's key: %w", err)
	}
	return data, nil
}

// write writes data to a temporary file, which place moves or links to name.
func write(root *os.Root, name string, data []byte, sync bool, place func(tmp, name string) error) error {
	tmp := rand.Text() + ".tmp"
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = root.Remove(tmp) }() // no-op after a rename
	_, err = f.Write(data)
	if err == nil && sync {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := place(tmp, name); err != nil || !sync {
		return err
	}
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func read(root *os.Root, name string, limit int) ([]byte, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // do not block on a FIFO
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	data, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err == nil && len(data) > limit {
		err = fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
	}
	return data, err
}
