// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package store

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/queue"
)

// variables is Nomad's variables API, in memory.
type variables struct {
	mu    sync.Mutex
	items map[string]api.VariableItems
	at    map[string]uint64
	last  uint64
	deny  bool
}

// conflicts fails a check-and-set request whose index does not match.
func (v *variables) conflicts(w http.ResponseWriter, r *http.Request, p string) bool {
	cas := r.URL.Query().Get("cas")
	if cas == "" || cas == fmt.Sprint(v.at[p]) {
		return false
	}
	w.WriteHeader(http.StatusConflict)
	_ = json.NewEncoder(w).Encode(api.Variable{Path: p, Items: v.items[p], ModifyIndex: v.at[p]})
	return true
}

// paths are those that Nomad allows.
var paths = regexp.MustCompile(`^[a-zA-Z0-9-_~/]{1,128}$`)

func (v *variables) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.deny || r.URL.Query().Get("namespace") != "ops" {
		http.Error(w, "Permission denied", http.StatusForbidden)
		return
	}
	if r.URL.Path == "/v1/vars" {
		var list []api.VariableMetadata
		for p := range v.items {
			if strings.HasPrefix(p, r.URL.Query().Get("prefix")) {
				list = append(list, api.VariableMetadata{Path: p})
			}
		}
		_ = json.NewEncoder(w).Encode(list)
		return
	}
	p := strings.TrimPrefix(r.URL.Path, "/v1/var/")
	if !paths.MatchString(p) {
		http.Error(w, "invalid path", http.StatusBadRequest)
		return
	}
	switch r.Method {
	case http.MethodPut:
		var in api.Variable
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if v.conflicts(w, r, p) {
			return
		}
		v.last++
		v.items[p], v.at[p], in.ModifyIndex = in.Items, v.last, v.last
		_ = json.NewEncoder(w).Encode(in)
	case http.MethodDelete:
		if v.conflicts(w, r, p) {
			return
		}
		delete(v.items, p)
		delete(v.at, p)
		w.WriteHeader(http.StatusNoContent)
	default:
		items, ok := v.items[p]
		if !ok {
			http.Error(w, "variable not found", http.StatusNotFound)
			return
		}
		_ = json.NewEncoder(w).Encode(api.Variable{Path: p, Items: items, ModifyIndex: v.at[p]})
	}
}

func store(t testing.TB) (Store, *variables) {
	t.Helper()
	v := &variables{items: map[string]api.VariableItems{}, at: map[string]uint64{}}
	nomad := httptest.NewServer(v)
	t.Cleanup(nomad.Close)
	client, err := api.NewClient(&api.Config{Address: nomad.URL})
	must.NoError(t, err)
	return Store{Client: client, Namespace: "ops", Path: "ebbtide/shim"}, v
}

func TestStore_jobs(t *testing.T) {
	s, v := store(t)
	jobs, err := s.Jobs(t.Context())
	must.NoError(t, err)
	must.MapEmpty(t, jobs)
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	want := map[cluster.JobKey]Job{
		{Namespace: "ml", ID: "vae"}:                   {Marked: at, Rebalanced: true, Last: at, Failures: 3, CostS: 3.5},
		{Namespace: "ml", ID: "a b/c.d~e%+ü/dispatch"}: {Failures: 1},
		{Namespace: "default", ID: "vae"}:              {},
	}
	for key, j := range want {
		must.NoError(t, s.SaveJob(t.Context(), key, j))
	}
	jobs, err = s.Jobs(t.Context())
	must.NoError(t, err)
	must.Eq(t, want, jobs)
	must.NoError(t, s.DeleteJob(t.Context(), cluster.JobKey{Namespace: "ml", ID: "vae"}))
	jobs, err = s.Jobs(t.Context())
	must.NoError(t, err)
	must.MapLen(t, 2, jobs)

	v.mu.Lock()
	v.deny = true
	v.mu.Unlock()
	_, err = s.Jobs(t.Context())
	must.ErrorContains(t, err, "listing variables ebbtide/shim/jobs/")
	must.ErrorContains(t, s.SaveJob(t.Context(), cluster.JobKey{Namespace: "ml", ID: "x"}, Job{}), "writing variable ebbtide/shim/jobs/ml/x")
}

// The time in which a new leader reads 10,000 remembered jobs.
func BenchmarkStore_Jobs(b *testing.B) {
	s, _ := store(b)
	for i := range 10_000 {
		must.NoError(b, s.SaveJob(b.Context(), cluster.JobKey{Namespace: "ml", ID: fmt.Sprint("job-", i)}, Job{}))
	}
	for b.Loop() {
		jobs, err := s.Jobs(b.Context())
		must.NoError(b, err)
		must.MapLen(b, 10_000, jobs)
	}
}

