// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package handoff

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ebbtide/ebbtide/internal/jsonfile"
)

// Identity is what Nomad knows about a task with a seat. The ebbtide driver writes it before it
// starts the task; the gate trusts it over the environment of the task's processes.
type Identity struct {
	Job       string            `json:"job"`
	Group     string            `json:"group"`
	Namespace string            `json:"namespace"`
	Meta      map[string]string `json:"meta"`  // the ebbtide_… keys
	Cards     []string          `json:"cards"` // UUIDs of the cards with a seat
	Seats     []string          `json:"seats"` // Nomad's IDs of the seats
}

// IdentityPath returns the path of a task's identity in the directory of identities.
func IdentityPath(dir, alloc, task string) string { return ReportPath(dir, alloc, task) }

// ReadIdentity reads an identity. The error wraps fs.ErrNotExist if there is none.
func ReadIdentity(path string) (Identity, error) { return read[Identity](path, "a task's identity") }

// WriteIdentity atomically replaces an identity.
func WriteIdentity(path string, i Identity) error { return replace(path, "a task's identity", i) }

// RemoveIdentity removes an identity, if it exists.
func RemoveIdentity(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing a task's identity: %w", err)
	}
	return nil
}

// maxRead is the maximum size of a file, in bytes.
const maxRead = 1 << 20

func read[T any](path, what string) (content T, err error) {
	f, err := os.Open(path)
	if err != nil {
		return content, fmt.Errorf("reading %s: %w", what, err)
	}
	defer f.Close()
	if err := json.NewDecoder(io.LimitReader(f, maxRead)).Decode(&content); err != nil {
		return *new(T), fmt.Errorf("reading %s from %s: %w", what, path, err)
	}
	return content, nil
}

func replace(path, what string, content any) error {
	if err := jsonfile.Replace(path, content, false); err != nil {
		return fmt.Errorf("writing %s to %s: %w", what, filepath.Base(path), err)
	}
	return nil
}
