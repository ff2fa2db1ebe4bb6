// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package documenttest draws jobs of a Nomad that is newer than the API module.
package documenttest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/shim/document"
)

// Parse reads a job as from a server.
func Parse(text []byte) *document.Job {
	j := new(document.Job)
	if err := json.Unmarshal(text, j); err != nil {
		panic(err)
	}
	return j
}

// Change returns the job as a server would give it after a change to its JSON.
func Change(j *document.Job, change func(root map[string]any)) *document.Job {
	changed, err := j.With(func(root map[string]any) error { change(root); return nil })
	if err != nil {
		panic(err)
	}
	text, err := json.Marshal(changed)
	if err != nil {
		panic(err)
	}
	return Parse(text)
}

// WithUnknown adds unknown fields to the job's JSON, at every level.
func WithUnknown(r *rapid.T, j *document.Job) *document.Job {
	return Change(j, func(root map[string]any) { infest(r, root) })
}

func infest(r *rapid.T, v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			infest(r, e)
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if key != "Meta" { // its values are strings
				infest(r, v[key])
			}
		}
		for range rapid.IntRange(0, 2).Draw(r, "unknown") {
			v["Zz"+rapid.StringMatching(`[a-zA-Z]{1,6}`).Draw(r, "field")] = value(2).Draw(r, "value")
		}
	}
}

// value draws any JSON value.
func value(depth int) *rapid.Generator[any] {
	return rapid.Custom(func(r *rapid.T) any {
		kinds := 7
		if depth == 0 {
			kinds = 5
		}
		switch rapid.IntRange(0, kinds-1).Draw(r, "kind") {
		case 0:
			return nil
		case 1:
			return rapid.Bool().Draw(r, "bool")
		case 2:
			return rapid.String().Draw(r, "string")
		case 3:
			return json.Number(rapid.SampledFrom([]string{"0", "-1", "1.50", "9223372036854775807", "18446744073709551616", "1e300", "0.1000"}).Draw(r, "number"))
		case 4:
			return json.Number(fmt.Sprint(rapid.Int64().Draw(r, "int")))
		case 5:
			return rapid.SliceOfN(value(depth-1), 0, 3).Draw(r, "list")
		}
		out := map[string]any{}
		for _, key := range rapid.SliceOfN(rapid.StringMatching(`[A-Z][a-zA-Z]{0,6}`), 0, 3).Draw(r, "keys") {
			out[key] = value(depth-1).Draw(r, key)
		}
		return out
	})
}
