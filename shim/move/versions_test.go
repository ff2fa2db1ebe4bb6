// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"slices"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/shim/document"
	"github.com/ebbtide/ebbtide/shim/document/documenttest"
)

// history is a job's versions, newest first.
type history []*document.Job

// register adds a version and lets Nomad forget those neither tagged nor among the last six
// others.
func (h *history) register(change func(root map[string]any)) {
	*h = slices.Insert(*h, 0, documenttest.Change((*h)[0], func(root map[string]any) {
		change(root)
		root["Version"] = *(*h)[0].Version + 1
	}))
	untagged := 0
	*h = slices.DeleteFunc(*h, func(j *document.Job) bool {
		if j.VersionTag != nil {
			return false
		}
		untagged++
		return untagged > 6
	})
}

func (h *history) move(t *testing.T) {
	t.Helper()
	tag, untag := versionTags(*h)
	for _, j := range *h {
		if j.VersionTag != nil && slices.Contains(untag, j.VersionTag.Name) {
			j.VersionTag = nil
		}
		if slices.Contains(tag, *j.Version) {
			must.Nil(t, j.VersionTag)
			j.VersionTag = &api.JobVersionTag{Name: tagPrefix + string(rune('a'+*j.Version))}
		}
	}
	h.register(func(root map[string]any) {
		group(root)["Constraints"] = []any{api.NewConstraint(boundBy, api.ConstraintSetContainsAny, "b,"+moveMark+"1")}
	})
	h.register(func(root map[string]any) { group(root)["Constraints"] = nil })
}

// priorities returns the user versions that can be reverted to.
func (h *history) priorities() (out []int) {
	for _, j := range *h {
		if p := *j.Priority; !hasMark(j) && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// The user's history and tags survive a hundred moves.
func TestVersionTags(t *testing.T) {
	h := history{newModel(faultFree()).job}
	user := func() { h.register(func(root map[string]any) { root["Priority"] = *h[0].Priority + 1 }) }
	user()
	user()
	h[1].VersionTag = &api.JobVersionTag{Name: "good"}
	for range 100 {
		h.move(t)
	}
	must.Eq(t, []int{52, 51, 50}, h.priorities())
	user()
	h.move(t)
	user()
	user()
	for range 50 {
		h.move(t)
	}
	must.Eq(t, []int{55, 54, 53, 52, 51, 50}, h.priorities())
	for range 5 {
		user()
		h.move(t)
	}
	must.Eq(t, []int{60, 59, 58, 57, 56, 55, 51}, h.priorities(), must.Sprint("the last six, and the user's own"))
	must.LessEq(t, 6+tagsKept+1, len(h))
}
