// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"encoding/json"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/private"
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
		_, err = API{client}.Plan(t.Context(), &api.Job{ID: ptr("vae")})
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
	a, alloc, denied := API{client}, &api.Allocation{ID: "a1"}, &api.Allocation{ID: "denied", Namespace: "ml"}

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
