// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/shim/leader"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/store"
)

// variables is Nomad's variables API, in memory, and the API of the jobs.
func variables(t *testing.T, jobs ...*api.Job) (vars store.Store) {
	var mu sync.Mutex
	all := make(map[string]api.Variable)
	nomad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		path := strings.TrimPrefix(r.URL.Path, "/v1/var/")
		switch {
		case strings.HasPrefix(r.URL.Path, "/v1/job/"):
			id := strings.TrimPrefix(r.URL.Path, "/v1/job/")
			for _, j := range jobs {
				if *j.ID == id && *j.Namespace == cmp.Or(r.URL.Query().Get("namespace"), "default") {
					_ = json.NewEncoder(w).Encode(j)
					return
				}
			}
			http.Error(w, "job not found", http.StatusNotFound)
		case r.URL.Path == "/v1/jobs":
			_, _ = w.Write([]byte("[]"))
		case r.URL.Path == "/v1/vars":
			list := []api.VariableMetadata{}
			for p := range all {
				if strings.HasPrefix(p, r.URL.Query().Get("prefix")) {
					list = append(list, api.VariableMetadata{Path: p})
				}
			}
			_ = json.NewEncoder(w).Encode(list)
		case r.Method == http.MethodPut:
			var v api.Variable
			must.NoError(t, json.NewDecoder(r.Body).Decode(&v))
			switch v.ModifyIndex = 1; {
			case r.URL.Query().Has("lock-acquire"):
				v.Lock = &api.VariableLock{ID: "1"}
			case r.URL.Query().Has("lock-release"):
				v = all[path]
				v.Lock = nil
			}
			all[path] = v
			_ = json.NewEncoder(w).Encode(v)
		case r.Method == http.MethodDelete:
			delete(all, path)
		default:
			v, ok := all[path]
			if !ok {
				http.Error(w, "variable not found", http.StatusNotFound)
				return
			}
			_ = json.NewEncoder(w).Encode(v)
		}
	}))
	t.Cleanup(nomad.Close)
	t.Setenv("NOMAD_ADDR", nomad.URL)
	client, err := api.NewClient(api.DefaultConfig())
	must.NoError(t, err)
	return store.Store{Client: client, Namespace: "default", Path: "ebbtide/shim"}
}

func TestShim_pause(t *testing.T) {
	vars := variables(t)
	status, stdout, stderr := ebbtide("", "shim", "pause", "-for", "2h", "-reason", "upgrade")
	must.Eq(t, exitOK, status, must.Sprint(stderr))
	must.StrContains(t, stdout, ": upgrade\n")
	p, err := vars.LoadPause(t.Context())
	must.NoError(t, err)
	must.Eq(t, 2*time.Hour, p.Until.Sub(p.Since))
	must.True(t, p.Active(p.Since))
	must.False(t, p.Active(p.Until))
	status, stdout, _ = ebbtide("", "shim", "status")
	must.Eq(t, exitError, status)
	must.StrContains(t, stdout, "Moves  paused by ")

	status, _, _ = ebbtide("", "shim", "resume")
	must.Eq(t, exitOK, status)
	p, err = vars.LoadPause(t.Context())
	must.NoError(t, err)
	must.Nil(t, p)
	for want, args := range map[string][]string{
		"-for: must be a duration like 2h, got -1s": {"shim", "pause", "-for", "-1s"},
		`invalid value "soon" for flag -for`:        {"shim", "pause", "-for", "soon"},
		`unexpected argument "now"`:                 {"shim", "resume", "now"},
		"allowed are -address,":                     {"shim", "status", "-all"},
	} {
		status, _, stderr := ebbtide("", args...)
		must.Eq(t, exitUsage, status)
		must.StrContains(t, stderr, want)
	}
	p, err = vars.LoadPause(t.Context())
	must.NoError(t, err)
	must.Nil(t, p)
}

func TestShim_status(t *testing.T) {
	vars, ctx := variables(t), t.Context()
	status, stdout, stderr := ebbtide("", "shim", "status")
	must.Eq(t, exitError, status)
	must.Eq(t, "", stdout)
	must.StrContains(t, stderr, "no shim leads")

	now := time.Now()
	r := store.Report{
		Version: "1.2.3", At: now, Nodes: 3, Closed: "the next window starts tonight",
		InFlight: 1, InFlightMax: 2, Started: 3, StartedMax: 6, LongestStepS: 0.012, Held: []string{"ml/gru"},
		Reasons: []store.Reason{{Namespace: "ml", Job: "vae", Text: "not moved now: cooldown"}}, Omitted: 7,
	}
	must.NoError(t, vars.SaveReport(ctx, r))
	lock := &leader.Variable{Client: vars.Client, Namespace: vars.Namespace, Path: vars.Path + "/leader", TTL: time.Minute, Holder: "n1, process 7"}
	must.NoError(t, lock.Acquire(ctx))
	_, err := store.Claims{Store: vars}.Write(ctx, move.Record{ID: "4f", Namespace: "ml", Job: "mlp", Phase: move.PhaseWait, Owner: "ebbtide move"})
	must.NoError(t, err)
	newer := &api.Variable{Namespace: vars.Namespace, Path: vars.Path + "/claims/9", Items: api.VariableItems{"record": `{"schema": 9, "namespace": "ml", "job": "cnn"}`}}
	_, _, err = vars.Client.Variables().Update(newer, &api.WriteOptions{Namespace: vars.Namespace})
	must.NoError(t, err)
	status, stdout, stderr = ebbtide("", "shim", "status")
	must.Eq(t, exitOK, status, must.Sprint(stderr))
	for _, want := range []string{
		"The record of a move cannot be read, and its job is left alone: variable ebbtide/shim/claims/9: a newer version has written it",
		"Leader   n1, process 7, since ", "Version  1.2.3\n", "Cluster  3 nodes\n", "Moves    none may start: the next window starts tonight\n",
		"Budget   1 of 2 moves in progress, 3 of 6 started within a minute\n", "Loop     longest step 12 ms\n", "Held     ml/gru\n",
		"4f    ml/mlp  wait   ebbtide move\n", "ml/vae  not moved now: cooldown\n", "7 more jobs",
	} {
		must.StrContains(t, stdout, want)
	}
	var s store.Overview
	_, stdout, _ = ebbtide("", "shim", "status", "-json")
	must.NoError(t, json.Unmarshal([]byte(stdout), &s))
	must.Eq(t, r.Reasons, s.Report.Reasons)
	must.Len(t, 1, s.Moves)

	must.NoError(t, lock.Release(ctx))
	status, stdout, stderr = ebbtide("", "shim", "status")
	must.Eq(t, exitError, status)
	must.StrContains(t, stdout, "Led last  n1, process 7, since ")
	must.StrContains(t, stderr, "no shim leads")
}
