// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"bytes"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/internal/version"
)

// ebbtide runs a command line.
func ebbtide(stdin string, args ...string) (status int, stdout, stderr string) {
	var out, err bytes.Buffer
	status = Run(args, strings.NewReader(stdin), &out, &err)
	return status, out.String(), err.String()
}

func TestRun(t *testing.T) {
	for _, tc := range []struct {
		name   string
		args   []string
		status int
		stdout string // contained
		stderr string // contained; "" for empty
	}{
		{"no command", nil, exitUsage, "", "Usage: ebbtide"},
		{"unknown command", []string{"decied"}, exitUsage, "", `unknown command "decied", must be one of: `},
		{"unknown command, with a flag", []string{"decied", "--help"}, exitUsage, "", `unknown command "decied"`},
		{"unknown flag", []string{"--policy"}, exitUsage, "", "Usage: ebbtide"},
		{"help", []string{"--help"}, exitOK, "Usage: ebbtide", ""},
		{"version flag", []string{"--version"}, exitOK, version.Version, ""},
		{"help of a command", []string{"decide", "--help"}, exitOK, "Usage: ebbtide decide", ""},
		{"version", []string{"version"}, exitOK, "ebbtide " + version.Version, ""},
		{"version, help", []string{"version", "-h"}, exitOK, "Usage: ebbtide version", ""},
		{"version, argument", []string{"version", "x"}, exitUsage, "", `takes no arguments, got ["x"]`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, stdout, stderr := ebbtide("", tc.args...)
			must.Eq(t, tc.status, status)
			must.StrContains(t, stdout, tc.stdout)
			must.StrContains(t, stderr, tc.stderr)
			if tc.stdout == "" {
				must.Eq(t, "", stdout)
			}
			if tc.stderr == "" {
				must.Eq(t, "", stderr)
			}
		})
	}
}

// The CLI links nothing of Nomad but MPL-2.0 packages (NOTICE).
func TestLicence(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "../cmd/ebbtide").Output()
	must.NoError(t, err)
	const nomad = "github.com/hashicorp/nomad/"
	for pkg := range strings.FieldsSeq(string(out)) {
		if of, ok := strings.CutPrefix(pkg, nomad); ok {
			dir, _, _ := strings.Cut(of, "/")
			must.SliceContains(t, []string{"api", "jobspec2"}, dir, must.Sprint(pkg))
		}
	}
	must.StrContains(t, string(out), nomad+"api")
}

func TestCommands(t *testing.T) {
	for name, construct := range commands() {
		c := construct(IO{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard})
		must.NotEq(t, "", c.Synopsis(), must.Sprint(name))
		must.StrContains(t, c.Help(), "Usage: ebbtide "+name)
	}
}
