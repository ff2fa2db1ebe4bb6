// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package preload

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// files are those of the library, in the order of src/hooks.h.
var files = []string{
	"elf", "state", "resolve", "newer", "table", "world", "gate", "pause", "credit", "pools", "reserve", "device",
	"hooks_info", "hooks_alloc", "hooks_array", "hooks_ctx", "hooks_graph", "hooks_pool", "hooks_proc", "hooks_share", "hooks_submit", "hooks_vmm", "fork",
}

// A file uses only what is defined in files before it.
func TestLayers(t *testing.T) {
	all, err := filepath.Glob("src/*.c")
	must.NoError(t, err)
	must.Len(t, len(files), all)
	defined := make(map[string]bool)
	for _, f := range files {
		object := filepath.Join(t.TempDir(), f+".o")
		out, err := exec.Command("gcc", "-std=gnu11", "-D_GNU_SOURCE", "-fPIC", "-c", "-o", object, "src/"+f+".c").CombinedOutput()
		must.NoError(t, err, must.Sprint(string(out)))
		var here []string
		for l := range strings.Lines(tool(t, "nm", "-g", object)) {
			w := strings.Fields(l)
			switch name := w[len(w)-1]; {
			case !strings.HasPrefix(name, "eb_"):
			case w[len(w)-2] != "U":
				here = append(here, name)
			case !defined[name]:
				t.Errorf("%s.c uses %s of a file that is above it", f, name)
			}
		}
		for _, n := range here {
			defined[n] = true
		}
	}
}
