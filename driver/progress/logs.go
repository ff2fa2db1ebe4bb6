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

// Bounds of one Poll, per stream.
const (
	pollBytes   = 8 << 20
	pollReports = 8192
	pollTime    = 250 * time.Millisecond // for slow patterns
	maxEntries  = 100_000                // of the log directory
	idleAfter   = 3 * time.Second        // before an unfinished line is parsed
)

// Offset is a position in a task's logs, up to which everything has been reported.
type Offset struct {
	Stdout Position `json:"stdout"`
	Stderr Position `json:"stderr"`
	Parser State    `json:"parser"`
}

// Position is the start of the first unfinished line of a stream. Inode 0 means that
// nothing was read.
type Position struct {
	File int64 `json:"file"` // number of the rotated file
	tail.Offset
	Line int64 `json:"line,omitempty"` // complete lines before
	Long bool  `json:"long,omitempty"` // within a line that is too long to keep
	Done bool  `json:"done,omitempty"` // that line has been reported
}

// Logs follows the stdout and stderr of a task in the files of Nomad's log collector,
// <task>.stdout.N and <task>.stderr.N. It is not safe for concurrent use.
//
// The collector (client/logmon/logging/rotator.go of Nomad 1.11.2) writes to the file
// with the highest N, flushes it before creating the next, may split a line between
// two, skips existing numbers, and removes the oldest files. After a restart it appends
// to the highest. So a file is complete once a higher one exists, and the next one is
// the lowest that is higher. The current file stays open and is read to its end even if
// removed. Files removed before being opened are counted in Stats.LostFiles; nothing
// else is skipped.
type Logs struct {
	root     *taskfs.Dir
	dir      string
	parser   *Parser
	now      func() time.Time
	out      *stream
	err      *stream
	stats    Stats
	closed   bool
	maxNames int // maxEntries, fewer in tests
}

type stream struct {
	prefix string // path up to the number
	split  splitter

	file      *tail.File  // nil: not found yet
	index     int64       // of file, or where to begin
	from      tail.Offset // offset to begin at
	started   bool        // index is valid
	straddle  *Position
	lastGrew  time.Time // when the partial line last grew
	idleTried bool      // idle was called since
}

// NewLogs returns a follower of a task's logs in dir beneath root: <alloc>/alloc/logs.
// The caller keeps root open; dir and files may appear later. Without SetOffset it
// begins with the oldest file.
func NewLogs(root *taskfs.Dir, dir, task string, p *Parser) *Logs {
	l := &Logs{root: root, dir: dir, parser: p, now: time.Now, maxNames: maxEntries}
	l.out = &stream{prefix: path.Join(dir, task+".stdout."), split: splitter{parser: p}}
	l.err = &stream{prefix: path.Join(dir, task+".stderr."), split: splitter{parser: p}}
	return l
}

// Poll returns the new reports, from up to 8 MiB and with about 8,000 reports per
// stream; Stats().More is set if there is more. All carry the time of the call. stderr
// comes first, because its progress bars hold the steps of stdout's lines.
//
// Errors affect neither the other stream nor the next Poll, and are returned with the
// reports. Missing files or a missing directory are no error.
func (l *Logs) Poll(ctx context.Context) ([]Report, error) {
	if l.closed {
		return nil, fmt.Errorf("read logs: %w", tail.ErrClosed)
	}
	l.stats.More, l.stats.Behind = false, 0
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var errs []error
	names, err := l.root.Names(l.dir, l.maxNames)
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

// indices returns the numbers of the stream's files, ascending, as the collector
// formats them.
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

// follow reads a stream up to the bounds. found must be listed before reading, so that
// a file with a successor in it is complete.
func (l *Logs) follow(ctx context.Context, s *stream, found []int64, now time.Time, reports *[]Report) error {
	var errs []error
	budget, most := pollBytes, len(*reports)+pollReports
	gone := s.file == nil // the file being read has no name
	for {
		if s.file != nil {
			n, full, err := l.drain(ctx, s, budget, most, reports)
			budget -= n
			if n > 0 {
				s.lastGrew, s.idleTried = now, false
			}
			if gone = errors.Is(err, tail.ErrGone); err != nil && !gone {
				errs = append(errs, err)
			}
			if full || ctx.Err() != nil {
				l.stats.More = true
				break
			}
		}
		// At the end of this file, or where it is unreadable: it is complete if another
		// one follows.
		opened, err := l.next(ctx, s, found)
		if !opened && err == nil && gone {
			opened, err = l.startOver(ctx, s, found)
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
	if len(s.split.partial) > 0 && !s.idleTried && now.Sub(s.lastGrew) >= idleAfter {
		s.idleTried = true
		s.split.idle()
	}
	return errors.Join(errs...)
}

// drain reads the open file to its end, or to the bounds (full).
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

// restart drops an unfinished line whose file was truncated or replaced.
func (l *Logs) restart(s *stream) {
	l.stats.Truncated++
	s.straddle = nil
	s.split.reset()
}

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
				continue // a later one may be readable
			}
			return false, errors.Join(errs...)
		}
		switch {
		case s.file != nil:
			s.closeFile()
			l.stats.LostFiles += n - s.index - 1
		case !s.started:
			l.stats.LostFiles += n
		case n > s.index:
			l.stats.LostFiles += n - s.index // the current one is gone, too
			s.split.reset()
		case restarted:
			l.restart(s)
		}
		s.file, s.index, s.started = file, n, true
		return true, errors.Join(errs...)
	}
	return false, errors.Join(errs...)
}

// startOver restarts if the numbers did because the logs were removed: the current file
// is gone and only lower numbers exist. Those must be newer than a file being read, or
// the collector still writes to that unnamed one.
func (l *Logs) startOver(ctx context.Context, s *stream, found []int64) (bool, error) {
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

// closeFile closes the current file and keeps the position of an unfinished line, which
// continues in the next file.
func (s *stream) closeFile() {
	if s.split.pending > 0 && s.straddle == nil && !s.split.over {
		at := s.position()
		s.straddle = &at
	}
	s.file.Close()
}

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

func (l *Logs) Goal() string {
	if l.parser.Metric() == "" {
		return ""
	}
	return l.parser.Goal()
}

func (l *Logs) Note() string { return l.parser.Note() }

// Offset returns the position for a later process as JSON: the start of the unfinished
// line.
func (l *Logs) Offset() json.RawMessage {
	data, err := json.Marshal(Offset{Stdout: l.out.position(), Stderr: l.err.position(), Parser: l.parser.State()})
	if err != nil {
		return nil // cannot fail
	}
	return data
}

// SetOffset continues at a position from Offset, with the parser's state; call it
// before the first Poll. If the file is gone, the next one is read; if it was replaced
// or truncated, it is read from its start. Invalid data is ignored.
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

func (l *Logs) Stats() Stats {
	st := l.stats
	st.Oversized = l.out.split.long + l.err.split.long
	return st
}

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
