// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package file

import "bytes"

const (
	maxRow   = 64 << 10 // bytes of a row that are kept
	maxLines = 16       // lines per row of a CSV file
	spare    = 4 << 10  // larger buffers are released when empty
)

// mark is the optional UTF-8 byte order mark.
const mark = "\xef\xbb\xbf"

// state is the state of a CSV row between two bytes.
type state uint8

const (
	atStart state = iota // of a cell
	inPlain              // in an unquoted cell, or after a closing quote
	inQuote              // in a quoted cell
	atQuote              // after a quote in one: it ends, or the first of two
)

func (s state) after(c, comma byte) state {
	switch {
	case s == inQuote:
		if c == '"' {
			return atQuote
		}
		return inQuote
	case c == '"' && s == atQuote:
		return inQuote
	case c == '"' && s == atStart:
		return inQuote
	case separates(c, comma):
		return atStart
	}
	return inPlain
}

// separates reports whether c separates cells. While comma is 0, in the header, any of
// the three does.
func separates(c, comma byte) bool {
	if comma == 0 {
		return c == ',' || c == ';' || c == '\t'
	}
	return c == comma
}

// rows cuts a file into rows: lines in a JSONL file; in a CSV file a quoted cell may
// continue after the end of a line. It holds at most maxRow bytes and drops NUL bytes,
// the hole that truncation may leave.
type rows struct {
	csv   bool
	comma byte // between cells; 0 = unknown
	emit  func(row []byte, line int64, long bool)

	buf   []byte // of the unfinished row
	over  bool   // maxRow exceeded: the rest of the line is dropped
	quote state
	ends  int   // of lines within the row
	raw   int64 // bytes since the beginning of the row
	line  int64 // ends of lines before the row
	long  int64 // rows that were too long
}

func (r *rows) reset() {
	r.buf, r.over, r.quote, r.ends, r.raw = r.buf[:0], false, atStart, 0, 0
	if cap(r.buf) > spare {
		r.buf = nil
	}
}

func (r *rows) restart() {
	r.reset()
	r.line = 0
}

func (r *rows) feed(chunk []byte) {
	for r.line == 0 && r.raw < int64(len(mark)) && len(chunk) > 0 && chunk[0] == mark[r.raw] {
		r.raw++
		chunk = chunk[1:]
	}
	for len(chunk) > 0 {
		part, ended := chunk, false
		if at := bytes.IndexByte(chunk, '\n'); at >= 0 {
			part, ended = chunk[:at], true
		}
		n := len(part)
		if ended {
			n++
		}
		chunk = chunk[n:]
		r.raw += int64(n)
		if bytes.IndexByte(part, 0) >= 0 {
			part = bytes.ReplaceAll(part, []byte{0}, nil)
		}
		if r.csv && (r.quote >= inQuote || bytes.IndexByte(part, '"') >= 0) {
			for _, c := range part {
				r.quote = r.quote.after(c, r.comma)
			}
		} else if len(part) > 0 {
			r.quote = atStart.after(part[len(part)-1], r.comma)
		}

		switch {
		case !ended:
			r.hold(part)
		case len(r.buf) == 0 && !r.over && (!r.csv || r.quote != inQuote) && len(part) <= maxRow:
			r.end(part) // the common case, without copying
		default:
			r.hold(part)
			if r.csv && r.quote == inQuote && !r.over && r.ends+1 < maxLines {
				r.ends++
				r.hold([]byte{'\n'})
				continue
			}
			if r.csv && r.quote == inQuote && !r.over {
				// An unpaired quote must not consume the rest of the file.
				r.over = true
				r.long++
			}
			r.end(r.buf)
		}
	}
}

func (r *rows) hold(part []byte) {
	if r.over {
		return
	}
	if room := maxRow - len(r.buf); len(part) > room {
		part, r.over = part[:room], true
		r.long++
	}
	r.buf = append(r.buf, part...)
}

func (r *rows) end(row []byte) {
	r.emit(row, r.line+1, r.over)
	r.line += int64(r.ends) + 1
	r.reset()
}

// split appends the cells of a CSV row, unquoted as by encoding/csv; a quote elsewhere
// is literal, where encoding/csv has an error.
func split(cells []string, row []byte, comma byte) []string {
	if bytes.IndexByte(row, '"') < 0 {
		for {
			at := bytes.IndexByte(row, comma)
			if at < 0 {
				return append(cells, string(row))
			}
			cells = append(cells, string(row[:at]))
			row = row[at+1:]
		}
	}
	cell := make([]byte, 0, len(row))
	s := atStart
	for _, c := range row {
		next := s.after(c, comma)
		switch {
		case next == atStart:
			cells = append(cells, string(cell))
			cell = cell[:0]
		case s == atStart && next == inQuote: // opens
		case next == atQuote: // closes, or begins an escape
		default:
			cell = append(cell, c)
		}
		s = next
	}
	return append(cells, string(cell))
}
