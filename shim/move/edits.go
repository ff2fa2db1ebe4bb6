// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/document"
)

// A job is the user's. A registration may change the constraints that bind or hold it, and
// metaAdopt, and is refused if it would change anything else.

func ownConstraint(left, right string) bool {
	return left == cluster.Hold || cluster.HasMark(left, right)
}

// checkEdits compares the job with what the server gave.
func checkEdits(job *document.Job) error {
	foreign, err := job.Foreign(document.Own{Constraint: ownConstraint, Meta: []string{metaAdopt}})
	if err != nil {
		return err
	}
	return refuseChanges(foreign)
}

// foreign checks a plan for what the server would lose or change although the document has it,
// such as a field that an older server does not know. What Nomad itself adds is not the move's.
func foreign(plan *api.JobPlanResponse) error {
	if plan.Diff == nil {
		return nil
	}
	lost := lostFields("", plan.Diff.Fields, plan.Diff.Objects)
	for _, g := range plan.Diff.TaskGroups {
		at := fmt.Sprintf("TaskGroups[%s].", g.Name)
		lost = append(lost, lostFields(at, g.Fields, g.Objects)...)
		for _, t := range g.Tasks {
			lost = append(lost, lostFields(fmt.Sprintf("%sTasks[%s].", at, t.Name), t.Fields, t.Objects)...)
		}
	}
	return refuseChanges(lost)
}

func refuseChanges(paths []string) error {
	if len(paths) == 0 {
		return nil
	}
	return &Refused{Reasons: []string{"registering it would also change " + strings.Join(paths, ", ")}}
}

const (
	diffNone    = "None"
	diffAdded   = "Added"
	diffDeleted = "Deleted"
)

func lostFields(at string, fields []*api.FieldDiff, objects []*api.ObjectDiff) (paths []string) {
	for _, f := range fields {
		if f.Type != diffNone && f.Type != diffAdded && f.Name != "Meta["+metaAdopt+"]" {
			paths = append(paths, at+f.Name)
		}
	}
	for _, o := range objects {
		switch {
		case o.Type == diffNone || o.Type == diffAdded || o.Name == "Constraint" && isOwn(o.Fields):
		case o.Type == diffDeleted:
			paths = append(paths, at+o.Name)
		default: // without fields only Nomad's own have changed, such as a scaling policy's index
			paths = append(paths, lostFields(at+o.Name+".", o.Fields, o.Objects)...)
		}
	}
	return paths
}

// isOwn reports whether the difference is a constraint that binds or holds a group.
func isOwn(fields []*api.FieldDiff) bool {
	value := func(name string) string {
		i := slices.IndexFunc(fields, func(f *api.FieldDiff) bool { return f.Name == name })
		if i < 0 {
			return ""
		}
		return fields[i].Old + fields[i].New
	}
	return ownConstraint(value("LTarget"), value("RTarget"))
}
