// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/document/documenttest"
)

// Nomad 1.11 cannot plan with a workload identity; other errors are returned.
func TestAPI_Plan(t *testing.T) {
	for text, noPlan := range map[string]bool{
		"rpc error: acl token lookup failed: index error: UUID must be 36 characters": true,
		"No cluster leader": false,
	} {
		nomad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, text, http.StatusInternalServerError)
		}))
		client, err := api.NewClient(&api.Config{Address: nomad.URL})
		must.NoError(t, err)
		_, err = API{Client: client}.Plan(t.Context(), documenttest.Parse([]byte(`{"ID": "vae"}`)))
		must.ErrorContains(t, err, text)
		if noPlan {
			must.ErrorIs(t, err, ErrNoPlan)
		} else {
			must.ErrorContains(t, err, "planning the job: ")
			must.False(t, identityRefused(err))
		}
		nomad.Close()
	}
}

// A registration sends the job as the server gave it, and nothing if more than Ebbtide's own was
// edited.
func TestAPI_Register(t *testing.T) {
	const text = `{"ID":"vae","JobModifyIndex":7,"Namespace":"ml","TaskGroups":[{"Constraints":null,"MaxRunDuration":3600000000000,"Name":"train","New":{"A":1.50}}],"Version":3}`
	var sent struct {
		Job            json.RawMessage
		EnforceIndex   bool
		JobModifyIndex uint64
		Submission     *api.JobSubmission
	}
	nomad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/job/vae":
			_, _ = w.Write([]byte(text))
		case "/v1/job/vae/submission":
			_, _ = w.Write([]byte(`{"Source": "job {}"}`))
		case "/v1/jobs":
			must.NoError(t, json.NewDecoder(r.Body).Decode(&sent))
			_, _ = w.Write([]byte(`{"JobModifyIndex": 8}`))
		}
	}))
	defer nomad.Close()
	client, err := api.NewClient(&api.Config{Address: nomad.URL})
	must.NoError(t, err)
	a := API{Client: client}
	job, err := a.Job(t.Context(), "ml", "vae")
	must.NoError(t, err)
	bound, err := bind(job, "train", "b", "1234", "")
	must.NoError(t, err)
	resp, err := a.Register(t.Context(), bound)
	must.NoError(t, err)
	must.Eq(t, 8, resp.JobModifyIndex)
	must.Eq(t, `{"ID":"vae","JobModifyIndex":7,"Namespace":"ml","TaskGroups":[{"Constraints":[{"LTarget":"${node.unique.id}","Operand":"set_contains_any","RTarget":"b,ebbtide-move:1234"}],"MaxRunDuration":3600000000000,"Name":"train","New":{"A":1.50}}],"Version":3}`, string(sent.Job))
	must.True(t, sent.EnforceIndex)
	must.Eq(t, 7, sent.JobModifyIndex)
	must.Eq(t, "job {}", sent.Submission.Source)

	sent.Job = nil
	changed, err := bound.With(func(root map[string]any) error { root["Priority"] = 1; delete(group(root), "New"); return nil })
	must.NoError(t, err)
	_, err = a.Register(t.Context(), changed)
	must.EqError(t, err, "registering job vae: cannot be moved: registering it would also change .Priority, .TaskGroups[0].New")
	must.Nil(t, sent.Job)
}

// A server that would lose what it gave, such as an older one in the middle of an upgrade, is
// noticed by its plan. What Nomad adds itself does not matter.
func TestForeign(t *testing.T) {
	diff := &api.JobDiff{
		Type:    "Edited",
		Objects: []*api.ObjectDiff{{Type: "Deleted", Name: "Constraint", Fields: []*api.FieldDiff{{Type: "Deleted", Name: "LTarget", Old: cluster.Hold}}}},
		TaskGroups: []*api.TaskGroupDiff{{
			Type: "Edited", Name: "train",
			Fields:  []*api.FieldDiff{{Type: "Deleted", Name: "Meta[ebbtide_adopt]", Old: "a"}, {Type: "Added", Name: "Default", New: "1"}},
			Objects: []*api.ObjectDiff{{Type: "Edited", Name: "Scaling"}, {Type: "Added", Name: "Constraint", Fields: []*api.FieldDiff{{Type: "Added", Name: "LTarget", New: "x"}}}},
			Tasks:   []*api.TaskDiff{{Type: "None", Name: "t", Fields: []*api.FieldDiff{{Type: "None", Name: "Driver", Old: "ebbtide", New: "ebbtide"}}}},
		}},
	}
	must.NoError(t, foreign(&api.JobPlanResponse{}))
	must.NoError(t, foreign(&api.JobPlanResponse{Diff: diff}))
	g := diff.TaskGroups[0]
	g.Fields = append(g.Fields, &api.FieldDiff{Type: "Deleted", Name: "MaxRunDuration", Old: "3600000000000"})
	g.Objects = append(g.Objects, &api.ObjectDiff{Type: "Deleted", Name: "Constraint", Fields: []*api.FieldDiff{{Type: "Deleted", Name: "LTarget", Old: "${attr.cpu.arch}"}}})
	g.Tasks[0].Objects = []*api.ObjectDiff{{Type: "Edited", Name: "Template", Objects: []*api.ObjectDiff{{Type: "Edited", Name: "ChangeScript", Fields: []*api.FieldDiff{{Type: "Edited", Name: "RunOnFirstRender", Old: "true", New: "false"}}}}}}
	var refused *Refused
	must.True(t, errors.As(foreign(&api.JobPlanResponse{Diff: diff}), &refused))
	must.Eq(t, []string{"registering it would also change TaskGroups[train].MaxRunDuration, TaskGroups[train].Constraint, TaskGroups[train].Tasks[t].Template.ChangeScript.RunOnFirstRender"}, refused.Reasons)
}

