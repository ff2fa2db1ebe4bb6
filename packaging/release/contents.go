// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Installation paths. Nomad's packages use the data_dir /opt/nomad/data and set no plugin_dir. The
// library is for containers, not for programs of the host.
const (
	pluginDir = "/opt/nomad/plugins"
	docDir    = "/usr/share/doc/ebbtide"
	shareDir  = "/usr/share/ebbtide"
)

type file struct {
	installed string // path in a package; "" if only archived
	archived  string // path in the archive; "" if only in packages
	only      string // packager that includes it; "" for all
	data      []byte
	mode      fs.FileMode
	config    bool // changes by an administrator survive upgrades
}

func (r *release) contents(arch string) ([]file, error) {
	var out []file
	var failed error
	read := func(name string) []byte {
		data, err := os.ReadFile(name)
		if err != nil && failed == nil {
			failed = fmt.Errorf("reading what is to be published: %w", err)
		}
		return data
	}
	source := func(name string) []byte { return read(filepath.Join(r.root, filepath.FromSlash(name))) }
	add := func(installed, archived string, mode fs.FileMode, data []byte) {
		out = append(out, file{installed: installed, archived: archived, mode: mode, data: data})
	}
	built := func(installed, archived string, mode fs.FileMode) {
		add(installed, archived, mode, read(r.binary(arch, path.Base(archived))))
	}

	built("/usr/bin/ebbtide", "bin/ebbtide", 0o755)
	built(pluginDir+"/ebbtide-driver", "plugins/ebbtide-driver", 0o755)
	built(pluginDir+"/ebbtide-gpu", "plugins/ebbtide-gpu", 0o755)
	built("/usr/lib/ebbtide/libebbtide-cuda.so", "lib/libebbtide-cuda.so", 0o644)
	add("/usr/lib/systemd/system/ebbtide-shim.service", "systemd/ebbtide-shim.service", 0o644, source("packaging/systemd/ebbtide-shim.service"))
	out = append(out, file{
		installed: "/etc/ebbtide/shim.hcl", archived: "etc/ebbtide/shim.hcl",
		mode: 0o644, data: source("packaging/etc/shim.hcl"), config: true,
	})

	for _, name := range []string{"scrape.yml", "recording.yml", "alerts.yml"} {
		add(shareDir+"/prometheus/"+name, "prometheus/"+name, 0o644, source("packaging/monitoring/"+name))
	}
	add(shareDir+"/grafana/dashboard.json", "grafana/dashboard.json", 0o644, source("packaging/monitoring/dashboard.json"))

	for _, name := range []string{"shim.hcl", "shim-namespace.hcl"} {
		add(shareDir+"/acl/"+name, "", 0o644, source("jobspecs/acl/"+name))
	}

	made, err := r.manuals()
	if err != nil {
		return nil, err
	}
	out = append(out, made...)
	licence, notice := source("LICENSE"), source("NOTICE")
	add("", "LICENSE", 0o644, licence)
	add(docDir+"/NOTICE", "NOTICE", 0o644, notice)
	// Debian requires a package's terms in this file.
	add(docDir+"/copyright", "", 0o644, slices.Concat(notice, []byte("\n----\n\n"), licence))
	for _, name := range []string{"README.md", "CHANGELOG.md"} {
		add(docDir+"/"+name, name, 0o644, source(name))
	}
	for _, tree := range []string{"docs", "jobspecs"} {
		err := filepath.WalkDir(filepath.Join(r.root, tree), func(name string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(r.root, name)
			if err != nil {
				return err
			}
			if entry.IsDir() {
				if rel == filepath.Join("docs", "results") { // Ebbtide's measurements
					return fs.SkipDir
				}
				return nil
			}
			rel = filepath.ToSlash(rel)
			add(docDir+"/"+rel, rel, 0o644, read(name))
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("listing %s: %w", tree, err)
		}
	}
	if failed != nil {
		return nil, failed
	}
	slices.SortFunc(out, func(a, b file) int {
		return strings.Compare(a.archived+"\x00"+a.installed, b.archived+"\x00"+b.installed)
	})
	return out, nil
}
