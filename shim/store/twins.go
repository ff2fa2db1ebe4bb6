// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package store

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/ebbtide/ebbtide/shim/cluster"
)

// Twin is what the twin of a job of the queue has had, in seconds of the whole place.
type Twin struct {
	// SubmittedS is when the job was submitted, in seconds since 1970. One of the same name that waits and
	// was submitted later has another twin.
	SubmittedS float64 `json:"submitted_s"`
	FairS      float64 `json:"fair_s"`
}

const twinsName = "twins"

// maxTwins bounds the jobs per variable: an ID may have some 128 bytes.
const maxTwins = 300

// SaveTwins replaces the saved twins.
func (s Store) SaveTwins(ctx context.Context, twins map[cluster.JobKey]Twin) error {
	was, err := s.list(ctx, twinsName)
	if err != nil {
		return err
	}
	n := 0
	for part := range slices.Chunk(slices.SortedFunc(maps.Keys(twins), cluster.JobKey.Compare), maxTwins) {
		all := make(map[string]Twin, len(part))
		for _, key := range part {
			all[key.String()] = twins[key]
		}
		if err := s.writeJSON(ctx, fmt.Sprintf("%s/%06d", twinsName, n), all); err != nil {
			return err
		}
		n++
	}
	for _, full := range was[min(n, len(was)):] {
		if err := s.remove(ctx, full); err != nil {
			return err
		}
	}
	return nil
}

// Twins returns the saved twins.
func (s Store) Twins(ctx context.Context) (map[cluster.JobKey]Twin, error) {
	paths, err := s.list(ctx, twinsName)
	if err != nil {
		return nil, err
	}
	twins := make(map[cluster.JobKey]Twin)
	for _, full := range paths {
		part, err := readJSON[map[string]Twin](ctx, s, path.Join(twinsName, path.Base(full)))
		if err != nil {
			return nil, err
		}
		if part == nil {
			continue // removed meanwhile
		}
		for name, t := range *part {
			twins[cluster.ParseKey(name)] = t
		}
	}
	return twins, nil
}
