// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"bytes"
	"unicode/utf8"
)

const (
	esc       = 0x1b
	maxString = 4096 // bytes of an OSC or DCS string; a longer one is text
)

// octalTab is how syslog writes a tabulator.
var octalTab = []byte("#011")

// Clean returns the visible text of a raw line: without escape sequences and control
// characters, with backspaces applied. Where the cursor returned to the first column or
// moved to another line, the result has a \n, so that each text shown by the terminal
// is parsed separately.
//
// What follows a backspace replaces the rest of the line; for progress bars that equals
// the overwriting of a terminal. A clean line is returned unchanged; otherwise the
// result is appended to dst. Invalid UTF-8 is kept.
func Clean(dst, line []byte) []byte {
	if !needsCleaning(line) {
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
			case 'K', 'J': // erase: the erased text was parsed before
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
	if text := out[len(dst):]; bytes.Contains(text, octalTab) {
		out = append(out[:len(dst)], bytes.ReplaceAll(text, octalTab, []byte{'\t'})...)
	}
	return out
}

func needsCleaning(line []byte) bool {
	for i, c := range line {
		if class[c]&classHidden != 0 && (c != '#' || bytes.HasPrefix(line[i:], octalTab)) {
			return true
		}
	}
	return false
}

// escape measures the escape sequence at the start of b. For a CSI sequence, final is
// its last byte and param its first number (−1 if none).
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
		return i, 0, param // broken or cut off: drop it
	case c == ']' || c == 'P' || c == '_' || c == '^' || c == 'X':
		for i := 2; i < len(b) && i < maxString; i++ {
			if b[i] == 0x07 {
				return i + 1, 0, param
			}
			if b[i] == esc { // ESC \, or another sequence that ends it
				if i+1 < len(b) && b[i+1] == '\\' {
					return i + 2, 0, param
				}
				break
			}
		}
		return 2, 0, param // unterminated: show it rather than lose a report
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
