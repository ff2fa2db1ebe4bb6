// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// setupOn runs the command for an agent's directory, with an answer on stdin.
func setupOn(t *testing.T, dir, answer string, args ...string) (status int, out, err string) {
	t.Helper()
	var stdout, stderr strings.Builder
	c := setupCommand{
		command{IO{strings.NewReader(answer), &stdout, &stderr}, "setup"},
		dir, func(io.Reader) bool { return answer != "" },
	}
	args = append([]string{"-config", filepath.Join(dir, "etc"), "-plugins", filepath.Join(dir, "plugins")}, args...)
	return c.Run(args), stdout.String(), stderr.String()
}

func TestSetup(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "etc", "ebbtide.hcl")
	for name, text := range map[string]string{"etc/nomad.hcl": "client {\n  enabled = true\n}\n", "plugins/ebbtide-driver": ""} {
		must.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}

	status, out, errs := setupOn(t, dir, "", "-print")
	must.Eq(t, exitOK, status)
	must.StrHasPrefix(t, "# Written by \"ebbtide setup\"", out)
	must.StrContains(t, errs, "note: engine: exec")
	printed := out

	status, out, errs = setupOn(t, dir, "")
	must.Eq(t, exitUsage, status)
	must.StrContains(t, out, "+plugin \"ebbtide-driver\" {")
	must.StrContains(t, errs, "use -yes to write the file, or -print")

	status, _, errs = setupOn(t, dir, "n\n")
	must.Eq(t, exitError, status)
	must.StrContains(t, errs, "? [y/N] ebbtide setup: nothing was written")
	_, err := os.Stat(file)
	must.ErrorIs(t, err, os.ErrNotExist)

	status, _, errs = setupOn(t, dir, "yes\n")
	must.Eq(t, exitOK, status)
	must.StrContains(t, errs, "systemctl restart nomad")
	data, err := os.ReadFile(file)
	must.NoError(t, err)
	must.Eq(t, printed, string(data))

	status, out, _ = setupOn(t, dir, "")
	must.Eq(t, exitOK, status)
	must.StrContains(t, out, "is up to date")

	status, out, _ = setupOn(t, dir, "", "-yes", "-set", "mode=quota", "-engine", "docker")
	must.Eq(t, exitOK, status)
	must.StrContains(t, out, "-    engine = \"exec\"\n+    engine = \"docker\"\n+    mode   = \"quota\"\n")

	// A user's changes are kept.
	must.NoError(t, os.WriteFile(file, append(data, "# mine\n"...), 0o644))
	status, _, errs = setupOn(t, dir, "", "-yes")
	must.Eq(t, exitUsage, status)
	must.StrContains(t, errs, "was edited since ebbtide setup wrote it")
	status, out, _ = setupOn(t, dir, "", "-print")
	must.Eq(t, exitOK, status)
	must.Eq(t, printed, out)
}

func TestSetup_usage(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-conf", "x"}, "allowed are -config, -engine, -gpu, -plugins, -print, -set, -yes"},
		{[]string{"/etc/nomad.d"}, "named with -config"},
		{[]string{"-yes", "-print"}, "cannot be used together"},
		{[]string{"-set", "mode=hard", "-gpu", "2"}, "ebbtide setup: -gpu: must be one of auto, yes, no, got \"2\"\nebbtide setup: -set: mode: must be one of"},
	} {
		status, out, errs := ebbtide("", append([]string{"setup"}, c.args...)...)
		must.Eq(t, exitUsage, status)
		must.Eq(t, "", out)
		must.StrContains(t, errs, c.want)
	}
	_, out, _ := ebbtide("", "setup", "-help")
	must.StrContains(t, out, "no_progress_after      \"2m\"")
}
