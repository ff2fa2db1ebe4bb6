// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package pages

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// tree is a copy of tools/ with stand-ins for the programs that it calls.
func tree(t *testing.T, programs map[string]string) (run func(noInstall string, argv ...string) (string, error)) {
	t.Helper()
	dir := t.TempDir()
	must.NoError(t, os.CopyFS(filepath.Join(dir, "tools"), os.DirFS(filepath.Join(root, "tools"))))
	must.NoError(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	for name, text := range programs {
		must.NoError(t, os.WriteFile(filepath.Join(dir, "bin", name), []byte("#!/bin/bash\n"+text+"\n"), 0o755))
	}
	for _, name := range []string{"bash", "cat", "dirname", "grep", "head", "id", "mkdir", "rm", "sed", "tail", "tee", "tr", "xargs"} {
		path, err := exec.LookPath(name)
		must.NoError(t, err)
		must.NoError(t, os.Symlink(path, filepath.Join(dir, "bin", name)))
	}
	return func(noInstall string, argv ...string) (string, error) {
		cmd := exec.Command(filepath.Join(dir, argv[0]), argv[1:]...)
		cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin"), "GO=go", "NOINSTALL="+noInstall)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

func TestSetup(t *testing.T) {
	const apt = `[[ "$*" != *assume-no* ]] || { echo "Need to get 3 MB of archives."; exit 1; }
echo dlstatus:1:50:x >&3; echo pmstatus:fish:80.5:x >&3`
	run := tree(t, map[string]string{"go": "", "gcc": "", "git": "", "apt-get": "[ $1 = update ] && exit\n" + apt})
	out, err := run("", "tools/setup", "demo")
	must.NoError(t, err)
	must.Eq(t, "", out)
	out, err = run("1", "tools/setup", "test")
	must.NoError(t, err)
	must.StrContains(t, out, "\n  fish                         completion in fish\n")
	must.StrHasSuffix(t, "\nIt goes on without them; tests that need them are skipped.\n", out)

	release, err := os.ReadFile("/etc/os-release")
	if err != nil || os.Geteuid() != 0 || !bytes.Contains(release, []byte("\nID=debian\n")) {
		t.Skip("installs only as root on Debian")
	}
	out, err = run("", "tools/setup", "test")
	must.NoError(t, err)
	must.StrHasSuffix(t, "\nInstalling them, up to 5 minutes, a download of 3 MB (NOINSTALL=1 goes on without them).\n  downloading 50 %\n  installing 75 %\n", out)
	run = tree(t, map[string]string{"go": "", "gcc": "", "git": "", "apt-get": "echo E: no; exit 100"})
	out, err = run("", "tools/setup", "test")
	must.Error(t, err)
	must.StrContains(t, out, "\nE: no\nInstalling failed;")
}

// make test ends with one line, whatever happens.
func TestMakeTest(t *testing.T) {
	const summary = `cat "${@:$#-2}" >/dev/null; echo "DONE 9 tests, 2 skipped in 0.1s"`
	programs := map[string]string{"go": "", "make": "", "gotestsum": summary}
	last := func() (string, error) {
		out, err := tree(t, programs)("1", "tools/test")
		lines := strings.Split(strings.TrimSpace(out), "\n")
		return lines[len(lines)-1], err
	}
	line, err := last()
	must.NoError(t, err)
	must.Eq(t, "make test passed after 0 min (9 tests, 2 skipped, listed above)", line)
	programs["make"] = `[[ "$*" != *chaos && "$*" != *e2e ]]`
	line, err = last()
	must.Error(t, err)
	must.Eq(t, "make test FAILED in chaos e2e after 0 min (9 tests, 2 skipped, listed above)", line)
	programs["make"] = `[[ "$*" != *nomad* ]]`
	line, err = last()
	must.Error(t, err)
	must.Eq(t, "make test FAILED in the build after 0 min", line)
}
