// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package validate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// position is a position in a jobspec, which Nomad's parser does not keep, in a tree of attributes
// and blocks by name.
type position struct {
	line, column      int
	label             string // of a block; anyLabel for dynamic blocks
	text              string // string value in a JSON file
	null, nullElement bool   // a null; one in a list
	parts             map[string][]*position
}

// anyLabel is the label of blocks whose labels are computed.
const anyLabel = "*"

func (p *position) add(name string, part *position) {
	if p.parts == nil {
		p.parts = make(map[string][]*position)
	}
	p.parts[name] = append(p.parts[name], part)
}

// part returns an attribute or block, nil if absent.
func (p *position) part(name string) *position {
	if all := p.all(name); len(all) > 0 {
		return all[0]
	}
	return nil
}

// hasNullElement reports whether a list contains null.
func (p *position) hasNullElement() bool {
	for _, parts := range p.parts {
		for _, part := range parts {
			if part.nullElement || part.hasNullElement() {
				return true
			}
		}
	}
	return false
}

// all returns the blocks of a name, in HCL's or the API's spelling.
func (p *position) all(name string) []*position {
	if p == nil {
		return nil
	}
	if found := p.parts[name]; found != nil {
		return found
	}
	return p.parts[apiName(name)]
}

func (p *position) labelled(name, label string) *position {
	var made *position
	for _, b := range p.all(name) {
		switch own := b.part("Name"); {
		case b.label == label, own != nil && own.text == label:
			return b
		case b.label == anyLabel:
			made = b
		case b.label == "" && b.parts[label] != nil: // HCL's JSON syntax
			return b.parts[label][0]
		}
	}
	return made
}

// apiName is the API's spelling of a jobspec field.
func apiName(name string) string {
	switch name {
	case "group":
		return "TaskGroups"
	case "task":
		return "Tasks"
	case "constraint":
		return "Constraints"
	case "parameterized":
		return "ParameterizedJob"
	case "logs":
		return "LogConfig"
	}
	var out strings.Builder
	for word := range strings.SplitSeq(name, "_") {
		if word != "" {
			out.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return out.String()
}

// positionsOf returns the places of a valid jobspec.
func positionsOf(body []byte) *position {
	if isJSON(body) {
		return placesInJSON(body)
	}
	file, _ := hclsyntax.ParseConfig(body, "", hcl.InitialPos) // errors are reported by Nomad's parser
	root := &position{line: 1, column: 1}
	if b, ok := file.Body.(*hclsyntax.Body); ok {
		placesInBody(root, b)
	}
	return root
}

func placesInBody(p *position, body *hclsyntax.Body) {
	for name, attr := range body.Attributes {
		for _, part := range placesInExpr(attr.NameRange.Start, attr.Expr) {
			p.add(name, part)
		}
	}
	for _, block := range body.Blocks {
		kind, content := block.Type, block.Body
		part := &position{line: block.TypeRange.Start.Line, column: block.TypeRange.Start.Column}
		if len(block.Labels) > 0 {
			part.label = block.Labels[0]
		}
		if kind == "dynamic" && len(block.Labels) > 0 {
			p.add(kind, part)
			kind, part.label = block.Labels[0], anyLabel
			for _, b := range block.Body.Blocks {
				if b.Type == "content" {
					content = b.Body
				}
			}
		}
		placesInBody(part, content)
		p.add(kind, part)
	}
}

// placesInExpr returns the place of a value, or those of a list's elements.
func placesInExpr(at hcl.Pos, expr hclsyntax.Expression) []*position {
	switch e := expr.(type) {
	case *hclsyntax.TupleConsExpr:
		var all []*position
		for _, element := range e.Exprs {
			all = append(all, placesInExpr(element.Range().Start, element)...)
		}
		if len(all) > 0 {
			return all
		}
	case *hclsyntax.ObjectConsExpr:
		p := &position{line: at.Line, column: at.Column}
		for _, item := range e.Items {
			key, diags := item.KeyExpr.Value(nil)
			if diags.HasErrors() || key.Type() != cty.String || key.IsNull() || !key.IsKnown() {
				continue
			}
			for _, part := range placesInExpr(item.KeyExpr.Range().Start, item.ValueExpr) {
				p.add(key.AsString(), part)
			}
		}
		return []*position{p}
	}
	return []*position{{line: at.Line, column: at.Column}}
}

// isJSON detects JSON by its first character; Nomad's HCL JSON allows nothing before it.
func isJSON(body []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(body), []byte("{")) }

type jsonWalker struct {
	body  []byte
	lines []int // their offsets
	dec   *json.Decoder
}

func placesInJSON(body []byte) *position {
	w := jsonWalker{body: body, lines: []int{0}, dec: json.NewDecoder(bytes.NewReader(body))}
	for i, b := range body {
		if b == '\n' {
			w.lines = append(w.lines, i+1)
		}
	}
	all, err := w.value()
	if err != nil || len(all) == 0 {
		return &position{line: 1, column: 1}
	}
	return all[0]
}

func (w *jsonWalker) at(offset int) *position {
	line := sort.SearchInts(w.lines, offset+1)
	return &position{line: line, column: offset - w.lines[line-1] + 1}
}

// next is the place of the next token.
func (w *jsonWalker) next() *position {
	i := int(w.dec.InputOffset())
	for i < len(w.body) && strings.IndexByte(" \t\r\n,:", w.body[i]) >= 0 {
		i++
	}
	return w.at(min(i, len(w.body)))
}

// value reads a value and returns its place, or those of a list's elements.
func (w *jsonWalker) value() ([]*position, error) {
	p := w.next()
	token, err := w.dec.Token()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('['):
		var all []*position
		for w.dec.More() {
			elements, err := w.value()
			if err != nil {
				return nil, err
			}
			for _, e := range elements {
				e.nullElement = e.null
			}
			all = append(all, elements...)
		}
		_, err = w.dec.Token()
		return all, err
	case json.Delim('{'):
		for w.dec.More() {
			at := w.next()
			name, err := w.dec.Token()
			if err != nil {
				return nil, err
			}
			parts, err := w.value()
			if err != nil {
				return nil, err
			}
			if len(parts) == 1 { // point to its name
				parts[0].line, parts[0].column = at.line, at.column
			}
			for _, part := range parts {
				p.add(fmt.Sprint(name), part)
			}
		}
		_, err = w.dec.Token()
		return []*position{p}, err
	}
	p.text, _ = token.(string)
	p.null = token == nil
	return []*position{p}, nil
}

func placeOfError(body []byte, err error) *position {
	w := jsonWalker{body: body, lines: []int{0}}
	for i, b := range body {
		if b == '\n' {
			w.lines = append(w.lines, i+1)
		}
	}
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return w.at(max(0, int(syntax.Offset)-1))
	case errors.As(err, &kind):
		return w.at(max(0, int(kind.Offset)-1))
	case errors.Is(err, io.ErrUnexpectedEOF):
		return w.at(len(body))
	}
	return w.at(0)
}
