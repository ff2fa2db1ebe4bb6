// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package validate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	hcljson "github.com/hashicorp/hcl/v2/json"
	"github.com/zclconf/go-cty/cty"
)

// Nomad gains fields faster than the linked parser learns them. A field that the parser does not
// know is left out of what it parses, and judged by an agent's parser if there is one.

// unknownField matches a parser's error about an unknown field: its name, and a similar one.
var unknownField = regexp.MustCompile(`^(?:Unsupported argument|Unsupported block type|Extraneous JSON object property);.* named "([^"]*)"|^Unsupported block type; Blocks of type "([^"]*)"`)

// similarName matches the parser's suggestion.
var similarName = regexp.MustCompile(`Did you mean "[^"]*"\?`)

// isUnknown reports whether an error is about an unknown field, and not about a known one that is
// written as an attribute instead of a block or the other way round.
func isUnknown(f Finding) bool {
	return unknownField.MatchString(f.Problem) && !strings.Contains(f.Problem, "Did you mean to define")
}

// judge returns an agent's verdict on unknown fields: the errors of its parser. Without one, or if
// it could not parse the job, they are notes.
func judge(unknown []Finding, body []byte, o Options) (findings []Finding) {
	if len(unknown) == 0 {
		return nil
	}
	why := "with -address an agent is asked"
	refused := make(map[string]bool) // by place
	place := func(f Finding) string { return fmt.Sprint(f.Line, ":", f.Column) }
	if o.Parse != nil {
		problems, err := o.Parse(string(body), variableFile(body, o))
		why = ""
		if err != nil {
			why = fmt.Sprintf("the agent was not asked: %v", err)
		} else if problems != "" {
			for _, f := range parserFindings("", errors.New(problems)) {
				if !isUnknown(f) {
					why = "the agent cannot parse the job: " + f.Problem
					continue
				}
				f.File, refused[place(f)] = unknown[0].File, true
				findings = append(findings, f)
			}
		}
		if why == "" {
			return findings
		}
	}
	for _, f := range unknown {
		if refused[place(f)] {
			continue
		}
		m := unknownField.FindStringSubmatch(f.Problem)
		problem := "not checked: this version's parser does not know it, but a newer Nomad may"
		if similar := similarName.FindString(f.Problem); similar != "" {
			problem += "; " + strings.ToLower(similar[:1]) + similar[1:]
		}
		f.Severity, f.Field, f.Problem = Note, m[1]+m[2], problem+" ("+why+")"
		findings = append(findings, f)
	}
	return findings
}

// blank overwrites the attribute or block at a place by spaces, so that all other places stay.
func blank(text []byte, line, column int) bool {
	start, end, ok := 0, 0, false
	if isJSON(text) {
		start, end, ok = memberAt(text, line, column)
	} else if file, _ := hclsyntax.ParseConfig(text, "", hcl.InitialPos); file != nil {
		if body, is := file.Body.(*hclsyntax.Body); is {
			var r hcl.Range
			r, ok = rangeAt(body, line, column)
			start, end = r.Start.Byte, r.End.Byte
		}
	}
	for i := start; i < end; i++ {
		if text[i] != '\n' {
			text[i] = ' '
		}
	}
	return ok && start < end
}

// rangeAt returns the range of the attribute or block whose name is at a place.
func rangeAt(body *hclsyntax.Body, line, column int) (hcl.Range, bool) {
	at := func(r hcl.Range) bool { return r.Start.Line == line && r.Start.Column == column }
	for _, a := range body.Attributes {
		if at(a.NameRange) {
			return a.SrcRange, true
		}
	}
	for _, b := range body.Blocks {
		if at(b.TypeRange) || b.Type == "dynamic" && len(b.LabelRanges) > 0 && at(b.LabelRanges[0]) {
			return b.Range(), true
		}
		if r, ok := rangeAt(b.Body, line, column); ok {
			return r, true
		}
	}
	return hcl.Range{}, false
}

// memberAt returns the offsets of a member of a JSON object, with one of the commas around it.
func memberAt(text []byte, line, column int) (start, end int, ok bool) {
	lines := bytes.SplitAfter(text, []byte("\n"))
	if line > len(lines) {
		return 0, 0, false
	}
	start = len(bytes.Join(lines[:line-1], nil)) + column - 1
	if start >= len(text) || text[start] != '"' {
		return 0, 0, false
	}
	dec := json.NewDecoder(io.MultiReader(strings.NewReader("{"), bytes.NewReader(text[start:])))
	var value json.RawMessage
	for range 2 { // the brace and the name
		if _, err := dec.Token(); err != nil {
			return 0, 0, false
		}
	}
	if dec.Decode(&value) != nil {
		return 0, 0, false
	}
	end = start + int(dec.InputOffset()) - 1
	if after := bytes.TrimLeft(text[end:], " \t\r\n"); bytes.HasPrefix(after, []byte(",")) {
		return start, len(text) - len(after) + 1, true
	}
	if before := bytes.TrimRight(text[:start], " \t\r\n"); bytes.HasSuffix(before, []byte(",")) {
		start = len(before) - 1
	}
	return start, end, true
}

// variableFile returns the values of a job's input variables as a file of variables: an agent has
// neither the files nor the environment.
func variableFile(body []byte, o Options) string {
	content, _, _ := hclFile(body).PartialContent(&hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{
		{Type: "variable", LabelNames: []string{"name"}}, {Type: "variables"},
	}})
	declared := make(map[string]bool)
	for _, b := range content.Blocks {
		if len(b.Labels) > 0 {
			declared[b.Labels[0]] = true
			continue
		}
		attrs, _ := b.Body.JustAttributes()
		for name := range attrs {
			declared[name] = true
		}
	}
	out := hclwrite.NewEmptyFile()
	set := func(name string, v cty.Value) {
		if declared[name] {
			out.Body().SetAttributeValue(name, v)
		}
	}
	// A later value replaces an earlier one.
	for _, v := range o.Env {
		if name, value, ok := strings.Cut(strings.TrimPrefix(v, "NOMAD_VAR_"), "="); ok && strings.HasPrefix(v, "NOMAD_VAR_") {
			set(name, literal(value))
		}
	}
	for _, path := range o.VarFiles {
		data, _ := os.ReadFile(path) // jobspec2 has read it
		attrs, _ := hclFile(data).JustAttributes()
		for name, a := range attrs {
			if v, diags := a.Expr.Value(nil); !diags.HasErrors() {
				set(name, v)
			}
		}
	}
	for _, v := range o.Vars {
		name, value, _ := strings.Cut(v, "=")
		set(name, literal(value))
	}
	return string(out.Bytes())
}

func hclFile(text []byte) hcl.Body {
	if isJSON(text) {
		file, _ := hcljson.Parse(text, "")
		return file.Body
	}
	file, _ := hclsyntax.ParseConfig(text, "", hcl.InitialPos)
	return file.Body
}

// literal returns the value of a variable on the command line: a list or object, or a text, which
// HCL converts to the variable's type.
func literal(text string) cty.Value {
	if strings.HasPrefix(text, "[") || strings.HasPrefix(text, "{") {
		if expr, diags := hclsyntax.ParseExpression([]byte(text), "", hcl.InitialPos); !diags.HasErrors() {
			if v, diags := expr.Value(nil); !diags.HasErrors() {
				return v
			}
		}
	}
	return cty.StringVal(text)
}
