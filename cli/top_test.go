// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/top"
	"github.com/ebbtide/ebbtide/top/fake"
)

// runTop runs the command without a terminal width.
func runTop(t *testing.T, c *fake.Cluster, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	t.Setenv("COLUMNS", "")
	t.Setenv("LC_ALL", "C.UTF-8")
	nomad := httptest.NewServer(c)
	defer nomad.Close()
	return ebbtide("", append([]string{"top", "-address", nomad.URL}, args...)...)
}

// Without a terminal it prints once, 80 columns wide.
func TestTop_once(t *testing.T) {
	for _, args := range [][]string{nil, {"-once"}} {
		status, out, errs := runTop(t, topCluster(), args...)
		must.Eq(t, exitOK, status, must.Sprint(errs))
		must.Eq(t, "", errs)
		for _, want := range []string{
			"2 nodes  8 cores 90% used  3 tasks 2 NL 1 CL 1 late  saved 8m20s  1 move\n", "\n  JOB  ", "fsp.late", "\n  NODE ", "▁", "NVIDIA A2", "ebbtide shim on n1",
		} {
			must.StrContains(t, out, want)
		}
		must.StrNotContains(t, out, "\x1b")
		for line := range strings.SplitSeq(out, "\n") {
			must.LessEq(t, 80, len([]rune(line)), must.Sprint(line))
		}
	}

	t.Setenv("COLUMNS", "200")
	nomad := httptest.NewServer(topCluster())
	defer nomad.Close()
	_, out, _ := ebbtide("", "top", "-address", nomad.URL)
	must.StrContains(t, out, "NAMESPACE")

	_, out, _ = runTop(t, topCluster(), "-namespace", "vision")
	must.StrContains(t, out, "evil")
	_, out, _ = runTop(t, topCluster(), "-node", "two")
	must.StrNotContains(t, out, "vae")
	_, out, _ = runTop(t, topCluster(), "-job", "v*")
	must.StrContains(t, out, "vae")
	must.StrNotContains(t, out, "evil")
	_, out, _ = runTop(t, topCluster(), "-sort", "gap", "-job", "[")
	must.StrContains(t, out, "No task runs under Ebbtide.")
}

func TestTop_json(t *testing.T) {
	status, out, errs := runTop(t, topCluster(), "-json")
	must.Eq(t, exitOK, status, must.Sprint(errs))
	var v top.View
	must.NoError(t, json.Unmarshal([]byte(out), &v))
	must.Len(t, 2, v.Nodes)
	must.Len(t, 3, v.Tasks)
	must.Len(t, 1, v.GPUs)
	must.Len(t, 1, v.Moves)
	must.Eq(t, "fsp.late", v.Tasks[1].Status.Rule)
	must.Eq(t, 64, len(v.Tasks[1].Values))
	must.StrContains(t, out, `"metric": "\u001b[31mred\u0007"`) // JSON escapes control characters
	must.StrNotContains(t, out, "\x1b")

	// A cluster without Ebbtide.
	status, out, _ = runTop(t, fake.New(), "-json")
	must.Eq(t, exitOK, status)
	must.StrContains(t, out, `"tasks": []`)
	status, out, _ = runTop(t, fake.New())
	must.Eq(t, exitOK, status)
	must.StrContains(t, out, "Run `ebbtide doctor`")
}

func TestTop_docs(t *testing.T) {
	page, err := os.ReadFile("../docs/operations.md")
	must.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "## Watching")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, typ := range []any{top.View{}, top.Node{}, top.Task{}, top.Event{}, top.GPU{}, top.Seat{}, top.Move{}} {
		for _, field := range reflect.VisibleFields(reflect.TypeOf(typ)) {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			must.RegexMatch(t, regexp.MustCompile("[`.]"+name+"(\\[\\])?`"), section, must.Sprintf("%T", typ))
		}
	}
	for _, name := range top.Sorts() {
		must.StrContains(t, section, "`"+name+"`")
	}
}

func TestTop_errors(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"-sort", "size"}, `-sort: must be one of job, node, state, end, gap, step, cpu, limit, started, got "size"`},
		{[]string{"-interval", "10ms"}, "-interval: must be from 1s to 1h, got 10ms"},
		{[]string{"mlp"}, `unexpected argument "mlp"`},
		{[]string{"-colour"}, "allowed are "},
	} {
		status, out, errs := runTop(t, fake.New(), tc.args...)
		must.Eq(t, exitUsage, status)
		must.Eq(t, "", out)
		must.StrContains(t, errs, tc.want)
	}
	c := fake.New()
	c.Denied["nodes"] = true
	status, out, errs := runTop(t, c)
	must.Eq(t, exitError, status)
	must.Eq(t, "", out)
	must.StrContains(t, errs, "ebbtide top: listing the nodes: permission denied: the token needs node:read")
}

func TestUTF8Locale(t *testing.T) {
	for _, tc := range []struct {
		all, ctype, lang string
		want             bool
	}{
		{"", "", "", false}, {"", "", "de_DE.UTF-8", true}, {"", "", "C.utf8", true}, {"C", "", "de_DE.UTF-8", false}, {"", "C.UTF-8", "C", true},
	} {
		t.Setenv("LC_ALL", tc.all)
		t.Setenv("LC_CTYPE", tc.ctype)
		t.Setenv("LANG", tc.lang)
		must.Eq(t, tc.want, utf8Locale(), must.Sprint(tc))
	}
}
