// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import "bytes"

const (
	maxLine   = 64 << 10 // bytes of a line that are kept
	maxTail   = 4 << 10  // bytes of the end of a longer one that are looked at
	keepSpare = 4 << 10  // buffers larger than this are given back when empty
)

// rewind is a run of backspaces that ends a line: Keras writes as many as its bar was
// long before it draws it again.
var rewind = []byte("\b\b\b\b\b\b\b\b")

// splitter cuts a stream into lines and gives them to a parser. It holds at most
// maxLine bytes.
type splitter struct {
	parser *Parser
	emit   func(Report)

	partial []byte // of the line that is not ended yet
	clean   []byte // Clean's buffer
	over    bool   // the line is longer than maxLine: partial is a window on its end
	done    bool   // the line has given its report
	pending int64  // bytes since the last end of a line
	line    int64  // complete physical lines before
	lines   int64  // lines and parts of lines that were looked at
	long    int64  // lines longer than maxLine
}

// feed takes the next bytes of the stream.
func (s *splitter) feed(chunk []byte) {
	if kept := len(s.partial) - len(bytes.TrimRight(s.partial, "\b")); kept > 0 { // a rewind in two parts
		rest := bytes.TrimLeft(chunk, "\b")
		if kept+len(chunk)-len(rest) >= len(rewind) {
			s.partial = s.partial[:len(s.partial)-kept]
			s.end(nil)
			chunk = rest
		}
	}
	rewinds := bytes.IndexByte(chunk, '\b') >= 0
	for len(chunk) > 0 {
		at := bytes.IndexByte(chunk, '\n')
		segment := chunk
		if at >= 0 {
			segment = chunk[:at]
		}
		// Ends of lines within the physical line.
		for {
			r := bytes.IndexByte(segment, '\r')
			width := 1
			if rewinds {
				within := segment
				if r >= 0 {
					within = segment[:r]
				}
				if b := bytes.Index(within, rewind); b >= 0 {
					r, width = b, len(rewind)
					for r+width < len(segment) && segment[r+width] == '\b' {
						width++
					}
				}
			}
			if r < 0 {
				break
			}
			s.end(segment[:r])
			segment = segment[r+width:]
		}
		if at < 0 {
			s.hold(segment)
			return
		}
		s.end(segment)
		s.line++
		chunk = chunk[at+1:]
	}
}

// end finishes a line with its last bytes.
func (s *splitter) end(rest []byte) {
	switch {
	case s.over:
		s.window(rest)
		if !s.done {
			tail := s.partial
			if len(tail) > maxTail {
				tail = tail[len(tail)-maxTail:]
			}
			// The first word is cut.
			if sp := bytes.IndexAny(tail, " \t,;|"); sp >= 0 {
				s.look(tail[sp:])
			}
		}
	case len(s.partial) == 0:
		if len(rest) > maxLine {
			s.long++
			s.look(trusted(rest[:maxLine]))
			if !s.done {
				tail := rest[len(rest)-maxTail:]
				if sp := bytes.IndexAny(tail, " \t,;|"); sp >= 0 {
					s.look(tail[sp:])
				}
			}
		} else if len(rest) > 0 {
			s.look(rest)
		}
	case len(s.partial)+len(rest) > maxLine:
		s.overflow(rest)
		s.end(nil)
		return
	default:
		s.partial = append(s.partial, rest...)
		if !s.done {
			s.look(s.partial)
		}
	}
	s.reset()
}

// reset forgets the line that is not ended.
func (s *splitter) reset() {
	s.partial = s.partial[:0]
	if cap(s.partial) > keepSpare {
		s.partial = nil
	}
	s.over, s.done, s.pending = false, false, 0
}

// hold keeps the beginning of a line.
func (s *splitter) hold(part []byte) {
	s.pending += int64(len(part))
	switch {
	case s.over:
		s.window(part)
	case len(s.partial)+len(part) > maxLine:
		s.overflow(part)
	default:
		s.partial = append(s.partial, part...)
	}
}

// overflow looks at the first maxLine bytes of a line that is longer, and goes on
// with a window on its end.
func (s *splitter) overflow(part []byte) {
	room := maxLine - len(s.partial)
	s.partial = append(s.partial, part[:room]...)
	s.long++
	if !s.done {
		s.look(trusted(s.partial))
	}
	s.over = true
	s.window(part[room:])
}

// window keeps the last bytes of a line that is too long.
func (s *splitter) window(part []byte) {
	if len(part) >= maxTail {
		s.partial = append(s.partial[:0], part[len(part)-maxTail:]...)
		return
	}
	if len(s.partial)+len(part) > maxLine {
		n := copy(s.partial, s.partial[len(s.partial)-maxTail:])
		s.partial = s.partial[:n]
	}
	s.partial = append(s.partial, part...)
}

// idle looks at a line that has not been ended for long: without its last word,
// which may go on, and not within a dict. The line then gives no other report.
func (s *splitter) idle() {
	if s.over || s.done || len(s.partial) == 0 {
		return
	}
	part := trusted(s.partial)
	if at := dictStart(part); at >= 0 && part[len(part)-1] != '}' {
		return
	}
	s.look(part)
}

// trusted cuts off the last word of a part of a line, unless something ends it.
func trusted(part []byte) []byte {
	for i := len(part) - 1; i >= 0; i-- {
		switch part[i] {
		case ' ', '\t', ',', ';', ']', ')', '}', '|':
			return part[:i+1]
		}
	}
	return nil
}

// look gives a line, or what is known of it, to the parser.
func (s *splitter) look(raw []byte) {
	s.lines++
	text := raw
	if dirty(raw) {
		text = Clean(s.clean[:0], raw)
		if cap(text) <= maxLine+keepSpare {
			s.clean = text[:0]
		}
		if bytes.IndexByte(text, '\n') >= 0 {
			for len(text) > 0 {
				part := text
				if at := bytes.IndexByte(text, '\n'); at >= 0 {
					part, text = text[:at], text[at+1:]
				} else {
					text = nil
				}
				s.parse(part)
			}
			return
		}
	}
	s.parse(text)
}

func (s *splitter) parse(text []byte) {
	r, ok := s.parser.Parse(text)
	if !ok {
		return
	}
	s.done = true
	r.Line = s.line + 1
	s.emit(r)
}
