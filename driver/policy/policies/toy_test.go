// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policies

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// A new policy takes a folder and one entry in All: the command is built with a toy
// policy, using an overlay of these two.
func TestToy(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the command")
	}
	here, err := os.Getwd()
	must.NoError(t, err)
	registry, err := os.ReadFile("policies.go")
	must.NoError(t, err)
	dir := t.TempDir()
	edited := filepath.Join(dir, "policies.go")
	must.NoError(t, os.WriteFile(edited, []byte(strings.NewReplacer(
		"import (", "import (\n\t\"github.com/ebbtide/ebbtide/driver/policy/toy\"",
		"\t\tnone.Policy(),", "\t\tnone.Policy(),\n\t\ttoy.Policy(),",
	).Replace(string(registry))), 0o600))
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{
		filepath.Join(here, "policies.go"):   edited,
		filepath.Join(here, "../toy/toy.go"): filepath.Join(here, "testdata/toy/toy.go"),
	}})
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))

	bin := filepath.Join(dir, "ebbtide")
	run := func(stdin string, name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		must.NoError(t, err, must.Sprint(string(out)))
		return string(out)
	}
	run("", "go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", bin, "github.com/ebbtide/ebbtide/cmd/ebbtide")
	must.StrContains(t, run("", bin, "decide", "--list"), "\nnone\ntoy\n")
	must.Eq(t, `{"tasks":[{"id":"a","entitlement":1},{"id":"b","entitlement":3}],"params":{"keep":0}}`+"\n",
		run("", bin, "decide", "--example", "toy", "--compact"))
	must.Eq(t, `{"tasks":[{"id":"x","limit":0.25,"stop":false,"rule":"toy.equal","why":"one of 2"},`+
		`{"id":"y","limit":0.25,"stop":false,"rule":"toy.equal","why":"one of 2"}]}`+"\n",
		run(`{"tasks": [{"id": "x"}, {"id": "y"}], "policies": {"toy": {"keep": 0.5}}}`, bin, "decide", "--policy", "toy", "--compact"))
}
