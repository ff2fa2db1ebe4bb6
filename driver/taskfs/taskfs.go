// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package taskfs opens, lists and writes files in directories that a task can write
// to. The driver reaches such files through this package only.
//
// A task is free to put anything there, and to change it while we look. So
//
//   - no symbolic link is followed, in any part of a path. Only the base directory that
//     is given to Open is trusted, and what leads to it;
//   - a path is walked name by name, each name beneath the directory that was opened
//     before it, so that a directory which is swapped meanwhile leads nowhere else;
//   - what has a name is pinned first and looked at (O_PATH, fstat), and what is opened
//     is that very file (through /proc/self/fd). There is no moment in between in which
//     another one can take its place, and no FIFO, device or socket notices that it was
//     looked at;
//   - nothing blocks: neither on a FIFO without a peer nor on a file with a lease;
//   - only files that this package has made are written to: any other may be a hard link
//     to a file elsewhere;
//   - how many entries and how many bytes are read is bounded by the caller.
//
// Errors are *fs.PathError and wrap what the kernel said, or ErrKind, ErrTooMany or
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
	// ErrKind says that something else lies there than what was asked for: a link, a
	// FIFO, a device or a directory, say. The error wraps a text that names it.
	ErrKind = errors.New("not what belongs there")
	// ErrTooMany says that there are more entries than the caller's bound.
	ErrTooMany = errors.New("too many entries")
)

// kindError is an ErrKind that says what lies there.
type kindError struct{ is, want string }

func (e kindError) Error() string        { return e.is + " is there, not " + e.want }
func (e kindError) Is(target error) bool { return target == ErrKind }

const (
	regular   = "a regular file"
	directory = "a directory"
	fifo      = "a FIFO"
)

// Stat is what is known of a file without opening it.
type Stat struct{ unix.Stat_t }

// IsRegular says whether it is a regular file.
func (s Stat) IsRegular() bool { return s.Mode&unix.S_IFMT == unix.S_IFREG }

// IsDir says whether it is a directory.
func (s Stat) IsDir() bool { return s.Mode&unix.S_IFMT == unix.S_IFDIR }

// Modified is when its content was changed last, as the task says.
func (s Stat) Modified() time.Time { return time.Unix(s.Mtim.Unix()) }

// Same says whether both are one file.
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
// methods may be called from any goroutine, but not after Close.
type Dir struct{ file *os.File }

// Open opens the directory path beneath base; path may be empty for base itself. base is
// trusted: links on the way to it are followed. So Open(filepath.Split(dir)) is for a
// directory whose own name the task may be able to replace.
func Open(base, path string) (*Dir, error) {
	fd, err := openat(unix.AT_FDCWD, base, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fail("open", base, err)
	}
	d := &Dir{os.NewFile(uintptr(fd), filepath.Clean(base))}
	if path == "" {
		return d, nil
	}
	defer d.Close()
	return d.Sub(path)
}

// Name is the path of the directory on the host, for messages.
func (d *Dir) Name() string { return d.file.Name() }

// Fd is the directory's descriptor, valid until Close.
func (d *Dir) Fd() int { return int(d.file.Fd()) }

// Close closes the directory.
func (d *Dir) Close() error { return d.file.Close() }

// Sub opens the directory at path.
func (d *Dir) Sub(path string) (*Dir, error) {
	f, _, err := d.open(path, directory, unix.O_RDONLY, Stat{})
	if err != nil {
		return nil, err
	}
	return &Dir{f}, nil
}

