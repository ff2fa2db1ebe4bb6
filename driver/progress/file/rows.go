// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package file

import "bytes"

const (
	maxRow   = 64 << 10 // bytes of a row that are kept
	maxLines = 16       // lines that one row of a CSV file may have
	spare    = 4 << 10  // a larger buffer is given back when it is empty
)

// mark is the byte order mark that a file in UTF-8 may begin with.
const mark = "\xef\xbb\xbf"

// state is where a row of a CSV file is between two bytes.
type state uint8

const (
	atStart state = iota // of a cell
	inPlain              // in a cell without quotes, or behind its closing quote
	inQuote              // in a quoted cell
	atQuote              // behind a quote in one: it ends, or the first of two
)

// after returns the state behind one more byte of a line.
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

// separates says whether c stands between two cells. While comma is 0, which it is in
// the header, it may be any of the three.
func separates(c, comma byte) bool {
	if comma == 0 {
		return c == ',' || c == ';' || c == '\t'
	}
	return c == comma
}

// rows cuts a file into rows. In a JSONL file these are its lines; in a CSV file a
// row may go on behind the end of a line, in quotes. It holds at most maxRow bytes,
// and drops NUL bytes, so that the hole which a file may have where it was truncated
// is part of no row.
type rows struct {
	csv   bool
	comma byte // between cells; 0 = not known yet
	// emit takes a row, whose first line is the given one. long says that it is the
	// beginning of a longer one.
	emit func(row []byte, line int64, long bool)

	buf   []byte // of the row that is not ended
	over  bool   // more than maxRow bytes came: the rest of the line is dropped
	quote state
	ends  int   // of lines within the row
	raw   int64 // bytes of the file since the beginning of the row
	line  int64 // ends of lines before the row
	long  int64 // rows that were too long
}

// reset forgets the row that is not ended.
func (r *rows) reset() {
	r.buf, r.over, r.quote, r.ends, r.raw = r.buf[:0], false, atStart, 0, 0
	if cap(r.buf) > spare {
		r.buf = nil
	}
}

// restart begins another file.
func (r *rows) restart() {
	r.reset()
	r.line = 0
}

// feed takes the next bytes of the file.
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
			r.end(part) // as nearly always; nothing is copied
		default:
			r.hold(part)
			if r.csv && r.quote == inQuote && !r.over && r.ends+1 < maxLines {
				r.ends++
				r.hold([]byte{'\n'})
				continue
			}
			if r.csv && r.quote == inQuote && !r.over {
				// A quote that has no other one must not swallow the rest of the file.
				r.over = true
				r.long++
			}
			r.end(r.buf)
		}
	}
}

// hold keeps a part of a row.
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

// end gives out a row.
func (r *rows) end(row []byte) {
	r.emit(row, r.line+1, r.over)
	r.line += int64(r.ends) + 1
	r.reset()
}

// split cuts a row of a CSV file into cells, appended to cells. The quotes of a cell
// are left out and two in it are one, as encoding/csv does it; a quote elsewhere is
// taken as it is, where encoding/csv sees an error.
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
