// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of one Poll, for each of the two streams.
const (
	pollBytes   = 8 << 20
	pollReports = 8192
	pollTime    = 250 * time.Millisecond // for a pattern that is slow
	maxEntries  = 100_000                // of the log directory
	idleAfter   = 3 * time.Second        // before a line that has not ended is looked at
)

// ErrNotRegular is returned for a log that is a link, a pipe, a directory or a
// device: the task can write to its log directory, and must not make us read what it
// likes.
var ErrNotRegular = errors.New("not a regular file")

// ErrClosed is returned by Poll after Close.
var ErrClosed = errors.New("progress: logs are closed")

// Offset is a position in a task's logs: everything before it has been reported. It
// can be stored as JSON.
type Offset struct {
	Stdout Position `json:"stdout"`
	Stderr Position `json:"stderr"`
	Parser State    `json:"parser"`
}

// Position is the beginning of the first line of a stream that was not ended yet.
type Position struct {
	File  int64  `json:"file"`            // index of the rotated file
	Pos   int64  `json:"pos"`             // bytes
	Inode uint64 `json:"inode,omitempty"` // of that file; 0 = nothing was read yet
	Line  int64  `json:"line,omitempty"`  // complete lines before
	Long  bool   `json:"long,omitempty"`  // within a line that is too long to keep
	Done  bool   `json:"done,omitempty"`  // that line has given its report
}

// Logs follows stdout and stderr of a task in the files that Nomad's log collector
// writes, <task>.stdout.N and <task>.stderr.N. It is not safe for concurrent use.
//
// The collector (client/logmon/logging/rotator.go of Nomad 1.11.2) writes the file
// with the highest N, flushes it before it creates the next one, may split a line
// between two, skips numbers that are taken, and removes the oldest files. After a
// restart it appends to the highest. So a file is complete once a higher one exists,
// and the next one is the lowest that is higher. The file being read is kept open:
// its end is still read when it was removed in the meantime. What was removed before
// it was reached is counted in Stats.LostFiles; nothing else is skipped, however far
// the reading is behind.
type Logs struct {
	dir    string
	parser *Parser
	now    func() time.Time
	buf    []byte
	out    *stream
	err    *stream
	stats  Stats
	closed bool
	most   int // maxEntries, fewer in tests
}

// stream is one of the two.
type stream struct {
	prefix string // file name up to the number
	split  splitter

	file     *os.File // nil: not found yet
	index    int64    // of file; where to begin if there is none
	inode    uint64
	pos      int64
	started  bool // a position is known: index and pos mean something
	straddle *Position
	touched  time.Time // when the partial line grew last
	tried    bool      // idle was called since
}

// NewLogs returns a follower of a task's logs in dir, the allocation's log directory
// (<alloc>/alloc/logs). The directory and the files may come later. It begins with
// the oldest file that is there, unless SetOffset says otherwise.
func NewLogs(dir, task string, p *Parser) *Logs {
	l := &Logs{dir: dir, parser: p, now: time.Now, most: maxEntries}
	l.out = newStream(task+".stdout.", p)
	l.err = newStream(task+".stderr.", p)
	return l
}

func newStream(prefix string, p *Parser) *stream {
	s := &stream{prefix: prefix}
	s.split.parser = p
	return s
}

