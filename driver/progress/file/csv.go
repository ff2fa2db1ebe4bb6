// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package file

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ebbtide/ebbtide/driver/progress"
)

const (
	maxColumns = 4096
	maxName    = 256     // bytes of a column's name; longer ones are ignored
	maxHeader  = 4 << 10 // bytes of a header that are kept in an offset
)

// table converts the rows of a CSV file to lines of JSON for a progress.Parser.
type table struct {
	metric string
	header []string
	known  map[string]bool // its names in lower case
	keys   []string
	comma  byte
	cells  []string
	line   []byte

	rows   int64 // since the header
	ragged int64 // rows whose number of cells differs from the header
	text   int64 // cells of the configured metric that are no numbers
}

// problem is a defect of a file's content; each kind is reported once.
type problem struct {
	kind string
	text string
}

func (p *problem) Error() string { return p.text }

func newProblem(kind, format string, args ...any) error {
	return &problem{kind, fmt.Sprintf(format, args...)}
}

// read returns a row as a line of JSON, nil if it has none; valid until the next call.
func (t *table) read(row []byte, line int64) ([]byte, error) {
	row = bytes.TrimSuffix(row, []byte("\r"))
	if len(bytes.TrimSpace(row)) == 0 {
		return nil, nil
	}
	comment := row[0] == '#'
	if t.header == nil {
		return nil, t.readHeader(row, line, comment)
	}
	if comment {
		return nil, nil
	}
	t.cells = split(t.cells[:0], row, t.comma)
	cells := trim(t.cells)
	if t.isHeader(cells) {
		t.setHeader(cells)
		return nil, nil
	}
	for len(cells) > len(t.header) && cells[len(cells)-1] == "" {
		cells = cells[:len(cells)-1] // a trailing comma
	}
	if len(cells) != len(t.header) {
		t.ragged++
		return nil, newProblem("cells", "line %d has %d cells and the header %d: such rows are skipped", line, len(cells), len(t.header))
	}
	t.rows++

	var err error
	out := append(t.line[:0], '{')
	for i, cell := range cells {
		key := t.keys[i]
		if key == "" || cell == "" {
			continue
		}
		text, ok := number(cell)
		if !ok {
			if commaNumber(cell) {
				err = newProblem("comma", "line %d: %.40q has a decimal comma, which is not read: write numbers with a decimal point", line, cell)
			}
			if t.metric != "" && strings.EqualFold(key, t.metric) && !missing(cell) {
				t.text++
			}
			continue
		}
		if len(out) > 1 {
			out = append(out, ", "...)
		}
		out = append(out, '"')
		out = append(out, key...)
		out = append(out, `": `...)
		out = append(out, text...)
	}
	t.line = append(out, '}')
	if len(t.line) == 2 {
		return nil, err
	}
	return t.line, err
}

func (t *table) readHeader(row []byte, line int64, comment bool) error {
	if comment {
		row = bytes.TrimSpace(row[1:]) // as NumPy writes it, or a remark
	}
	comma := delimiter(row)
	cells := trim(split(nil, row, comma))
	switch {
	case comment && (len(cells) < 2 || slices.Contains(cells, "")):
		return nil
	case row[0] == '{' || row[0] == '[':
		return newProblem("header", "line %d looks like JSON: set format to %q", line, jsonl)
	case !names(cells):
		if comment {
			return nil
		}
		return newProblem("header", "line %d is no header: the first row must name the columns", line)
	case len(cells) > maxColumns:
		return newProblem("header", "line %d names %d columns, at most %d are read", line, len(cells), maxColumns)
	}
	t.comma = comma
	t.setHeader(cells)
	return nil
}

func (t *table) setHeader(cells []string) {
	t.header, t.rows = slices.Clone(cells), 0
	t.keys, t.known = make([]string, len(cells)), make(map[string]bool, len(cells))
	metric := key(t.metric)
	// The parser searches lines for a metric that is not one word, so columns that only
	// contain its name must be omitted.
	words := strings.ContainsFunc(metric, func(r rune) bool { return r > 127 || !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' })
	for i, name := range cells {
		t.known[strings.ToLower(name)] = true
		k := key(name)
		_, measure := progress.InferGoal(k)
		switch {
		case len(name) > maxName:
		case metric == "" && measure:
			t.keys[i] = k
		case metric != "" && strings.EqualFold(k, metric):
			t.keys[i] = k
		case measure, words && strings.Contains(strings.ToLower(k), strings.ToLower(metric)):
		default:
			t.keys[i] = strings.ReplaceAll(k, " ", "_") // "global step" counts as global_step
		}
	}
}

func (t *table) isHeader(cells []string) bool {
	if len(cells) > maxColumns || !names(cells) {
		return false
	}
	same := len(cells) == len(t.header)
	shared, filled := false, 0
	for i, c := range cells {
		same = same && strings.EqualFold(c, t.header[i])
		if c == "" {
			continue
		}
		filled++
		_, measure := progress.InferGoal(c)
		shared = shared || measure || t.known[strings.ToLower(c)]
	}
	if filled < 2 || filled < len(cells)-1 {
		return same
	}
	return same || shared || t.rows == 0 // what came before was a title
}

// names reports whether cells may be column names: at least one name and no number.
func names(cells []string) bool {
	any := false
	for _, c := range cells {
		if _, ok := number(c); ok || commaNumber(c) {
			return false
		}
		any = any || c != "" && !missing(c)
	}
	return any
}

func delimiter(row []byte) byte {
	var n [256]int
	s := atStart
	for _, c := range row {
		if s = s.after(c, 0); s == atStart {
			n[c]++
		}
	}
	best := byte(',')
	for _, c := range []byte{';', '\t'} {
		if n[c] > n[best] {
			best = c
		}
	}
	return best
}

func trim(cells []string) []string {
	for i, c := range cells {
		cells[i] = strings.TrimSpace(c)
	}
	return cells
}

func key(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '"':
			return '\''
		case r == '\\':
			return '/'
		case r < ' ' || r == utf8.RuneError:
			return ' '
		}
		return r
	}, name)
}

// number returns a numeric cell as JSON text, without a per cent sign.
func number(cell string) (string, bool) {
	cell = strings.TrimSpace(strings.TrimSuffix(cell, "%"))
	if cell == "" {
		return "", false
	}
	switch c := cell[len(cell)-1] | 0x20; {
	case c == 'n' || c == 'f' || c == 'y':
		switch word := strings.ToLower(strings.TrimLeft(cell, "+-")); {
		case len(cell)-len(word) > 1:
		case word == "nan":
			return "NaN", true
		case (word == "inf" || word == "infinity") && cell[0] == '-':
			return "-Infinity", true
		case word == "inf" || word == "infinity":
			return "Infinity", true
		}
		return "", false
	}
	for i := range len(cell) {
		switch c := cell[i]; {
		case c >= '0' && c <= '9', c == '.', c == '-', c == '+', c == 'e', c == 'E':
		default:
			return "", false
		}
	}
	v, err := strconv.ParseFloat(cell, 64)
	return cell, err == nil || v != 0 // out of range is infinite
}

func commaNumber(cell string) bool {
	whole, fraction, ok := strings.Cut(cell, ",")
	if !ok || strings.ContainsRune(fraction, ',') {
		return false
	}
	_, ok = number(whole + "." + fraction)
	return ok && whole != "" && fraction != "" && !strings.ContainsAny(whole, ".eE") && fraction[0] >= '0' && fraction[0] <= '9'
}

func missing(cell string) bool {
	switch strings.ToLower(cell) {
	case "", "na", "n/a", "null", "none", "-", "--":
		return true
	}
	return false
}
