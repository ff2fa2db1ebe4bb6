// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fields

// IDs checks that the elements of a list have unique IDs.
type IDs struct {
	List  string // path of the list: "tasks"
	first map[string]int
}

// Check checks the ID of element i; call it in order.
func (d *IDs) Check(errs *Errors, i int, id string) {
	at := func() string { return Member(Index(d.List, i), "id") }
	switch j, repeated := d.first[id]; {
	case id == "":
		errs.Add(at(), "must not be empty")
	case repeated:
		errs.Add(at(), "must be unique, %q is the id of %s too", id, Index(d.List, j))
	default:
		if d.first == nil {
			d.first = make(map[string]int)
		}
		d.first[id] = i
	}
}
