// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
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
func versionTags(versions []*api.Job) (tag []uint64, untag []string) {
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

func hasMark(job *api.Job) bool {
	return slices.ContainsFunc(job.TaskGroups, func(g *api.TaskGroup) bool { return slices.ContainsFunc(g.Constraints, isMark) })
}

// isUnbound reports whether job is the version bound without the move's constraint.
func isUnbound(bound, job *api.Job) bool {
	spec := func(j *api.Job) string {
		out, err := clone(j)
		if err != nil {
			return ""
		}
		for _, g := range out.TaskGroups {
			if g.Constraints = slices.DeleteFunc(g.Constraints, isMark); len(g.Constraints) == 0 {
				g.Constraints = nil
			}
			if adopt(g, ""); len(g.Meta) == 0 {
				g.Meta = nil
			}
		}
		out.Version, out.CreateIndex, out.ModifyIndex, out.JobModifyIndex, out.SubmitTime = nil, nil, nil, nil, nil
		out.Status, out.StatusDescription, out.Stable, out.VersionTag = nil, nil, nil, nil
		data, err := json.Marshal(out)
		if err != nil {
			return ""
		}
		return string(data)
	}
	return spec(bound) == spec(job)
}
