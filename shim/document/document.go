// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package document edits a job as the JSON that the server gave. A job that is read into a type and
// registered again loses every field that the type's module does not know, without an error.
//
// Only constraints and meta keys can be edited. All other values keep their form, numbers to the
// digit.
package document

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/hashicorp/nomad/api"
)

// Job is a job as the server gave it. It does not change: With returns an edited copy.
type Job struct {
	// Job is the part that the API module knows, for reading: changes to it are not registered.
	*api.Job
	text json.RawMessage
	read json.RawMessage // as the server gave it, before any edit
}

// UnmarshalJSON reads a server's answer.
func (j *Job) UnmarshalJSON(data []byte) error {
	j.Job, j.text = new(api.Job), bytes.Clone(data)
	j.read = j.text
	return json.Unmarshal(data, j.Job)
}

// MarshalJSON returns the whole document.
func (j *Job) MarshalJSON() ([]byte, error) { return j.text, nil }

// Edit is a change to a job's document.
type Edit func(root object) error

type object = map[string]any

// With returns a copy of the job with the edits. The copy has no version tag, which belongs to
// one version.
func (j *Job) With(edits ...Edit) (*Job, error) {
	root, err := decode(j.text)
	if err != nil {
		return nil, err
	}
	delete(root, "VersionTag")
	for _, edit := range edits {
		if err := edit(root); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(root)
	if err != nil {
		return nil, fmt.Errorf("editing the job: %w", err)
	}
	out := new(Job)
	if err := json.Unmarshal(text, out); err != nil {
		return nil, fmt.Errorf("editing the job: %w", err)
	}
	out.read = j.read
	return out, nil
}

func decode(text []byte) (root object, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber() // a float64 would round large numbers
	if err := d.Decode(&root); err != nil {
		return nil, fmt.Errorf("reading the job's document: %w", err)
	}
	return root, nil
}

// Match selects constraints by their attribute (left) and value (right).
type Match func(left, right string) bool

// DropConstraints removes the group's matching constraints, and repetitions of others: Nomad adds the
// constraints that a job implies again at each registration.
func DropConstraints(group string, drop Match) Edit {
	return inGroup(group, func(g object) { dropConstraints(g, drop) })
}

// DropAllConstraints removes the matching constraints of the job, its groups and tasks.
func DropAllConstraints(drop Match) Edit {
	return func(root object) error {
		for _, owner := range owners(root) {
			dropConstraints(owner, drop)
		}
		return nil
	}
}

// AddConstraint adds a constraint to the group.
func AddConstraint(group, left, operand, right string) Edit {
	return inGroup(group, func(g object) {
		all, _ := g["Constraints"].([]any)
		g["Constraints"] = append(all, object{"LTarget": left, "Operand": operand, "RTarget": right})
	})
}

// SetMeta sets a meta key of the group, or removes it if the value is "".
func SetMeta(group, key, value string) Edit {
	return inGroup(group, func(g object) {
		meta, _ := g["Meta"].(object)
		if value == "" {
			delete(meta, key)
			return
		}
		if meta == nil {
			meta = object{}
			g["Meta"] = meta
		}
		meta[key] = value
	})
}

func inGroup(name string, edit func(object)) Edit {
	return func(root object) error {
		for _, g := range list(root, "TaskGroups") {
			if g["Name"] == name {
				edit(g)
				return nil
			}
		}
		return fmt.Errorf("the job no longer has group %q", name)
	}
}

func list(owner object, key string) (out []object) {
	all, _ := owner[key].([]any)
	for _, v := range all {
		if o, ok := v.(object); ok {
			out = append(out, o)
		}
	}
	return out
}

// owners returns the objects that have constraints and meta.
func owners(root object) []object {
	out := []object{root}
	for _, g := range list(root, "TaskGroups") {
		out = append(append(out, g), list(g, "Tasks")...)
	}
	return out
}

func dropConstraints(owner object, drop Match) {
	all, ok := owner["Constraints"].([]any)
	if !ok {
		return // null
	}
	kept := all[:0:0]
	for _, v := range all {
		c, _ := v.(object)
		left, _ := c["LTarget"].(string)
		right, _ := c["RTarget"].(string)
		if !drop(left, right) && !slices.ContainsFunc(kept, func(k any) bool { return reflect.DeepEqual(k, v) }) {
			kept = append(kept, v)
		}
	}
	owner["Constraints"] = kept
}

// Own says what may be edited: the constraints that match, and meta keys.
type Own struct {
	Constraint Match
	Meta       []string
}

// Foreign returns the paths that the edits have changed although they are not own.
func (j *Job) Foreign(own Own) ([]string, error) { return differences(j.read, j.text, own) }

// Same reports whether two versions of a job are equal but for what is own, and for what the server
// sets at each registration.
func Same(a, b *Job, own Own) (bool, error) {
	paths, err := differences(a.text, b.text, own)
	return len(paths) == 0, err
}

// What the server sets, in a job and in a scaling block.
var (
	serverFields = []string{
		"CreateIndex", "JobModifyIndex", "ModifyIndex", "NomadTokenID", "Stable", "Status", "StatusDescription", "SubmitTime", "Version", "VersionTag",
	}
	scalingFields = []string{"ID", "CreateIndex", "ModifyIndex"}
)

func differences(a, b []byte, own Own) ([]string, error) {
	var roots [2]object
	for i, text := range [][]byte{a, b} {
		root, err := decode(text)
		if err != nil {
			return nil, err
		}
		for _, field := range serverFields {
			delete(root, field)
		}
		for _, owner := range owners(root) {
			dropConstraints(owner, own.Constraint)
			if meta, ok := owner["Meta"].(object); ok {
				for _, key := range own.Meta {
					delete(meta, key)
				}
			}
			if scaling, ok := owner["Scaling"].(object); ok {
				for _, field := range scalingFields {
					delete(scaling, field)
				}
			}
			for _, key := range []string{"Constraints", "Meta"} { // Nomad stores empty ones as null
				if empty(owner[key]) {
					delete(owner, key)
				}
			}
		}
		roots[i] = root
	}
	return compare("", roots[0], roots[1]), nil
}

func empty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case []any:
		return len(v) == 0
	case object:
		return len(v) == 0
	}
	return false
}

// compare returns the paths at which two decoded documents differ, in their order.
func compare(path string, a, b any) (paths []string) {
	switch a := a.(type) {
	case object:
		if b, ok := b.(object); ok {
			keys := maps.Clone(a)
			maps.Copy(keys, b)
			for _, key := range slices.Sorted(maps.Keys(keys)) {
				va, ina := a[key]
				vb, inb := b[key]
				if ina != inb {
					paths = append(paths, path+"."+key)
					continue
				}
				paths = append(paths, compare(path+"."+key, va, vb)...)
			}
			return paths
		}
	case []any:
		if b, ok := b.([]any); ok && len(a) == len(b) {
			for i := range a {
				paths = append(paths, compare(fmt.Sprintf("%s[%d]", path, i), a[i], b[i])...)
			}
			return paths
		}
	}
	if !reflect.DeepEqual(a, b) {
		paths = append(paths, path)
	}
	return paths
}
