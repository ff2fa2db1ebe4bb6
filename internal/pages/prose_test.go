// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package pages

import (
	"bufio"
	_ "embed"
	"go/scanner"
	"go/token"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

//go:embed phrases.txt
var phrases string

type phrase struct {
	avoid  *regexp.Regexp
	better string
}

func avoided(t *testing.T) (all []phrase) {
	t.Helper()
	lines := bufio.NewScanner(strings.NewReader(phrases))
	for lines.Scan() {
		if line := lines.Text(); !strings.HasPrefix(line, "#") {
			pattern, better, ok := strings.Cut(line, "\t")
			must.True(t, ok, must.Sprint(line))
			all = append(all, phrase{regexp.MustCompile(`(?i)\b(` + strings.ReplaceAll(pattern, " ", `\s+`) + `)\b`), better})
		}
	}
	must.SliceNotEmpty(t, all)
	return all
}

// comments are those of a Go or C file, joined where they follow each other.
func comments(t *testing.T, name string) string {
	t.Helper()
	text := read(t, name)
	var out strings.Builder
	if strings.HasSuffix(name, ".go") {
		set := token.NewFileSet()
		var s scanner.Scanner
		s.Init(set.AddFile(name, -1, len(text)), []byte(text), nil, scanner.ScanComments)
		for {
			_, tok, lit := s.Scan()
			if tok == token.EOF {
				return out.String()
			}
			if tok == token.COMMENT {
				out.WriteString(strings.NewReplacer("//", "", "/*", "", "*/", "").Replace(lit) + "\n")
			}
		}
	}
	for _, c := range regexp.MustCompile(`(?s)//[^\n]*|/\*.*?\*/`).FindAllString(text, -1) {
		out.WriteString(regexp.MustCompile(`(?m)^\s*(//|/\*|\*)|\*/`).ReplaceAllString(c, "") + "\n")
	}
	return out.String()
}

// Pages and comments avoid the phrases of the list.
func TestProse(t *testing.T) {
	list := avoided(t)
	check := func(name, text string) {
		for _, p := range list {
			if hit := p.avoid.FindString(text); hit != "" {
				t.Errorf("%s: %q: write %s", name, hit, p.better)
			}
		}
	}
	for _, page := range pages(t) {
		check(page, prose(read(t, page)))
	}
	for _, name := range sources(t, ".go", ".c", ".h") {
		if !strings.Contains(path.Dir(name), "testdata") {
			check(name, comments(t, name))
		}
	}
}
