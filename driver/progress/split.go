// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import "bytes"

const (
	maxLine   = 64 << 10 // bytes of a line that are kept
	maxTail   = 4 << 10  // bytes parsed at the end of a longer one
	keepSpare = 4 << 10  // larger buffers are released when empty
)

// rewind is a run of backspaces that ends a line, as Keras writes before redrawing its
// bar.
var rewind = []byte("\b\b\b\b\b\b\b\b")

// splitter cuts a stream into lines for a parser. It holds at most maxLine bytes.
type splitter struct {
	parser *Parser
	emit   func(Report)

	partial []byte // of the unfinished line
	clean   []byte // Clean's buffer
	over    bool   // the line exceeds maxLine: partial is a window on its end
	done    bool   // the line has been reported
	pending int64  // bytes since the last end of a line
	line    int64  // complete physical lines before
	lines   int64  // lines and parts of lines parsed
	long    int64  // lines longer than maxLine
}

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
				s.parseRaw(tail[sp:])
			}
		}
	case len(s.partial) == 0:
		if len(rest) > maxLine {
			s.long++
			s.parseRaw(completeWords(rest[:maxLine]))
			if !s.done {
				tail := rest[len(rest)-maxTail:]
				if sp := bytes.IndexAny(tail, " \t,;|"); sp >= 0 {
					s.parseRaw(tail[sp:])
				}
			}
		} else if len(rest) > 0 {
			s.parseRaw(rest)
		}
	case len(s.partial)+len(rest) > maxLine:
		s.overflow(rest)
		s.end(nil)
		return
	default:
		s.partial = append(s.partial, rest...)
		if !s.done {
			s.parseRaw(s.partial)
		}
	}
	s.reset()
}

func (s *splitter) reset() {
	s.partial = s.partial[:0]
	if cap(s.partial) > keepSpare {
		s.partial = nil
	}
	s.over, s.done, s.pending = false, false, 0
}

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

// overflow parses the first maxLine bytes of a longer line and continues with a window
// on its end.
func (s *splitter) overflow(part []byte) {
	room := maxLine - len(s.partial)
	s.partial = append(s.partial, part[:room]...)
	s.long++
	if !s.done {
		s.parseRaw(completeWords(s.partial))
	}
	s.over = true
	s.window(part[room:])
}

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

// idle parses a line that has not grown for long: without its last word, which may
// continue, and not within a dict. The line then gives no other report.
func (s *splitter) idle() {
	if s.over || s.done || len(s.partial) == 0 {
		return
	}
	part := completeWords(s.partial)
	if at := dictStart(part); at >= 0 && part[len(part)-1] != '}' {
		return
	}
	s.parseRaw(part)
}

func completeWords(part []byte) []byte {
	for i := len(part) - 1; i >= 0; i-- {
		switch part[i] {
		case ' ', '\t', ',', ';', ']', ')', '}', '|':
			return part[:i+1]
		}
	}
	return nil
}

func (s *splitter) parseRaw(raw []byte) {
	s.lines++
	text := raw
	if needsCleaning(raw) {
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
