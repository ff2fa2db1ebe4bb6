// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

func TestShim_usage(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.hcl")
	must.NoError(t, os.WriteFile(bad, []byte("interval = \"x\"\nlimits {\n in_flight = 0\n}"), 0o644))
	good := filepath.Join(t.TempDir(), "good.hcl")
	must.NoError(t, os.WriteFile(good, []byte("interval = \"5s\""), 0o644))
	token := filepath.Join(t.TempDir(), "token.hcl")
	must.NoError(t, os.WriteFile(token, []byte("nomad {\n token_file = \"/nowhere/token\"\n}"), 0o644))
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"extra"}, `unexpected argument "extra"`},
		{[]string{"-force"}, "allowed are -address, -ca-cert, -check, -client-cert, -client-key, -config, -dry-run, -region, -tls-server-name, -token"},
		{[]string{"-config", "/nowhere.hcl"}, "reading the configuration: open /nowhere.hcl"},
		{[]string{"-config", bad}, "interval: must be a duration like 30s, got \"x\"\nlimits.in_flight: must be from 1 to 1000, got 0"},
		{[]string{"-config", token}, "nomad.token_file: open /nowhere/token"},
	} {
		status, stdout, stderr := ebbtide("", append([]string{"shim"}, tc.args...)...)
		must.Eq(t, exitUsage, status, must.Sprint(stderr))
		must.Eq(t, "", stdout)
		must.StrContains(t, stderr, tc.want)
	}
	status, stdout, _ := ebbtide("", "shim", "-check", "-config", good)
	must.Eq(t, exitOK, status)
	must.Eq(t, "the configuration is valid\n", stdout)
}

func TestShim_rights(t *testing.T) {
	nomad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/acl/token/self" {
			_, _ = io.WriteString(w, `{"Type": "client"}`)
			return
		}
		_, _ = io.WriteString(w, "[]") // no policies, no namespaces
	}))
	defer nomad.Close()
	t.Setenv("NOMAD_ADDR", nomad.URL)
	status, _, stderr := ebbtide("", "shim")
	must.Eq(t, exitError, status)
	must.StrContains(t, stderr, "ebbtide shim: missing right: node: read\n")
	must.StrContains(t, stderr, "ebbtide shim: missing right: namespace \"default\": alloc-lifecycle\n")
}

// A rejected token is reported without printing it.
func TestShim_refused(t *testing.T) {
	nomad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "Permission denied", http.StatusForbidden)
	}))
	defer nomad.Close()
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "token"), []byte("hunter2\n"), 0o600))
	file := filepath.Join(dir, "shim.hcl")
	must.NoError(t, os.WriteFile(file, []byte("nomad {\n address = \""+nomad.URL+"\"\n token_file = \""+filepath.Join(dir, "token")+"\"\n}"), 0o644))
	status, _, stderr := ebbtide("", "shim", "-config", file)
	must.Eq(t, exitError, status)
	must.StrContains(t, stderr, "the token is unknown to Nomad or has expired")
	must.StrNotContains(t, stderr, "hunter2")
	status, _, stderr = ebbtide("", "moves", "-address", nomad.URL)
	must.Eq(t, exitError, status)
	must.StrContains(t, stderr, "listing variables ebbtide/shim/moves/")
	status, _, stderr = ebbtide("", "moves", "extra")
	must.Eq(t, exitUsage, status)
	must.StrContains(t, stderr, `unexpected argument "extra"`)
}
