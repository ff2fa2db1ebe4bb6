// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fairshare

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/ebbtide/ebbtide/internal/fields"
)

// Count is the name of C_0, the coefficient of the number of jobs.
const Count = "count"

// Scheme names coefficients without numbers.
type Scheme string

const (
	// CountOnly has C_0 = 1 and all others 0.
	CountOnly Scheme = "count-only"
	// Equal has every C of a group at 1/m, m being its number of properties with the count
	// (figure 11).
	Equal Scheme = "equal"
)

// Coefficients are C of equation 1. The zero value means none.
type Coefficients struct {
	// Scheme is "" if By is set.
	Scheme Scheme
	// By holds numbers ≥ 0 that sum to 1, by property or Count.
	By map[string]float64
}

func (c Coefficients) none() bool { return c.Scheme == "" && c.By == nil }

// MarshalJSON writes "count-only", "equal", {"count": 0.5, …}, or null for none.
func (c Coefficients) MarshalJSON() ([]byte, error) {
	if c.Scheme != "" {
		return json.Marshal(c.Scheme)
	}
	return json.Marshal(c.By)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (c *Coefficients) UnmarshalJSON(data []byte) error {
	*c = Coefficients{}
	into := any(&c.By)
	if bytes.HasPrefix(data, []byte(`"`)) {
		into = &c.Scheme
	}
	if json.Unmarshal(data, into) != nil || !c.Scheme.valid() {
		return fmt.Errorf(`must be "count-only", "equal" or an object of numbers, got %.40s`, data)
	}
	return nil
}

func (s Scheme) valid() bool { return s == "" || s == CountOnly || s == Equal }

// of returns the coefficients of a group, by Count and its properties; they sum to 1. If numbers
// name properties that the group lacks, the others are scaled up: a group without an input size
// must not get less for that (groups 3 and 4 of figure 11). If nothing is left, C_0 = 1.
func (c Coefficients) of(g Group) map[string]float64 {
	if !g.Coefficients.none() {
		c = g.Coefficients
	}
	names := g.propertyNames()
	if c.Scheme == Equal {
		c.By = nil
	}
	out, sum := make(map[string]float64, len(names)), 0.0
	for _, name := range names {
		switch {
		case c.Scheme == Equal:
			out[name] = 1
		case c.Scheme == CountOnly:
			out[name] = 0
		default:
			out[name] = c.By[name]
		}
		sum += out[name]
	}
	if !(sum > 0) {
		out[Count], sum = 1, 1
	}
	for name := range out {
		out[name] /= sum
	}
	return out
}

const tolerance = 1e-6

func (c Coefficients) validate(errs *fields.Errors, path string, allowed []string) {
	if c.By == nil {
		if !c.Scheme.valid() {
			errs.Add(path, `must be "count-only", "equal" or an object of numbers, got %q`, string(c.Scheme))
		}
		return
	}
	sum, ok := 0.0, true
	for _, name := range slices.Sorted(maps.Keys(c.By)) {
		value := c.By[name]
		switch at := fields.Member(path, name); {
		case !slices.Contains(allowed, name):
			errs.Add(at, "unknown property, must be one of: %s", joinNames(allowed))
			ok = false
		case !(value >= 0 && value <= 1):
			errs.Add(at, "must be ≥ 0 and ≤ 1, got %v", value)
			ok = false
		}
		sum += value
	}
	if ok && math.Abs(sum-1) > tolerance {
		errs.Add(path, "must sum to 1, got %v", sum)
	}
}
