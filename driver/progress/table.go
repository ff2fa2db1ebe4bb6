// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import "bytes"

const (
	maxColumns = 24
	maxHeader  = 384 // bytes kept of a header
	maxBox     = 384 // bytes kept of a box
)

// table is the last printed table header: names above columns, as in fastai, YOLO,
// spaCy and scikit-learn.
type table struct {
	header []byte
	sep    byte // between columns, or ' ' for runs of spaces
	cols   [maxColumns]cell
	n      int
	trials bool   // a row is a training
	trial  string // the first row's
	many   bool   // of several trainings none is the job's
}

type cell struct{ from, to int }

func (c cell) of(line []byte) []byte { return line[c.from:c.to] }

// box holds the content of an open box, as Stable-Baselines prints: a name and a value
// between bars per line, a rule at the end. It is kept as text, "step=10, loss=0.5, ".
type box []byte

func (p *Parser) scanTable(line []byte) {
	start := 0
	for start < len(line) && isSpace(line[start]) {
		start++
	}
	if start < len(line) && line[start] == '[' { // xLearn: "[   10%   ]   1   0.57"
		if end := bytes.IndexByte(line, ']'); end > 0 && bytes.IndexFunc(line[:end], func(r rune) bool { return !notLetter(r) }) < 0 {
			line = bytes.TrimLeft(line[end+1:], " ")
			start = 0
		}
	}
	if start == len(line) || len(line) > 4*maxHeader {
		return
	}
	switch c := line[start]; {
	case isRule(line[start:]):
		p.above = p.above[:0]
		if len(p.box) > 0 {
			p.scanText(p.box, true)
			p.box = p.box[:0]
		}
	case isDigit(c) || c == '-' || c == '.':
		p.scanRow(line)
	case isLetter(c) || c == '#' || bar(line, start) > 0:
		if !p.scanRow(line) && !p.scanBox(line) {
			p.scanHeader(line)
		}
	}
}

func isRule(line []byte) bool {
	for _, c := range line {
		if c < 0x80 && c != '-' && c != '+' && c != '=' && c != '|' && !isSpace(c) {
			return false
		}
	}
	return len(line) >= 8
}

func bar(b []byte, i int) int {
	switch {
	case b[i] == '|':
		return 1
	case b[i] == 0xE2 && i+2 < len(b) && (b[i+1] == 0x94 && b[i+2] >= 0x82 && b[i+2] <= 0x83 || b[i+1] == 0x95 && b[i+2] == 0x91):
		return 3
	}
	return 0
}

// split cuts a line into cells at sep, or for a space at white space of at least gap.
// It returns the number of cells, -1 for too many.
func split(cols *[maxColumns]cell, line []byte, sep byte, gap int) int {
	n, from := 0, -1
	add := func(from, to int) bool {
		for from < to && isSpace(line[from]) {
			from++
		}
		for to > from && isSpace(line[to-1]) {
			to--
		}
		if n == len(cols) {
			return false
		}
		cols[n] = cell{from, to}
		n++
		return true
	}
	if sep != ' ' {
		from = 0
		for i := 0; i <= len(line); {
			width := 0
			switch {
			case i == len(line):
				width = 1
			case sep == '|':
				width = bar(line, i)
			case line[i] == sep:
				width = 1
			}
			if width == 0 {
				i++
				continue
			}
			outer := sep == '|' && (n == 0 && from == 0 || i == len(line)) && len(bytes.TrimSpace(line[from:i])) == 0
			if !outer && !add(from, i) {
				return -1
			}
			i += width
			from = i
		}
		return n
	}
	for i := 0; i <= len(line); i++ {
		if i < len(line) && !isSpace(line[i]) {
			if from < 0 {
				from = i
			}
			if line[i] == '[' { // a list is one cell
				i += max(0, bytes.IndexByte(line[i:], ']'))
			}
			continue
		}
		if from < 0 {
			continue
		}
		spaces := i
		for spaces < len(line) && isSpace(line[spaces]) {
			spaces++
		}
		if spaces-i < gap && spaces < len(line) {
			i = spaces - 1
			continue
		}
		if !add(from, i) {
			return -1
		}
		from = -1
		i = spaces - 1
		if spaces >= len(line) {
			break
		}
	}
	return n
}

