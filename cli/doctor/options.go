// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package doctor

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/ebbtide/ebbtide/driver/config"
	"github.com/ebbtide/ebbtide/driver/policy"
)

func known(name string) bool {
	return slices.ContainsFunc(config.Options(), func(o policy.Option) bool { return o.Name == name })
}

// WrongOptions returns the errors in Ebbtide's own options; blocks are the inner blocks also
// allowed.
func WrongOptions(own Block, blocks ...string) (wrong []string) {
	values := make(map[string]any)
	var allowed []string
	for _, o := range config.Options() {
		allowed = append(allowed, o.Name)
		v, ok := convert(own[o.Name], o.Kind)
		switch {
		case ok:
			values[o.Name] = v
		case own[o.Name] != nil: // null means the default, as in Nomad
			wrong = append(wrong, fmt.Sprintf("%s: must be a %s, got %s", o.Name, o.Kind, quote(own[o.Name])))
		}
	}
	_, err := config.Parse(values)
	wrong = append(wrong, lines(err)...)

	slices.Sort(allowed)
	allowed = append(allowed, blocks...)
	for _, name := range own.names() {
		if !slices.Contains(allowed, name) {
			wrong = append(wrong, fmt.Sprintf("%s: unknown option; allowed are %s", clean(name), strings.Join(allowed, ", ")))
		}
	}
	return wrong
}

// convert returns the option's Go value. Like Nomad, it accepts quoted numbers, and numbers for
// strings.
func convert(v any, kind string) (_ any, ok bool) {
	x, isNumber := toNumber(v)
	isNumber = isNumber && !math.IsNaN(x) && !math.IsInf(x, 0)
	switch kind {
	case policy.KindNumber:
		return x, isNumber
	case policy.KindBool:
		if s, isText := v.(string); isText {
			b, err := strconv.ParseBool(s)
			return b, err == nil
		}
		_, isBool := v.(bool)
		return v, isBool
	}
	switch v := v.(type) {
	case string:
		return v, true
	case bool:
		return strconv.FormatBool(v), true
	}
	return strconv.FormatFloat(x, 'g', -1, 64), isNumber
}

// lines splits joined errors into printable ones.
func lines(err error) (out []string) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			out = append(out, lines(err)...)
		}
	} else if err != nil {
		out = append(out, clean(err.Error()))
	}
	return out
}

func sorted[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for name := range m {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func toNumber(v any) (float64, bool) {
	switch v := v.(type) {
	case int:
		return float64(v), true
	case float64:
		return v, true
	case json.Number:
		x, err := v.Float64()
		return x, err == nil
	case string:
		x, err := strconv.ParseFloat(v, 64)
		return x, err == nil
	}
	return 0, false
}

// quote shows a value of one of Ebbtide's own options.
func quote(v any) string {
	if s, ok := v.(string); ok {
		return strconv.Quote(clean(s))
	}
	if x, ok := toNumber(v); ok {
		return strconv.FormatFloat(x, 'g', -1, 64)
	}
	if b, ok := v.(bool); ok {
		return strconv.FormatBool(b)
	}
	return "a value of another type"
}
