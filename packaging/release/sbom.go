// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path"
	"runtime/debug"
	"strings"
	"time"
)

// bom is a CycloneDX 1.5 bill of materials.
type bom struct {
	Format       string       `json:"bomFormat"`
	Spec         string       `json:"specVersion"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Timestamp time.Time `json:"timestamp"`
	Component component `json:"component"`
}

type component struct {
	Ref        string     `json:"bom-ref"`
	Type       string     `json:"type"`
	Name       string     `json:"name"`
	Version    string     `json:"version,omitempty"`
	PURL       string     `json:"purl,omitempty"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Alg     string `json:"alg"`
	Content string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref  string   `json:"ref"`
	Deps []string `json:"dependsOn,omitempty"`
}

// sbom lists what is linked into the programs, from their build information; go.mod lists more.
func (r *release) sbom(arch string) error {
	const self = "github.com/ebbtide/ebbtide"
	main := component{Ref: "ebbtide", Type: "application", Name: "ebbtide", Version: r.version,
		PURL: purl(self, "v"+r.version, arch)}
	out := bom{Format: "CycloneDX", Spec: "1.5", Version: 1, Metadata: metadata{r.time, main}}
	top := dependency{Ref: main.Ref}
	add := func(c component, deps ...string) {
		out.Components = append(out.Components, c)
		out.Dependencies = append(out.Dependencies, dependency{c.Ref, deps})
	}
	all, _, err := r.modules(arch, programs...)
	if err != nil {
		return err
	}
	for _, name := range append([]string{"libebbtide-cuda.so"}, programs...) {
		data, err := os.ReadFile(r.binary(arch, name))
		if err != nil {
			return fmt.Errorf("reading a program: %w", err)
		}
		c := component{Ref: "file:" + name, Type: "file", Name: name, Version: r.version, Hashes: []hash{sum256(data)}}
		top.Deps = append(top.Deps, c.Ref)
		if path.Ext(name) == ".so" { // C without dependencies
			add(c)
			continue
		}
		mods, goVersion, err := r.modules(arch, name)
		if err != nil {
			return err
		}
		deps := []string{stdlib(goVersion).Ref}
		for _, m := range mods {
			deps = append(deps, module(m).Ref)
		}
		add(c, deps...)
	}
	_, goVersion, err := r.modules(arch, programs[0])
	if err != nil {
		return err
	}
	add(stdlib(goVersion))
	for _, m := range all {
		add(module(m))
	}
	out.Dependencies = append(out.Dependencies, top)
	data, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the bill of materials: %w", err)
	}
	return os.WriteFile(r.name(arch, ".cdx.json"), append(data, '\n'), 0o644)
}

func sum256(data []byte) hash {
	sum := sha256.Sum256(data)
	return hash{"SHA-256", hex.EncodeToString(sum[:])}
}

// stdlib uses the name that scanners expect.
func stdlib(goVersion string) component {
	p := "pkg:golang/stdlib@" + strings.TrimPrefix(goVersion, "go")
	return component{Ref: p, Type: "library", Name: "stdlib", Version: goVersion, PURL: p}
}

// module's checksum is a property, because go.sum's hash is not that of a file.
func module(m *debug.Module) component {
	p := purl(m.Path, m.Version, "")
	c := component{Ref: p, Type: "library", Name: m.Path, Version: m.Version, PURL: p}
	if m.Sum != "" {
		c.Properties = []property{{"ebbtide:go.sum", m.Sum}}
	}
	return c
}

// purl returns a package URL.
func purl(name, version, arch string) string {
	segments := strings.Split(strings.ToLower(name), "/")
	for i, s := range segments {
		segments[i] = url.PathEscape(s)
	}
	p := "pkg:golang/" + strings.Join(segments, "/") + "@" + strings.ReplaceAll(url.PathEscape(version), "+", "%2B")
	if arch != "" {
		p += "?goarch=" + arch + "&goos=linux"
	}
	return p
}