// Poll reads what was written since the last call and returns the reports in it, up
// to 8 MiB and about 8,000 reports of each stream; Stats().More tells that there is
// more. All reports of a call carry the time of the call. stderr comes first, since
// progress bars, which go there, give the lines on stdout their step.
//
// It returns the reports it has together with the errors it met; the other stream
// and the next Poll are not affected by an error. Files and a directory that do not
// exist are no error: logs may be disabled, or not be created yet.
func (l *Logs) Poll(ctx context.Context) ([]Report, error) {
	if l.closed {
		return nil, ErrClosed
	}
	l.stats.More, l.stats.Behind = false, 0
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dir, err := openDir(l.dir)
	if errors.Is(err, fs.ErrNotExist) {
		dir = nil
	} else if err != nil {
		return nil, fmt.Errorf("open log directory: %w", err)
	}
	if dir != nil {
		defer dir.Close()
	}
	if l.buf == nil {
		l.buf = make([]byte, chunk)
	}

	var reports []Report
	now := l.now()
	emit := func(r Report) {
		r.Time = now
		reports = append(reports, r)
	}
	var errs []error
	found, err := l.list(dir)
	if err != nil {
		errs = append(errs, fmt.Errorf("read log directory %s: %w", l.dir, err))
	}
	for i, s := range []*stream{l.err, l.out} {
		s.split.emit = emit
		if err := l.follow(ctx, dir, s, found[i], now, &reports); err != nil {
			errs = append(errs, err)
		}
	}
	l.stats.Reports += int64(len(reports))
	return reports, errors.Join(errs...)
}

