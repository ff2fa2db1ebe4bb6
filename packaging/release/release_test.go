// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/shim/config"
)

func TestNotes(t *testing.T) {
	const changes = "# Changes\n\nIntro.\n\n## Unreleased\n\n### Added\n\n* New.\n\n## [1.1.0] - 2026-12-01\n\n* One.\n\n## 1.0.0 - 2026-11-01\n\n* First.\n\n## 0.9.0\n"
	for version, want := range map[string]string{
		"1.1.0":      "# Ebbtide 1.1.0\n\n* One.\n",
		"1.0.0":      "# Ebbtide 1.0.0\n\n* First.\n",
		"1.2.0-rc.1": "# Ebbtide 1.2.0-rc.1\n\n### Added\n\n* New.\n",
	} {
		got, err := notes(changes, version)
		must.NoError(t, err)
		must.Eq(t, want, got)
	}
	for _, version := range []string{"1.2.0", "0.9.0", ""} {
		_, err := notes(changes, version)
		must.ErrorContains(t, err, fmt.Sprintf("must have a section %q", "## "+version))
	}
}

func TestTarball(t *testing.T) {
	at := time.Unix(1700000000, 0)
	files := []file{
		{archived: "top/bin/a", data: []byte("A"), mode: 0o755},
		{archived: "top/bin/b", data: []byte("B"), mode: 0o644},
	}
	data, err := tarball(files, at)
	must.NoError(t, err)
	again, err := tarball(files, at)
	must.NoError(t, err)
	must.Eq(t, data, again)

	zip, err := gzip.NewReader(bytes.NewReader(data))
	must.NoError(t, err)
	var got []string
	for in := tar.NewReader(zip); ; {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		must.NoError(t, err)
		must.True(t, h.ModTime.Equal(at))
		must.Eq(t, 0, h.Uid)
		must.Eq(t, "", h.Uname)
		text, err := io.ReadAll(in)
		must.NoError(t, err)
		got = append(got, fmt.Sprintf("%s %o %s", h.Name, h.Mode, text))
	}
	must.Eq(t, []string{"top/ 755 ", "top/bin/ 755 ", "top/bin/a 755 A", "top/bin/b 644 B"}, got)
}

func TestChecksums(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "b"), []byte("B"), 0o644))
	must.NoError(t, os.WriteFile(filepath.Join(dir, "a"), []byte("A"), 0o644))
	for range 2 { // its own file does not count
		must.NoError(t, checksums(dir))
	}
	data, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	must.NoError(t, err)
	must.Eq(t, fmt.Sprintf("%x  a\n%x  b\n", sha256.Sum256([]byte("A")), sha256.Sum256([]byte("B"))), string(data))
}

// A release with binaries that are none: everything else must be there, once.
func TestContents(t *testing.T) {
	r := release{root: filepath.Join("..", ".."), work: t.TempDir()}
	_, err := r.contents("amd64")
	must.ErrorContains(t, err, "no such file")
	must.NoError(t, os.Mkdir(filepath.Join(r.work, "amd64"), 0o755))
	for _, name := range []string{"ebbtide", "ebbtide-driver", "ebbtide-gpu", "libebbtide-cuda.so"} {
		must.NoError(t, os.WriteFile(r.binary("amd64", name), []byte(name), 0o755))
	}
	files, err := r.contents("amd64")
	must.NoError(t, err)
	installed, archived := make(map[string]file), make(map[string]file)
	for _, f := range files {
		if f.installed != "" {
			must.MapNotContainsKey(t, installed, f.installed)
			installed[f.installed] = f
		}
		if f.archived != "" {
			must.MapNotContainsKey(t, archived, f.archived)
			archived[f.archived] = f
		}
	}
	must.Eq(t, 0o755, installed["/opt/nomad/plugins/ebbtide-driver"].mode)
	must.Eq(t, []byte("ebbtide"), archived["bin/ebbtide"].data)
	must.MapContainsKeys(t, installed, []string{docDir + "/copyright", docDir + "/docs/operations.md", docDir + "/jobspecs/acl/shim.hcl"})
	must.MapNotContainsKey(t, installed, docDir+"/docs/results/demo.json")

	// The default configuration of the shim is one.
	shim := installed["/etc/ebbtide/shim.hcl"]
	must.True(t, shim.config)
	cfg, err := config.Parse(shim.data, "shim.hcl")
	must.NoError(t, err)
	want := config.Default()
	want.Nomad.TokenFile = cfg.Nomad.TokenFile
	must.Eq(t, want, cfg)
}
