// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package prometheus

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The text that an endpoint answers is not trusted, so it is read here and not by
// prometheus/common/expfmt: that (v0.67.5) panics at "{} 1", which would end the
// driver with all its tasks, needs seconds for a line of 70 KB with 8,000 labels, and
// gives up on the whole text at one bad line or an exemplar of OpenMetrics. What both
// read they read alike: FuzzParse compares them.

const (
	maxLabels  = 64     // of a sample; more is no sample
	maxSamples = 20_000 // of the wanted metrics
	maxOthers  = 64     // names of other metrics that are kept
)

// sample is one line of the text.
type sample struct {
	name   string
	labels []label // sorted by name
	value  float64
}

type label struct{ name, value string }

// label returns the value of a label, "" if there is none, which is the same.
func (s *sample) label(name string) string {
	for _, l := range s.labels {
		if l.name == name {
			return l.value
		}
	}
	return ""
}

// key returns the labels but one, as one string.
func (s *sample) key(but string) string {
	var b strings.Builder
	for _, l := range s.labels {
		if l.name != but {
			b.WriteString(strconv.Quote(l.name))
			b.WriteByte('=')
			b.WriteString(strconv.Quote(l.value))
			b.WriteByte(',')
		}
	}
	return b.String()
}

// page is what was found in a text.
type page struct {
	samples []sample          // of the wanted names
	types   map[string]string // of the wanted names
	others  []string          // other metrics, by their TYPE lines
	lines   int64
	good    int // lines that are samples
	bad     int // lines that are nothing
	full    bool
}

// parse reads a text in Prometheus' format, or in OpenMetrics'. Its work is linear in
// the length of the text; it keeps the samples whose names want says.
func parse(text []byte, want func(name string) bool) page {
	p := page{types: map[string]string{}}
	for len(text) > 0 {
		line := text
		if at := bytes.IndexByte(text, '\n'); at >= 0 {
			line, text = text[:at], text[at+1:]
		} else {
			text = nil
		}
		p.lines++
		line = bytes.TrimSuffix(line, []byte("\r"))
		line = bytes.TrimLeft(line, " \t")
		switch {
		case len(line) == 0:
		case line[0] == '#':
			p.comment(line, want)
		default:
			s, ok := parseSample(line, want)
			switch {
			case !ok:
				p.bad++
				continue
			case s.name != "" && len(p.samples) >= maxSamples:
				p.full = true
			case s.name != "":
				p.samples = append(p.samples, s)
			}
			p.good++
		}
	}
	return p
}

// comment reads a TYPE line.
func (p *page) comment(line []byte, want func(string) bool) {
	rest, ok := bytes.CutPrefix(bytes.TrimLeft(line[1:], " \t"), []byte("TYPE"))
	if !ok || len(rest) == 0 || rest[0] != ' ' && rest[0] != '\t' {
		return
	}
	rest = bytes.TrimLeft(rest, " \t")
	name, rest, ok := parseName(rest)
	if !ok {
		return
	}
	kind := strings.ToLower(string(bytes.TrimSpace(rest)))
	switch {
	case want(name):
		p.types[name] = kind
	case len(p.others) < maxOthers && len(name) <= 100 && !slices.Contains(p.others, name):
		p.others = append(p.others, name)
	}
}

// parseName reads the name of a metric or of a label, perhaps in quotes.
func parseName(b []byte) (name string, rest []byte, ok bool) {
	if len(b) > 0 && b[0] == '"' {
		name, rest, ok = parseQuoted(b, true)
		return name, rest, ok && name != ""
	}
	n := 0
	for n < len(b) && (isLetter(b[n]) || n > 0 && b[n]-'0' < 10) {
		n++
	}
	return string(b[:n]), b[n:], n > 0
}

func isLetter(c byte) bool { return (c|0x20)-'a' < 26 || c == '_' || c == ':' }

