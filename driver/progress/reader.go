// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"errors"
	"io"
)

const chunk = 64 << 10 // bytes per read

// Stats counts what was read.
type Stats struct {
	Bytes     int64
	Lines     int64 // complete lines, ended by \n
	Reports   int64 // returned
	Oversized int64 // lines above 64 KiB, parsed in part

	// Of Logs only.
	LostFiles int64 // rotated files lost unread
	Truncated int64 // files truncated or replaced while being read
	Behind    int64 // unread bytes in the current files
	More      bool  // the last Poll reached its bounds: poll again soon
}

// Reader reads reports from a stream.
type Reader struct {
	from  io.Reader
	split splitter
	buf   []byte
	queue []Report
	bytes int64
	count int64
	ended bool // the last byte ended a line
	err   error
}

// NewReader returns a reader that passes the lines of r to p. Its reports have no time.
func NewReader(r io.Reader, p *Parser) *Reader {
	rd := &Reader{from: r, buf: make([]byte, chunk)}
	rd.split.parser = p
	rd.split.emit = func(r Report) { rd.queue = append(rd.queue, r) }
	return rd
}

// Next returns the next report, or io.EOF after the last; the stream's end ends its
// last line. Errors of the stream come after the reports before them.
func (r *Reader) Next() (Report, error) {
	for len(r.queue) == 0 {
		if r.err != nil {
			return Report{}, r.err
		}
		r.queue = nil
		n, err := r.from.Read(r.buf)
		r.bytes += int64(n)
		r.split.feed(r.buf[:n])
		if n > 0 {
			r.ended = r.buf[n-1] == '\n'
		}
		if err != nil {
			r.err = err
			if errors.Is(err, io.EOF) && r.bytes > 0 && !r.ended {
				r.split.end(nil)
				r.split.line++
			}
		}
	}
	report := r.queue[0]
	r.queue = r.queue[1:]
	r.count++
	return report, nil
}

// Buffered returns how many reports Next can return without reading.
func (r *Reader) Buffered() int { return len(r.queue) }

func (r *Reader) Stats() Stats {
	return Stats{Bytes: r.bytes, Lines: r.split.line, Reports: r.count, Oversized: r.split.long}
}
