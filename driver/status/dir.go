// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package status

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

var (
	// ErrNoSpace says that the disk, or a quota on it, is full. What was there
	// before is still there. It wraps the kernel's error.
	ErrNoSpace = errors.New("no space left for the status files")

	// ErrBlocked says that something lies where one of our files belongs and
	// cannot be replaced, e.g. a directory with files in it.
	ErrBlocked = errors.New("the place of a status file is taken")

	// ErrNotRegular says that a path to be read is no plain file of its own: a
	// symlink, a directory, a FIFO, a device.
	ErrNotRegular = errors.New("not a regular file")
)

const (
	dirMode  = 0o755
	fileMode = 0o644
)

// dir is an open directory in which files are reached by name only, never by
// path, so that nobody can lead us elsewhere in between.
type dir struct {
	fd   int
	path string // for messages
}

// openDir opens Dir beneath base and creates it if create is set. base itself is
// trusted (it belongs to Nomad: its parent cannot be written by the task); the
// components below are opened one by one without following symlinks. A symlink
// or file in the place of the last one is removed: that name is ours.
func openDir(base string, create bool) (*dir, error) {
	fd, err := retry(func() (int, error) {
		return unix.Open(base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("open allocation directory %s: %w", base, err)
	}
	d := &dir{fd: fd, path: base}
	parts := strings.Split(Dir, "/")
	for i, name := range parts {
		next, err := d.sub(name, create, i == len(parts)-1)
		d.close()
		if err != nil {
			return nil, err
		}
		d = next
	}
	return d, nil
}

// sub opens the directory name in d.
func (d *dir) sub(name string, create, ours bool) (*dir, error) {
	path := d.path + "/" + name
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	// A task that keeps swapping the name can make every try fail; it then has no
	// status, and that is all.
	var last error
	for range 3 {
		fd, err := retry(func() (int, error) { return unix.Openat(d.fd, name, flags, 0) })
		last = err
		switch {
		case err == nil:
			return &dir{fd: fd, path: path}, nil
		case !create:
			return nil, fmt.Errorf("open %s: %w", path, err)
		case errors.Is(err, unix.ENOENT):
			err := unix.Mkdirat(d.fd, name, dirMode)
			if err != nil && !errors.Is(err, unix.EEXIST) {
				return nil, fmt.Errorf("create directory %s: %w", path, typed(err))
			}
			if err == nil {
				// The umask may have taken bits away. AT_SYMLINK_NOFOLLOW would be
				// right but old kernels refuse it: open first, then change.
				if fd, err := unix.Openat(d.fd, name, flags, 0); err == nil {
					_ = unix.Fchmod(fd, dirMode)
					return &dir{fd: fd, path: path}, nil
				}
			}
		case ours && (errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)):
			if err := unix.Unlinkat(d.fd, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
				return nil, fmt.Errorf("%w: %s: %w", ErrBlocked, path, err)
			}
		case errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP):
			return nil, fmt.Errorf("%w: %s is not a directory: %w", ErrBlocked, path, err)
		default:
			return nil, fmt.Errorf("open %s: %w", path, typed(err))
		}
	}
	return nil, fmt.Errorf("%w: %s: %w", ErrBlocked, path, last)
}

func (d *dir) close() { _ = unix.Close(d.fd) }

