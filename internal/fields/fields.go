// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package fields collects errors that name fields of an input by path, such as
// "tasks[2].growth: must be ≥ 0, got -1", so that all are reported at once.
package fields

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Error is an error of one field.
type Error struct {
	// Path names the field: "tasks[2].growth"; "" is the input as a whole.
	Path string
	// Problem is what is wrong, what is allowed, and the value.
	Problem string
}

// Error returns "path: problem", or the problem without a path.
func (e Error) Error() string {
	if e.Path == "" {
		return e.Problem
	}
	return e.Path + ": " + e.Problem
}

// Errors collects field errors in order. The zero value is ready to use.
type Errors []Error

// Error returns all errors, one per line.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap is for errors.Is and errors.As.
func (es Errors) Unwrap() []error {
	out := make([]error, len(es))
	for i, e := range es {
		out[i] = e
	}
	return out
}

func (es *Errors) Add(path, format string, args ...any) {
	*es = append(*es, Error{Path: path, Problem: fmt.Sprintf(format, args...)})
}

// Bound adds an error unless v is from low to high.
func (es *Errors) Bound(path string, v, low, high float64) {
	if !Within(v, low, high) {
		es.Add(path, "must be ≥ %v and ≤ %v, got %v", low, high, v)
	}
}

// Err returns the errors, or nil if there are none: an empty Errors must not become a
// non-nil error.
func (es Errors) Err() error {
	if len(es) == 0 {
		return nil
	}
	return es
}

// Merge appends the errors of more whose field, and its ancestors, have no error in es
// yet.
func (es *Errors) Merge(more Errors) {
	seen := make(map[string]bool, len(*es))
	for _, e := range *es {
		seen[e.Path] = true
	}
	for _, e := range more {
		if !covered(seen, e.Path) {
			*es = append(*es, e)
		}
	}
}

func covered(seen map[string]bool, path string) bool {
	for {
		if seen[path] {
			return true
		}
		cut := strings.LastIndexAny(path, ".[")
		if cut < 0 {
			return false
		}
		path = path[:cut]
	}
}

// Member returns the path of a member of the object at path. An unusual name is quoted:
// `tasks[0]["a b"]`.
func Member(path, name string) string {
	switch {
	case !plain(name):
		return path + "[" + strconv.Quote(name) + "]"
	case path == "":
		return name
	default:
		return path + "." + name
	}
}

// Under prefixes the errors' paths with path; errors of the document as a whole have it
// already.
func (es Errors) Under(path string) Errors {
	out := make(Errors, len(es))
	for i, e := range es {
		if out[i] = e; e.Path != path {
			out[i].Path = path + "." + e.Path
		}
	}
	return out
}

// Index returns the path of element i of the list at path.
func Index(path string, i int) string {
	return path + "[" + strconv.Itoa(i) + "]"
}

func plain(name string) bool {
	for _, r := range name {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		if !letter && r != '_' && r != '-' {
			return false
		}
	}
	return name != ""
}

// Finite reports whether x is neither NaN nor infinite.
func Finite[T ~float64](x T) bool { return !math.IsNaN(float64(x)) && !math.IsInf(float64(x), 0) }

func NonNegative[T ~float64](x T) bool { return x >= 0 && Finite(x) }

func Positive[T ~float64](x T) bool { return x > 0 && Finite(x) }

// Within reports whether x is from low to high.
func Within[T ~float64 | ~int](x, low, high T) bool { return x >= low && x <= high }
