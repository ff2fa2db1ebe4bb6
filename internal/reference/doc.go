// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package reference keeps the tables of docs/reference.md as the code has them: options,
// fields, rules, events and commands are described once, where they are declared. `make docs`
// regenerates them, and the test of this package fails while it differs.
package reference
