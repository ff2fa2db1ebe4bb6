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

// place is a position in a jobspec, which Nomad's parser does not keep, in a tree of attributes
// and blocks by name.
type place struct {
	line, column int
	label        string // of a block; anyLabel for dynamic blocks
	text         string // string value in a JSON file
	null, hole   bool   // a null; one in a list
	parts        map[string][]*place
}

// anyLabel is the label of blocks whose labels are computed.
const anyLabel = "*"

func (p *place) add(name string, part *place) {
	if p.parts == nil {
		p.parts = make(map[string][]*place)
	}
	p.parts[name] = append(p.parts[name], part)
}

// part returns an attribute or block, nil if absent.
func (p *place) part(name string) *place {
	if all := p.all(name); len(all) > 0 {
		return all[0]
	}
	return nil
}

// hasHole reports whether a list contains null.
func (p *place) hasHole() bool {
	for _, parts := range p.parts {
		for _, part := range parts {
			if part.hole || part.hasHole() {
				return true
			}
		}
	}
	return false
}

// all returns the blocks of a name, in HCL's or the API's spelling.
func (p *place) all(name string) []*place {
	if p == nil {
		return nil
	}
	if found := p.parts[name]; found != nil {
		return found
	}
	return p.parts[apiName(name)]
}

// labelled returns the block with the label.
func (p *place) labelled(name, label string) *place {
	var made *place
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

// placesOf returns the places of a valid jobspec.
func placesOf(body []byte) *place {
	if isJSON(body) {
		return placesInJSON(body)
	}
	file, _ := hclsyntax.ParseConfig(body, "", hcl.InitialPos) // errors are reported by Nomad's parser
	root := &place{line: 1, column: 1}
	if b, ok := file.Body.(*hclsyntax.Body); ok {
		placesInBody(root, b)
	}
	return root
}

func placesInBody(p *place, body *hclsyntax.Body) {
	for name, attr := range body.Attributes {
		for _, part := range placesInExpr(attr.NameRange.Start, attr.Expr) {
			p.add(name, part)
		}
	}
	for _, block := range body.Blocks {
		kind, content := block.Type, block.Body
		part := &place{line: block.TypeRange.Start.Line, column: block.TypeRange.Start.Column}
		if len(block.Labels) > 0 {
			part.label = block.Labels[0]
		}
		if kind == "dynamic" && len(block.Labels) > 0 {
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
func placesInExpr(at hcl.Pos, expr hclsyntax.Expression) []*place {
	switch e := expr.(type) {
	case *hclsyntax.TupleConsExpr:
		var all []*place
		for _, element := range e.Exprs {
			all = append(all, placesInExpr(element.Range().Start, element)...)
		}
		if len(all) > 0 {
			return all
		}
	case *hclsyntax.ObjectConsExpr:
		p := &place{line: at.Line, column: at.Column}
		for _, item := range e.Items {
			key, diags := item.KeyExpr.Value(nil)
			if diags.HasErrors() || key.Type() != cty.String || key.IsNull() || !key.IsKnown() {
				continue
			}
			for _, part := range placesInExpr(item.KeyExpr.Range().Start, item.ValueExpr) {
				p.add(key.AsString(), part)
			}
		}
		return []*place{p}
	}
	return []*place{{line: at.Line, column: at.Column}}
}

// isJSON detects JSON by its first character; Nomad's HCL JSON allows nothing before it.
func isJSON(body []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(body), []byte("{")) }

type jsonWalker struct {
	body  []byte
	lines []int // their offsets
	dec   *json.Decoder
}

func placesInJSON(body []byte) *place {
	w := jsonWalker{body: body, lines: []int{0}, dec: json.NewDecoder(bytes.NewReader(body))}
	for i, b := range body {
		if b == '\n' {
			w.lines = append(w.lines, i+1)
		}
	}
	all, err := w.value()
	if err != nil || len(all) == 0 {
		return &place{line: 1, column: 1}
	}
	return all[0]
}

func (w *jsonWalker) at(offset int) *place {
	line := sort.SearchInts(w.lines, offset+1)
	return &place{line: line, column: offset - w.lines[line-1] + 1}
}

// next is the place of the next token.
func (w *jsonWalker) next() *place {
	i := int(w.dec.InputOffset())
	for i < len(w.body) && strings.IndexByte(" \t\r\n,:", w.body[i]) >= 0 {
		i++
	}
	return w.at(min(i, len(w.body)))
}

// value reads a value and returns its place, or those of a list's elements.
func (w *jsonWalker) value() ([]*place, error) {
	p := w.next()
	token, err := w.dec.Token()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('['):
		var all []*place
		for w.dec.More() {
			elements, err := w.value()
			if err != nil {
				return nil, err
			}
			for _, e := range elements {
				e.hole = e.null
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
		return []*place{p}, err
	}
	p.text, _ = token.(string)
	p.null = token == nil
	return []*place{p}, nil
}

func placeOfError(body []byte, err error) *place {
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
