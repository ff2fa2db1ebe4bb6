// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package seat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Identity is what a task with a seat is, by Nomad's word. The ebbtide driver writes it where
// the task cannot, before it starts the task; the gate believes it, and not the environment of
// the task's processes, which is their own memory.
type Identity struct {
	Job       string            `json:"job"`
	Group     string            `json:"group"`
	Namespace string            `json:"namespace"`
	Meta      map[string]string `json:"meta"`  // the ebbtide_… keys
	Cards     []string          `json:"cards"` // UUIDs of those on which it has a seat
	Seats     []string          `json:"seats"` // Nomad's IDs of these
}

// IdentityPath is where the identity of a task lies in the directory of identities.
func IdentityPath(dir, alloc, task string) string { return ReportPath(dir, alloc, task) }

// ReadIdentity reads an identity. The error wraps fs.ErrNotExist if there is none, as under
// other drivers.
func ReadIdentity(path string) (Identity, error) {
	f, err := os.Open(path)
	if err != nil {
		return Identity{}, fmt.Errorf("reading what a task is: %w", err)
	}
	defer f.Close()
	var i Identity
	if err := json.NewDecoder(io.LimitReader(f, maxReport)).Decode(&i); err != nil {
		return Identity{}, fmt.Errorf("reading what a task is from %s: %w", path, err)
	}
	return i, nil
}

// WriteIdentity replaces an identity, whole or not at all.
func WriteIdentity(path string, i Identity) error { return replace(path, "what a task is", i) }

// RemoveIdentity removes an identity, if it is there.
func RemoveIdentity(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing what a task is: %w", err)
	}
	return nil
}

// replace replaces a file that root alone can read.
func replace(path, what string, content any) error {
	b, err := json.Marshal(content)
	if err == nil {
		tmp := path + ".new"
		if err = os.WriteFile(tmp, b, 0o600); err == nil {
			err = os.Rename(tmp, path)
		}
	}
	if err != nil {
		return fmt.Errorf("writing %s to %s: %w", what, filepath.Base(path), err)
	}
	return nil
}
