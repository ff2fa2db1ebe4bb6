// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/cli"
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
	for range 2 { // no new version of the file
		must.NoError(t, checksums(dir))
	}
	data, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	must.NoError(t, err)
	must.Eq(t, fmt.Sprintf("%x  a\n%x  b\n", sha256.Sum256([]byte("A")), sha256.Sum256([]byte("B"))), string(data))
}

// With placeholder binaries, every file is present once.
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

	must.MapContainsKeys(t, installed, []string{shareDir + "/prometheus/alerts.yml", shareDir + "/grafana/dashboard.json", shareDir + "/acl/shim.hcl", shareDir + "/acl/shim-namespace.hcl"})

	must.Eq(t, []string{
		"/etc/ebbtide", "/opt/nomad/plugins", "/usr/lib/ebbtide", docDir, docDir + "/docs", docDir + "/jobspecs", docDir + "/jobspecs/acl",
		shareDir, shareDir + "/acl", shareDir + "/grafana", shareDir + "/prometheus",
	}, ownDirs(files))

	shim := installed["/etc/ebbtide/shim.hcl"]
	must.True(t, shim.config)
	cfg, err := config.Parse(shim.data, "shim.hcl")
	must.NoError(t, err)
	want := config.Default()
	want.Nomad.TokenFile = cfg.Nomad.TokenFile
	must.Eq(t, want, cfg)
}

// Completion covers exactly the commands' options.
func TestDescribe(t *testing.T) {
	for _, c := range describe(cli.Pages()) {
		if c.name == "" {
			continue
		}
		must.NotEq(t, "", c.about)
		var want []string
		var stderr strings.Builder
		cli.Run(append(strings.Fields(c.name), "-no-such-option"), strings.NewReader(""), io.Discard, &stderr)
		if _, list, ok := strings.Cut(stderr.String(), "allowed are "); ok {
			want = strings.Split(strings.TrimSpace(list), ", ")
		}
		var got []string
		for _, f := range c.flags {
			got = append(got, "-"+strings.TrimLeft(f.name, "-"))
			must.NotEq(t, "", f.about)
		}
		slices.Sort(got)
		must.Eq(t, want, got, must.Sprint(c.name))
	}
}

