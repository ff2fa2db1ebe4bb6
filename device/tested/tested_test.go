// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tested

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

func TestCheck(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gpu")
	must.NoError(t, Check(dir, "NVIDIA H200", "580.159.04"))
	must.EqError(t, Check(dir, "NVIDIA L4", "580.95.05"), "it has not been tested on NVIDIA L4 with driver 580: run the tests of docs/gpu.md")
	must.ErrorContains(t, Check(dir, "NVIDIA H200", "590.1"), "with driver 590")

	must.NoError(t, Record(dir, "NVIDIA L4", "580.95.05"))
	must.NoError(t, Record(dir, "NVIDIA L4", "580.126"))
	must.NoError(t, Record(dir, "NVIDIA H200", "595.71.05"))
	must.NoError(t, Check(dir, "NVIDIA L4", "580.1"))
	must.ErrorContains(t, Check(dir, "NVIDIA H200", "595.71.05"), "driver 595.71.05 is known to break: ")
	here, err := read(dir)
	must.NoError(t, err)
	must.Eq(t, []Pair{{"NVIDIA L4", "580"}, {"NVIDIA H200", "595"}}, here)

	must.NoError(t, os.WriteFile(filepath.Join(dir, name+".json"), []byte("{"), 0o600))
	must.ErrorContains(t, Check(dir, "NVIDIA L4", "580.1"), "reading which cards are tested: ")
	must.ErrorContains(t, Record(dir, "NVIDIA L4", "580.1"), "reading which cards are tested: ")
}
