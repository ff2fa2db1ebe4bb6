// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package pages tests the documentation: its length, links, pictures, tables, wording, and the
// commands and functions that it names.
package pages

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

const root = "../.."

// budgets are the most words that a page may have. Tables count, and so do their bars.
var budgets = map[string]int{
	"README.md":             900,
	"ARCHITECTURE.md":       855,
	"CONTRIBUTING.md":       880,
	"docs/README.md":        200,
	"docs/concepts.md":      2670,
	"docs/operations.md":    3210,
	"docs/shim.md":          2585,
	"docs/jobs.md":          1665,
	"docs/reference.md":     5890,
	"docs/gpu.md":           2980,
	"docs/gpu-internals.md": 1260,
	"docs/queue.md":         1525,
	"docs/sim.md":           845,
	"docs/evaluation.md":    3520,
	"docs/dependencies.md":  1095,
	"docs/metrics.md":       1610,
}

// inAll is the most words of all of docs.
const inAll = 28910

func TestBudgets(t *testing.T) {
	for name, most := range budgets {
		if got := len(strings.Fields(read(t, name))); got > most {
			t.Errorf("%s has %d words; the limit is %d: what could be shorter?", name, got, most)
		}
	}
	sum := 0
	for _, name := range pages(t) {
		if strings.HasPrefix(name, "docs/") {
			sum += len(strings.Fields(read(t, name)))
		}
	}
	if sum > inAll {
		t.Errorf("docs has %d words; the limit is %d", sum, inAll)
	}
}

// read returns a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	must.NoError(t, err)
	return string(data)
}

// pages returns all pages, by their path in the repository.
func pages(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"*.md", "*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		must.NoError(t, err)
		for _, path := range found {
			rel, err := filepath.Rel(root, path)
			must.NoError(t, err)
			all = append(all, filepath.ToSlash(rel))
		}
	}
	must.SliceNotEmpty(t, all)
	return all
}

var (
	fenced   = regexp.MustCompile("(?ms)^ *```[^\n]*\n.*?^ *```$")
	indented = regexp.MustCompile(`(?m)^    .*$`)
	codeSpan = regexp.MustCompile("`+[^`]+`+")
	heading  = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	link     = regexp.MustCompile(`(!?)\[([^\]]*)\]\(([^)\s]+)\)`)
)

// prose returns a page without its code.
func prose(text string) string {
	return codeSpan.ReplaceAllString(indented.ReplaceAllString(fenced.ReplaceAllString(text, ""), ""), "")
}

// anchors are those that the headings of a page have.
func anchors(text string) map[string]bool {
	found := make(map[string]bool)
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		title := strings.ToLower(regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(m[1], "$1"))
		title = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(title, "")
		found[strings.ReplaceAll(strings.TrimSpace(title), " ", "-")] = true
	}
	return found
}

// Every link within the repository leads somewhere, and every picture has a text.
func TestLinks(t *testing.T) {
	check := func(from, to string) {
		file, anchor, _ := strings.Cut(to, "#")
		target := from
		if file != "" {
			target = filepath.ToSlash(filepath.Join(filepath.Dir(from), file))
		}
		if _, err := os.Stat(filepath.Join(root, target)); err != nil {
			t.Errorf("%s: dead link: %s", from, to)
		} else if anchor != "" && !anchors(read(t, target))[anchor] {
			t.Errorf("%s: %s has no heading for #%s", from, target, anchor)
		}
	}
	for _, page := range pages(t) {
		text := fenced.ReplaceAllString(read(t, page), "")
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if m[1] == "!" && len(strings.Fields(m[2])) < 3 {
				t.Errorf("%s: %s: say in words what the picture shows", page, m[3])
			}
			if !strings.Contains(m[3], "://") {
				check(page, m[3])
			}
		}
	}
	// Sources and jobs name pages as seen from the root.
	named := regexp.MustCompile(`docs/[a-z-]+\.md(#[a-z-]+)?`)
	for _, path := range sources(t, ".go", ".c", ".h", ".hcl", ".service", ".sh") {
		for _, to := range named.FindAllString(read(t, path), -1) {
			if !strings.HasSuffix(path, "_test.go") {
				check("README.md", to)
			}
		}
	}
}

