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
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

//go:embed phrases.txt
var phrases string

type phrase struct {
	avoid  *regexp.Regexp
	better string
	except []string
}

func avoided(t *testing.T) (all []phrase) {
	t.Helper()
	lines := bufio.NewScanner(strings.NewReader(phrases))
	for lines.Scan() {
		if line := lines.Text(); !strings.HasPrefix(line, "#") {
			columns := strings.Split(line, "\t")
			must.Between(t, 2, len(columns), 3, must.Sprint(line))
			p := phrase{avoid: regexp.MustCompile(`(?i)\b(` + strings.ReplaceAll(columns[0], " ", `\s+`) + `)\b`), better: columns[1]}
			if len(columns) == 3 {
				p.except = strings.Fields(columns[2])
			}
			all = append(all, p)
		}
	}
	must.SliceNotEmpty(t, all)
	return all
}

// words returns a file without what marks its comments, so that a phrase is found across lines; of
// a Go file its comments and strings, of a C file its comments.
func words(t *testing.T, name string) string {
	t.Helper()
	text := read(t, name)
	switch path.Ext(name) {
	case ".go":
		return goWords(t, name, text)
	case ".c", ".h":
		text = strings.Join(regexp.MustCompile(`(?s)//[^\n]*|/\*.*?\*/`).FindAllString(text, -1), "\n")
	}
	return regexp.MustCompile(`(?m)^\s*(//|/\*|\*|#)|\*/`).ReplaceAllString(text, "")
}

func goWords(t *testing.T, name, text string) string {
	t.Helper()
	var s scanner.Scanner
	s.Init(token.NewFileSet().AddFile(name, -1, len(text)), []byte(text), nil, scanner.ScanComments)
	var comments, literals strings.Builder
	for {
		switch _, tok, lit := s.Scan(); tok {
		case token.EOF:
			return comments.String() + literals.String()
		case token.COMMENT:
			comments.WriteString(strings.NewReplacer("//", "", "/*", "", "*/", "").Replace(lit) + "\n")
		case token.STRING:
			value, err := strconv.Unquote(lit)
			must.NoError(t, err)
			literals.WriteString("\x00" + value)
		}
	}
}

// Pages, comments, scripts, jobs and the texts of programs avoid the phrases of the list.
func TestProse(t *testing.T) {
	list := avoided(t)
	check := func(name, text string) {
		for _, p := range list {
			if hit := p.avoid.FindString(text); hit != "" && !slices.Contains(p.except, name) {
				t.Errorf("%s: %q: write %s", name, hit, p.better)
			}
		}
	}
	for _, page := range pages(t) {
		check(page, prose(read(t, page)))
	}
	for _, name := range sources(t, ".go", ".c", ".h", ".js", ".html", ".hcl", ".sh", ".yml", "Makefile") {
		if !strings.Contains(path.Dir(name), "testdata") {
			check(name, words(t, name))
		}
	}
}
