// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package strictjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ebbtide/ebbtide/internal/fields"
)

// maxDepth bounds the nesting, and so the stack, for hostile input.
const maxDepth = 64

type kind int

const (
	kindNull kind = iota
	kindBool
	kindNumber
	kindString
	kindArray
	kindObject
)

// String names a kind as in error messages.
func (k kind) String() string {
	return [...]string{"null", "a bool", "a number", "a string", "a list", "an object"}[k]
}

type node struct {
	kind    kind
	raw     []byte  // as written
	number  float64 // NaN and ±Inf if the document has them, or the number is too large
	str     string
	items   []*node
	members []member // in order, without repetitions
}

type member struct {
	name  string
	value *node
}

// parser parses a JSON document (RFC 8259) into nodes. Unlike encoding/json, for better
// errors, it tracks the path, accepts NaN and Infinity as numbers that are refused
// later, reports repeated names, and refuses invalid UTF-8, which encoding/json
// replaces (two different ids could become one).
type parser struct {
	data []byte
	pos  int
	errs fields.Errors // errors that do not prevent further parsing
}

type syntaxError struct {
	path    string
	pos     int
	problem string
}

func (e *syntaxError) Error() string { return e.problem }

func (p *parser) fail(path, format string, args ...any) error {
	return &syntaxError{path: path, pos: p.pos, problem: fmt.Sprintf(format, args...)}
}

func (p *parser) document() (*node, error) {
	p.space()
	if p.pos == len(p.data) {
		return nil, p.fail("", "is empty, must be a JSON object")
	}
	root, err := p.value("", 0)
	if err != nil {
		return nil, err
	}
	p.space()
	if p.pos < len(p.data) {
		return nil, p.fail("", "more data after the end of the document: %s", p.glimpse())
	}
	return root, nil
}

func (p *parser) value(path string, depth int) (*node, error) {
	if depth > maxDepth {
		return nil, p.fail(path, "is nested more than %d levels deep", maxDepth)
	}
	start := p.pos
	var n *node
	var err error
	switch p.peek() {
	case '{':
		n, err = p.object(path, depth)
	case '[':
		n, err = p.array(path, depth)
	case '"':
		var s string
		if s, err = p.str(path); err == nil {
			n = &node{kind: kindString, str: s}
		}
	default:
		n, err = p.word(path)
	}
	if err != nil {
		return nil, err
	}
	n.raw = p.data[start:p.pos]
	return n, nil
}

func (p *parser) object(path string, depth int) (*node, error) {
	n := &node{kind: kindObject}
	seen := make(map[string]bool)
	p.pos++ // {
	p.space()
	if p.accept('}') {
		return n, nil
	}
	for {
		if p.peek() != '"' {
			return nil, p.fail(path, "expected the name of a member in double quotes, got %s", p.glimpse())
		}
		name, err := p.str(path)
		if err != nil {
			return nil, err
		}
		at := fields.Member(path, name)
		p.space()
		if !p.accept(':') {
			return nil, p.fail(at, "expected ':' after the name, got %s", p.glimpse())
		}
		p.space()
		v, err := p.value(at, depth+1)
		if err != nil {
			return nil, err
		}
		if seen[name] {
			p.errs.Add(at, "is given more than once")
		} else {
			seen[name] = true
			n.members = append(n.members, member{name, v})
		}
		p.space()
		if p.accept('}') {
			return n, nil
		}
		if !p.accept(',') {
			return nil, p.fail(at, "expected ',' or '}' after the value, got %s", p.glimpse())
		}
		p.space()
	}
}

func (p *parser) array(path string, depth int) (*node, error) {
	n := &node{kind: kindArray}
	p.pos++ // [
	p.space()
	if p.accept(']') {
		return n, nil
	}
	for {
		at := fields.Index(path, len(n.items))
		v, err := p.value(at, depth+1)
		if err != nil {
			return nil, err
		}
		n.items = append(n.items, v)
		p.space()
		if p.accept(']') {
			return n, nil
		}
		if !p.accept(',') {
			return nil, p.fail(at, "expected ',' or ']' after the value, got %s", p.glimpse())
		}
		p.space()
	}
}

func (p *parser) str(path string) (string, error) {
	start := p.pos
	for i := start + 1; i < len(p.data); i++ {
		switch p.data[i] {
		case '\\':
			i++
		case '"':
			token := p.data[start : i+1]
			if !utf8.Valid(token) {
				return "", p.fail(path, "holds a string that is not valid UTF-8: %q", token)
			}
			var s string
			if err := json.Unmarshal(token, &s); err != nil {
				return "", p.fail(path, "holds a string that is not valid: %s", clip(token))
			}
			p.pos = i + 1
			return s, nil
		}
	}
	return "", p.fail(path, "holds a string that does not end")
}

// word parses what is neither string nor list nor object, up to the next delimiter.
func (p *parser) word(path string) (*node, error) {
	start := p.pos
	end := start
	for end < len(p.data) && bytes.IndexByte([]byte(" \t\r\n,:[]{}\""), p.data[end]) < 0 {
		end++
	}
	text := string(p.data[start:end])
	n := &node{kind: kindNumber}
	switch strings.ToLower(strings.TrimLeft(text, "+-")) {
	case "nan":
		n.number = math.NaN()
	case "inf", "infinity":
		n.number = math.Inf(1)
	default:
		switch {
		case text == "":
			return nil, p.fail(path, "expected a value, got %s", p.glimpse())
		case text == "null":
			n.kind = kindNull
		case text == "true", text == "false":
			n.kind = kindBool
		case json.Valid(p.data[start:end]): // only a number remains
			// Too large a number becomes ±Inf and is refused as such.
			n.number, _ = strconv.ParseFloat(text, 64)
			if n.number == 0 {
				n.number = 0 // −0 would look odd
			}
		default:
			return nil, p.fail(path, "expected a value, got %s", p.glimpse())
		}
	}
	p.pos = end
	return n, nil
}

func (p *parser) space() {
	for p.pos < len(p.data) && bytes.IndexByte([]byte(" \t\r\n"), p.data[p.pos]) >= 0 {
		p.pos++
	}
}

func (p *parser) peek() byte {
	if p.pos == len(p.data) {
		return 0
	}
	return p.data[p.pos]
}

func (p *parser) accept(c byte) bool {
	if p.pos < len(p.data) && p.data[p.pos] == c {
		p.pos++
		return true
	}
	return false
}

func (p *parser) glimpse() string {
	if p.pos == len(p.data) {
		return "the end of the document"
	}
	return clip(p.data[p.pos:])
}

func clip(b []byte) string {
	if len(b) > 20 {
		return strconv.Quote(string(b[:20])) + "…"
	}
	return strconv.Quote(string(b))
}

// place returns line and column of a position, from 1, in characters.
func place(data []byte, pos int) (line, column int) {
	before := data[:pos]
	line = 1 + bytes.Count(before, []byte("\n"))
	column = 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	return line, column
}