// shell runs a script. The test is skipped without the shell.
func shell(t *testing.T, script string, argv ...string) string {
	t.Helper()
	if _, err := exec.LookPath(argv[0]); err != nil {
		t.Skip(err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	return string(out)
}

func TestCompletion_bash(t *testing.T) {
	script := bashCompletion(describe(cli.Pages()))
	for line, want := range map[string]string{
		"ebbtide ''":                  "decide doctor growth move moves progress queue setup shim sim snapshot top ui validate version",
		"ebbtide do":                  "doctor",
		"ebbtide doctor -":            "-config -address -json",
		"ebbtide shim pa":             "pause",
		"ebbtide shim pause -f":       "-for",
		"ebbtide queue re":            "release resume",
		"ebbtide queue release -no":   "-now",
		"ebbtide progress --goal ''":  "min max",
		"ebbtide setup -engine ''":    "",
		"ebbtide setup -config /et":   "/etc",
		"ebbtide doctor -config /et":  "/etc",
		"ebbtide decide --compact --": "--policy --list --example --compact",
	} {
		got := shell(t, script+`
			compopt() { :; } # which works during a completion only
			COMP_WORDS=(`+line+`) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
			_ebbtide
			echo "${COMPREPLY[@]}"`, "bash", "-eu")
		must.Eq(t, want, strings.TrimSpace(got), must.Sprint(line))
	}
}

func TestCompletion_fish(t *testing.T) {
	script := fishCompletion(describe(cli.Pages()))
	for line, want := range map[string][]string{
		"ebbtide do":                {"doctor"},
		"ebbtide doctor -":          {"-config", "-address", "-json"},
		"ebbtide shim pa":           {"pause"},
		"ebbtide shim pause -f":     {"-for"},
		"ebbtide shim -ch":          {"-check"},
		"ebbtide progress --goal m": {"min", "max"},
		"ebbtide setup -config /et": {"/etc/"},
	} {
		out := shell(t, script+"\ncomplete -C '"+line+"'\n", "fish", "--no-config")
		var got []string
		for l := range strings.Lines(out) {
			word, _, _ := strings.Cut(strings.TrimSpace(l), "\t")
			got = append(got, word)
		}
		slices.Sort(got)
		slices.Sort(want)
		must.Eq(t, want, got, must.Sprint(line))
	}
}

func TestCompletion_zsh(t *testing.T) {
	script := zshCompletion(describe(cli.Pages()))
	must.StrHasPrefix(t, "#compdef ebbtide\n", script)
	out := shell(t, "autoload -U compinit; compinit -D\n"+script+"\necho $_comps[ebbtide]\n", "zsh", "-f")
	must.Eq(t, "_ebbtide\n", out)
}

func TestManual(t *testing.T) {
	pages := cli.Pages()
	for _, p := range pages {
		text := string(manual(p, pages, "1.2.3", time.Unix(1700000000, 0)))
		must.StrHasPrefix(t, ".TH "+roff(strings.ToUpper(pageName(p)))+" 1 2023-11-14 \"Ebbtide 1.2.3\"", text)
		if _, err := exec.LookPath("man"); err != nil {
			continue
		}
		cmd := exec.Command("man", "--warnings", "-E", "UTF-8", "-l", "-")
		cmd.Env = append(os.Environ(), "MANWIDTH=200", "MAN_KEEP_FORMATTING=0", "MANPAGER=cat")
		cmd.Stdin = strings.NewReader(text)
		var warnings strings.Builder
		cmd.Stderr = &warnings
		out, err := cmd.Output()
		must.NoError(t, err, must.Sprint(warnings.String()))
		must.Eq(t, "", warnings.String(), must.Sprint(p.Name))
		// The page contains all of the help.
		plain := regexp.MustCompile(`.\x08`).ReplaceAllString(string(out), "") // remove bold type
		page := strings.Join(strings.Fields(plain), " ")
		for line := range strings.Lines(p.Help) {
			line = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(line), "Usage: "), ":")
			line = strings.ReplaceAll(strings.Join(strings.Fields(line), " "), "…", "...")
			if line == "Available commands are" {
				line = "COMMANDS"
			}
			if !strings.Contains(page, line) && !strings.Contains(page, strings.ToUpper(line)) {
				t.Errorf("%s: %q is not on the page:\n%s", p.Name, line, plain)
			}
		}
	}
}

// goProgram returns a Go binary: this test.
func goProgram(t *testing.T) []byte {
	t.Helper()
	self, err := os.Executable()
	must.NoError(t, err)
	data, err := os.ReadFile(self)
	must.NoError(t, err)
	return data
}

func built(t *testing.T) *release {
	t.Helper()
	r := &release{version: "1.2.3", time: time.Unix(1700000000, 0).UTC(), root: filepath.Join("..", ".."), work: t.TempDir(), out: t.TempDir()}
	program := goProgram(t)
	for _, arch := range []string{"amd64", "arm64"} {
		must.NoError(t, os.Mkdir(filepath.Join(r.work, arch), 0o755))
		for _, name := range append(programs, "libebbtide-cuda.so") {
			must.NoError(t, os.WriteFile(r.binary(arch, name), program, 0o755))
		}
	}
	return r
}

