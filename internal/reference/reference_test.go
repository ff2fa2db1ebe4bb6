// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package reference

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"iter"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/cli"
	"github.com/ebbtide/ebbtide/driver/config"
	"github.com/ebbtide/ebbtide/driver/options"
	"github.com/ebbtide/ebbtide/driver/policy/policies"
	"github.com/ebbtide/ebbtide/driver/publish"
	"github.com/ebbtide/ebbtide/driver/status"
)

var update = flag.Bool("update", false, "regenerate the tables of docs/reference.md")

const (
	root = "../.."
	page = root + "/docs/reference.md"
)

// A table is between two comments, the first of which names it.
var generated = regexp.MustCompile(`(?s)<!-- ([a-z-]+): made by make docs -->\n.*?<!-- end -->`)

// The tables of the reference are those of the code.
func TestReference(t *testing.T) {
	text, err := os.ReadFile(page)
	must.NoError(t, err)
	tables := tables(t)
	want := generated.ReplaceAllStringFunc(string(text), func(old string) string {
		name := generated.FindStringSubmatch(old)[1]
		table, ok := tables[name]
		must.True(t, ok, must.Sprintf("there is no table %q", name))
		delete(tables, name)
		return "<!-- " + name + ": made by make docs -->\n" + table + "<!-- end -->"
	})
	must.MapEmpty(t, tables, must.Sprint("tables that the page does not show, or shows twice"))
	if *update {
		must.NoError(t, os.WriteFile(page, []byte(want), 0o644))
		return
	}
	have := strings.Split(string(text), "\n")
	for i, line := range strings.Split(want, "\n") {
		if i == len(have) || have[i] != line {
			t.Fatalf("docs/reference.md is not current from line %d on, write it with `make docs`: should be\n%s", i+1, line)
		}
	}
	must.Eq(t, want, string(text))
}

// tables returns all of them, by name.
func tables(t *testing.T) map[string]string {
	code := func(s string) string { return "`" + s + "`" }
	out := make(map[string]string)

	b := newTable("option", "default", "allowed", "meaning")
	for _, o := range config.Options() {
		b.row(t, code(o.Name), code(o.Default), o.Allowed, o.Doc)
	}
	out["options"] = b.String()

	l := new(list)
	for _, p := range policies.All() {
		l.item(t, code(p.Name), p.Synopsis)
	}
	out["policies"] = l.String()

	for _, block := range options.Schema() {
		l = new(list)
		for _, f := range block.Fields {
			values := f.Allowed
			if f.Type == "bool" {
				values = "`true`, `false`"
			}
			if f.Default != "" {
				values += "; default " + f.Default
			}
			l.value(t, f.Name, values, f.Doc)
		}
		out[block.Name] = l.String()
	}

	l = new(list)
	for _, k := range options.Meta() {
		l.value(t, k.Name, k.Allowed, k.Doc)
	}
	out["meta"] = l.String()

	l = new(list)
	for _, c := range constants(t, root+"/driver/progress", "Preset") {
		l.item(t, code(c.value), c.doc)
	}
	out["presets"] = l.String()

	l = new(list)
	for _, k := range publish.Kinds() {
		var says []string
		for _, s := range k.Says {
			says = append(says, code(strings.TrimSpace(s)+" …"))
		}
		must.SliceNotEmpty(t, says)
		l.item(t, strings.Join(says, ", ")+" ("+code(k.Name)+")", k.Doc)
	}
	out["events"] = l.String()

	l = new(list)
	for group := range groups(fields(t, "", reflect.TypeFor[status.Status]())) {
		var names []string
		for _, f := range group {
			names = append(names, code(f.path))
		}
		l.item(t, strings.Join(names, ", "), group[0].doc)
	}
	out["status"] = l.String()
	out["history"] = "    " + strings.ReplaceAll(history(t), ",", ", ") + "\n"

	l = new(list)
	for _, p := range policies.Names() {
		for _, c := range constants(t, root+"/driver/policy/"+p, "Rule") {
			l.item(t, code(c.value), c.doc)
		}
	}
	out["rules"] = l.String()

	l = new(list)
	for _, p := range cli.Pages() {
		if p.Name != "" {
			l.item(t, code("ebbtide "+p.Name), p.Synopsis)
		}
	}
	out["commands"] = l.String()
	return out
}

// table is a table in Markdown.
type table struct{ strings.Builder }

func newTable(header ...string) *table {
	t := new(table)
	fmt.Fprintf(t, "| %s |\n|%s\n", strings.Join(header, " | "), strings.Repeat(" --- |", len(header)))
	return t
}

// list is a list of names with what they mean, where a table would have two columns.
type list struct{ strings.Builder }

