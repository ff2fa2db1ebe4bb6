// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// recipe is the subset of nfpm's configuration in use, written as JSON, which is valid YAML.
type recipe struct {
	Name            string              `json:"name"`
	Arch            string              `json:"arch"`
	Platform        string              `json:"platform"`
	Version         string              `json:"version"`
	Release         string              `json:"release"`
	Section         string              `json:"section"`
	Priority        string              `json:"priority"`
	Maintainer      string              `json:"maintainer"`
	Description     string              `json:"description"`
	Homepage        string              `json:"homepage"`
	License         string              `json:"license"`
	DisableGlobbing bool                `json:"disable_globbing"`
	MTime           time.Time           `json:"mtime"`
	Contents        []content           `json:"contents"`
	Scripts         map[string]string   `json:"scripts"`
	Suggests        []string            `json:"suggests"`
	Overrides       map[string]override `json:"overrides"`
	RPM             map[string]string   `json:"rpm"`
}

type content struct {
	Source   string    `json:"src,omitempty"`
	Target   string    `json:"dst"`
	Type     string    `json:"type,omitempty"`
	Packager string    `json:"packager,omitempty"`
	Info     *fileInfo `json:"file_info,omitempty"`
}

type fileInfo struct {
	Mode  uint32    `json:"mode"`
	Owner string    `json:"owner"`
	Group string    `json:"group"`
	MTime time.Time `json:"mtime"`
}

type override struct {
	Depends []string `json:"depends"`
}

const description = `CPU and GPU memory for deep-learning jobs on Nomad
 Plugins for the clients of a HashiCorp Nomad cluster. The task driver "ebbtide"
 divides a node's CPU among training jobs by their progress, the device plugin
 "ebbtide-gpu" lets several containers share a GPU's memory, and the command
 ebbtide sets them up, checks them, and moves jobs between nodes.`

func (r *release) packages(arch string, files []file) error {
	libc, err := r.libc(arch)
	if err != nil {
		return err
	}
	scripts := filepath.Join(r.root, "packaging", "scripts")
	p := recipe{
		Name: "ebbtide", Arch: arch, Platform: "linux", Version: r.version, Release: "1",
		Section: "admin", Priority: "optional",
		Maintainer:  "Ebbtide authors <authors@ebbtide.invalid>", // no mail address exists
		Description: description,
		Homepage:    "https://github.com/ebbtide/ebbtide",
		License:     "MPL-2.0 AND BUSL-1.1", // BUSL: Nomad's drivers in the plugins
		// File names are literal.
		DisableGlobbing: true,
		MTime:           r.time,
		Scripts: map[string]string{
			"postinstall": filepath.Join(scripts, "postinstall.sh"),
			"preremove":   filepath.Join(scripts, "preremove.sh"),
			"postremove":  filepath.Join(scripts, "postremove.sh"),
		},
		Suggests: []string{"nomad"},
		Overrides: map[string]override{
			"deb": {Depends: []string{"libc6 (>= " + libc + ")"}},
			"rpm": {Depends: []string{"glibc >= " + libc}},
		},
		RPM: map[string]string{"buildhost": "localhost", "group": "System Environment/Daemons"},
	}
	stage := filepath.Join(r.work, arch, "stage")
	if err := os.RemoveAll(stage); err != nil {
		return fmt.Errorf("emptying a directory: %w", err)
	}
	for _, f := range files {
		if f.installed == "" {
			continue
		}
		source := filepath.Join(stage, filepath.FromSlash(f.installed))
		if err := os.MkdirAll(filepath.Dir(source), 0o755); err != nil {
			return fmt.Errorf("making a directory: %w", err)
		}
		if err := os.WriteFile(source, f.data, 0o644); err != nil {
			return fmt.Errorf("writing a file of the package: %w", err)
		}
		c := content{Source: source, Target: f.installed, Packager: f.only, Info: r.info(uint32(f.mode))}
		if f.config {
			c.Type = "config|noreplace"
		}
		p.Contents = append(p.Contents, c)
	}
	for _, dir := range ownDirs(files) {
		p.Contents = append(p.Contents, content{Target: dir, Type: "dir", Info: r.info(0o755)})
	}
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return fmt.Errorf("writing nfpm's configuration: %w", err)
	}
	config := filepath.Join(r.work, arch, "nfpm.yaml")
	if err := os.WriteFile(config, data, 0o644); err != nil {
		return fmt.Errorf("writing nfpm's configuration: %w", err)
	}
	for _, kind := range []string{"deb", "rpm"} {
		out, err := exec.Command(r.nfpm, "package", "--config", config, "--packager", kind, "--target", r.name(arch, "."+kind)).CombinedOutput()
		if err != nil {
			return fmt.Errorf("nfpm, %s: %w\n%s", kind, err, out)
		}
	}
	return nil
}

// ownDirs returns the directories to remove with the package; RPM removes no others.
func ownDirs(files []file) []string {
	var dirs []string
	for _, f := range files {
		for dir := path.Dir(f.installed); strings.Contains(dir, "/ebbtide") || dir == pluginDir; dir = path.Dir(dir) {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

func (r *release) info(mode uint32) *fileInfo {
	return &fileInfo{Mode: mode, Owner: "root", Group: "root", MTime: r.time}
}

// libc returns the oldest glibc version that supports the plugins.
func (r *release) libc(arch string) (string, error) {
	oldest := []int{2, 17}
	for _, name := range []string{"ebbtide-driver", "ebbtide-gpu"} {
		f, err := elf.Open(r.binary(arch, name))
		if err != nil {
			return "", fmt.Errorf("reading a plugin: %w", err)
		}
		defer f.Close()
		needs, err := f.DynamicVersionNeeds()
		if err != nil {
			return "", fmt.Errorf("%s: reading which libraries it needs: %w", name, err)
		}
		for _, lib := range needs {
			for _, need := range lib.Needs {
				number, ok := strings.CutPrefix(need.Dep, "GLIBC_")
				if !ok {
					return "", fmt.Errorf("%s: needs %s of %s, for which no package is named", name, need.Dep, lib.Name)
				}
				var v []int
				for part := range strings.SplitSeq(number, ".") {
					n, err := strconv.Atoi(part)
					if err != nil {
						return "", fmt.Errorf("%s: needs %s of %s, which is no version", name, need.Dep, lib.Name)
					}
					v = append(v, n)
				}
				if slices.CompareFunc(v, oldest, cmp.Compare) > 0 {
					oldest = v
				}
			}
		}
	}
	var text []string
	for _, n := range oldest {
		text = append(text, strconv.Itoa(n))
	}
	return strings.Join(text, "."), nil
}
