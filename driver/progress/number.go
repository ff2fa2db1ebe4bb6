// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"bytes"
	"math"
	"strconv"
)

// Classes of bytes for the scanners' inner loops.
const (
	classLetter = 1 << iota // A–Z, a–z, _
	classDigit              // 0–9
	classSpace              // space, tab
	classJoin               // . / - @ within a name, if a letter follows
	classBreak              // , ; | ) end the scope of a qualifying word
	classHidden             // control characters, and the # of octalTab
)

var class = func() (t [256]uint8) {
	for c := 'a'; c <= 'z'; c++ {
		t[c] |= classLetter
		t[c-'a'+'A'] |= classLetter
	}
	t['_'] |= classLetter
	for c := range ' ' {
		t[c] |= classHidden
	}
	t['\t'] = 0
	t[0x7f] |= classHidden
	t['#'] |= classHidden
	for c := '0'; c <= '9'; c++ {
		t[c] |= classDigit
	}
	t[' '] |= classSpace
	t['\t'] |= classSpace
	for _, c := range "./-@" {
		t[c] |= classJoin
	}
	for _, c := range ",;|)" {
		t[c] |= classBreak
	}
	return t
}()

func isDigit(c byte) bool  { return c-'0' < 10 }
func isSpace(c byte) bool  { return c == ' ' || c == '\t' }
func isWord(c byte) bool   { return class[c]&(classLetter|classDigit) != 0 }
func isLetter(c byte) bool { return class[c]&classLetter != 0 }

func lower(c byte) byte {
	if c-'A' < 26 {
		return c + 'a' - 'A'
	}
	return c
}

func hasFold(b []byte, word string) bool {
	if len(b) < len(word) {
		return false
	}
	for i := range len(word) {
		if lower(b[i]) != word[i] {
			return false
		}
	}
	return true
}

// equalFold reports whether b is word, which is lower-case as far as it is ASCII.
func equalFold(b []byte, word string) bool {
	return len(b) == len(word) && hasFold(b, word)
}

type number struct {
	value   float64
	end     int  // offset after it
	decimal bool // it had a point, an exponent, or was nan or inf
}

// parseNumber reads a number at b[i]: 12, -0.5, .5, 1e-4, 1_000, nan, -inf, Infinity.
// It ignores what follows, except that nan and inf must be whole words.
func parseNumber(b []byte, i int) (number, bool) {
	j := i
	if j < len(b) && (b[j] == '-' || b[j] == '+') {
		j++
	}
	if j >= len(b) {
		return number{}, false
	}
	if c := lower(b[j]); c == 'n' || c == 'i' {
		return parseSpecial(b, j, b[i] == '-')
	}

	first, digits, scale, underscores, decimal := j, 0, 0, false, false
	for ; j < len(b); j++ {
		if isDigit(b[j]) {
			digits = digits*10 + int(b[j]-'0')
		} else if b[j] == '_' && j > first && j+1 < len(b) && isDigit(b[j+1]) {
			underscores = true
		} else {
			break
		}
	}
	if j < len(b) && b[j] == '.' && (j > first || j+1 < len(b) && isDigit(b[j+1])) {
		decimal = true
		for j++; j < len(b) && isDigit(b[j]); j++ {
			digits = digits*10 + int(b[j]-'0')
			scale++
		}
	}
	if j == first {
		return number{}, false
	}
	if j < len(b) && b[j]|0x20 == 'e' {
		k := j + 1
		if k < len(b) && (b[k] == '-' || b[k] == '+') {
			k++
		}
		if k < len(b) && isDigit(b[k]) {
			scale = -1
			for decimal = true; k < len(b) && isDigit(b[k]); k++ {
			}
			j = k
		}
	}

	// Short numbers are exact as the quotient of two integers; strconv would take 10 %
	// longer for a whole log (BenchmarkReader).
	if scale >= 0 && j-first <= 15 && b[i] != '-' {
		v := float64(digits)
		if scale > 0 {
			v /= math.Pow10(scale)
		}
		if decimal && j+1 < len(b) && b[j] == 'f' && b[j+1] == '0' { // Julia's Float32
			j += 2
		}
		return number{value: v, end: j, decimal: decimal}, true
	}
	text := b[i:j]
	if underscores {
		text = bytes.ReplaceAll(text, []byte("_"), nil)
	}
	v, _ := strconv.ParseFloat(string(text), 64) // ±Inf or 0 when out of range, as intended
	return number{value: v, end: j, decimal: decimal}, true
}

func parseSpecial(b []byte, i int, neg bool) (number, bool) {
	rest := b[i:]
	n, v := 0, 0.0
	switch {
	case hasFold(rest, "nan"):
		n, v = 3, math.NaN()
	case hasFold(rest, "infinity"):
		n, v = 8, math.Inf(1)
	case hasFold(rest, "inf"):
		n, v = 3, math.Inf(1)
	default:
		return number{}, false
	}
	if n < len(rest) && isWord(rest[n]) {
		return number{}, false
	}
	// Lightning and tqdm pad figures: nan becomes nan.0.
	if string(rest[n:min(n+2, len(rest))]) == ".0" && (n+2 == len(rest) || !isWord(rest[n+2])) {
		n += 2
	}
	if neg {
		v = -v
	}
	return number{value: v, end: i + n, decimal: true}, true
}

// ends reports whether a number may end at b[i]: not as part of 2ms, 10:30 or 1.2.3,
// but before a final full stop or per cent sign.
func ends(b []byte, i int) bool {
	if i >= len(b) {
		return true
	}
	switch c := b[i]; c {
	case ' ', '\t', ',', ';', ')', ']', '}', '|', '"', '\'', '(', '<', '[', '/', '`', '=', '>':
		return true
	case '%', '.', ':', '*', '!':
		return i+1 >= len(b) || !isWord(b[i+1]) && b[i+1] != '-' && b[i+1] != '.'
	case '-', '+':
		return i+1 >= len(b) || !isWord(b[i+1]) && b[i+1] != '.'
	default:
		return c >= 0x80
	}
}

// wrappers surround a framework's numbers: tensor(0.5, grad_fn=…).
var wrappers = []string{"tensor", "np.float64", "np.float32", "np.float16", "float", "array", "device_array", "devicearray"}

// thousands extends a counter such as 1,500, as printed by Hugging Face.
func thousands(b []byte, n number) number {
	if n.decimal || n.value < 1 || n.value >= 1000 {
		return n
	}
	for n.end+3 < len(b) && b[n.end] == ',' && isDigit(b[n.end+1]) && isDigit(b[n.end+2]) && isDigit(b[n.end+3]) &&
		(n.end+4 >= len(b) || !isWord(b[n.end+4])) {
		v := float64(b[n.end+1]-'0')*100 + float64(b[n.end+2]-'0')*10 + float64(b[n.end+3]-'0')
		n.value, n.end = n.value*1000+v, n.end+4
	}
	return n
}

// scaled applies the suffix of tqdm's unit_scale.
func scaled(b []byte, n number) number {
	if n.end >= len(b) {
		return n
	}
	switch b[n.end] {
	case 'k', 'K':
		n.value *= 1e3
	case 'M':
		n.value *= 1e6
	case 'G':
		n.value *= 1e9
	default:
		return n
	}
	n.value, n.decimal = math.Round(n.value), false
	n.end++
	return n
}
