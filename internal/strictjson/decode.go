// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package strictjson decodes handwritten JSON and reports every error at once with its
// field's path: unknown, missing and repeated fields, wrong types, numbers that are not
// finite. After a syntax error, such as trailing data, it reports that alone.
//
// encoding/json, whose tokens it reads, stops at the first error, accepts missing and repeated
// fields, and ignores the case of names.
package strictjson

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ebbtide/ebbtide/internal/fields"
)

// Decode decodes the document in data into the struct at into and validates it. Errors
// of the document as a whole call it by name, such as "snapshot". Fields are named by
// `json` tags and required, except those tagged `strict:"optional"`, which keep their
// value or get the number tagged `default`; pointers may be null. The error of a missing
// field explains it by its tag `doc`. Types that implement json.Unmarshaler decode
// themselves.
//
// A method Validate() error of into is always called, so that all errors are reported;
// those of unreadable fields are dropped.
//
// The error is a fields.Errors; after a syntax error it has nothing else. Decode panics
// if into has a field of an unsupported kind.
func Decode(name string, data []byte, into any) error {
	var rules Rules
	if v, ok := into.(interface{ Validate() error }); ok {
		rules.Validate = v.Validate
	}
	return DecodeBy(name, data, into, rules)
}

// Rules are a caller's requirements beyond the type.
type Rules struct {
	// Needs lists optional fields that are required nevertheless, by path without
	// indexes: "tasks[].growth".
	Needs []string
	// Validate is called after decoding, whatever errors there were.
	Validate func() error
}

// DecodeBy is Decode with rules in place of into's method Validate.
func DecodeBy(name string, data []byte, into any, rules Rules) error {
	root, errs, err := parse(data)
	var syntax syntaxError
	if errors.As(err, &syntax) {
		line, column := place(data, syntax.pos)
		return fields.Errors{{Path: cmp.Or(syntax.path, name), Problem: fmt.Sprintf("%v (line %d, column %d)", syntax, line, column)}}
	}
	if root.kind != kindObject {
		return fields.Errors{{Path: name, Problem: "must be an object, got " + describe(root)}}
	}

	b := binder{errs: errs, needs: rules.Needs}
	b.bind(root, reflect.ValueOf(into).Elem(), "")
	if rules.Validate != nil {
		merge(&b.errs, rules.Validate())
	}
	return b.errs.Err()
}

type binder struct {
	errs  fields.Errors
	needs []string
}

var index = regexp.MustCompile(`\[\d+\]`)

func (b *binder) needed(field reflect.StructField, path string) bool {
	return field.Tag.Get("strict") != "optional" ||
		len(b.needs) > 0 && slices.Contains(b.needs, index.ReplaceAllString(path, "[]"))
}

func merge(errs *fields.Errors, err error) {
	if err == nil {
		return
	}
	var more fields.Errors
	if !errors.As(err, &more) {
		more.Add("", "%v", err)
	}
	errs.Merge(more)
}

func (b *binder) bind(n *node, v reflect.Value, path string) {
	if u, ok := v.Addr().Interface().(json.Unmarshaler); ok {
		if n.kind == kindNumber && !finite(n) {
			b.errs.Add(path, "must be a finite number, got %s", n.raw)
		} else if err := u.UnmarshalJSON(n.raw); err != nil {
			b.errs.Add(path, "%v", err)
		}
		return
	}
	if v.Kind() == reflect.Pointer {
		if n.kind == kindNull {
			v.SetZero()
			return
		}
		if want := kindOf(v.Type().Elem()); n.kind != want {
			b.errs.Add(path, "must be %s or null, got %s", want, describe(n))
			return
		}
		target := reflect.New(v.Type().Elem())
		b.bind(n, target.Elem(), path)
		v.Set(target)
		return
	}
	want := kindOf(v.Type())
	if n.kind != want {
		b.errs.Add(path, "must be %s, got %s", want, describe(n))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		b.bindStruct(n, v, path)
	case reflect.Map:
		b.bindMap(n, v, path)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), len(n.items), len(n.items)))
		for i, item := range n.items {
			b.bind(item, v.Index(i), fields.Index(path, i))
		}
	case reflect.Bool:
		v.SetBool(string(n.raw) == "true")
	case reflect.String:
		v.SetString(n.str)
	case reflect.Float64:
		f, err := strconv.ParseFloat(string(n.raw), 64)
		if err != nil || !finite(n) {
			b.errs.Add(path, "must be a finite number, got %s", n.raw)
			return
		}
		v.SetFloat(f + 0) // −0 would look odd
	case reflect.Uint64:
		i, err := strconv.ParseUint(string(n.raw), 10, 64)
		if err != nil {
			b.errs.Add(path, "must be a whole number ≥ 0, got %s", n.raw)
			return
		}
		v.SetUint(i)
	default: // an integer: kindOf allows nothing else
		i, err := strconv.ParseInt(string(n.raw), 10, 64)
		if err != nil || v.OverflowInt(i) {
			b.errs.Add(path, "must be a whole number, got %s", n.raw)
			return
		}
		v.SetInt(i)
	}
}

func (b *binder) bindStruct(n *node, v reflect.Value, path string) {
	given := make(map[string]*node, len(n.members))
	for _, m := range n.members {
		given[m.name] = m.value
	}
	var names []string
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		names = append(names, name)
		value, ok := given[name]
		delete(given, name)
		switch {
		case ok:
			b.bind(value, v.Field(i), fields.Member(path, name))
		case b.needed(field, fields.Member(path, name)):
			problem := "is missing"
			if doc := field.Tag.Get("doc"); doc != "" {
				problem += ": " + doc
			}
			b.errs.Add(fields.Member(path, name), "%s", problem)
		default:
			if number, err := strconv.ParseFloat(field.Tag.Get("default"), 64); err == nil {
				v.Field(i).SetFloat(number)
			}
		}
	}
	for _, m := range n.members { // in document order, for determinism
		if _, left := given[m.name]; left {
			b.errs.Add(fields.Member(path, m.name), "unknown field, must be one of: %s", strings.Join(names, ", "))
		}
	}
}

func (b *binder) bindMap(n *node, v reflect.Value, path string) {
	v.Set(reflect.MakeMapWithSize(v.Type(), len(n.members)))
	for _, m := range n.members {
		value := reflect.New(v.Type().Elem()).Elem()
		b.bind(m.value, value, fields.Member(path, m.name))
		v.SetMapIndex(reflect.ValueOf(m.name).Convert(v.Type().Key()), value)
	}
}

func kindOf(t reflect.Type) kind {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return kindObject
	case reflect.Slice:
		return kindArray
	case reflect.Bool:
		return kindBool
	case reflect.String:
		return kindString
	case reflect.Float64, reflect.Int, reflect.Int64, reflect.Uint64:
		return kindNumber
	default:
		panic(fmt.Sprintf("strictjson: cannot decode into a %v", t)) // a bug, not an input
	}
}

func finite(n *node) bool { return json.Valid(n.raw) }

func describe(n *node) string {
	switch n.kind {
	case kindNull, kindArray, kindObject:
		return n.kind.String()
	default:
		return n.kind.String() + " " + shorten(n.raw)
	}
}

func shorten(raw []byte) string {
	runes := []rune(string(raw))
	if len(runes) > 40 {
		return string(runes[:40]) + "…"
	}
	return string(raw)
}
