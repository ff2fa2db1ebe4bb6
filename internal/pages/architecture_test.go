// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package pages

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// declared returns the functions, methods and types of our packages, such as "plan.Limits" and
// "plan.Damper.Next", and the functions of the C library.
func declared(t *testing.T) map[string]bool {
	t.Helper()
	names := make(map[string]bool)
	for _, path := range sources(t, ".go") {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, path), nil, parser.SkipObjectResolution)
		must.NoError(t, err)
		pkg := file.Name.Name
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				name := pkg + "."
				if d.Recv != nil {
					typ := d.Recv.List[0].Type
					if star, ok := typ.(*ast.StarExpr); ok {
						typ = star.X
					}
					if generic, ok := typ.(*ast.IndexExpr); ok {
						typ = generic.X
					}
					if id, ok := typ.(*ast.Ident); ok {
						name += id.Name + "."
					}
				}
				names[name+d.Name.Name] = true
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if typ, ok := s.(*ast.TypeSpec); ok {
						names[pkg+"."+typ.Name.Name] = true
					}
				}
			}
		}
	}
	for _, path := range sources(t, ".c") {
		for _, m := range regexp.MustCompile(`(?m)^[a-zA-Z].*?\b(\w+)\(`).FindAllStringSubmatch(read(t, path), -1) {
			names[m[1]] = true
		}
		for _, m := range regexp.MustCompile(`(?m)^ALLOC\((\w+)`).FindAllStringSubmatch(read(t, path), -1) {
			names[m[1]] = true
		}
	}
	return names
}

// Every function and file that ARCHITECTURE.md and the glossary name exists.
func TestArchitecture(t *testing.T) {
	names := declared(t)
	exists := func(path string) bool {
		_, err := os.Stat(filepath.Join(root, path))
		return err == nil
	}
	checked := 0
	for _, page := range []string{"ARCHITECTURE.md", "CONTRIBUTING.md"} {
		for _, m := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(withoutBlocks(read(t, page)), -1) {
			name := m[1]
			switch {
			case regexp.MustCompile(`^[a-z0-9]+(/[a-z0-9_.]+)+/?$|^[a-z0-9]+/$`).MatchString(name):
				if !exists(name) && !strings.Contains(name, ".org/") && !strings.Contains(name, ".net/") {
					t.Errorf("%s names %s, which is not there", page, name)
				}
			case regexp.MustCompile(`^[a-z]+\.(\w+\.)?[A-Za-z]\w+$`).MatchString(name) && !regexp.MustCompile(`\.(go|md|so|shares|weight|max|cfs_quota_us)$`).MatchString(name):
				if !names[name] {
					t.Errorf("%s names %s, which is not declared", page, name)
				}
				checked++
			case regexp.MustCompile(`^(eb_\w+|cu[A-Z]\w+|reserve)$`).MatchString(name):
				if !names[name] && name != "cuMemAlloc" {
					t.Errorf("%s names the C function %s, which is not declared", page, name)
				}
				checked++
			}
		}
	}
	must.Greater(t, 40, checked)
}

// withoutBlocks returns a page without its blocks of code.
func withoutBlocks(text string) string {
	return indented.ReplaceAllString(fenced.ReplaceAllString(text, ""), "")
}

// The line that ARCHITECTURE.md has a stranger change is there, and so is the test that fails.
func TestArchitecture_rule(t *testing.T) {
	_, section, ok := strings.Cut(read(t, "ARCHITECTURE.md"), "## Change a rule")
	must.True(t, ok)
	line := regexp.MustCompile(`(?m)^    (.*), n\.floor\[i\] // was: (.*)$`).FindStringSubmatch(section)
	must.SliceLen(t, 3, line)
	must.StrContains(t, read(t, "driver/policy/flowcon/flowcon.go"), line[1]+", "+line[2])
	failing := regexp.MustCompile("`(TestDecide_limits)/([^`]+)`").FindStringSubmatch(section)
	must.SliceLen(t, 3, failing)
	tests := read(t, "driver/policy/flowcon/flowcon_test.go")
	must.StrContains(t, tests, "func "+failing[1]+"(")
	must.StrContains(t, tests, `"`+strings.ReplaceAll(failing[2], "_", " ")+`"`)
}

// The table of internal/README.md is what the folder has.
func TestInternal(t *testing.T) {
	var rows, folders []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)`").FindAllStringSubmatch(read(t, "internal/README.md"), -1) {
		rows = append(rows, m[1])
	}
	entries, err := os.ReadDir(filepath.Join(root, "internal"))
	must.NoError(t, err)
	for _, e := range entries {
		if e.IsDir() {
			folders = append(folders, e.Name())
		}
	}
	must.Eq(t, folders, rows)
}

// Each top folder has a page, or a package comment, that says where to start, in at most 40 lines.
func TestFolders(t *testing.T) {
	folders := make(map[string]bool)
	for _, name := range sources(t, ".go") {
		if folder, _, ok := strings.Cut(name, "/"); ok {
			folders[folder] = true
		}
	}
	must.MapNotEmpty(t, folders)
	for folder := range folders {
		found := false
		for _, name := range []string{"README.md", "doc.go", folder + ".go"} {
			text, err := os.ReadFile(filepath.Join(root, folder, name))
			if err != nil {
				continue
			}
			page, _, _ := strings.Cut(string(text), "\npackage ")
			found = true
			if lines := strings.Count(page, "\n"); lines > 40 {
				t.Errorf("%s/%s has %d lines before its code; the limit is 40", folder, name, lines)
			}
		}
		if !found {
			t.Errorf("%s has neither a README.md nor a doc.go", folder)
		}
	}
}
