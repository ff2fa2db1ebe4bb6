// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
)

var programs = []string{"ebbtide", "ebbtide-driver", "ebbtide-gpu"}

// modules returns the modules linked into programs, from their build information, without Ebbtide.
// A replaced module is listed as its replacement.
func (r *release) modules(arch string, programs ...string) (mods []*debug.Module, goVersion string, err error) {
	for _, name := range programs {
		info, err := buildinfo.ReadFile(r.binary(arch, name))
		if err != nil {
			return nil, "", fmt.Errorf("reading what a program is made of: %w", err)
		}
		goVersion = info.GoVersion
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			mods = append(mods, m)
		}
	}
	slices.SortFunc(mods, func(a, b *debug.Module) int { return strings.Compare(a.Path+"@"+a.Version, b.Path+"@"+b.Version) })
	mods = slices.CompactFunc(mods, func(a, b *debug.Module) bool { return a.Path == b.Path && a.Version == b.Version })
	return mods, goVersion, nil
}

// termsName matches files with licence terms, or with notices that the terms require.
var termsName = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying|copyright|notice|patents)`)

// licences returns the terms of everything linked into programs; most must accompany binaries.
func (r *release) licences(arch string, programs ...string) ([]byte, error) {
	mods, goVersion, err := r.modules(arch, programs...)
	if err != nil {
		return nil, err
	}
	dirs, err := r.sources()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s: what is linked into them, under its own terms.\n", strings.Join(programs, ", "))
	write := func(title, dir string) error {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("%s: looking for its terms: %w", title, err)
		}
		found := false
		for _, e := range entries {
			if e.IsDir() || !termsName.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return fmt.Errorf("%s: reading its terms: %w", title, err)
			}
			found = true
			fmt.Fprintf(&out, "\n%s\n%s, %s\n\n%s\n", strings.Repeat("=", 80), title, e.Name(), bytes.TrimSpace(text))
		}
		if !found {
			return fmt.Errorf("%s: has no file with its terms in %s", title, dir)
		}
		return nil
	}
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("asking for Go's directory: %w", err)
	}
	if err := write(goVersion+" (standard library)", strings.TrimSpace(string(goroot))); err != nil {
		return nil, err
	}
	for _, m := range mods {
		dir := dirs[m.Path+"@"+m.Version]
		if dir == "" {
			return nil, fmt.Errorf("%s %s: its source is not among the modules", m.Path, m.Version)
		}
		if err := write(m.Path+" "+m.Version, dir); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// sources returns the modules' directories by path@version.
func (r *release) sources() (map[string]string, error) {
	cmd := exec.Command("go", "list", "-m", "-json=Path,Version,Dir,Replace", "all")
	cmd.Dir = r.root
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the modules: %w", err)
	}
	type module struct {
		Path, Version, Dir string
		Replace            *module
	}
	dirs := make(map[string]string)
	for in := json.NewDecoder(bytes.NewReader(text)); ; {
		var m module
		if err := in.Decode(&m); errors.Is(err, io.EOF) {
			return dirs, nil
		} else if err != nil {
			return nil, fmt.Errorf("listing the modules: %w", err)
		}
		if m.Replace != nil {
			m.Path, m.Version = m.Replace.Path, m.Replace.Version
		}
		dirs[m.Path+"@"+m.Version] = m.Dir
	}
}
