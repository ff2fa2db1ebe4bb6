// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package document_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	. "github.com/ebbtide/ebbtide/shim/document"
	"github.com/ebbtide/ebbtide/shim/document/documenttest"
)

const (
	ours = "${node.unique.id}"
	text = `{"ID": "vae", "JobModifyIndex": 9007199254740993, "VersionTag": {"Name": "good"}, "Constraints": null, "TaskGroups": [
		{"Name": "train", "Count": 1, "MaxRunDuration": 3600000000000, "Constraints": [{"LTarget": "${attr.cpu.arch}", "RTarget": "amd64", "Operand": "=", "Weight": 1.50}],
		 "Meta": null, "Tasks": [{"Name": "t", "Templates": [{"ChangeScript": {"RunOnFirstRender": true, "Args": ["<&>"]}}], "Config": {"image": "x"}}]},
		{"Name": "other", "Tasks": null}]}`
)

var own = Own{Constraint: mine, Meta: []string{"ebbtide_adopt"}}

func mine(left, _ string) bool { return left == ours }

func TestJob_With(t *testing.T) {
	j := documenttest.Parse([]byte(text))
	must.Eq(t, "vae", *j.ID)
	bound, err := j.With(AddConstraint("train", ours, "=", "b"), SetMeta("train", "ebbtide_adopt", "a1"))
	must.NoError(t, err)
	must.Len(t, 1, j.TaskGroups[0].Constraints, must.Sprint("the original does not change"))
	must.Len(t, 2, bound.TaskGroups[0].Constraints)
	must.Eq(t, map[string]string{"ebbtide_adopt": "a1"}, bound.TaskGroups[0].Meta)
	must.Eq(t, uint64(9007199254740993), *bound.JobModifyIndex)
	must.Nil(t, bound.VersionTag)
	data, err := json.Marshal(bound)
	must.NoError(t, err)
	for _, kept := range []string{`"MaxRunDuration":3600000000000`, `"RunOnFirstRender":true`, `"Weight":1.50`, `9007199254740993`} {
		must.StrContains(t, string(data), kept)
	}
	foreign, err := bound.Foreign(own)
	must.NoError(t, err)
	must.SliceEmpty(t, foreign)

	unbound, err := bound.With(DropConstraints("train", mine), SetMeta("train", "ebbtide_adopt", ""))
	must.NoError(t, err)
	same, err := Same(j, unbound, Own{Constraint: func(_, _ string) bool { return false }})
	must.NoError(t, err)
	must.True(t, same)

	_, err = j.With(SetMeta("gone", "k", "v"))
	must.ErrorContains(t, err, `the job no longer has group "gone"`)
}

// Nomad's own changes at a registration are not a user's: implied constraints that it repeats, and
// indexes. Repetitions do not add up over many moves.
func TestSame(t *testing.T) {
	const kept = `{"LTarget": "${attr.nomad.version}", "Operand": "semver", "RTarget": ">= 1.7.0-a"}`
	read := func(constraints, index string) *Job {
		return documenttest.Parse([]byte(`{"JobModifyIndex": ` + index + `, "TaskGroups": [{"Name": "g", "Scaling": {"ID": "` + index + `", "Max": 3, "ModifyIndex": ` + index + `}, "Constraints": [` + constraints + `]}]}`))
	}
	before, after := read(kept, "1"), read(kept+","+kept, "2")
	same, err := Same(before, after, own)
	must.NoError(t, err)
	must.True(t, same)
	after, err = after.With(DropConstraints("g", mine))
	must.NoError(t, err)
	must.Len(t, 1, after.TaskGroups[0].Constraints)
	foreign, err := after.Foreign(own)
	must.NoError(t, err)
	must.SliceEmpty(t, foreign)
	same, err = Same(before, read("", "1"), own)
	must.NoError(t, err)
	must.False(t, same)
}

// Whatever else an edit changes is named.
func TestJob_Foreign(t *testing.T) {
	group := func(root map[string]any) map[string]any { return root["TaskGroups"].([]any)[0].(map[string]any) }
	for path, change := range map[string]func(root map[string]any){
		".TaskGroups[0].MaxRunDuration": func(root map[string]any) { delete(group(root), "MaxRunDuration") },
		".TaskGroups[0].Tasks[0].Config.new": func(root map[string]any) {
			group(root)["Tasks"].([]any)[0].(map[string]any)["Config"].(map[string]any)["new"] = 1
		},
		".TaskGroups":                func(root map[string]any) { delete(root, "TaskGroups") },
		".Constraints":               func(root map[string]any) { root["Constraints"] = []any{map[string]any{"LTarget": "x"}} },
		".TaskGroups[0].Meta":        func(root map[string]any) { group(root)["Meta"] = map[string]any{"k": "v"} },
		".TaskGroups[0].Constraints": func(root map[string]any) { group(root)["Constraints"] = nil },
	} {
		changed, err := documenttest.Parse([]byte(text)).With(func(root map[string]any) error { change(root); return nil })
		must.NoError(t, err)
		foreign, err := changed.Foreign(own)
		must.NoError(t, err)
		must.Eq(t, []string{path}, foreign)
	}
}

// With any unknown fields at any level, all edits together change nothing but what is own, and
// undoing them restores the document.
func TestJob_With_properties(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		before := documenttest.WithUnknown(r, documenttest.Parse([]byte(text)))
		j := before
		var err error
		for range rapid.IntRange(0, 6).Draw(r, "edits") {
			group := rapid.SampledFrom([]string{"train", "other"}).Draw(r, "group")
			j, err = j.With(rapid.SampledFrom([]Edit{
				AddConstraint(group, ours, "=", "n"), DropConstraints(group, mine), DropAllConstraints(mine), SetMeta(group, "ebbtide_adopt", "a"), SetMeta(group, "ebbtide_adopt", ""),
			}).Draw(r, "edit"))
			must.NoError(r, err)
			foreign, err := j.Foreign(own)
			must.NoError(r, err)
			must.SliceEmpty(r, foreign)
		}
		j, err = j.With(DropAllConstraints(mine), SetMeta("train", "ebbtide_adopt", ""), SetMeta("other", "ebbtide_adopt", ""))
		must.NoError(r, err)
		same, err := Same(before, j, Own{Constraint: func(_, _ string) bool { return false }})
		must.NoError(r, err)
		must.True(r, same)
	})
}

// Numbers keep their digits, and nothing is lost with them.
func TestJob_numbers(t *testing.T) {
	const numbers = `"A":1.50,"B":18446744073709551616,"C":1e400`
	j, err := documenttest.Parse([]byte(`{"ID":"x",` + numbers + `}`)).With()
	must.NoError(t, err)
	data, err := json.Marshal(j)
	must.NoError(t, err)
	must.True(t, strings.HasPrefix(string(data), "{"+numbers))
}