// openDir opens the log directory without following a link a task may have put in
// its place.
func openDir(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			return nil, &fs.PathError{Op: "open", Path: path, Err: unix.ENOTDIR}
		}
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// list returns the indices of the files of stderr and stdout, ascending.
func (l *Logs) list(dir *os.File) (found [2][]int64, err error) {
	if dir == nil {
		return found, nil
	}
	for seen := 0; ; {
		names, err := dir.Readdirnames(1024)
		seen += len(names)
		for _, name := range names {
			for i, s := range [...]*stream{l.err, l.out} {
				if n, ok := index(name, s.prefix); ok {
					found[i] = append(found[i], n)
				}
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return found, err
		}
		if seen > l.most {
			return found, fmt.Errorf("more than %d files", l.most)
		}
	}
	for i := range found {
		slices.Sort(found[i])
	}
	return found, nil
}

// index returns the number at the end of a log's name, written as the collector does.
func index(name, prefix string) (int64, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	if !ok || digits == "" || len(digits) > 1 && digits[0] == '0' {
		return 0, false
	}
	for i := range len(digits) {
		if !isDigit(digits[i]) {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	return n, err == nil
}

// follow reads a stream up to the bounds. found was listed before anything is read,
// so that a file which has a successor in it is complete.
func (l *Logs) follow(ctx context.Context, dir *os.File, s *stream, found []int64, now time.Time, reports *[]Report) error {
	var errs []error
	budget, most := int64(pollBytes), len(*reports)+pollReports
	read := int64(0)
	for {
		if s.file == nil {
			opened, err := l.open(dir, s, found)
			if err != nil {
				errs = append(errs, err)
			}
			if !opened {
				break
			}
		}
		n, full, err := l.drain(ctx, s, budget-read, most, reports)
		read += n
		if n > 0 {
			s.touched, s.tried = now, false
		}
		if err != nil {
			errs = append(errs, err)
			if ctx.Err() != nil {
				l.stats.More = true
				break
			}
		}
		if full || read >= budget || len(*reports) >= most {
			l.stats.More = true
			break
		}
		// At the end of this file, or where it can be read no further. It is complete
		// if another one follows.
		advanced, err := l.advance(dir, s, found)
		if err != nil {
			errs = append(errs, err)
		}
		if !advanced {
			break
		}
	}
	if s.file != nil {
		if st, err := s.file.Stat(); err == nil && st.Size() > s.pos {
			l.stats.Behind += st.Size() - s.pos
		}
	}
	if len(s.split.partial) > 0 && !s.tried && now.Sub(s.touched) >= idleAfter {
		s.tried = true
		s.split.idle()
	}
	return errors.Join(errs...)
}

// drain reads the open file to its end, or to the bounds: full then.
func (l *Logs) drain(ctx context.Context, s *stream, budget int64, most int, reports *[]Report) (read int64, full bool, err error) {
	st, err := s.file.Stat()
	if err != nil {
		return 0, false, fmt.Errorf("examine log: %w", err)
	}
	if st.Size() < s.pos {
		s.split.reset()
		s.straddle = nil
		s.pos = 0
		l.stats.Truncated++
	}
	for begin := l.now(); read < budget && len(*reports) < most; {
		if l.now().Sub(begin) > pollTime {
			return read, true, nil
		}
		if err := ctx.Err(); err != nil {
			return read, true, err
		}
		n, err := s.file.ReadAt(l.buf[:min(int64(len(l.buf)), budget-read)], s.pos)
		if n > 0 {
			before := s.split.line
			s.split.feed(l.buf[:n])
			s.pos += int64(n)
			read += int64(n)
			l.stats.Bytes += int64(n)
			l.stats.Lines += s.split.line - before
			if s.straddle != nil && s.split.pending < s.pos {
				s.straddle = nil // the line that began in an earlier file has ended
			}
		}
		if errors.Is(err, io.EOF) {
			return read, false, nil
		}
		if err != nil {
			return read, false, fmt.Errorf("read log: %w", err)
		}
	}
	return read, true, nil
}

// open finds the file to begin or to go on with.
func (l *Logs) open(dir *os.File, s *stream, found []int64) (bool, error) {
	var errs []error
	for _, n := range found {
		if s.started && n < s.index {
			continue
		}
		file, inode, err := openLog(dir, s.prefix, n)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since the listing
		}
		if err != nil {
			errs = append(errs, err)
			if passable(err) {
				continue // perhaps a later one can be read
			}
			return false, errors.Join(errs...)
		}
		l.begin(s, file, n, inode)
		return true, errors.Join(errs...)
	}
	if s.started && len(errs) == 0 && len(found) > 0 && found[len(found)-1] < s.index {
		// The numbers began anew: somebody has removed the logs.
		s.started, s.index, s.pos, s.inode = false, 0, 0, 0
		s.split.reset()
		s.straddle = nil
		l.stats.Truncated++
		return l.open(dir, s, found)
	}
	return false, errors.Join(errs...)
}

// begin starts to read a file that was opened.
func (l *Logs) begin(s *stream, file *os.File, n int64, inode uint64) {
	switch {
	case !s.started:
		l.stats.LostFiles += n
		s.pos = 0
	case n > s.index:
		l.stats.LostFiles += n - s.index // where we were is gone, too
		s.split.reset()
		s.pos = 0
	case s.inode != 0 && inode != s.inode:
		l.stats.Truncated++
		s.split.reset()
		s.pos = 0
	}
	s.file, s.index, s.inode, s.started = file, n, inode, true
}

// advance goes on to the next file, if there is one, or to the one that has taken
// the place of ours.
func (l *Logs) advance(dir *os.File, s *stream, found []int64) (bool, error) {
	var errs []error
	gone := true // ours has no name any more
	for _, n := range found {
		if n == s.index {
			gone = false
		}
		if n <= s.index {
			continue
		}
		file, inode, err := openLog(dir, s.prefix, n)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			if passable(err) {
				continue
			}
			break
		}
		s.leave()
		l.stats.LostFiles += n - s.index - 1
		s.file, s.index, s.inode, s.pos = file, n, inode, 0
		return true, errors.Join(errs...)
	}
	if len(errs) > 0 || dir == nil {
		return false, errors.Join(errs...)
	}

	own, err := s.file.Stat()
	if err != nil {
		return false, fmt.Errorf("examine log: %w", err)
	}
	if !gone {
		var st unix.Stat_t
		err := unix.Fstatat(int(dir.Fd()), s.prefix+strconv.FormatInt(s.index, 10), &st, unix.AT_SYMLINK_NOFOLLOW)
		if err != nil || st.Ino == s.inode {
			return false, nil
		}
		file, inode, err := openLog(dir, s.prefix, s.index)
		if err != nil {
			return false, err
		}
		s.replace(file, s.index, inode)
		l.stats.Truncated++
		return true, nil
	}
	// Removed, and only lower numbers are there: that is a new beginning if they were
	// written after ours, or else the collector still writes to what has no name.
	for _, n := range found {
		file, inode, err := openLog(dir, s.prefix, n)
		if err != nil {
			continue
		}
		if st, err := file.Stat(); err == nil && st.ModTime().After(own.ModTime()) {
			s.replace(file, n, inode)
			l.stats.Truncated++
			return true, nil
		}
		file.Close()
	}
	return false, nil
}

// leave closes the current file, and notes where its last line began if the line is
// not ended: it goes on in the next file.
func (s *stream) leave() {
	if s.split.pending > 0 && s.straddle == nil && !s.split.over {
		at := s.position()
		s.straddle = &at
	}
	s.file.Close()
	s.file = nil
}

func (s *stream) replace(file *os.File, n int64, inode uint64) {
	s.file.Close()
	s.split.reset()
	s.straddle = nil
	s.file, s.index, s.inode, s.pos = file, n, inode, 0
}

// position returns where the line began that is not ended.
func (s *stream) position() Position {
	if s.straddle != nil && !s.split.over {
		at := *s.straddle
		at.Done = s.split.done
		return at
	}
	if !s.started {
		return Position{}
	}
	at := Position{File: s.index, Pos: s.pos, Inode: s.inode, Line: s.split.line, Done: s.split.done}
	if s.split.over {
		at.Long = true
	} else {
		at.Pos -= s.split.pending
	}
	return at
}

// passable says whether an error belongs to one file for good, so that a later one
// may be read instead.
func passable(err error) bool {
	return errors.Is(err, ErrNotRegular) || errors.Is(err, fs.ErrPermission)
}

// openLog opens a log for reading if it is a regular file. It follows no link and
// does not wait for a pipe's writer.
func openLog(dir *os.File, prefix string, n int64) (*os.File, uint64, error) {
	name := prefix + strconv.FormatInt(n, 10)
	path := filepath.Join(dir.Name(), name)
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
			err = ErrNotRegular
		}
		return nil, 0, fmt.Errorf("open log: %w", &fs.PathError{Op: "open", Path: path, Err: err})
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, 0, fmt.Errorf("examine log: %w", &fs.PathError{Op: "stat", Path: path, Err: err})
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, 0, fmt.Errorf("open log: %w", &fs.PathError{Op: "open", Path: path, Err: ErrNotRegular})
	}
	return os.NewFile(uintptr(fd), path), st.Ino, nil
}

