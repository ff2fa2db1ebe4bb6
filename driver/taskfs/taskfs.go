// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package taskfs opens, lists and writes files in directories that a task can write to.
// The driver accesses such files only through this package.
//
// A task may put anything there, and change it at any time. So
//
//   - no symbolic link is followed in any part of a path; only the base directory given
//     to Open, and the path to it, is trusted;
//   - paths are walked name by name, each beneath the open directory before it, so that
//     swapping a directory has no effect;
//   - a name is first pinned and inspected (O_PATH, fstat), then that very file is
//     opened (through /proc/self/fd): it cannot be swapped in between, and FIFOs,
//     devices and sockets do not notice the inspection;
//   - nothing blocks: neither on a FIFO without a peer nor on a file with a lease;
//   - only files created by this package are written to: any other may be a hard link
//     to a file elsewhere;
//   - callers bound the entries and bytes read.
//
// Errors are *fs.PathError and wrap the system's error, or ErrKind, ErrTooMany or
// fs.ErrInvalid.
package taskfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

var (
	// ErrKind means that the file is of another kind than requested, such as a link, a
	// FIFO, a device or a directory. The error names it.
	ErrKind    = errors.New("not what belongs there")
	ErrTooMany = errors.New("too many entries")
)

type kindError struct{ is, want string }

func (e kindError) Error() string        { return e.is + " found instead of " + e.want }
func (e kindError) Is(target error) bool { return target == ErrKind }

const (
	regular   = "a regular file"
	directory = "a directory"
	fifo      = "a FIFO"
)

// Stat describes a file without opening it.
type Stat struct{ unix.Stat_t }

func (s Stat) IsRegular() bool { return s.Mode&unix.S_IFMT == unix.S_IFREG }

func (s Stat) IsDir() bool { return s.Mode&unix.S_IFMT == unix.S_IFDIR }

// Modified returns the last change of its content; the task can set it.
func (s Stat) Modified() time.Time { return time.Unix(s.Mtim.Unix()) }

// Same reports whether both are one file.
func (s Stat) Same(o Stat) bool { return s.Ino == o.Ino && s.Dev == o.Dev }

func (s Stat) kind() string {
	switch s.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return regular
	case unix.S_IFDIR:
		return directory
	case unix.S_IFLNK:
		return "a symbolic link"
	case unix.S_IFIFO:
		return fifo
	case unix.S_IFSOCK:
		return "a socket"
	}
	return "a device"
}

// Dir is an open directory. Paths of its methods are relative, and beneath it. Its
// methods are safe for concurrent use, but not after Close.
type Dir struct{ file *os.File }

// Open opens the directory path beneath base; an empty path is base itself. base is
// trusted: links in it are followed. Use Open(filepath.Split(dir)) for a directory
// whose own name the task may be able to replace.
func Open(base, path string) (*Dir, error) {
	fd, err := openat(unix.AT_FDCWD, base, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, pathError("open", base, err)
	}
	d := &Dir{os.NewFile(uintptr(fd), filepath.Clean(base))}
	if path == "" {
		return d, nil
	}
	defer d.Close()
	return d.Sub(path)
}

func (d *Dir) Name() string { return d.file.Name() }

// Fd returns the directory's descriptor, valid until Close.
func (d *Dir) Fd() int { return int(d.file.Fd()) }

func (d *Dir) Close() error { return d.file.Close() }

// Sub opens the directory at path.
func (d *Dir) Sub(path string) (*Dir, error) {
	f, _, err := d.open(path, directory, unix.O_RDONLY, Stat{})
	if err != nil {
		return nil, err
	}
	return &Dir{f}, nil
}

// MkdirAll opens the directory at path and creates missing parts, with exactly the
// given permissions.
func (d *Dir) MkdirAll(path string, mode fs.FileMode) (*Dir, error) {
	if Check(path) != nil {
		return nil, pathError("make", path, fs.ErrInvalid)
	}
	at := d
	for name := range strings.SplitSeq(filepath.Clean(path), "/") {
		next, err := at.mkdir(name, mode)
		if at != d {
			at.Close()
		}
		if err != nil {
			return nil, err
		}
		at = next
	}
	return at, nil
}