// parseQuoted reads a string in double quotes. Its escapes are \\, \" and \n. With
// keep false it only finds the end.
func parseQuoted(b []byte, keep bool) (text string, rest []byte, ok bool) {
	if len(b) == 0 || b[0] != '"' {
		return "", b, false
	}
	escaped := false
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			if i++; i >= len(b) || b[i] != '\\' && b[i] != '"' && b[i] != 'n' {
				return "", b, false
			}
			escaped = true
		case '"':
			if !keep {
				return "", b[i+1:], true
			}
			text = string(b[1:i])
			if escaped {
				text = unescape.Replace(text)
			}
			return text, b[i+1:], utf8.ValidString(text)
		}
	}
	return "", b, false
}

var unescape = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n")

// parseSample reads a line such as
//
//	name{label="value", …} 0.5 1700000000000 # {trace="…"} 0.4
//
// of which the time and the exemplar are ignored. The name may stand in quotes as the
// first thing within the braces. A sample that is not wanted has no name.
func parseSample(line []byte, want func(string) bool) (s sample, ok bool) {
	rest := line
	named := false
	if rest[0] != '{' {
		if rest[0] == '"' {
			return sample{}, false
		}
		if s.name, rest, ok = parseName(rest); !ok {
			return sample{}, false
		}
		named = true
	}
	keep := named && want(s.name)
	rest = bytes.TrimLeft(rest, " \t")
	if len(rest) > 0 && rest[0] == '{' {
		rest = rest[1:]
		for n := 0; ; n++ {
			rest = bytes.TrimLeft(rest, " \t")
			if len(rest) > 0 && rest[0] == '}' {
				rest = rest[1:]
				break
			}
			if n > maxLabels {
				return sample{}, false
			}
			var name, value string
			if name, rest, ok = parseName(rest); !ok {
				return sample{}, false
			}
			rest = bytes.TrimLeft(rest, " \t")
			switch {
			case len(rest) > 0 && rest[0] == '=':
				rest = bytes.TrimLeft(rest[1:], " \t")
				if value, rest, ok = parseQuoted(rest, keep || !named); !ok {
					return sample{}, false
				}
				if keep || !named {
					if slices.ContainsFunc(s.labels, func(l label) bool { return l.name == name }) {
						return sample{}, false
					}
					s.labels = append(s.labels, label{name, value})
				}
			case named:
				return sample{}, false
			default:
				s.name, named = name, true
				keep = want(name)
			}
			rest = bytes.TrimLeft(rest, " \t")
			if len(rest) > 0 && rest[0] == ',' {
				rest = rest[1:]
			} else if len(rest) == 0 || rest[0] != '}' {
				return sample{}, false
			}
		}
	}
	if !named {
		return sample{}, false
	}

	rest = bytes.TrimLeft(rest, " \t")
	end := bytes.IndexAny(rest, " \t")
	if end < 0 {
		end = len(rest)
	}
	if s.value, ok = parseValue(rest[:end]); !ok {
		return sample{}, false
	}
	// A time may follow, and an exemplar.
	if rest = bytes.TrimLeft(rest[end:], " \t"); len(rest) > 0 && rest[0] != '#' {
		end := bytes.IndexAny(rest, " \t")
		if end < 0 {
			end = len(rest)
		}
		if _, ok := parseValue(rest[:end]); !ok {
			return sample{}, false
		}
		if rest = bytes.TrimLeft(rest[end:], " \t"); len(rest) > 0 && rest[0] != '#' {
			return sample{}, false
		}
	}
	if !keep {
		return sample{}, true
	}
	slices.SortFunc(s.labels, func(a, b label) int { return strings.Compare(a.name, b.name) })
	return s, true
}

// parseValue reads a number as Go does, without its underscores and hexadecimals.
func parseValue(b []byte) (float64, bool) {
	if len(b) == 0 || len(b) > 400 || bytes.ContainsAny(b, "_xXpP") {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(b), 64)
	return v, err == nil
}
