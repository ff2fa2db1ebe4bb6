// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/driver/progress/tail"
	"github.com/ebbtide/ebbtide/driver/taskfs"
)

// Bounds of one Poll, for each of the two streams.
const (
	pollBytes   = 8 << 20
	pollReports = 8192
	pollTime    = 250 * time.Millisecond // for a pattern that is slow
	maxEntries  = 100_000                // of the log directory
	idleAfter   = 3 * time.Second        // before a line that has not ended is looked at
)

// Offset is a position in a task's logs: everything before it has been reported. It
// can be stored as JSON.
type Offset struct {
	Stdout Position `json:"stdout"`
	Stderr Position `json:"stderr"`
	Parser State    `json:"parser"`
}

// Position is the beginning of the first line of a stream that was not ended yet. Its
// Inode is 0 if nothing was read yet.
type Position struct {
	File int64 `json:"file"` // index of the rotated file
	tail.Offset
	Line int64 `json:"line,omitempty"` // complete lines before
	Long bool  `json:"long,omitempty"` // within a line that is too long to keep
	Done bool  `json:"done,omitempty"` // that line has given its report
}

// Logs follows stdout and stderr of a task in the files that Nomad's log collector
// writes, <task>.stdout.N and <task>.stderr.N. Package tail follows each file; Logs
// goes from one to the next. It is not safe for concurrent use.
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
	root   *taskfs.Dir
	dir    string
	parser *Parser
	now    func() time.Time
	out    *stream
	err    *stream
	stats  Stats
	closed bool
	most   int // maxEntries, fewer in tests
}

// stream is one of the two.
type stream struct {
	prefix string // path up to the number
	split  splitter

	file     *tail.File  // nil: not found yet
	index    int64       // of file; where to begin if there is none
	from     tail.Offset // in it, if there is none
	started  bool        // index means something
	straddle *Position
	touched  time.Time // when the partial line grew last
	tried    bool      // idle was called since
}

// NewLogs returns a follower of a task's logs in dir beneath root: the allocation's log
// directory (<alloc>/alloc/logs). root remains the caller's, and must stay open; dir and
// the files may come later. It begins with the oldest file that is there, unless
// SetOffset says otherwise.
func NewLogs(root *taskfs.Dir, dir, task string, p *Parser) *Logs {
	l := &Logs{root: root, dir: dir, parser: p, now: time.Now, most: maxEntries}
	l.out = &stream{prefix: path.Join(dir, task+".stdout."), split: splitter{parser: p}}
	l.err = &stream{prefix: path.Join(dir, task+".stderr."), split: splitter{parser: p}}
	return l
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
		return nil, fmt.Errorf("read logs: %w", tail.ErrClosed)
	}
	l.stats.More, l.stats.Behind = false, 0
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var errs []error
	names, err := l.root.Names(l.dir, l.most)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("look for logs: %w", err))
	}
	var reports []Report
	now := l.now()
	for _, s := range []*stream{l.err, l.out} {
		s.split.emit = func(r Report) {
			r.Time = now
			reports = append(reports, r)
		}
		if err := l.follow(ctx, s, s.indices(names), now, &reports); err != nil {
			errs = append(errs, err)
		}
	}
	l.stats.Reports += int64(len(reports))
	return reports, errors.Join(errs...)
}

// indices returns the numbers of the stream's files, ascending. A number is written as
// the collector does.
func (s *stream) indices(names []string) (found []int64) {
	prefix := path.Base(s.prefix)
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, prefix)
		n, err := strconv.ParseInt(digits, 10, 64)
		if ok && err == nil && digits == strconv.FormatInt(n, 10) && n >= 0 {
			found = append(found, n)
		}
	}
	slices.Sort(found)
	return found
}

// follow reads a stream up to the bounds. found was listed before anything is read,
// so that a file which has a successor in it is complete.
func (l *Logs) follow(ctx context.Context, s *stream, found []int64, now time.Time, reports *[]Report) error {
	var errs []error
	budget, most := pollBytes, len(*reports)+pollReports
	gone := s.file == nil // what we are to read has no name
	for {
		if s.file != nil {
			n, full, err := l.drain(ctx, s, budget, most, reports)
			budget -= n
			if n > 0 {
				s.touched, s.tried = now, false
			}
			if gone = errors.Is(err, tail.ErrGone); err != nil && !gone {
				errs = append(errs, err)
			}
			if full || ctx.Err() != nil {
				l.stats.More = true
				break
			}
		}
		// At the end of this file, or where it can be read no further. It is complete
		// if another one follows.
		opened, err := l.next(ctx, s, found)
		if !opened && err == nil && gone {
			opened, err = l.again(ctx, s, found)
		}
		if err != nil {
			errs = append(errs, err)
		}
		if !opened {
			break
		}
	}
	if s.file != nil {
		l.stats.Behind += s.file.Behind()
	}
	if len(s.split.partial) > 0 && !s.tried && now.Sub(s.touched) >= idleAfter {
		s.tried = true
		s.split.idle()
	}
	return errors.Join(errs...)
}

