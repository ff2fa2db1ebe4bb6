// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package tail reads one file that somebody else writes, from its beginning and as
// it grows.
//
// The writer is not trusted, and not asked to be careful. The file may come late,
// vanish and come back, be truncated, be written anew in place, or be replaced by
// another one under its name. Package taskfs opens it, and only if it is a regular file.
//
// A file that is being read is kept open, so that its end is still read when its name
// is gone, and so that its inode number cannot be given to its successor meanwhile.
// Where a file was written anew is seen from its inode number, from its size, and
// from the bytes before the position: the last 64 of those that were read must still
// be there. This also tells, after a restart of our own, a file that has taken over
// the inode number of the one before.
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
	markBytes = 64        // before the position, that must stay as they were read
	keepSpare = 256 << 10 // a larger buffer is given back when it is not needed
)

var (
	// ErrNotYet is returned while there is no file of that name.
	ErrNotYet = errors.New("not there yet")
	// ErrGone is returned while there is no file of that name any more: it was there.
	// It is an ErrNotYet, too.
	ErrGone error = goneError{}
	// ErrClosed is returned by Read after Close.
	ErrClosed = errors.New("closed")
)

type goneError struct{}

func (goneError) Error() string        { return "was there and is gone" }
func (goneError) Is(target error) bool { return target == ErrNotYet }

// Offset is a position in a file. It can be stored as JSON. The zero value is the
// beginning of any file.
type Offset struct {
	Inode uint64 `json:"inode,omitempty"`
	Pos   int64  `json:"pos,omitempty"`
	Mark  uint32 `json:"mark,omitempty"` // of the bytes before it; 0 = not known
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
	seen   bool // a file was opened, here or by whoever made the offset
	buf    []byte
	behind int64
	closed bool
}

// Open returns a reader of the file path below root. The file is not looked for
// before the first Read, so only a path that can never name one is an error. The
// root remains the caller's, and must stay open.
func Open(root *taskfs.Dir, path string) (*File, error) {
	if filepath.Clean(path) == "." {
		return nil, errors.New("must name a file")
	}
	if err := taskfs.Check(path); err != nil {
		return nil, err
	}
	return &File{root: root, path: filepath.Clean(path)}, nil
}

// Path returns the path of the file below the root.
func (f *File) Path() string { return f.path }

// Read returns what follows the last bytes that it has returned, at most max bytes;
// nothing, and no error, when nothing was added. The data are valid until the next
// call. Behind tells how much more waits.
//
// restarted says that the data are the beginning of a file that was truncated,
// written anew, or replaced by another one: what the caller holds of a line that has
// not ended belongs to none. It may be true together with an error, and is true once
// for each time that happened.
//
// The errors are ErrNotYet, ErrGone, those of package taskfs and those of the file
// system, with the path; all but ErrClosed may pass.
func (f *File) Read(ctx context.Context, max int) (data []byte, restarted bool, err error) {
	if f.closed {
		return nil, false, f.fail("read", ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	f.behind = 0
	if f.file == nil {
		file, stat, err := f.root.Open(f.path)
		if err != nil {
			return nil, false, f.fail("open", err)
		}
		restarted = f.use(file, stat)
	}

	data, rewritten, err := f.next(max)
	restarted = restarted || rewritten
	if len(data) > 0 || f.behind > 0 || err != nil {
		return data, restarted, err
	}

	// At its end: does it still bear the name?
	var file *os.File
	stat, gone := f.root.Stat(f.path)
	if gone == nil && stat.Same(f.stat) {
		return nil, restarted, nil
	}
	if gone == nil {
		file, stat, gone = f.root.Open(f.path)
	}
	// What was written to ours before the name was taken away.
	data, rewritten, err = f.next(max)
	restarted = restarted || rewritten
	if len(data) > 0 || f.behind > 0 || err != nil || gone != nil {
		if file != nil {
			file.Close()
		}
		if len(data) > 0 || err != nil {
			return data, restarted, err
		}
		return nil, restarted, f.fail("open", gone)
	}
	restarted = f.use(file, stat) || restarted
	data, rewritten, err = f.next(max)
	return data, restarted || rewritten, err
}

// use goes on with a file that was opened, and says whether that is another one than
// before.
func (f *File) use(file *os.File, stat taskfs.Stat) (another bool) {
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

// next reads on in the open file. rewritten says that it had to begin anew.
func (f *File) next(max int) (data []byte, rewritten bool, err error) {
	for {
		st, err := f.file.Stat()
		if err != nil {
			return nil, rewritten, f.fail("examine", err)
		}
		before := min(f.pos, markBytes)
		if st.Size() >= f.pos {
			want := int(before + min(max0(int64(max)), st.Size()-f.pos))
			if cap(f.buf) < want || cap(f.buf) > keepSpare && want < cap(f.buf)/4 {
				f.buf = make([]byte, want)
			}
			n, err := f.file.ReadAt(f.buf[:want], f.pos-before)
			if err != nil && !errors.Is(err, io.EOF) {
				return nil, rewritten, f.fail("read", err)
			}
			if int64(n) >= before && (f.mark == 0 || crc32.ChecksumIEEE(f.buf[:before]) == f.mark) {
				f.pos += int64(n) - before
				f.mark = crc32.ChecksumIEEE(f.buf[max0(n-markBytes):n])
				f.behind = max0(st.Size() - f.pos)
				return f.buf[before:n], rewritten, nil
			}
		}
		// Shorter than it was, or another text.
		f.pos, f.mark, rewritten = 0, 0, true
	}
}

func max0[T int | int64](n T) T { return max(n, 0) }

// fail names what was attempted and the path in an error, and gives those errors that
// have one their type. It returns nil for nil.
func (f *File) fail(what string, err error) error {
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

// Behind returns how many bytes were waiting in the file when Read returned.
func (f *File) Behind() int64 { return f.behind }

// Pos returns the position behind the last byte that was returned.
func (f *File) Pos() int64 { return f.pos }

// Modified is when the file that is read was written to last; the zero time if none is open.
func (f *File) Modified() time.Time {
	if info, err := f.file.Stat(); err == nil {
		return info.ModTime()
	}
	return time.Time{}
}

// Offset returns the position back bytes before the last byte that was returned, for
// a caller who holds a line that has not ended. It works after Close, too, and then
// knows less of what was there.
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
	if f.mark != 0 && f.sum(f.pos) != f.mark {
		return Offset{Inode: f.inode} // it was written anew since
	}
	o.Mark = f.sum(o.Pos)
	return o
}

// sum returns the mark of a position of the open file, 0 if it cannot be read.
func (f *File) sum(pos int64) uint32 {
	var b [markBytes]byte
	n := min(pos, markBytes)
	if _, err := f.file.ReadAt(b[:n], pos-n); err != nil {
		return 0
	}
	return crc32.ChecksumIEEE(b[:n])
}

// SetOffset goes on at a position that Offset has returned, before the first Read. A
// position that makes no sense is left aside. If the file is another one by then, or
// was truncated or written anew, Read begins at its beginning and says so.
func (f *File) SetOffset(o Offset) {
	if f.file != nil || f.closed || o.Inode == 0 || o.Pos < 0 {
		return
	}
	f.inode, f.pos, f.mark, f.seen = o.Inode, o.Pos, o.Mark, true
}

// Close closes the file. Read fails from then on.
func (f *File) Close() error {
	f.closed, f.buf = true, nil
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	return err
}