func (d *Dir) mkdir(name string, mode fs.FileMode) (*Dir, error) {
	sub, err := d.Sub(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return sub, err
	}
	made := unix.Mkdirat(d.Fd(), name, uint32(mode.Perm()))
	if made != nil && !errors.Is(made, fs.ErrExist) {
		return nil, pathError("make", filepath.Join(d.Name(), name), made)
	}
	if sub, err = d.Sub(name); err == nil && made == nil {
		_ = sub.file.Chmod(mode.Perm())
	}
	return sub, err
}

// Stat describes the file at path, without following a link.
func (d *Dir) Stat(path string) (Stat, error) {
	n, err := d.find("stat", path)
	if err == nil {
		n.close()
	}
	return n.Stat, err
}

// Open opens the regular file at path for reading.
func (d *Dir) Open(path string) (*os.File, Stat, error) {
	return d.open(path, regular, unix.O_RDONLY, Stat{})
}

// Append opens the regular file at path for reading and appending, if WriteFile has
// created it. Any other may be a hard link to a file that is not the task's: ErrKind.
func (d *Dir) Append(path string, made Stat) (*os.File, Stat, error) {
	return d.open(path, regular, unix.O_RDWR|unix.O_APPEND, made)
}

// FIFO opens the FIFO at path for writing; ENXIO without a reader.
func (d *Dir) FIFO(path string) (*os.File, error) {
	f, _, err := d.open(path, fifo, unix.O_WRONLY, Stat{})
	return f, err
}

func (d *Dir) open(path, want string, flags int, made Stat) (*os.File, Stat, error) {
	n, err := d.find("open", path)
	if err != nil {
		return nil, Stat{}, err
	}
	defer n.close()
	path = filepath.Join(d.Name(), path)
	// The link count alone is insufficient: a task may remove a name between the two
	// calls of find.
	switch is := n.kind(); {
	case is != want:
		err = kindError{is, want}
	case flags&unix.O_APPEND != 0 && (!n.Same(made) || n.Nlink != 1):
		err = kindError{"another file", "the one that was written"}
	}
	if want != directory {
		flags |= unix.O_NONBLOCK | unix.O_NOCTTY
	}
	fd := -1
	if err == nil {
		fd, err = openat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(n.fd), flags, 0)
	}
	if err != nil {
		return nil, Stat{}, pathError("open", path, err)
	}
	return os.NewFile(uintptr(fd), path), n.Stat, nil
}

