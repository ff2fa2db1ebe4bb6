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
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

func (r *release) archive(arch string, files []file) error {
	target := r.name(arch, ".tar.gz")
	top := strings.TrimSuffix(filepath.Base(target), ".tar.gz")
	var in []file
	for _, f := range files {
		if f.archived != "" {
			f.archived = path.Join(top, f.archived)
			in = append(in, f)
		}
	}
	data, err := tarball(in, r.time)
	if err != nil {
		return err
	}
	return os.WriteFile(target, data, 0o644)
}

// tarball compresses files under their archived names, owned by root and dated by the release,
// directories before their contents.
func tarball(files []file, at time.Time) ([]byte, error) {
	var buf bytes.Buffer
	zip := gzip.NewWriter(&buf)
	if err := pack(tar.NewWriter(zip), files, at); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func pack(out *tar.Writer, files []file, at time.Time) error {
	made := make(map[string]bool)
	var enter func(dir string) error
	enter = func(dir string) error {
		if dir == "." || made[dir] {
			return nil
		}
		made[dir] = true
		if err := enter(path.Dir(dir)); err != nil {
			return err
		}
		return out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: at, Format: tar.FormatPAX})
	}
	for _, f := range files {
		if err := enter(path.Dir(f.archived)); err != nil {
			return err
		}
		h := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.archived, Size: int64(len(f.data)), Mode: int64(f.mode.Perm()),
			ModTime: at, Format: tar.FormatPAX,
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := out.Write(f.data); err != nil {
			return err
		}
	}
	return out.Close()
}

// sumsFile has the format of `sha256sum -c`.
const sumsFile = "SHA256SUMS"

func checksums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("listing the files of the release: %w", err)
	}
	var lines strings.Builder
	for _, e := range entries {
		if e.Name() == sumsFile || e.Type()&fs.ModeType != 0 {
			continue
		}
		f, err := os.Open(filepath.Join(dir, e.Name()))
		if err != nil {
			return fmt.Errorf("reading a file of the release: %w", err)
		}
		sum := sha256.New()
		_, err = io.Copy(sum, f)
		f.Close()
		if err != nil {
			return fmt.Errorf("reading a file of the release: %w", err)
		}
		fmt.Fprintf(&lines, "%x  %s\n", sum.Sum(nil), e.Name())
	}
	if err := os.WriteFile(filepath.Join(dir, sumsFile), []byte(lines.String()), 0o644); err != nil {
		return fmt.Errorf("writing the checksums: %w", err)
	}
	return nil
}
