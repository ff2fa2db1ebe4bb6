// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// OCI image media types.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

type manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        descriptor        `json:"config"`
	Layers        []descriptor      `json:"layers"`
	Annotations   map[string]string `json:"annotations"`
}

type imageConfig struct {
	platform
	Created time.Time `json:"created"`
	Config  struct {
		User       string            `json:"User"`
		Env        []string          `json:"Env"`
		Entrypoint []string          `json:"Entrypoint"`
		Labels     map[string]string `json:"Labels"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// layout is an image layout under construction: blobs by digest.
type layout struct{ blobs map[string][]byte }

func (l *layout) add(mediaType string, data []byte) descriptor {
	sum := sha256.Sum256(data)
	name := hex.EncodeToString(sum[:])
	l.blobs[name] = data
	return descriptor{MediaType: mediaType, Digest: "sha256:" + name, Size: len(data)}
}

func (l *layout) addJSON(mediaType string, v any) (descriptor, error) {
	data, err := json.Marshal(v)
	return l.add(mediaType, data), err
}

// imageContents returns the static program and the terms. Nomad's CA certificates are an option of
// the program.
func (r *release) imageContents(arch string) ([]file, error) {
	program, err := os.ReadFile(r.binary(arch, "ebbtide"))
	if err != nil {
		return nil, fmt.Errorf("reading the image's program: %w", err)
	}
	licence, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return nil, fmt.Errorf("reading the terms: %w", err)
	}
	terms, err := r.licences(arch, "ebbtide")
	if err != nil {
		return nil, err
	}
	const doc = "usr/share/doc/ebbtide/"
	return []file{
		{archived: "usr/bin/ebbtide", mode: 0o755, data: program},
		{archived: doc + "LICENSE", mode: 0o644, data: licence},
		{archived: doc + "LICENSES.txt", mode: 0o644, data: terms},
	}, nil
}

// image writes a multi-architecture image of the CLI as an archive for skopeo, podman and Docker.
func (r *release) image(arches []string, contents func(arch string) ([]file, error)) error {
	l := layout{make(map[string][]byte)}
	platforms := index{2, typeIndex, nil}
	about := map[string]string{
		"org.opencontainers.image.title":    "ebbtide",
		"org.opencontainers.image.version":  r.version,
		"org.opencontainers.image.created":  r.time.Format(time.RFC3339),
		"org.opencontainers.image.source":   "https://github.com/ebbtide/ebbtide",
		"org.opencontainers.image.licenses": "MPL-2.0",
	}
	for _, arch := range arches {
		files, err := contents(arch)
		if err != nil {
			return err
		}
		layer, err := tarball(files, r.time)
		if err != nil {
			return fmt.Errorf("writing the image's files: %w", err)
		}
		zip, err := gzip.NewReader(bytes.NewReader(layer))
		if err != nil {
			return fmt.Errorf("reading the image's files: %w", err)
		}
		plain := sha256.New()
		if _, err := io.Copy(plain, zip); err != nil {
			return fmt.Errorf("reading the image's files: %w", err)
		}
		config := imageConfig{platform: platform{arch, "linux"}, Created: r.time}
		config.Config.User = "65534:65534" // unprivileged
		config.Config.Env = []string{"PATH=/usr/bin"}
		config.Config.Entrypoint = []string{"/usr/bin/ebbtide"}
		config.Config.Labels = about
		config.RootFS.Type = "layers"
		config.RootFS.DiffIDs = []string{fmt.Sprintf("sha256:%x", plain.Sum(nil))}
		at, err := l.addJSON(typeConfig, config)
		if err != nil {
			return fmt.Errorf("writing the image: %w", err)
		}
		at, err = l.addJSON(typeManifest, manifest{2, typeManifest, at, []descriptor{l.add(typeLayer, layer)}, about})
		if err != nil {
			return fmt.Errorf("writing the image: %w", err)
		}
		at.Platform = &config.platform
		platforms.Manifests = append(platforms.Manifests, at)
	}
	at, err := l.addJSON(typeIndex, platforms)
	if err != nil {
		return fmt.Errorf("writing the image: %w", err)
	}
	at.Annotations = map[string]string{"org.opencontainers.image.ref.name": r.version}
	top, err := json.Marshal(index{2, typeIndex, []descriptor{at}})
	if err != nil {
		return fmt.Errorf("writing the image: %w", err)
	}
	files := []file{{archived: "index.json", data: top}, {archived: "oci-layout", data: []byte(`{"imageLayoutVersion":"1.0.0"}`)}}
	for name, data := range l.blobs {
		files = append(files, file{archived: "blobs/sha256/" + name, data: data})
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.archived, b.archived) })
	for i := range files {
		files[i].mode = 0o644
	}
	f, err := os.Create(filepath.Join(r.out, fmt.Sprintf("ebbtide_%s_image.oci.tar", r.version)))
	if err != nil {
		return fmt.Errorf("writing the image: %w", err)
	}
	out := tar.NewWriter(f)
	if err := pack(out, files, r.time); err != nil {
		f.Close()
		return fmt.Errorf("writing the image: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("writing the image: %w", err)
	}
	return nil
}
