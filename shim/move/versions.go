// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/document"
)

// Nomad keeps a job's last six versions and all tagged ones, and a move creates two. The user's
// last six versions are tagged before a move, so that the job can still be reverted to them.
const (
	tagPrefix = "ebbtide-"
	tagsKept  = 6
)

// keepVersions tags the user's versions.
func (m *mover) keepVersions(ctx context.Context) error {
	r := m.record()
	versions, err := m.nomad.Versions(ctx, r.Namespace, r.Job)
	if err != nil {
		return err
	}
	tag, untag := versionTags(versions)
	for _, name := range untag {
		if err := m.nomad.Untag(ctx, r.Namespace, r.Job, name); err != nil {
			return err
		}
	}
	for _, v := range tag {
		if err := m.nomad.Tag(ctx, r.Namespace, r.Job, v, fmt.Sprint(tagPrefix, v)); err != nil {
			return err
		}
	}
	return nil
}

// versionTags returns the versions to tag and our tags to remove, given all versions, newest
// first. Versions before an earlier move are tagged already.
func versionTags(versions []*document.Job) (tag []uint64, untag []string) {
	for i, v := range versions {
		if hasMark(v) || i+1 < len(versions) && hasMark(versions[i+1]) && isUnbound(versions[i+1], v) {
			break
		}
		if v.VersionTag == nil && len(tag) < tagsKept {
			tag = append(tag, *v.Version)
		}
	}
	kept := len(tag)
	for _, v := range versions {
		if v.VersionTag == nil || !strings.HasPrefix(v.VersionTag.Name, tagPrefix) {
			continue
		}
		if kept++; kept > tagsKept {
			untag = append(untag, v.VersionTag.Name)
		}
	}
	return tag, untag
}

func hasMark(job *document.Job) bool {
	return slices.ContainsFunc(job.TaskGroups, func(g *api.TaskGroup) bool { return slices.ContainsFunc(g.Constraints, isMark) })
}

// isUnbound reports whether job is the version bound without the move's constraint.
func isUnbound(bound, job *document.Job) bool {
	same, err := document.Same(bound, job, document.Own{Constraint: cluster.HasMark, Meta: []string{metaAdopt}})
	return err == nil && same
}
