// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"bytes"
	"math"
	"slices"
)

// token is a piece of a line: a word, which may be joined (train/loss, mini-batch), a
// number, a drawn bar, or one byte of anything else.
type token struct {
	value    float64 // of a number
	from, to int32   // a number ends before its per cent sign
	kind     tokenKind
	sign     byte // of a sign; 0x80 stands for any run of bytes beyond ASCII
	gap      bool // behind white space, or at the line's beginning
	decimal  bool // as in number
	percent  bool // "35%"
	counter  bool // "1,500" or "12K", which only counts
	clean    bool // not the beginning of "2ms", "10:30:00" or "1.2.3"
}

type tokenKind uint8

const (
	tokenNone tokenKind = iota // beyond the line's ends
	tokenWord
	tokenNumber
	tokenBar // "[====>    ]", "|███   |", "━━━━"
	tokenSign
)

const (
	spareTokens = 4096 // more are released after the line
	maxBar      = 512  // bytes between a bar's delimiters
	minDrawn    = 10   // the same, of one without a percentage before it
)

// scan cuts a line into tokens when they are asked for.
type scan struct {
	line   []byte
	tokens []token
	from   int   // where the tokens begin
	end    int   // of the last token
	none   token // beyond the line
}

// start begins at b[i]. Tokens of the same line are kept.
func (s *scan) start(b []byte, i int) {
	if len(b) > 0 && len(b) == len(s.line) && &b[0] == &s.line[0] && i == s.from {
		return
	}
	if cap(s.tokens) > spareTokens {
		s.tokens = nil
	}
	s.line, s.from, s.end, s.tokens = b, i, i, s.tokens[:0]
}

// at returns the token at i, or one of no kind.
func (s *scan) at(i int) *token {
	if uint(i) < uint(len(s.tokens)) {
		return &s.tokens[i]
	}
	return s.more(i)
}

func (s *scan) more(i int) *token {
	for i >= len(s.tokens) {
		if !s.lex() {
			return &s.none
		}
	}
	if i < 0 {
		return &s.none
	}
	return &s.tokens[i]
}

func (s *scan) sign(i int) byte { return s.at(i).sign }

func (s *scan) ends(i int) bool { return s.at(i).kind == tokenNone }

// text returns the text from one token to another.
func (s *scan) text(from, to int) []byte { return s.line[s.at(from).from:s.at(to).to] }

// word returns the text of the word at i, or nil.
func (s *scan) word(i int) []byte {
	if t := s.at(i); t.kind == tokenWord {
		return s.line[t.from:t.to]
	}
	return nil
}

// beside returns the word that stands a single space before the token at i, or nil.
func (s *scan) beside(i int) []byte {
	if w := s.word(i - 1); w != nil && s.tokens[i-1].to+1 == s.tokens[i].from && s.line[s.tokens[i-1].to] == ' ' {
		return w
	}
	return nil
}

// integer reports whether the token at i is a counter's number.
func (s *scan) integer(i int) bool {
	t := s.at(i)
	return t.kind == tokenNumber && t.clean && t.value >= 0 && (!t.decimal || s.line[t.to-1] == '.')
}

