// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Command release builds a version's artefacts from the binaries of `make release`: archives,
// Debian and RPM packages, an image, SBOMs, notes and checksums. Start with main.go.
//
// Builds are reproducible: times are SOURCE_DATE_EPOCH, lists are sorted, and files do not depend
// on the machine or directory.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/internal/version"
)

type release struct {
	version string
	time    time.Time // time of the commit
	root    string    // root of the repository
	work    string    // binaries, in a directory per architecture
	out     string
	nfpm    string
}

func main() {
	r := release{version: version.Version, root: "."}
	var arches string
	flag.StringVar(&r.work, "work", "out/release", "directory with the binaries of each architecture")
	flag.StringVar(&r.out, "out", "dist", "directory for the files of the release")
	flag.StringVar(&r.nfpm, "nfpm", "bin/nfpm", "nfpm, which makes packages")
	flag.StringVar(&arches, "arch", "amd64,arm64", "architectures, as Go names them")
	flag.Parse()
	if err := r.run(strings.Split(arches, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func (r *release) run(arches []string) error {
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil || epoch <= 0 {
		return fmt.Errorf("SOURCE_DATE_EPOCH: must be the time of the commit in seconds since 1970, got %q", os.Getenv("SOURCE_DATE_EPOCH"))
	}
	r.time = time.Unix(epoch, 0).UTC()
	changes, err := os.ReadFile(filepath.Join(r.root, "CHANGELOG.md"))
	if err != nil {
		return fmt.Errorf("reading the changes: %w", err)
	}
	notes, err := notes(string(changes), r.version)
	if err != nil {
		return err
	}
	// The checksums must not include another version's files.
	if err := errors.Join(os.RemoveAll(r.out), os.MkdirAll(r.out, 0o755)); err != nil {
		return fmt.Errorf("emptying the output directory: %w", err)
	}
	if err := os.WriteFile(filepath.Join(r.out, "NOTES.md"), []byte(notes), 0o644); err != nil {
		return fmt.Errorf("writing the notes: %w", err)
	}
	for _, arch := range arches {
		if err := r.publish(arch); err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
	}
	if err := r.image(arches, r.imageContents); err != nil {
		return err
	}
	return checksums(r.out)
}

func (r *release) publish(arch string) error {
	files, err := r.contents(arch)
	if err != nil {
		return err
	}
	terms, err := r.licences(arch, programs...)
	if err != nil {
		return err
	}
	files = append(files, file{installed: docDir + "/LICENSES.txt", archived: "LICENSES.txt", mode: 0o644, data: terms})
	if err := r.archive(arch, files); err != nil {
		return fmt.Errorf("the archive: %w", err)
	}
	if err := r.sbom(arch); err != nil {
		return err
	}
	return r.packages(arch, files)
}

func (r *release) name(arch, ending string) string {
	return filepath.Join(r.out, fmt.Sprintf("ebbtide_%s_linux_%s%s", r.version, arch, ending))
}

func (r *release) binary(arch, name string) string { return filepath.Join(r.work, arch, name) }