func (l *list) item(t *testing.T, name, meaning string) {
	must.NotEq(t, "", meaning, must.Sprintf("%s is not described in the code", name))
	fmt.Fprintf(l, "* %s: %s\n", name, strings.Join(strings.Fields(meaning), " "))
}

// value adds something that can be set, with the values that it takes.
func (l *list) value(t *testing.T, name, values, meaning string) {
	must.NotEq(t, "", values, must.Sprintf("the values of %s are not described in the code", name))
	l.item(t, "`"+name+"` ("+values+")", meaning)
}

// row adds a row. No cell may be empty: what the code does not describe is an error.
func (b *table) row(t *testing.T, cells ...string) {
	must.SliceNotContains(t, cells, "", must.Sprintf("something of %v is not described in the code", cells))
	for i, c := range cells {
		cells[i] = strings.ReplaceAll(strings.Join(strings.Fields(c), " "), "|", `\|`)
	}
	fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
}

// history returns the header of a task's history.
func history(t *testing.T) string {
	dir := t.TempDir()
	w, err := status.NewWriter(dir, "task", status.Options{})
	must.NoError(t, err)
	must.NoError(t, w.Append(status.Row{}))
	text, err := os.ReadFile(filepath.Join(dir, status.Dir, "task.csv"))
	must.NoError(t, err)
	header, _, _ := strings.Cut(string(text), "\n")
	return header
}

type field struct{ path, doc string }

// groups yields fields that follow each other and are described in the same words.
func groups(all []field) iter.Seq[[]field] {
	return func(yield func([]field) bool) {
		for len(all) > 0 {
			n := 1
			for n < len(all) && all[n].doc == all[0].doc && all[n].doc != "" {
				n++
			}
			if !yield(all[:n]) {
				return
			}
			all = all[n:]
		}
	}
}

// fields are those of a struct as JSON has them, with the comments of its source.
func fields(t *testing.T, prefix string, of reflect.Type) (out []field) {
	comments := comments(t, of)
	for i := range of.NumField() {
		f := of.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		in := f.Type
		switch {
		case in.Kind() == reflect.Pointer:
			in = in.Elem()
		case in.Kind() == reflect.Slice:
			in, name = in.Elem(), name+"[]"
		}
		switch {
		case f.Anonymous:
			out = append(out, fields(t, prefix, in)...)
		case in.Kind() == reflect.Struct && in != reflect.TypeFor[time.Time]():
			out = append(out, fields(t, prefix+name+".", in)...)
		default:
			out = append(out, field{prefix + name, comments[f.Name]})
		}
	}
	return out
}

// comments are those of a struct's fields, by name.
func comments(t *testing.T, of reflect.Type) map[string]string {
	dir := strings.TrimPrefix(of.PkgPath(), "github.com/ebbtide/ebbtide/")
	out := make(map[string]string)
	for _, file := range parse(t, filepath.Join(root, dir)) {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || spec.Name.Name != of.Name() {
				return true
			}
			for _, f := range spec.Type.(*ast.StructType).Fields.List {
				for _, name := range f.Names {
					out[name.Name] = comment(f.Doc, f.Comment)
				}
			}
			return false
		})
	}
	must.MapNotEmpty(t, out, must.Sprint(of))
	return out
}

type constant struct{ value, doc string }

// constants returns a package's text constants whose names begin with the prefix, as declared.
func constants(t *testing.T, dir, prefix string) (out []constant) {
	for _, file := range parse(t, dir) {
		ast.Inspect(file, func(n ast.Node) bool {
			decl, ok := n.(*ast.GenDecl)
			if !ok || decl.Tok != token.CONST {
				return true
			}
			for _, s := range decl.Specs {
				spec := s.(*ast.ValueSpec)
				name := spec.Names[0].Name
				if !strings.HasPrefix(name, prefix) || len(spec.Values) != 1 {
					continue
				}
				lit, ok := spec.Values[0].(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					continue
				}
				value, err := strconv.Unquote(lit.Value)
				must.NoError(t, err)
				doc := spec.Doc
				if doc == nil && len(decl.Specs) == 1 {
					doc = decl.Doc
				}
				out = append(out, constant{value, strings.TrimSuffix(strings.TrimPrefix(comment(doc, spec.Comment), name+": "), ".")})
			}
			return false
		})
	}
	must.SliceNotEmpty(t, out, must.Sprint(dir))
	return out
}

// parse parses the files of a package that are no tests, by name.
func parse(t *testing.T, dir string) (files []*ast.File) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	must.NoError(t, err)
	for _, name := range slices.Sorted(slices.Values(names)) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		must.NoError(t, err)
		files = append(files, file)
	}
	return files
}

// comment returns the comment above or behind a declaration.
func comment(above, behind *ast.CommentGroup) string {
	if above != nil {
		return strings.TrimSpace(above.Text())
	}
	return strings.TrimSpace(behind.Text())
}
