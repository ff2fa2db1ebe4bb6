// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"fmt"
	"math"
	"strconv"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestScan_value(t *testing.T) {
	for _, c := range []struct {
		text string
		want string // as %v, "" for no number
		rest string
	}{
		{"0.5", "0.5", ""},
		{"-0.5,", "-0.5", ","},
		{"+3 ", "3", " "},
		{".5", "0.5", ""},
		{"5.", "5", ""},
		{"0.5. Next", "0.5", ". Next"},
		{"1e-4", "0.0001", ""},
		{"1E+3)", "1000", ")"},
		{"6.100000E+00 |", "6.1", " |"},
		{"1_000", "1000", ""},
		{"12_345.5", "12345.5", ""},
		{"123456789012345678901234567890", "1.2345678901234568e+29", ""},
		{"1_23456789012345678901", "1.2345678901234568e+20", ""},
		{"0.000000000000000000000000000001", "1e-30", ""},
		{"1e400", "+Inf", ""},
		{"-1e400", "-Inf", ""},
		{"1e-400", "0", ""},
		{"1e99999999999", "+Inf", ""},
		{"97.5%", "97.5", ""},
		{"97.5 %", "97.5", " %"},
		{"nan", "NaN", ""},
		{"nan.0]", "NaN", "]"},
		{"inf.0", "+Inf", ""},
		{"nan.05", "", ""},
		{"NaN,", "NaN", ","},
		{"-nan", "NaN", ""},
		{"inf", "+Inf", ""},
		{"-Infinity", "-Inf", ""},
		{"'0.5'", "0.5", ""},
		{`"nan"}`, "NaN", "}"},
		{`" 97.5 % "`, "97.5", ""},
		{"tensor(0.6931, grad_fn=<NllLossBackward0>)", "0.6931", ", grad_fn=<NllLossBackward0>)"},
		{"np.float64(0.5)", "0.5", ")"},
		{"array(2.5, dtype=float32)", "2.5", ", dtype=float32)"},
		{"0.5\x1b", "", ""},
		{"", "", ""},
		{"-", "", ""},
		{".", "", ""},
		{"2ms", "", ""},
		{"1.2.3", "", ""},
		{"10:30:00", "", ""},
		{"2025-01-01", "", ""},
		{"0x1f", "", ""},
		{"3G", "", ""},
		{"12abc", "", ""},
		{"nano", "", ""},
		{"information", "", ""},
		{"None", "", ""},
		{"'0.5", "", ""},
		{"'abc'", "", ""},
		{"1e", "", ""},
		{"--5", "", ""},
	} {
		var s scan
		s.start([]byte(c.text), 0)
		n, next, ok := s.value(0)
		got, rest := "", ""
		if ok && !n.counter {
			got, rest = fmt.Sprint(n.value), c.text[s.after(next):]
		}
		must.Eq(t, c.want, got, must.Sprint(c.text))
		must.Eq(t, c.rest, rest, must.Sprint(c.text))
	}
}

func TestParseNumber_agreesWithStrconv(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Float64().Draw(t, "v")
		format := rapid.SampledFrom([]byte("efgEG")).Draw(t, "format")
		precision := rapid.IntRange(-1, 30).Draw(t, "precision")
		text := strconv.FormatFloat(v, format, precision, 64)
		want, _ := strconv.ParseFloat(text, 64)
		n, ok := parseNumber([]byte(text), 0)
		if !ok || n.end != len(text) {
			t.Fatalf("%q: ok %v, end %d", text, ok, n.end)
		}
		if math.Float64bits(n.value) != math.Float64bits(want) {
			t.Fatalf("%q: got %v, want %v", text, n.value, want)
		}
	})
}
