// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import "unicode/utf8"

const (
	esc       = 0x1b
	maxString = 4096 // bytes of an OSC or DCS string; longer is taken for text
)

// Clean returns the visible text of a raw line: escape sequences (CSI, OSC and
// their kin) are left out, backspaces applied, other control characters dropped.
// Where the cursor went back to the first column or to another line, a \n stands in
// the result, so that each text the terminal showed can be looked at alone.
//
// A backspace moves back over one character; what is then written replaces the rest
// of the line (a terminal would overwrite as many characters as are written, which
// for progress bars is the same). A line without any of this is returned as it is;
// otherwise the result is appended to dst. Invalid UTF-8 is left alone.
func Clean(dst, line []byte) []byte {
	if !dirty(line) {
		return line
	}
	out := dst
	begin := len(out) // of the text since the last break
	cursor := -1      // where the next character goes, if not at the end
	brk := func() {
		if len(out) > begin {
			out = append(out, '\n')
			begin = len(out)
		}
		cursor = -1
	}
	put := func(s []byte) {
		if cursor >= 0 {
			out = out[:cursor]
			cursor = -1
		}
		out = append(out, s...)
	}
	for i := 0; i < len(line); {
		c := line[i]
		switch {
		case c == '\b':
			at := len(out)
			if cursor >= 0 {
				at = cursor
			}
			if at > begin {
				_, n := utf8.DecodeLastRune(out[begin:at])
				at -= n
			}
			i++
			if at == begin {
				brk()
			} else {
				cursor = at
			}
		case c == esc:
			n, final, param := escape(line[i:])
			i += n
			switch final {
			case 'G', '`': // to a column
				if param <= 1 {
					brk()
				} else {
					put([]byte{' '})
				}
			case 'A', 'B', 'E', 'F', 'H', 'f', 'd': // to another line
				brk()
			case 'K', 'J': // erase: what stood there was seen before
				if param >= 1 {
					brk()
				}
			case 'C': // forward
				put([]byte{' '})
			}
		case c == '\r' || c == '\n':
			brk()
			i++
		case c < 0x20 && c != '\t' || c == 0x7f:
			i++
		default:
			j := i + 1
			for j < len(line) && (line[j] >= 0x20 && line[j] != 0x7f || line[j] == '\t') {
				j++
			}
			put(line[i:j])
			i = j
		}
	}
	return out
}

// dirty says whether a line holds anything that Clean would change.
func dirty(line []byte) bool {
	for _, c := range line {
		if c < 0x20 && c != '\t' || c == 0x7f {
			return true
		}
	}
	return false
}

// escape measures the escape sequence at the beginning of b. final and param are set
// for a CSI sequence only: its last byte and its first number (−1 if it has none).
func escape(b []byte) (n int, final byte, param int) {
	param = -1
	if len(b) < 2 {
		return len(b), 0, param
	}
	switch c := b[1]; {
	case c == '[':
		i := 2
		number := true
		for ; i < len(b) && b[i] >= 0x30 && b[i] <= 0x3f; i++ {
			if number && isDigit(b[i]) && param < 100_000 {
				param = max(param, 0)*10 + int(b[i]-'0')
			} else {
				number = false
			}
		}
		for ; i < len(b) && b[i] >= 0x20 && b[i] <= 0x2f; i++ {
		}
		if i < len(b) && b[i] >= 0x40 && b[i] <= 0x7e {
			return i + 1, b[i], param
		}
		return i, 0, param // broken or cut off: drop what was read
	case c == ']' || c == 'P' || c == '_' || c == '^' || c == 'X':
		for i := 2; i < len(b) && i < maxString; i++ {
			if b[i] == 0x07 {
				return i + 1, 0, param
			}
			if b[i] == esc { // ESC \, or another sequence, which ends it as well
				if i+1 < len(b) && b[i+1] == '\\' {
					return i + 2, 0, param
				}
				break
			}
		}
		return 2, 0, param // never ended: show it rather than swallow a report
	case c >= 0x20 && c <= 0x2f: // ESC ( B
		i := 2
		for ; i < len(b) && b[i] >= 0x20 && b[i] <= 0x2f; i++ {
		}
		return min(i+1, len(b)), 0, param
	case c >= 0x30 && c <= 0x7e:
		return 2, 0, param
	}
	return 1, 0, param
}
