// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"bytes"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func TestClean(t *testing.T) {
	for raw, want := range map[string]string{
		"":                          "",
		"plain\ttext é":             "plain\ttext é",
		"\x1b[1m12\x1b[0m":          "12",
		"\x1b[38;5;196mred\x1b[m":   "red",
		"\x1b[?25lhidden\x1b[?25h":  "hidden",
		"a\x1b]0;title\x07b":        "ab",
		"a\x1b]8;;http://x\x1b\\b":  "ab",
		"a\x1b]0;never ended":       "a0;never ended",
		"a\x1bPq#0\x1b\\b":          "ab",
		"a\x1b(Bb":                  "ab",
		"[3]#011rmse:1#011mae:2 #0": "[3]\trmse:1\tmae:2 #0",
		"a\x1b7b\x1b8":              "ab",
		"a\x1b":                     "a",
		"a\x1b[":                    "a",
		"a\x1b[12":                  "a",
		"a\x1b[1\x01m":              "am",
		"a\x00b\x07\x7f":            "ab",
		"50%\b\b\b60%":              "50%\n60%",
		"x 50%\b\b\b60%":            "x 60%",
		"loss 0.5\b\b\b\b\b\b\b\b":  "loss 0.5\n",
		"|\b/\b-\b\\\b":             "|\n/\n-\n\\\n",
		"né\bo":                     "no",
		"\b\b\bx":                   "x",
		"abc\b":                     "abc",
		"abc\bX":                    "abX",
		"one\x1b[2K\x1b[1Gtwo":      "one\ntwo",
		"one\x1b[Ktwo":              "onetwo",
		"one\x1b[Gtwo":              "one\ntwo",
		"one\x1b[20Gtwo":            "one two",
		"one\x1b[Atwo":              "one\ntwo",
		"one\x1b[3Ctwo":             "one two",
		"\x1b[A\x1b[Aone":           "one",
		"bad \xff\xfe utf-8\x1b[0m": "bad \xff\xfe utf-8",
		"one\rtwo":                  "one\ntwo",
		"\x1b\x1b[1mx":              "x",
		"tab\there\x1b[0m":          "tab\there",
	} {
		got := Clean(nil, []byte(raw))
		must.Eq(t, want, string(got), must.Sprintf("%q", raw))
		must.Eq(t, want, string(Clean(nil, bytes.Clone([]byte(raw)))))
	}
	line := []byte("loss: 0.5")
	must.True(t, &Clean(nil, line)[0] == &line[0])
	must.Eq(t, "xyab", string(Clean([]byte("xy"), []byte("a\x1b[mb"))))
}

func TestClean_linear(t *testing.T) {
	if testing.Short() {
		t.Skip("measures allocation-free work on hostile lines")
	}
	for _, unit := range []string{"\x1b]", "\x1bP", "\x1b[", "\x1b[1;", "\b", "a\b", "\x1b[2K", "é\b\b", "\x1b(", "\x1b"} {
		line := []byte(strings.Repeat(unit, maxLine/len(unit)))
		out := Clean(make([]byte, 0, 2*maxLine), line)
		must.LessEq(t, len(line), len(out))
	}
}

func FuzzClean(f *testing.F) {
	for _, s := range []string{"plain", "\x1b[1m12/469\x1b[0m \x1b[32m━━\x1b[0m", "50%\b\b\b60%", "a\x1b]0;t\x07b", "a\x1b]8;;x\x1b\\b",
		"\x1b[2K\x1b[1Gx", "\b\b\b", "é\bx", "\xff\b\b", "\x1b", "\x1b[", "\x1b]", "a\x00", "x\x1b[999999999999999999Cy"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		in := bytes.Clone(line)
		out := Clean(nil, line)
		if !bytes.Equal(in, line) {
			t.Fatal("the input was changed")
		}
		if len(out) > len(line) {
			t.Fatalf("%d bytes became %d", len(line), len(out))
		}
		for _, c := range out {
			if c < 0x20 && c != '\t' && c != '\n' || c == 0x7f {
				t.Fatalf("control character %#x is left in %q", c, out)
			}
		}
		for part := range bytes.SplitSeq(out, []byte{'\n'}) {
			if again := Clean(nil, part); !bytes.Equal(again, part) {
				t.Fatalf("%q is cleaned again to %q", part, again)
			}
		}
	})
}