// replace puts data in the place of name: a new file beside it, renamed over it.
// On an error the old file is as it was and the new one is gone.
func (d *dir) replace(name string, data []byte) (err error) {
	path := d.path + "/" + name
	tmp := tmpName(name)
	f, err := d.create(tmp)
	if err != nil {
		return fmt.Errorf("create %s/%s: %w", d.path, tmp, typed(err))
	}
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(d.fd, tmp, 0)
		}
	}()
	_, err = f.Write(data)
	if cerr := f.Close(); err == nil {
		err = cerr // a network file system or a quota may complain only now
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, typed(err))
	}
	err = unix.Renameat(d.fd, tmp, d.fd, name)
	if isAny(err, unix.EISDIR, unix.ENOTEMPTY, unix.EEXIST) {
		// A directory in our place. An empty one can go.
		if unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR) == nil {
			err = unix.Renameat(d.fd, tmp, d.fd, name)
		}
	}
	if err != nil {
		if isAny(err, unix.EISDIR, unix.ENOTEMPTY, unix.EEXIST) {
			return fmt.Errorf("%w: %s: %w", ErrBlocked, path, err)
		}
		return fmt.Errorf("replace %s: %w", path, typed(err))
	}
	return nil
}

// create makes the file name, which must be new: whatever has the name is removed
// first, a leftover of a killed plugin as well as what a task put there.
func (d *dir) create(name string) (*os.File, error) {
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	var err error
	for range 3 {
		var fd int
		fd, err = retry(func() (int, error) { return unix.Openat(d.fd, name, flags, fileMode) })
		if err == nil {
			_ = unix.Fchmod(fd, fileMode) // whatever the umask
			return os.NewFile(uintptr(fd), d.path+"/"+name), nil
		}
		if !errors.Is(err, unix.EEXIST) {
			return nil, err
		}
		if unix.Unlinkat(d.fd, name, 0) != nil && unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR) != nil {
			return nil, fmt.Errorf("%w: %w", ErrBlocked, err)
		}
	}
	return nil, fmt.Errorf("%w: %w", ErrBlocked, err)
}

// open opens the regular file name with the given access mode. It never blocks,
// and refuses symlinks, FIFOs, devices and, for writing, files with another name
// elsewhere (a hard link a task may have made to a file that is not its own).
func (d *dir) open(name string, mode int) (*os.File, os.FileInfo, error) {
	fd, err := retry(func() (int, error) {
		return unix.Openat(d.fd, name, mode|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	path := name
	if d.path != "" {
		path = d.path + "/" + name
	}
	if err != nil {
		if isAny(err, unix.ELOOP, unix.EISDIR, unix.ENXIO) {
			return nil, nil, fmt.Errorf("open %s: %w: %w", path, ErrNotRegular, err)
		}
		return nil, nil, fmt.Errorf("open %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = f.Close()
		return nil, nil, fmt.Errorf("stat %s: %w", path, err)
	}
	writes := mode&(unix.O_WRONLY|unix.O_RDWR) != 0
	if st.Mode&unix.S_IFMT != unix.S_IFREG || writes && st.Nlink != 1 {
		_ = f.Close()
		return nil, nil, fmt.Errorf("open %s: %w", path, ErrNotRegular)
	}
	fi, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, nil, fmt.Errorf("stat %s: %w", path, err)
	}
	return f, fi, nil
}

// read returns at most limit bytes of the file name; the rest is cut off.
func (d *dir) read(name string, limit int64) ([]byte, error) {
	f, _, err := d.open(name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	return readFile(f, limit)
}

// readFile returns at most limit bytes of f and closes it.
func readFile(f *os.File, limit int64) ([]byte, error) {
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	return b, nil
}

// readPath returns at most limit bytes of the regular file at path. The last
// component is not followed when it is a symlink; the ones before it are.
func readPath(path string, limit int64) ([]byte, error) {
	d := &dir{fd: unix.AT_FDCWD}
	f, _, err := d.open(path, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	return readFile(f, limit)
}

// tmpName is where the successor of a file is written. The name is fixed, so
// that a killed plugin leaves at most one behind, which the next one removes.
func tmpName(name string) string { return "." + name + ".tmp" }

// typed marks an error that means a full disk with ErrNoSpace.
func typed(err error) error {
	if isAny(err, unix.ENOSPC, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

func isAny(err error, targets ...error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}

// retry repeats a system call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// inode is the number of the file behind fi.
func inode(fi os.FileInfo) uint64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}