func TestSBOM(t *testing.T) {
	r := built(t)
	must.NoError(t, r.sbom("arm64"))
	data, err := os.ReadFile(filepath.Join(r.out, "ebbtide_1.2.3_linux_arm64.cdx.json"))
	must.NoError(t, err)
	var got bom
	must.NoError(t, json.Unmarshal(data, &got))
	must.Eq(t, "CycloneDX 1.5", got.Format+" "+got.Spec)
	must.Eq(t, r.time, got.Metadata.Timestamp)
	must.Eq(t, "pkg:golang/github.com/ebbtide/ebbtide@v1.2.3?goarch=arm64&goos=linux", got.Metadata.Component.PURL)
	refs := map[string]bool{"ebbtide": true}
	for _, c := range got.Components {
		must.False(t, refs[c.Ref], must.Sprint(c.Ref))
		refs[c.Ref] = true
	}
	must.True(t, refs["file:ebbtide-driver"])
	must.True(t, refs["pkg:golang/github.com/hashicorp/cli@v1.1.7"])
	must.True(t, refs["pkg:golang/stdlib@"+strings.TrimPrefix(runtime.Version(), "go")])
	must.Len(t, len(refs), got.Dependencies)
	for _, d := range got.Dependencies {
		must.True(t, refs[d.Ref], must.Sprint(d.Ref))
		for _, to := range d.Deps {
			must.True(t, refs[to], must.Sprint(to))
		}
	}
}

func TestPURL(t *testing.T) {
	must.Eq(t, "pkg:golang/github.com/docker/docker@v28.5.2%2Bincompatible", purl("github.com/Docker/docker", "v28.5.2+incompatible", ""))
}

func TestLicences(t *testing.T) {
	terms, err := built(t).licences("amd64", "ebbtide")
	must.NoError(t, err)
	must.StrContains(t, string(terms), "\ngithub.com/hashicorp/cli v1.1.7, LICENSE\n\n")
	must.StrContains(t, string(terms), "Mozilla Public License")
	must.StrContains(t, string(terms), runtime.Version()+" (standard library), LICENSE")
}

// Digests match, and all references exist.
func TestImage(t *testing.T) {
	r := release{version: "1.2.3", time: time.Unix(1700000000, 0).UTC(), out: t.TempDir()}
	contents := func(arch string) ([]file, error) {
		return []file{{archived: "usr/bin/ebbtide", mode: 0o755, data: []byte(arch)}}, nil
	}
	must.NoError(t, r.image([]string{"amd64", "arm64"}, contents))
	name := filepath.Join(r.out, "ebbtide_1.2.3_image.oci.tar")
	data, err := os.ReadFile(name)
	must.NoError(t, err)
	must.NoError(t, r.image([]string{"amd64", "arm64"}, contents))
	again, err := os.ReadFile(name)
	must.NoError(t, err)
	must.True(t, bytes.Equal(data, again))

	blobs := make(map[string][]byte)
	for in := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		must.NoError(t, err)
		blobs[h.Name], err = io.ReadAll(in)
		must.NoError(t, err)
		if sum, ok := strings.CutPrefix(h.Name, "blobs/sha256/"); ok && sum != "" {
			must.Eq(t, sum, fmt.Sprintf("%x", sha256.Sum256(blobs[h.Name])))
		}
	}
	read := func(d descriptor, v any) {
		t.Helper()
		data := blobs["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		must.Len(t, d.Size, data)
		if v != nil {
			must.NoError(t, json.Unmarshal(data, v))
		}
	}
	must.Eq(t, `{"imageLayoutVersion":"1.0.0"}`, string(blobs["oci-layout"]))
	var top, platforms index
	must.NoError(t, json.Unmarshal(blobs["index.json"], &top))
	must.Len(t, 1, top.Manifests)
	must.Eq(t, "1.2.3", top.Manifests[0].Annotations["org.opencontainers.image.ref.name"])
	read(top.Manifests[0], &platforms)
	must.Len(t, 2, platforms.Manifests)
	for i, arch := range []string{"amd64", "arm64"} {
		must.Eq(t, &platform{arch, "linux"}, platforms.Manifests[i].Platform)
		var m manifest
		read(platforms.Manifests[i], &m)
		var c imageConfig
		read(m.Config, &c)
		must.Eq(t, platform{arch, "linux"}, c.platform)
		must.Eq(t, []string{"/usr/bin/ebbtide"}, c.Config.Entrypoint)
		must.Len(t, 1, m.Layers)
		read(m.Layers[0], nil)
		must.Len(t, 1, c.RootFS.DiffIDs)
	}
}