func TestStore_notes(t *testing.T) {
	s, v := store(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	e := Entry{
		Time: at, Namespace: "ml", Job: "vae", Alloc: "a1", NewAlloc: "a2", From: "one", To: "two", Policy: "specon-migrate", Rule: "specon.alg2.least",
		Why: "two has the lowest score", Scores: `{"one":2}`, Phase: "done", DownS: "1.30", DryRun: true,
	}
	must.NoError(t, s.AddEntry(t.Context(), e))
	notes, err := s.Entries(t.Context())
	must.NoError(t, err)
	must.Eq(t, []Entry{e}, notes)

	// In order of time; the oldest are dropped.
	for i := range maxEntries + 5 {
		must.NoError(t, s.AddEntry(t.Context(), Entry{Time: at.Add(time.Duration(i+1) * time.Hour), Alloc: fmt.Sprint("alloc-", i)}))
	}
	notes, err = s.Entries(t.Context())
	must.NoError(t, err)
	must.Len(t, maxEntries, notes)
	must.True(t, slices.IsSortedFunc(notes, func(a, b Entry) int { return a.Time.Compare(b.Time) }))
	must.Eq(t, fmt.Sprint("alloc-", maxEntries+4), notes[maxEntries-1].Alloc)
	must.MapLen(t, maxEntries, v.items)
}

func TestStore_Locate(t *testing.T) {
	var found []api.VariableMetadata
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		must.Eq(t, "*", r.URL.Query().Get("namespace"))
		must.Eq(t, "ebbtide/shim/leader", r.URL.Query().Get("prefix"))
		_ = json.NewEncoder(w).Encode(found)
	}))
	defer server.Close()
	client, err := api.NewClient(&api.Config{Address: server.URL})
	must.NoError(t, err)
	locate := func(in string) (string, error) {
		s, err := Store{client, in, "ebbtide/shim"}.Locate(t.Context())
		return s.Namespace, err
	}
	is := func(want, in string) {
		got, err := locate(in)
		must.NoError(t, err)
		must.Eq(t, want, got)
	}
	is("default", "")
	found = []api.VariableMetadata{{Namespace: "ops", Path: "ebbtide/shim/leader", ModifyIndex: 7}, {Namespace: "other", Path: "ebbtide/shim/leader-2", ModifyIndex: 9}}
	is("ops", "")
	is("given", "given")
	found[1].Path = found[0].Path
	is("other", "")
	server.Close()
	_, err = locate("")
	must.ErrorContains(t, err, "looking for the shim's namespace")
}

// A full report fits into a Nomad variable, of at most 64 KiB; the queue comes before the reasons.
func TestStore_SaveReport_large(t *testing.T) {
	s, v := store(t)
	name := strings.Repeat("x", 60)
	r := Report{Version: "0.1.0"}
	at := time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)
	for range 200 {
		r.Reasons = append(r.Reasons, Reason{Namespace: name, Job: name, Text: strings.Repeat("ü", 100)})
		r.Queue = append(r.Queue, Queued{Namespace: name, Job: name, Owner: name, Start: at, End: at, FairEnd: at, Why: "suspended at step 4200: no place is free"})
	}
	for range 50 {
		r.Owners = append(r.Owners, queue.OwnerShare{Owner: queue.Owner{Name: name, Weight: 0.125}, Use: 0.125, Share: 0.125, Running: 1000, Waiting: 1000})
	}
	must.NoError(t, s.SaveReport(t.Context(), r))
	must.LessEq(t, 64<<10, len(v.items["ebbtide/shim/report"][item]))
	saved, err := s.LoadReport(t.Context())
	must.NoError(t, err)
	must.Eq(t, 200, len(saved.Reasons)+saved.Omitted)
	must.GreaterEq(t, 100, len(saved.Queue))
	must.Len(t, 50, saved.Owners)
	must.Len(t, 200, r.Reasons, must.Sprint("the caller's is as it was"))
	for i := range r.Owners { // the longest names that jobs may give
		r.Owners[i].Name = strings.Repeat("x", 4<<10)
	}
	must.NoError(t, s.SaveReport(t.Context(), r))
	must.LessEq(t, 64<<10, len(v.items["ebbtide/shim/report"][item]))
}

// All twins of a large queue are kept, and none of those that are gone.
func TestStore_Twins(t *testing.T) {
	s, v := store(t)
	twins, err := s.Twins(t.Context())
	must.NoError(t, err)
	must.MapEmpty(t, twins)
	want := make(map[cluster.JobKey]Twin)
	for i := range 2*maxTwins + 1 {
		want[cluster.JobKey{Namespace: "ml", ID: fmt.Sprint(strings.Repeat("a/b", 40), i)}] = Twin{SubmittedS: 1.5e9 + float64(i)/8, FairS: float64(i) / 3}
	}
	for range 2 {
		must.NoError(t, s.SaveTwins(t.Context(), want))
		twins, err = s.Twins(t.Context())
		must.NoError(t, err)
		must.Eq(t, want, twins)
		for name, items := range v.items {
			must.LessEq(t, 64<<10, len(items[item]), must.Sprint(name))
		}
		for key := range want {
			if len(want) > 2 {
				delete(want, key)
			}
		}
	}
	must.MapLen(t, 1, v.items)
}