// Offset returns where to go on after a restart. It points to the beginning of a line
// that is not ended, so that the line will be read whole.
func (l *Logs) Offset() Offset {
	return Offset{Stdout: l.out.position(), Stderr: l.err.position(), Parser: l.parser.State()}
}

// SetOffset goes on at a position that Offset has returned, and restores the state of
// the parser. It is to be called before the first Poll. Where the file is gone, the
// next one is read from its beginning; where it was replaced or is shorter, it is
// read from its own beginning.
func (l *Logs) SetOffset(o Offset) {
	for _, x := range []struct {
		s  *stream
		at Position
	}{{l.out, o.Stdout}, {l.err, o.Stderr}} {
		if x.at.Inode == 0 || x.at.File < 0 || x.at.Pos < 0 || x.at.Line < 0 {
			continue
		}
		if x.s.file != nil {
			x.s.file.Close()
			x.s.file = nil
		}
		x.s.split.reset()
		x.s.straddle = nil
		x.s.started, x.s.index, x.s.pos, x.s.inode = true, x.at.File, x.at.Pos, x.at.Inode
		x.s.split.line, x.s.split.over, x.s.split.done = x.at.Line, x.at.Long, x.at.Done
	}
	l.parser.SetState(o.Parser)
}

// Stats returns what was read so far.
func (l *Logs) Stats() Stats {
	st := l.stats
	st.Oversized = l.out.split.long + l.err.split.long
	return st
}

// Close closes the files that are kept open. Poll fails from then on; Offset and
// Stats do not.
func (l *Logs) Close() error {
	l.closed = true
	var errs []error
	for _, s := range []*stream{l.out, l.err} {
		if s.file != nil {
			errs = append(errs, s.file.Close())
			s.file = nil
		}
	}
	l.buf = nil
	return errors.Join(errs...)
}
