// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package tail reads a file from its beginning while another process writes it.
//
// The writer is not trusted. The file may appear late, vanish and reappear, be
// truncated, be rewritten in place, or be replaced. Package taskfs opens it, only if it
// is a regular file.
//
// The file stays open, so that it is read to its end after removal, and so that its
// inode number is not reused. A rewritten file is detected by its inode number, its
// size, and the last 64 bytes before the position. These also detect, after a restart,
// a file with the reused inode number of its predecessor.
package tail

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/ebbtide/ebbtide/driver/taskfs"
)

const (
	markBytes = 64        // bytes before the position that must not change
	keepSpare = 256 << 10 // larger buffers are released when unused
)

var (
	// ErrNotYet is returned while no such file exists.
	ErrNotYet = errors.New("does not exist yet")
	// ErrGone is returned while the file is removed. It is also an ErrNotYet.
	ErrGone   error = goneError{}
	ErrClosed       = errors.New("closed")
)

type goneError struct{}

func (goneError) Error() string        { return "was removed" }
func (goneError) Is(target error) bool { return target == ErrNotYet }

// Offset is a position in a file. The zero value is the beginning of any file.
type Offset struct {
	Inode uint64 `json:"inode,omitempty"`
	Pos   int64  `json:"pos,omitempty"`
	Mark  uint32 `json:"mark,omitempty"` // checksum of the bytes before it; 0 = unknown
}

// File reads a file. It is not safe for concurrent use.
type File struct {
	root *taskfs.Dir
	path string

	file   *os.File
	stat   taskfs.Stat // of file, when it was opened
	inode  uint64      // of the file that pos belongs to
	pos    int64
	mark   uint32
	seen   bool // a file was opened, here or by the creator of the offset
	buf    []byte
	behind int64
	closed bool
}

// Open returns a reader of the file path below root, which the caller keeps open. The
// file is opened by the first Read; only an invalid path is an error.
func Open(root *taskfs.Dir, path string) (*File, error) {
	if filepath.Clean(path) == "." {
		return nil, errors.New("must name a file")
	}
	if err := taskfs.Check(path); err != nil {
		return nil, err
	}
	return &File{root: root, path: filepath.Clean(path)}, nil
}

func (f *File) Path() string { return f.path }

