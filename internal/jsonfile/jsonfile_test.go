// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package jsonfile

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	must.NoError(t, os.WriteFile(path+Unfinished, []byte("left behind by a writer that was killed"), 0o600))
	for _, durable := range []bool{true, false} {
		must.NoError(t, Replace(path, map[string]bool{"durable": durable}, durable))
		b, err := os.ReadFile(path)
		must.NoError(t, err)
		must.Eq(t, map[bool]string{true: `{"durable":true}`, false: `{"durable":false}`}[durable], string(b))
	}
	info, err := os.Stat(path)
	must.NoError(t, err)
	must.Eq(t, 0o600, info.Mode().Perm())

	// After an error the old content is there, and nothing else.
	must.Error(t, Replace(path, make(chan int), true))
	must.Error(t, Replace(filepath.Join(dir, "none", "state"), 1, true))
	must.NoError(t, os.Mkdir(filepath.Join(dir, "folder"), 0o700))
	must.Error(t, Replace(filepath.Join(dir, "folder"), 1, true))
	entries, err := os.ReadDir(dir)
	must.NoError(t, err)
	must.Len(t, 2, entries)
}
