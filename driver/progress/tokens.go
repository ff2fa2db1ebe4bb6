// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"bytes"
	"math"
)

// token is a piece of a line: a word, which may be joined (train/loss, mini-batch), a
// number, a drawn bar, or one byte of anything else.
type token struct {
	kind     tokenKind
	sign     byte // of a sign; 0x80 stands for any run of bytes beyond ASCII
	gap      bool // behind white space
	from, to int
	number        // its end is to, without a per cent sign
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
	maxTokens = 1024 // of a piece of a line
	maxBar    = 512  // bytes between a bar's delimiters
	minDrawn  = 10   // the same, of one without a percentage before it
)

// scan is a piece of a line while it is scanned.
type scan struct {
	line   []byte
	tokens []token
	begin  bool // the piece is the line's beginning
}

// at returns the token at i, or one of no kind.
func (s *scan) at(i int) *token {
	if uint(i) < uint(len(s.tokens)) {
		return &s.tokens[i]
	}
	return &token{}
}

func (s *scan) sign(i int) byte {
	if uint(i) < uint(len(s.tokens)) {
		return s.tokens[i].sign
	}
	return 0
}

// word returns the text of the word at i, or nil.
func (s *scan) word(i int) []byte {
	if uint(i) < uint(len(s.tokens)) && s.tokens[i].kind == tokenWord {
		return s.line[s.tokens[i].from:s.tokens[i].to]
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

// lex cuts the line from b[i] on, and returns where it stopped.
func (s *scan) lex(b []byte, i int) int {
	s.line, s.begin, s.tokens = b, i == 0, s.tokens[:0]
	for i < len(b) && len(s.tokens) < maxTokens {
		from := i
		for i < len(b) && class[b[i]]&classSpace != 0 {
			i++
		}
		if i == len(b) {
			break
		}
		s.tokens = append(s.tokens, token{gap: i > from || from == 0, from: i})
		t := &s.tokens[len(s.tokens)-1]
		switch c := b[i]; {
		case class[c]&classLetter != 0:
			t.kind = tokenWord
			i = wordEnd(b, i)
			if glued := valueIn(b, t.from, i); glued > 0 { // "loss0.571"
				i = glued
			}
		case class[c]&classDigit != 0 || (c == '-' || c == '+' || c == '.') && (t.gap || i > 0 && !isWord(b[i-1]) && b[i-1] != ')') && i+1 < len(b) && (isDigit(b[i+1]) || b[i+1] == '.' && c != '.'):
			n, ok := parseNumber(b, i)
			if !ok {
				t.kind, t.sign = tokenSign, c
				i++
				break
			}
			t.kind, t.number = tokenNumber, n
			i = t.finish(b)
		case c == '|' || c == '[':
			t.kind, t.sign = tokenSign, c
			i++
			if e := s.bar(b, i-1); e > 0 {
				t.kind, t.sign, i = tokenBar, 0, e
			}
		case c >= 0x80:
			t.kind, t.sign = tokenSign, 0x80
			for i < len(b) && b[i] >= 0x80 {
				if b[i] == 0xE2 && i+2 < len(b) && (b[i+1] == 0x94 || b[i+1] == 0x95) { // ━ and similar
					t.kind, t.sign = tokenBar, 0
				}
				i++
			}
		default:
			t.kind, t.sign = tokenSign, c
			i++
		}
		t.to = i
		if t.kind == tokenNumber {
			t.to = t.end
		}
	}
	return i
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

// valueIn returns where a decimal number begins that ends a loss' name without a sign, or 0.
func valueIn(b []byte, from, end int) int {
	if end+1 >= len(b) || b[end] != '.' || !isDigit(b[end+1]) || !isDigit(b[end-1]) {
		return 0
	}
	for end > from && isDigit(b[end-1]) {
		end--
	}
	if end-from < 4 || !hasFold(b[end-4:], "loss") {
		return 0
	}
	return end
}

// finish reads what belongs to the number, and returns where the next token begins.
func (t *token) finish(b []byte) int {
	if n := thousands(b, t.number); n.end > t.end {
		t.number, t.counter = n, true
	} else if n := scaled(b, t.number); n.end > t.end && ends(b, n.end) {
		t.number, t.counter, t.decimal = n, true, false
	} else if e := t.end + 2; hasFold(b[t.end:], "it") && (e < len(b) && b[e] == '/' || t.from > 0 && b[t.from-1] == '/') && ends(b, e) {
		t.end, t.counter, t.decimal = e, true, false // "1.00it/70.0it"
	}
	i := t.end
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
				for from > t.from && isDigit(b[from-1]) {
					from--
				}
				if n, ok := parseNumber(b[:i], from); ok {
					t.number = n
				}
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

// bar returns the end of a bar that begins at b[i], or 0. Behind a percentage, anything
// between two strokes is one.
func (s *scan) bar(b []byte, i int) int {
	if n := len(s.tokens) - 2; b[i] == '|' && n >= 0 && s.tokens[n].percent {
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
		case c == '#' || c == '=' || c == '-' || c == 0xE2 || c&0xC0 == 0x80: // or a block, ━ and similar
			drawing = true
		case c != ' ' && c != '>' && c != '.':
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
	quote := byte(0)
	if q := s.sign(i); q == '"' || q == '\'' {
		quote = q
		i++
	}
	if w := s.word(i); w != nil && s.sign(i+1) == '(' && !s.at(i+1).gap {
		for _, wrapper := range wrappers {
			if equalFold(w, wrapper[:len(wrapper)-1]) {
				if i += 2; s.sign(i) == '[' {
					i++
				}
				break
			}
		}
	}
	v = *s.at(i)
	next = i + 1
	switch {
	case v.kind == tokenWord || v.kind == tokenSign && (v.sign == '-' || v.sign == '+') && s.word(i+1) != nil && !s.at(i+1).gap: // nan, -inf
		n, special := parseNumber(s.line, v.from)
		if !special || !ends(s.line, n.end) {
			return v, next, false
		}
		if v.kind == tokenSign {
			next++
		}
		for next < len(s.tokens) && s.tokens[next].from < n.end { // nan.0
			next++
		}
		v.kind, v.number, v.to, v.clean = tokenNumber, n, n.end, true
	case v.kind != tokenNumber || !v.clean:
		return v, next, false
	}
	if quote != 0 {
		if s.sign(next) != quote {
			return v, next, false
		}
		next++
	}
	return v, next, true
}

// fraction reads the "/100" or "of 100" of "10/100" at token i.
func (s *scan) fraction(i int) (of float64, next int, ok bool) {
	if s.sign(i) != '/' && !equalFold(s.word(i), "of") || !s.integer(i+1) {
		return unset, i, false
	}
	if s.sign(i+2) == '/' && !s.at(i+2).gap { // a date or a path
		return unset, i, false
	}
	return s.tokens[i+1].value, i + 2, true
}

// share reads the "(35.0%)" after a step at token i; tick is the unit of its last digit.
func (s *scan) share(i int) (percent, tick float64) {
	t := s.at(i + 1)
	if s.sign(i) != '(' || !t.percent || s.sign(i+2) != ')' {
		return unset, 0
	}
	tick = 1
	if point := bytes.IndexByte(s.line[t.from:t.to], '.'); point >= 0 {
		tick = math.Pow10(point + 1 - (t.to - t.from))
	}
	return t.value, tick
}