// MkdirAll opens the directory at path, and makes what is missing of it, with the given
// permissions whatever the umask.
func (d *Dir) MkdirAll(path string, mode fs.FileMode) (*Dir, error) {
	if Check(path) != nil {
		return nil, fail("make", path, fs.ErrInvalid)
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

// mkdir opens the directory name, and makes it if it is not there.
func (d *Dir) mkdir(name string, mode fs.FileMode) (*Dir, error) {
	sub, err := d.Sub(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return sub, err
	}
	made := unix.Mkdirat(d.Fd(), name, uint32(mode.Perm()))
	if made != nil && !errors.Is(made, fs.ErrExist) {
		return nil, fail("make", filepath.Join(d.Name(), name), made)
	}
	if sub, err = d.Sub(name); err == nil && made == nil {
		_ = sub.file.Chmod(mode.Perm())
	}
	return sub, err
}

// Stat returns what lies at path, itself and not what it may point to.
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

// Append opens the regular file at path for reading anywhere and writing at its end, if
// it is the one that WriteFile has made. Any other one may be a hard link to a file that
// is not the task's: ErrKind.
func (d *Dir) Append(path string, made Stat) (*os.File, Stat, error) {
	return d.open(path, regular, unix.O_RDWR|unix.O_APPEND, made)
}

// FIFO opens the FIFO at path for writing; the error is ENXIO if nobody reads from it.
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
	// The number of names alone would not do: a task may take one away between the two
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
		return nil, Stat{}, fail("open", path, err)
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

// Create makes a new regular file at path, whose directory must be there, with the given
// permissions whatever the umask. The error wraps fs.ErrExist if something has the name.
func (d *Dir) Create(path string, mode fs.FileMode) (*os.File, error) {
	dir, name, err := d.parent(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	path = filepath.Join(dir.Name(), name)
	fd, err := openat(dir.Fd(), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, mode)
	if err != nil {
		return nil, fail("create", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	_ = f.Chmod(mode.Perm())
	return f, nil
}

// Remove removes what lies at path: a file, a link (and not what it points to), or an
// empty directory.
func (d *Dir) Remove(path string) error {
	dir, name, err := d.parent(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err = unix.Unlinkat(dir.Fd(), name, 0); errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(dir.Fd(), name, unix.AT_REMOVEDIR)
	}
	return fail("remove", filepath.Join(dir.Name(), name), err)
}

// TempName is the name under which WriteFile writes the file that is to be called name.
// It is always the same, so that a killed plugin leaves at most one behind, which the
// next one removes.
func TempName(name string) string { return "." + name + ".tmp" }

// WriteFile puts data at path: in a new file beside it that is renamed over it. Whatever
// has the name is replaced, but for a directory that is not empty (ErrKind). After an
// error, what was there is as it was, and the new file is gone. It returns what Append
// asks for.
func (d *Dir) WriteFile(path string, data []byte, mode fs.FileMode) (made Stat, err error) {
	dir, name, err := d.parent(path)
	if err != nil {
		return made, err
	}
	defer dir.Close()
	tmp := TempName(name)
	f, err := dir.Create(tmp, mode)
	for range 2 { // a task that makes it again and again has no file, and that is all
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
		err = cerr // a network file system or a quota may complain only now
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
	return made, blocked(fail("write", filepath.Join(dir.Name(), name), err))
}

// blocked gives the error of a directory in the place of a file its kind.
func blocked(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) && (errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENOTEMPTY)) {
		p.Err = kindError{directory + " with files in it", regular}
	}
	return err
}

// parent opens the directory in which path has its last name.
func (d *Dir) parent(path string) (dir *Dir, name string, err error) {
	if Check(path) != nil || filepath.Clean(path) == "." {
		return nil, "", fail("open", path, fs.ErrInvalid)
	}
	path = filepath.Clean(path)
	dir, err = d.Sub(filepath.Dir(path))
	return dir, filepath.Base(path), err
}

// node is something that was found and is held (O_PATH), but not opened.
type node struct {
	fd int
	Stat
}

func (n node) close() { _ = unix.Close(n.fd) }

// find finds what lies at path. op is for the error.
func (d *Dir) find(op, path string) (node, error) {
	if Check(path) != nil {
		return node{}, fail(op, path, fs.ErrInvalid)
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
			return node{}, fail(op, filepath.Join(d.Name(), path), err)
		}
		at = next
	}
	return at, nil
}

// Check says what is wrong with a path that can never lie beneath a directory.
func Check(path string) error {
	switch {
	case len(path) > unix.PathMax:
		return fmt.Errorf("must have at most %d bytes", unix.PathMax)
	case strings.IndexByte(path, 0) >= 0:
		return errors.New("must not contain NUL bytes")
	case !filepath.IsLocal(path):
		return errors.New("must be a path within the directory (relative, and not out of it by \"..\")")
	}
	return nil
}

// openat repeats the system call when a signal interrupted it.
func openat(dir int, name string, flags int, mode fs.FileMode) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags|unix.O_CLOEXEC, uint32(mode.Perm()))
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// fail makes a *fs.PathError, or nil of nil.
func fail(op, path string, err error) error {
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

// Printable says whether a name can be told as it is, in a log or a status: a task may
// choose names with control characters, or which are no text.
func Printable(name string) bool {
	return utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsControl)
}