// lex reads the next token, if there is one.
func (s *scan) lex() bool {
	b, i := s.line, s.end
	for i < len(b) && class[b[i]]&classSpace != 0 {
		i++
	}
	if i == len(b) {
		s.end = i
		return false
	}
	from, c := i, b[i]
	t := token{gap: i > s.end || len(s.tokens) == 0, from: int32(i)}
	i++
	switch {
	case class[c]&classLetter != 0:
		t.kind = tokenWord
		i = wordEnd(b, i)
		if i < len(b) && b[i] == '.' { // "loss0.571"
			i = beforeValue(b, from, i)
		}
	case class[c]&classDigit != 0, signed(b, from, t.gap):
		n, ok := parseNumber(b, from)
		if !ok {
			t.kind, t.sign = tokenSign, c
			break
		}
		t.kind = tokenNumber
		s.end = t.number(b, n)
		s.tokens = append(s.tokens, t)
		return true
	case c >= 0x80:
		t.kind, t.sign = tokenSign, 0x80
		for i--; i < len(b) && b[i] >= 0x80; i++ {
			if b[i] == 0xE2 && i+2 < len(b) && (b[i+1] == 0x94 || b[i+1] == 0x95) { // ━ and similar
				t.kind, t.sign = tokenBar, 0
			}
		}
	default:
		t.kind, t.sign = tokenSign, c
		if c == '|' || c == '[' {
			if e := s.bar(from); e > 0 {
				t.kind, t.sign, i = tokenBar, 0, e
			}
		}
	}
	s.end, t.to = i, int32(i)
	s.tokens = append(s.tokens, t)
	return true
}

// signed reports whether a number begins at b[i] with a sign or point.
func signed(b []byte, i int, gap bool) bool {
	if c := b[i]; c != '-' && c != '+' && c != '.' || i+1 == len(b) || !isDigit(b[i+1]) && (b[i+1] != '.' || c == '.') {
		return false
	}
	return gap || i > 0 && !isWord(b[i-1]) && b[i-1] != ')'
}

// wordEnd returns the end of the word at b[i], with LightGBM's 's.
func wordEnd(b []byte, i int) int {
	for {
		for i < len(b) && class[b[i]]&(classLetter|classDigit) != 0 {
			i++
		}
		if i+1 >= len(b) || class[b[i]]&classJoin == 0 || !isLetter(b[i+1]) && (b[i] != '@' || !isDigit(b[i+1])) {
			break
		}
		i++
	}
	if i+2 < len(b) && b[i] == '\'' && b[i+1] == 's' && b[i+2] == ' ' {
		i += 2
	}
	return i
}

// beforeValue returns the end of a loss' name at the end of which a decimal number begins
// without a sign, or end.
func beforeValue(b []byte, from, end int) int {
	i := end
	for i > from && isDigit(b[i-1]) {
		i--
	}
	if i == end || i < from+4 || !hasFold(b[i-4:], "loss") || end+1 == len(b) || !isDigit(b[end+1]) {
		return end
	}
	return i
}

// number sets a number with what belongs to it, and returns where the next token begins.
func (t *token) number(b []byte, n number) int {
	if k := thousands(b, n); k.end > n.end {
		n, t.counter = k, true
	} else if k := scaled(b, n); k.end > n.end && ends(b, k.end) {
		n, t.counter = k, true
	} else if e := n.end + 2; hasFold(b[n.end:], "it") && (e < len(b) && b[e] == '/' || t.from > 0 && b[t.from-1] == '/') && ends(b, e) {
		n.end, n.decimal, t.counter = e, false, true // "1.00it/70.0it"
	}
	i := n.end
	t.value, t.decimal, t.to = n.value, n.decimal, int32(i)
	if t.clean = ends(b, i); t.clean {
		if i < len(b) && b[i] == '%' {
			t.percent = true
			i++
		}
		return i
	}
	// The rest of 10:30:00.5, 2ms, 9.51it, 2025-01-01, but not of ESPnet's
	// "5epoch:train:376-750batch:".
	for i < len(b) {
		if c := b[i] | 0x20; (c == 'e' || c == 'b') && isDigit(b[i-1]) {
			k := i
			for k < len(b) && k < i+8 && isWord(b[k]) {
				k++
			}
			if kind := counts(b[i:k]); (kind == countEpoch || kind == countBatch) && k < len(b) && b[k] == ':' {
				from := i - 1
				for from > int(t.from) && isDigit(b[from-1]) {
					from--
				}
				n, _ = parseNumber(b[:i], from)
				t.value, t.decimal, t.to = n.value, n.decimal, int32(i)
				return i
			}
		}
		switch {
		case isWord(b[i]):
			i++
			continue
		case i+1 < len(b) && isDigit(b[i+1]):
			switch b[i] {
			case '.', ':', '-', '/', '%', '<':
				i += 2
				continue
			}
		}
		break
	}
	return i
}

