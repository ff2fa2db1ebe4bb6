// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package origin_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/e2e/origin"
)

func TestCommit(t *testing.T) {
	root := t.TempDir()
	git := func(args ...string) {
		out, err := exec.Command("git", append([]string{"-C", root, "-c", "user.name=t", "-c", "user.email=t@t"}, args...)...).CombinedOutput()
		must.NoError(t, err, must.Sprint(string(out)))
	}
	put := func(name string) {
		must.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		must.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(name), 0o644))
	}
	_, err := origin.Commit(t.Context(), root)
	must.ErrorContains(t, err, "asking git for the commit")
	put("a.go")
	git("init", "-q")
	git("add", ".")
	git("commit", "-qm", "a")
	clean, err := origin.Commit(t.Context(), root)
	must.NoError(t, err)
	must.Eq(t, 12, len(clean))
	put("docs/results/train.json")
	again, err := origin.Commit(t.Context(), root)
	must.NoError(t, err)
	must.Eq(t, clean, again)
	put("b.go")
	changed, err := origin.Commit(t.Context(), root)
	must.NoError(t, err)
	must.Eq(t, clean+origin.Dirty, changed)
}
