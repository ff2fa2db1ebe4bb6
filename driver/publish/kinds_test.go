// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package publish

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy"
)

// Every event that the driver sends is of a kind that is listed, every kind is sent, and the
// messages begin as they are said to.
func TestKinds(t *testing.T) {
	sent := map[string]bool{string(policy.Acceptable): true, string(policy.Objective): true} // string(r.State)
	var texts []string
	must.NoError(t, filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || path == filepath.Join("..", "publish", "kinds.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		must.NoError(t, err)
		for _, d := range file.Decls {
			constants := make(map[string]string)
			ast.Inspect(d, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.ValueSpec:
					if len(n.Names) == len(n.Values) {
						for i, name := range n.Names {
							constants[name.Name] = text(n.Values[i])
						}
					}
				case *ast.BasicLit:
					texts = append(texts, text(n))
				case *ast.CallExpr:
					if kind := kindArgument(n); kind != nil {
						name := text(kind)
						if id, ok := kind.(*ast.Ident); ok {
							name = constants[id.Name]
						}
						sent[name] = true
					}
				}
				return true
			})
		}
		return nil
	}))
	delete(sent, "") // Events.Flush passes on what it was given
	for _, k := range Kinds() {
		test.True(t, sent[k.Name], test.Sprintf("no event is of the kind %q", k.Name))
		delete(sent, k.Name)
		test.NotEq(t, "", k.Doc)
		for _, says := range k.Says {
			_, rest, _ := strings.Cut(says, " ")
			test.True(t, slices.ContainsFunc(texts, func(s string) bool {
				return strings.HasPrefix(s, says) || rest != "" && strings.HasPrefix(s, "%s "+rest) // a word that differs
			}), test.Sprintf("no message of the kind %q begins with %q", k.Name, says))
		}
	}
	test.MapEmpty(t, sent, test.Sprint("kinds that Kinds does not list"))
}

// kindArgument returns the argument of a call that is the kind of an event; nil if there is none.
func kindArgument(call *ast.CallExpr) ast.Expr {
	f, ok := call.Fun.(*ast.SelectorExpr)
	switch {
	case ok && (f.Sel.Name == "Enqueue" && len(call.Args) == 2 || f.Sel.Name == "Send" && len(call.Args) == 3):
		return call.Args[0]
	case ok && f.Sel.Name == "say" && len(call.Args) == 4:
		return call.Args[1]
	}
	return nil
}

// text returns the value of a string literal; "" for anything else.
func text(e ast.Expr) string {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	s, _ := strconv.Unquote(lit.Value)
	return s
}
