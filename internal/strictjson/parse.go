// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
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
	raw     []byte // as written
	str     string
	items   []*node
	members []member // in order, without repetitions
}

type member struct {
	name  string
	value *node
}

// parser makes nodes of a document's tokens, and knows the path of what it reads.
type parser struct {
	data   []byte
	plain  []byte // with 0 for numbers that JSON does not have
	tokens *json.Decoder
	errs   fields.Errors // errors that do not prevent further parsing
}

type syntaxError struct {
	path string
	pos  int
	error
}

// infinite matches what programs write for numbers that JSON does not have, and strings.
var infinite = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|[+-]?(?i:nan|inf(?:inity)?)\b`)

// parse accepts numbers that are not finite, for better errors later.
func parse(data []byte) (*node, fields.Errors, error) {
	plain := infinite.ReplaceAllFunc(data, func(found []byte) []byte {
		if found[0] == '"' {
			return found
		}
		return []byte("0" + strings.Repeat(" ", len(found)-1))
	})
	p := &parser{data: data, plain: plain, tokens: json.NewDecoder(bytes.NewReader(plain))}
	p.tokens.UseNumber()
	switch {
	case !utf8.Valid(data): // two different ids could become one
		return nil, nil, p.fail("", errors.New("is not valid UTF-8"))
	case len(bytes.TrimSpace(data)) == 0:
		return nil, nil, p.fail("", errors.New("is empty, must be a JSON object"))
	}
	root, err := p.value("", 0)
	if err != nil {
		return nil, nil, err
	}
	more := p.fail("", errors.New("has more data after its end"))
	if _, err := p.tokens.Token(); !errors.Is(err, io.EOF) {
		return nil, nil, more
	}
	return root, p.errs, nil
}

func (p *parser) fail(path string, err error) error { return syntaxError{path, p.next(), err} }

// next returns where the next token begins.
func (p *parser) next() int {
	at := int(p.tokens.InputOffset())
	return len(p.plain) - len(bytes.TrimLeft(p.plain[at:], " \t\r\n,:"))
}

func (p *parser) token(path string) (json.Token, error) {
	t, err := p.tokens.Token()
	switch {
	case err == nil:
		return t, nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("ends early")
	}
	return nil, p.fail(path, err)
}

func (p *parser) value(path string, depth int) (*node, error) {
	if depth > maxDepth {
		return nil, p.fail(path, fmt.Errorf("is nested more than %d levels deep", maxDepth))
	}
	start := p.next()
	t, err := p.token(path)
	if err != nil {
		return nil, err
	}
	n := new(node)
	switch t := t.(type) {
	case nil:
		n.kind = kindNull
	case bool:
		n.kind = kindBool
	case json.Number:
		n.kind = kindNumber
	case string:
		n.kind, n.str = kindString, t
	case json.Delim:
		n.kind = map[json.Delim]kind{'{': kindObject, '[': kindArray}[t]
		if err = p.fill(n, path, depth); err == nil {
			_, err = p.token(path) // the end
		}
	}
	n.raw = p.data[start:p.tokens.InputOffset()]
	if n.kind == kindNumber && string(n.raw) != t.(json.Number).String() {
		n.raw = infinite.Find(p.data[start:])
	}
	return n, err
}

// fill reads what a list or an object has.
func (p *parser) fill(n *node, path string, depth int) error {
	seen := make(map[string]bool)
	for p.tokens.More() {
		at, name := fields.Index(path, len(n.items)), ""
		if n.kind == kindObject {
			t, err := p.token(path)
			if err != nil {
				return err
			}
			name = t.(string) // the decoder allows nothing else
			at = fields.Member(path, name)
		}
		v, err := p.value(at, depth+1)
		switch {
		case err != nil:
			return err
		case n.kind == kindArray:
			n.items = append(n.items, v)
		case seen[name]:
			p.errs.Add(at, "is given more than once")
		default:
			seen[name] = true
			n.members = append(n.members, member{name, v})
		}
	}
	return nil
}

// place returns line and column of a position, from 1, in characters.
func place(data []byte, pos int) (line, column int) {
	before := string(data[:pos])
	line = 1 + strings.Count(before, "\n")
	column = 1 + utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:])
	return line, column
}