// ReadFile returns the first bytes of the regular file at path, at most limit.
func (d *Dir) ReadFile(path string, limit int64) ([]byte, error) {
	f, _, err := d.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

// Create creates a regular file at path, in an existing directory, with exactly the
// given permissions. The error wraps fs.ErrExist if the name exists.
func (d *Dir) Create(path string, mode fs.FileMode) (*os.File, error) {
	dir, name, err := d.parent(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	path = filepath.Join(dir.Name(), name)
	fd, err := openat(dir.Fd(), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, mode)
	if err != nil {
		return nil, pathError("create", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	_ = f.Chmod(mode.Perm())
	return f, nil
}

// Link gives the regular file at path a second name, the same path in dst, whose directory exists.
// The error wraps fs.ErrExist if the name exists, and unix.EXDEV if dst is on another file system.
func (d *Dir) Link(dst *Dir, path string) error {
	n, err := d.find("link", path)
	if err != nil {
		return err
	}
	defer n.close()
	if is := n.kind(); is != regular {
		return pathError("link", filepath.Join(d.Name(), path), kindError{is, regular})
	}
	dir, name, err := dst.parent(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	err = unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(n.fd), dir.Fd(), name, unix.AT_SYMLINK_FOLLOW)
	return pathError("link", filepath.Join(dir.Name(), name), err)
}

// Remove removes a file, a link (not its target), or an empty directory.
func (d *Dir) Remove(path string) error {
	dir, name, err := d.parent(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err = unix.Unlinkat(dir.Fd(), name, 0); errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(dir.Fd(), name, unix.AT_REMOVEDIR)
	}
	return pathError("remove", filepath.Join(dir.Name(), name), err)
}

// TempName returns the name of WriteFile's temporary file. It is fixed, so that a killed plugin
// leaves at most one behind, which the next one removes.
func TempName(name string) string { return "." + name + ".tmp" }

// WriteFile writes data to a new file and renames it over path. It replaces anything
// except a directory that is not empty (ErrKind). After an error the old file is
// unchanged and the new one removed. The result is Append's argument.
func (d *Dir) WriteFile(path string, data []byte, mode fs.FileMode) (made Stat, err error) {
	dir, name, err := d.parent(path)
	if err != nil {
		return made, err
	}
	defer dir.Close()
	tmp := TempName(name)
	f, err := dir.Create(tmp, mode)
	for range 2 { // a task that recreates it all the time only harms itself
		if errors.Is(err, fs.ErrExist) {
			if err = dir.Remove(tmp); err == nil || errors.Is(err, fs.ErrNotExist) {
				f, err = dir.Create(tmp, mode)
			}
		}
	}
	if err != nil {
		return made, blocked(err)
	}
	if _, err = f.Write(data); err == nil {
		err = unix.Fstat(int(f.Fd()), &made.Stat_t)
	}
	if cerr := f.Close(); err == nil {
		err = cerr // a network file system or a quota may report errors only now
	}
	if err == nil {
		err = unix.Renameat(dir.Fd(), tmp, dir.Fd(), name)
		if errors.Is(err, unix.EISDIR) && unix.Unlinkat(dir.Fd(), name, unix.AT_REMOVEDIR) == nil {
			err = unix.Renameat(dir.Fd(), tmp, dir.Fd(), name)
		}
	}
	if err != nil {
		_ = dir.Remove(tmp)
	}
	return made, blocked(pathError("write", filepath.Join(dir.Name(), name), err))
}

// blocked gives the error of a directory in place of a file its kind.
func blocked(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) && (errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENOTEMPTY)) {
		p.Err = kindError{directory + " with files in it", regular}
	}
	return err
}

func (d *Dir) parent(path string) (dir *Dir, name string, err error) {
	if Check(path) != nil || filepath.Clean(path) == "." {
		return nil, "", pathError("open", path, fs.ErrInvalid)
	}
	path = filepath.Clean(path)
	dir, err = d.Sub(filepath.Dir(path))
	return dir, filepath.Base(path), err
}

// node is a file that is held (O_PATH), but not opened.
type node struct {
	fd int
	Stat
}

func (n node) close() { _ = unix.Close(n.fd) }

func (d *Dir) find(op, path string) (node, error) {
	if Check(path) != nil {
		return node{}, pathError(op, path, fs.ErrInvalid)
	}
	at := node{fd: d.Fd()}
	at.Mode = unix.S_IFDIR
	for name := range strings.SplitSeq(filepath.Clean(path), "/") {
		next := node{}
		err := error(kindError{at.kind(), directory})
		if at.IsDir() {
			if next.fd, err = openat(at.fd, name, unix.O_PATH|unix.O_NOFOLLOW, 0); err == nil {
				if err = unix.Fstat(next.fd, &next.Stat_t); err != nil {
					next.close()
				}
			}
		}
		if at.fd != d.Fd() {
			at.close()
		}
		if err != nil {
			return node{}, pathError(op, filepath.Join(d.Name(), path), err)
		}
		at = next
	}
	return at, nil
}

// Check returns why a path can never be beneath a directory.
func Check(path string) error {
	switch {
	case len(path) > unix.PathMax:
		return fmt.Errorf("must have at most %d bytes", unix.PathMax)
	case strings.IndexByte(path, 0) >= 0:
		return errors.New("must not contain NUL bytes")
	case !filepath.IsLocal(path):
		return errors.New("must be a relative path that stays within the directory")
	}
	return nil
}

func openat(dir int, name string, flags int, mode fs.FileMode) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags|unix.O_CLOEXEC, uint32(mode.Perm()))
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	if !Printable(path) {
		path = strconv.Quote(path)
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

// Printable reports whether a name is safe to print: a task may choose names with
// control characters or invalid UTF-8.
func Printable(name string) bool {
	return utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsControl)
}