// sources returns the files with such names, by their path in the repository.
func sources(t *testing.T, suffixes ...string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && rel != "." || rel == "out" || rel == "bin" || rel == "dist" || rel == "e2e/out" || d.Name() == "node_modules"):
			return filepath.SkipDir
		case d.IsDir():
			return nil
		}
		for _, s := range suffixes {
			if strings.HasSuffix(path, s) {
				all = append(all, filepath.ToSlash(rel))
			}
		}
		return nil
	})
	must.NoError(t, err)
	must.SliceNotEmpty(t, all)
	return all
}

// Every drawing is well-formed, has a title and a description, and adapts to a dark page.
func TestDrawings(t *testing.T) {
	var files []string
	for _, pattern := range []string{"docs/*.svg", "docs/results/*.svg"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		must.NoError(t, err)
		must.SliceNotEmpty(t, found)
		files = append(files, found...)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		must.NoError(t, err)
		var svg struct {
			Role  string `xml:"role,attr"`
			Title string `xml:"title"`
			Desc  string `xml:"desc"`
			Style string `xml:"style"`
		}
		must.NoError(t, xml.Unmarshal(data, &svg), must.Sprint(file))
		must.Eq(t, "img", svg.Role, must.Sprint(file))
		must.NotEq(t, "", svg.Title, must.Sprint(file))
		must.Greater(t, 40, len(svg.Desc), must.Sprint(file))
		must.StrContains(t, svg.Style, "prefers-color-scheme: dark", must.Sprint(file))
	}
}

// Every direct dependency has its row, and no row is left over.
func TestDependencies(t *testing.T) {
	page := read(t, "docs/dependencies.md")
	var direct []string
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) v\S+$`).FindAllStringSubmatch(read(t, "go.mod"), -1) {
		direct = append(direct, m[1])
	}
	must.Greater(t, 30, len(direct))
	// A tool is named by its package; its module is a prefix.
	tools := regexp.MustCompile(`(?m)^\t([a-z.]+\.[a-z]+/\S+)$`).FindAllStringSubmatch(read(t, "tools/go.mod"), -1)
	must.Greater(t, 2, len(tools))
	rows := regexp.MustCompile("(?m)^\\| `([a-z.]+\\.[a-z]+/[^`]+)`").FindAllStringSubmatch(page, -1)
	for _, module := range direct {
		if !slices.ContainsFunc(rows, func(row []string) bool { return row[1] == module }) {
			t.Errorf("docs/dependencies.md has no row for %s", module)
		}
	}
	for _, tool := range tools {
		if !slices.ContainsFunc(rows, func(row []string) bool { return strings.HasPrefix(tool[1], row[1]) }) {
			t.Errorf("docs/dependencies.md has no row for %s", tool[1])
		}
	}
	for _, row := range rows {
		needed := slices.ContainsFunc(direct, func(module string) bool { return strings.HasPrefix(row[1], module) }) ||
			slices.ContainsFunc(tools, func(tool []string) bool { return strings.HasPrefix(tool[1], row[1]) })
		if !needed {
			t.Errorf("docs/dependencies.md has a row for %s, which nothing imports", row[1])
		}
	}
}

// The page lists every check of doctor.
func TestDoctor(t *testing.T) {
	page := read(t, "docs/operations.md")
	checks := regexp.MustCompile(`(?m)^\tconst name = "([^"]+)"`).FindAllStringSubmatch(read(t, "cli/doctor/checks.go"), -1)
	must.Greater(t, 10, len(checks))
	for _, m := range checks {
		must.StrContains(t, page, "\n| `"+m[1]+"` | ")
	}
}