// scanHeader accepts a line as a table's header if it has a column of steps or epochs,
// one of a metric, and no numbers. A header between bars may go over several lines.
func (p *Parser) scanHeader(line []byte) {
	if len(line) > maxHeader || bytes.Equal(line, p.table.header) {
		return
	}
	t := table{sep: ' '}
	trimmed := bytes.TrimLeft(line, " ")
	switch {
	case len(trimmed) == 0:
		return
	case bar(trimmed, 0) > 0:
		t.sep = '|'
		line = p.stack(line)
	case bytes.IndexByte(line, ':') >= 0 || bytes.IndexByte(line, '=') >= 0:
		return
	case bytes.IndexByte(trimmed, '\t') > 0:
		t.sep = '\t'
	case bytes.IndexByte(trimmed, ',') > 0:
		t.sep = ','
	case bytes.IndexByte(trimmed, ';') > 0:
		t.sep = ';'
	}
	t.header = line
	if p.columns(&t, 2) || t.sep == ' ' && p.columns(&t, 1) {
		t.header = bytes.Clone(line)
		p.table = t
	}
}

// stack returns a line of a header, with the lines above it column by column.
func (p *Parser) stack(line []byte) []byte {
	var over, cols [maxColumns]cell
	if n := split(&cols, line, '|', 1); n > 1 && n == split(&over, p.above, '|', 1) {
		joined := []byte("|")
		for i, c := range cols[:n] {
			joined = append(joined, bytes.TrimSpace(append(append(bytes.Clone(over[i].of(p.above)), ' '), c.of(line)...))...)
			joined = append(joined, '|')
		}
		line = joined
	}
	if p.above = append(p.above[:0], line...); len(p.above) > maxHeader {
		p.above = p.above[:0]
	}
	return line
}

func (p *Parser) columns(t *table, gap int) bool {
	line := t.header
	t.n = max(split(&t.cols, line, t.sep, gap), 0)
	if t.n > 0 && line[t.cols[0].from] == '#' { // a commented header
		first := &t.cols[0]
		if first.from++; first.from < first.to && isSpace(line[first.from]) {
			first.from++
		}
		if first.from == first.to {
			t.n = copy(t.cols[:], t.cols[1:t.n])
		}
	}
	if t.n == 0 || gap == 1 && p.tableCounter(t.cols[0].of(line)) == countNothing {
		return false // prose
	}
	counter, metric := false, false // a total will do for a metric
	for _, c := range t.cols[:t.n] {
		name := c.of(line)
		if len(name) == 0 || isDigit(name[0]) || equalFold(name, "name") { // of functions, for instance
			return false
		}
		t.trials = t.trials || hasFold(name, "trial")
		switch p.tableCounter(name) {
		case countNothing:
			if _, wanted := p.column(name); wanted {
				metric = true
			}
		case countLR:
		case countTotal, countPlainTotal:
			metric = true
		default:
			counter = true
		}
	}
	return counter && metric
}

func (p *Parser) column(name []byte) (candidate, bool) {
	last := name
	if at := bytes.LastIndexByte(name, ' '); at >= 0 && p.metric != "" {
		last = name[at+1:]
	}
	var w words
	if isBest(name[:max(0, bytes.IndexByte(name, ' '))]) {
		w.best = name
	}
	return p.candidate(last, name, &w, true)
}

// tableCounter is what a column counts; it also knows the short names of table headers.
func (p *Parser) tableCounter(name []byte) counter {
	name = bytes.TrimSuffix(name, []byte("."))
	switch {
	case equalFold(name, "e"):
		return countEpoch
	case string(name) == "#" || equalFold(name, "itn") || equalFold(name, "counter"):
		return countStep
	}
	return p.counter(name)
}

