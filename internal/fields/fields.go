// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package fields holds errors that name a field of an input by its path, such as
// "tasks[2].growth: must be ≥ 0, got -1", and collects them, so that people see
// everything that is wrong at once.
package fields

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Error is one thing that is wrong with one field.
type Error struct {
	// Path names the field: "tasks[2].growth". Empty for the input as a whole.
	Path string
	// Problem says what is wrong, what is allowed and what was got.
	Problem string
}

// Error returns "path: problem", or the bare problem when there is no path.
func (e Error) Error() string {
	if e.Path == "" {
		return e.Problem
	}
	return e.Path + ": " + e.Problem
}

// Errors collects field errors in the order in which they were found. The zero
// value is empty and ready to use.
type Errors []Error

// Error returns all errors, one a line.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the errors one by one, for errors.Is and errors.As.
func (es Errors) Unwrap() []error {
	out := make([]error, len(es))
	for i, e := range es {
		out[i] = e
	}
	return out
}

// Add notes an error of the field at path.
func (es *Errors) Add(path, format string, args ...any) {
	*es = append(*es, Error{Path: path, Problem: fmt.Sprintf(format, args...)})
}

// Err returns the collected errors, or nil when there is none: an empty Errors
// must not become a non-nil error.
func (es Errors) Err() error {
	if len(es) == 0 {
		return nil
	}
	return es
}

// Merge appends those of more whose field has no error in es yet, neither itself
// nor a field that holds it: what could not be read needs no second complaint
// about the value it does not have.
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

// covered says whether path or one of its ancestors is in seen.
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

// Member returns the path of the member called name of the object at path.
// A name that would make the path unreadable is quoted: `tasks[0]["a b"]`.
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

// Under puts the errors of a document below the field at path, where it stood; those of
// the document as a whole name the field already.
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

// Finite says whether x is a number that is not infinite.
func Finite[T ~float64](x T) bool { return !math.IsNaN(float64(x)) && !math.IsInf(float64(x), 0) }

// NonNegative says whether x is finite and ≥ 0.
func NonNegative[T ~float64](x T) bool { return x >= 0 && Finite(x) }

// Positive says whether x is finite and > 0.
func Positive[T ~float64](x T) bool { return x > 0 && Finite(x) }