// The status is read from the private directory, not from where the task writes.
func TestAPI_Status(t *testing.T) {
	files := map[string]string{
		"alloc/data/ebbtide/vae.json": `{"task": "forged"}`,
		"alloc/data/ebbtide/gru.json": `{"task": "forged"}`,
		".ebbtide/vae.status.json":    `{"task": "vae"}`,
		".ebbtide/vae.record":         "x",
		".ebbtide/bad.status.json":    "{",
		".ebbtide/large.status.json":  strings.Repeat(" ", maxStatus+1),
	}
	nomad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		file := r.URL.Query().Get("path")
		switch r.URL.Path {
		case "/v1/client/fs/cat/a1": // as Nomad does
			if text, ok := files[file]; ok {
				_, _ = w.Write([]byte(text))
			} else {
				_, _ = w.Write([]byte("stat /nomad/x: no such file or directory"))
			}
			return
		case "/v1/client/fs/stat/a1":
			if _, ok := files[file]; ok {
				_, _ = w.Write([]byte("{}"))
				return
			}
		case "/v1/client/fs/ls/a1":
			var list []api.AllocFileInfo
			for name := range files {
				if base, ok := strings.CutPrefix(name, file+"/"); ok {
					list = append(list, api.AllocFileInfo{Name: base})
				}
			}
			_ = json.NewEncoder(w).Encode(list)
			return
		case "/v1/client/fs/cat/denied", "/v1/client/fs/stat/denied", "/v1/client/fs/ls/denied":
			http.Error(w, "Permission denied", http.StatusForbidden)
			return
		}
		http.Error(w, "open /nomad/x: no such file or directory", http.StatusInternalServerError)
	}))
	defer nomad.Close()
	client, err := api.NewClient(&api.Config{Address: nomad.URL})
	must.NoError(t, err)
	a, alloc, denied := API{Client: client}, &api.Allocation{ID: "a1"}, &api.Allocation{ID: "denied", Namespace: "ml"}

	st, err := a.Status(t.Context(), alloc, "vae")
	must.NoError(t, err)
	must.Eq(t, "vae", st.Task)
	_, err = a.Status(t.Context(), alloc, "gru")
	must.ErrorContains(t, err, "no such file or directory")
	_, err = a.Status(t.Context(), alloc, "bad")
	must.ErrorContains(t, err, "reading the status of task bad: unexpected end")
	_, err = a.Status(t.Context(), alloc, "large")
	must.ErrorIs(t, err, private.ErrTooLarge)
	_, err = a.Status(t.Context(), denied, "vae")
	must.ErrorContains(t, err, "Permission denied")

	data, err := a.PrivateFile(t.Context(), alloc, "vae.record", 1)
	must.NoError(t, err)
	must.Eq(t, "x", string(data))
	_, err = a.PrivateFile(t.Context(), alloc, "vae.record", 0)
	must.ErrorIs(t, err, private.ErrTooLarge)
	_, err = a.PrivateFile(t.Context(), alloc, "gru.record", 1)
	must.ErrorIs(t, err, fs.ErrNotExist)
	_, err = a.PrivateFile(t.Context(), denied, "vae.record", 1)
	must.ErrorContains(t, err, "the token needs read-fs in namespace ml")

	tasks, err := a.StatusFiles(t.Context(), alloc)
	must.NoError(t, err)
	must.SliceContainsAll(t, []string{"vae", "bad", "large"}, tasks)
	tasks, err = a.StatusFiles(t.Context(), &api.Allocation{ID: "none"})
	must.NoError(t, err)
	must.SliceEmpty(t, tasks)
	_, err = a.StatusFiles(t.Context(), denied)
	must.ErrorContains(t, err, "reading .ebbtide of allocation denied: Unexpected response code: 403")
}