// drain reads the open file to its end, or to the bounds: full then.
func (l *Logs) drain(ctx context.Context, s *stream, budget, most int, reports *[]Report) (read int, full bool, err error) {
	for begin := l.now(); read < budget && len(*reports) < most; {
		if l.now().Sub(begin) > pollTime {
			return read, true, nil
		}
		data, restarted, err := s.file.Read(ctx, min(chunk, budget-read))
		if restarted {
			l.restart(s)
		}
		if len(data) == 0 || err != nil {
			return read, false, err
		}
		before := s.split.line
		s.split.feed(data)
		read += len(data)
		l.stats.Bytes += int64(len(data))
		l.stats.Lines += s.split.line - before
		if s.split.pending < s.file.Pos() {
			s.straddle = nil // the line that began in an earlier file has ended
		}
	}
	return read, true, nil
}

// restart forgets a line that will not go on: its file was truncated or replaced.
func (l *Logs) restart(s *stream) {
	l.stats.Truncated++
	s.straddle = nil
	s.split.reset()
}

// next opens the file to begin or to go on with, if it is there.
func (l *Logs) next(ctx context.Context, s *stream, found []int64) (bool, error) {
	var errs []error
	for _, n := range found {
		if s.started && (n < s.index || n == s.index && s.file != nil) {
			continue
		}
		file, err := tail.Open(l.root, s.prefix+strconv.FormatInt(n, 10))
		if err != nil {
			return false, err
		}
		if s.started && n == s.index {
			file.SetOffset(s.from)
		}
		_, restarted, err := file.Read(ctx, 0) // opens it
		switch {
		case errors.Is(err, tail.ErrNotYet):
			continue // removed since the listing
		case err != nil:
			errs = append(errs, err)
			if errors.Is(err, taskfs.ErrKind) || errors.Is(err, fs.ErrPermission) {
				continue // perhaps a later one can be read
			}
			return false, errors.Join(errs...)
		}
		switch {
		case s.file != nil:
			s.leave()
			l.stats.LostFiles += n - s.index - 1
		case !s.started:
			l.stats.LostFiles += n
		case n > s.index:
			l.stats.LostFiles += n - s.index // where we were is gone, too
			s.split.reset()
		case restarted:
			l.restart(s)
		}
		s.file, s.index, s.started = file, n, true
		return true, errors.Join(errs...)
	}
	return false, errors.Join(errs...)
}

// again begins anew if the numbers did, because somebody has removed the logs: ours is
// gone, and there are only lower ones. One that was read must be older than those, or
// else the collector still writes to what has no name.
func (l *Logs) again(ctx context.Context, s *stream, found []int64) (bool, error) {
	if !s.started || len(found) == 0 || found[len(found)-1] >= s.index {
		return false, nil
	}
	for s.file != nil && len(found) > 0 {
		st, err := l.root.Stat(s.prefix + strconv.FormatInt(found[0], 10))
		if err == nil && st.Modified().After(s.file.Modified()) {
			s.file.Close()
			s.file = nil
			break
		}
		found = found[1:]
	}
	if s.file != nil {
		return false, nil
	}
	s.started, s.from = false, tail.Offset{}
	l.restart(s)
	return l.next(ctx, s, found)
}

// leave closes the current file, and notes where its last line began if the line is
// not ended: it goes on in the next file.
func (s *stream) leave() {
	if s.split.pending > 0 && s.straddle == nil && !s.split.over {
		at := s.position()
		s.straddle = &at
	}
	s.file.Close()
}

// position returns where the line began that is not ended.
func (s *stream) position() Position {
	switch {
	case s.straddle != nil && !s.split.over:
		at := *s.straddle
		at.Done = s.split.done
		return at
	case !s.started:
		return Position{}
	}
	at := Position{File: s.index, Offset: s.from, Line: s.split.line, Long: s.split.over, Done: s.split.done}
	if s.file != nil && s.split.over {
		at.Offset = s.file.Offset(0)
	} else if s.file != nil {
		at.Offset = s.file.Offset(s.split.pending)
	}
	return at
}

// Goal says which way the metric improves, or "" while none is known.
func (l *Logs) Goal() string {
	if l.parser.Metric() == "" {
		return ""
	}
	return l.parser.Goal()
}

// Note is a sentence for people about what is assumed, or "".
func (l *Logs) Note() string { return l.parser.Note() }

// Offset returns where to go on after a restart, an Offset as JSON. It points to the
// beginning of a line that is not ended, so that the line will be read whole.
func (l *Logs) Offset() json.RawMessage {
	data, err := json.Marshal(Offset{Stdout: l.out.position(), Stderr: l.err.position(), Parser: l.parser.State()})
	if err != nil {
		return nil // numbers and texts always can
	}
	return data
}

// SetOffset goes on at a position that Offset has returned, and restores the state of
// the parser. It is to be called before the first Poll. Where the file is gone, the
// next one is read from its beginning; where it was replaced or is shorter, it is
// read from its own beginning. What makes no sense is left aside.
func (l *Logs) SetOffset(data json.RawMessage) {
	var o Offset
	if json.Unmarshal(data, &o) != nil {
		return
	}
	for s, at := range map[*stream]Position{l.out: o.Stdout, l.err: o.Stderr} {
		if s.file != nil || at.Inode == 0 || at.File < 0 || at.Pos < 0 || at.Line < 0 {
			continue
		}
		s.started, s.index, s.from = true, at.File, at.Offset
		s.split.line, s.split.over, s.split.done = at.Line, at.Long, at.Done
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
		}
	}
	return errors.Join(errs...)
}