// Read returns at most max of the following bytes, or nothing at the end. The data are
// valid until the next call. Behind tells how much remains.
//
// restarted means that the data begin a truncated, rewritten or replaced file: the
// caller must drop unfinished lines. It may come with an error, and is set once per
// event.
//
// Errors are ErrNotYet, ErrGone, those of taskfs and of the file system, with the path;
// all except ErrClosed may be temporary.
func (f *File) Read(ctx context.Context, max int) (data []byte, restarted bool, err error) {
	if f.closed {
		return nil, false, f.wrapErr("read", ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	f.behind = 0
	if f.file == nil {
		file, stat, err := f.root.Open(f.path)
		if err != nil {
			return nil, false, f.wrapErr("open", err)
		}
		restarted = f.setFile(file, stat)
	}

	data, rewritten, err := f.next(max)
	restarted = restarted || rewritten
	if len(data) > 0 || f.behind > 0 || err != nil {
		return data, restarted, err
	}

	// At the end: does it still have the name?
	var file *os.File
	stat, gone := f.root.Stat(f.path)
	if gone == nil && stat.Same(f.stat) {
		return nil, restarted, nil
	}
	if gone == nil {
		file, stat, gone = f.root.Open(f.path)
	}
	// Data written before the removal of the name.
	data, rewritten, err = f.next(max)
	restarted = restarted || rewritten
	if len(data) > 0 || f.behind > 0 || err != nil || gone != nil {
		if file != nil {
			file.Close()
		}
		if len(data) > 0 || err != nil {
			return data, restarted, err
		}
		return nil, restarted, f.wrapErr("open", gone)
	}
	restarted = f.setFile(file, stat) || restarted
	data, rewritten, err = f.next(max)
	return data, restarted || rewritten, err
}

func (f *File) setFile(file *os.File, stat taskfs.Stat) (another bool) {
	if f.file != nil {
		f.file.Close()
	}
	another = f.seen && (f.file != nil || stat.Ino != f.inode)
	if another || !f.seen {
		f.pos, f.mark = 0, 0
	}
	f.file, f.stat, f.inode, f.seen = file, stat, stat.Ino, true
	return another
}

func (f *File) next(max int) (data []byte, rewritten bool, err error) {
	for {
		st, err := f.file.Stat()
		if err != nil {
			return nil, rewritten, f.wrapErr("examine", err)
		}
		before := min(f.pos, markBytes)
		if st.Size() >= f.pos {
			want := int(before + min(max0(int64(max)), st.Size()-f.pos))
			if cap(f.buf) < want || cap(f.buf) > keepSpare && want < cap(f.buf)/4 {
				f.buf = make([]byte, want)
			}
			n, err := f.file.ReadAt(f.buf[:want], f.pos-before)
			if err != nil && !errors.Is(err, io.EOF) {
				return nil, rewritten, f.wrapErr("read", err)
			}
			if int64(n) >= before && (f.mark == 0 || crc32.ChecksumIEEE(f.buf[:before]) == f.mark) {
				f.pos += int64(n) - before
				f.mark = crc32.ChecksumIEEE(f.buf[max0(n-markBytes):n])
				f.behind = max0(st.Size() - f.pos)
				return f.buf[before:n], rewritten, nil
			}
		}
		// Shorter than before, or rewritten.
		f.pos, f.mark, rewritten = 0, 0, true
	}
}

func max0[T int | int64](n T) T { return max(n, 0) }

// wrapErr adds operation and path to an error and maps ErrNotExist. It returns nil for
// nil.
func (f *File) wrapErr(what string, err error) error {
	if err == nil {
		return nil
	}
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	if errors.Is(err, fs.ErrNotExist) {
		if err = ErrNotYet; f.seen {
			err = ErrGone
		}
	}
	return fmt.Errorf("%s %s: %w", what, f.path, err)
}

// Behind returns the number of unread bytes when Read returned.
func (f *File) Behind() int64 { return f.behind }

func (f *File) Pos() int64 { return f.pos }

// Modified returns the last modification of the open file; zero if none is open.
func (f *File) Modified() time.Time {
	if info, err := f.file.Stat(); err == nil {
		return info.ModTime()
	}
	return time.Time{}
}

// Offset returns the position back bytes before the last returned byte, for unfinished
// lines. After Close it may lack the checksum.
func (f *File) Offset(back int64) Offset {
	if !f.seen {
		return Offset{}
	}
	o := Offset{Inode: f.inode, Pos: max0(f.pos - max0(back)), Mark: f.mark}
	if o.Pos == f.pos || o.Pos == 0 {
		if o.Pos == 0 {
			o.Mark = 0
		}
		return o
	}
	o.Mark = 0
	if f.file == nil {
		return o
	}
	if f.mark != 0 && f.checksum(f.pos) != f.mark {
		return Offset{Inode: f.inode} // rewritten since
	}
	o.Mark = f.checksum(o.Pos)
	return o
}

func (f *File) checksum(pos int64) uint32 {
	var b [markBytes]byte
	n := min(pos, markBytes)
	if _, err := f.file.ReadAt(b[:n], pos-n); err != nil {
		return 0
	}
	return crc32.ChecksumIEEE(b[:n])
}

// SetOffset continues at an Offset, before the first Read. Invalid positions are
// ignored. If the file was replaced, truncated or rewritten, Read restarts it and says
// so.
func (f *File) SetOffset(o Offset) {
	if f.file != nil || f.closed || o.Inode == 0 || o.Pos < 0 {
		return
	}
	f.inode, f.pos, f.mark, f.seen = o.Inode, o.Pos, o.Mark, true
}

func (f *File) Close() error {
	f.closed, f.buf = true, nil
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	return err
}