// bar returns the end of a bar that begins at i, or 0. Behind a percentage, anything
// between two strokes is one.
func (s *scan) bar(i int) int {
	b := s.line
	if n := len(s.tokens) - 1; b[i] == '|' && n >= 0 && s.tokens[n].percent {
		if e := bytes.IndexByte(b[i+1:min(len(b), i+1+maxBar)], '|'); e >= 0 {
			return i + e + 2
		}
	}
	closing := b[i]
	if closing == '[' {
		closing = ']'
	}
	from, drawing := i+1, false
	for i = from; i < len(b) && i < from+maxBar && b[i] != closing; i++ {
		switch c := b[i]; {
		case c == '#' || c == '=' || c == '-' || c == '>' || c == 0xE2 || c&0xC0 == 0x80: // or a block, ━ and similar
			drawing = true
		case c != ' ' && c != '.':
			return 0
		}
	}
	if !drawing || i-from < minDrawn || i == len(b) || b[i] != closing {
		return 0
	}
	return i + 1
}

// value reads the value at token i: a number, possibly quoted or wrapped, as in
// tensor(0.5, grad_fn=…). next is the token after it.
func (s *scan) value(i int) (v token, next int, ok bool) {
	if t := s.at(i); t.kind == tokenNumber {
		return *t, i + 1, t.clean
	}
	quote := byte(0)
	if q := s.sign(i); q == '"' || q == '\'' {
		quote = q
		i++
	}
	if w := s.word(i); w != nil && s.sign(i+1) == '(' && !s.at(i+1).gap {
		if slices.ContainsFunc(wrappers, func(name string) bool { return equalFold(w, name) }) {
			if i += 2; s.sign(i) == '[' {
				i++
			}
		}
	}
	v = *s.at(i)
	next = i + 1
	switch {
	case v.kind == tokenWord || v.kind == tokenSign && (v.sign == '-' || v.sign == '+') && s.word(i+1) != nil && !s.at(i+1).gap: // nan, -inf
		n, special := parseNumber(s.line, int(v.from))
		if !special || !ends(s.line, n.end) {
			return v, next, false
		}
		for !s.ends(next) && int(s.at(next).from) < n.end { // -nan, nan.0
			next++
		}
		v = token{kind: tokenNumber, value: n.value, decimal: true, clean: true, from: v.from, to: int32(n.end)}
	case v.kind != tokenNumber || !v.clean:
		return v, next, false
	}
	if quote != 0 {
		if s.sign(next) == '%' {
			next++
		}
		if s.sign(next) != quote {
			return v, next, false
		}
		next++
	}
	return v, next, true
}

// after returns the offset behind the token before i.
func (s *scan) after(i int) int {
	t := s.at(i - 1)
	if t.percent {
		return int(t.to) + 1
	}
	return int(t.to)
}

// fraction reads the "/100" or "of 100" of "10/100" at token i.
func (s *scan) fraction(i int) (of float64, next int, ok bool) {
	if s.sign(i) != '/' && !equalFold(s.word(i), "of") || !s.integer(i+1) {
		return unset, i, false
	}
	if s.sign(i+2) == '/' && !s.at(i+2).gap { // a date or a path
		return unset, i, false
	}
	return s.at(i + 1).value, i + 2, true
}

// share reads the "(35.0%)" after a step at token i; tick is the unit of its last digit.
func (s *scan) share(i int) (percent, tick float64) {
	t := s.at(i + 1)
	if s.sign(i) != '(' || !t.percent || s.sign(i+2) != ')' {
		return unset, 0
	}
	tick = 1
	if text := s.text(i+1, i+1); t.decimal {
		tick = math.Pow10(bytes.IndexByte(text, '.') + 1 - len(text))
	}
	return t.value, tick
}