func (p *Parser) scanRow(line []byte) bool {
	t := &p.table
	if t.n == 0 || t.sep == '|' && bar(bytes.TrimLeft(line, " "), 0) == 0 {
		return false
	}
	var row [maxColumns]cell
	n := split(&row, line, t.sep, 1)
	if t.sep == ' ' {
		for i := range max(n, 0) {
			if row[i].of(line)[row[i].to-row[i].from-1] == ':' { // YOLO's bar follows
				row[i].to--
				n = i + 1
				break
			}
			if !numeric(row[i].of(line)) {
				return false
			}
		}
	}
	if n < 2 || n != t.n && t.sep != ' ' {
		return false
	}

	f := &p.found
	before, next := *f, 0
	for i, c := range t.cols[:t.n] {
		var value cell
		if n == t.n {
			value = row[i]
		} else { // some are empty: use what stands below the name
			for next < n && row[next].to <= c.from {
				next++
			}
			if next < n && row[next].from < c.to {
				value = row[next]
				next++
			}
		}
		if !p.scanCell(c.of(t.header), value.of(line)) {
			*f = before
			return false
		}
	}
	if f.ncands == 0 && !(isSet(f.step) && (isSet(f.total) || isSet(f.plainTotal))) {
		*f = before
		return false
	}
	if t.trials { // of several, none is the job's: the table's end tells
		*f = before
		trial := row[0].of(line)
		if t.trial == "" {
			t.trial = string(trial)
		}
		if t.many = t.many || t.trial != string(trial); t.many {
			p.box = p.box[:0]
			return true
		}
		for i, c := range t.cols[:t.n] {
			p.boxed(c.of(t.header), row[i].of(line))
		}
	}
	return true
}

func (p *Parser) scanCell(name, value []byte) bool {
	kind := p.tableCounter(name)
	if kind == countNothing && len(value) > 1 && value[0] == '[' { // the first of a list: a sum, or its first term
		value = value[1:max(1, bytes.IndexAny(value, ",]"))]
	}
	s := &p.scan
	s.start(value, 0)
	n, next, ok := s.value(0)
	switch kind {
	case countNothing:
		if c, wanted := p.column(name); wanted && ok && !n.counter && s.ends(next) {
			c.value = n.value
			p.found.add(c)
		}
		return true
	case countLR:
		if ok {
			p.found.lr = n.value
		}
		return true
	}
	if !ok || n.value < 0 || n.value >= maxStep {
		return false
	}
	return s.ends(p.count(kind, n, next))
}

func numeric(b []byte) bool {
	switch c := lower(b[0]); {
	case isDigit(c) || c == '.' || c == '-' || c == '+' || c == '[':
		return true
	case c == 'n' || c == 'i':
		return hasFold(b, "nan") || hasFold(b, "inf") || hasFold(b, "none") || hasFold(b, "n/a")
	}
	return false
}

func (p *Parser) scanBox(line []byte) bool {
	trimmed := bytes.TrimSpace(line)
	if len(trimmed) < 5 || bar(trimmed, 0) == 0 {
		return false
	}
	var row [maxColumns]cell
	if split(&row, trimmed, '|', 1) != 2 {
		return false
	}
	return p.boxed(row[0].of(trimmed), row[1].of(trimmed))
}

// boxed keeps a name and its value, of a counter or metric, until the box is closed.
func (p *Parser) boxed(name, value []byte) bool {
	p.scan.start(value, 0)
	if _, next, ok := p.scan.value(0); !ok || !p.scan.ends(next) || len(name) == 0 || !isLetter(name[0]) {
		return false
	}
	if p.counter(name) == countNothing {
		if _, wanted := p.column(name); !wanted {
			return true
		}
	}
	if len(p.box)+len(name)+len(value)+4 <= maxBox {
		p.box = append(append(append(append(p.box, name...), " = "...), value...), ',')
	}
	return true
}

func (p *Parser) setTables(st State) {
	p.scanHeader([]byte(st.Header))
	p.box = append(p.box[:0], st.Box[:min(len(st.Box), maxBox)]...)
}
