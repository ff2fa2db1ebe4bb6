// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/store"
)

// No decision before the operators' pause is known; no move while it is set or outside the
// windows.
func TestAttend(t *testing.T) {
	said, down := "", true
	written := make(chan api.Variable, 10)
	nomad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case down:
			http.Error(w, "no leader", http.StatusInternalServerError)
		case r.Method == http.MethodPut:
			var v api.Variable
			must.NoError(t, json.NewDecoder(r.Body).Decode(&v))
			written <- v
			_, _ = w.Write([]byte("{}"))
		case said == "":
			http.Error(w, "variable not found", http.StatusNotFound)
		default:
			_ = json.NewEncoder(w).Encode(api.Variable{Items: api.VariableItems{"json": said}})
		}
	}))
	defer nomad.Close()
	client, err := api.NewClient(&api.Config{Address: nomad.URL})
	must.NoError(t, err)
	s, a := small()
	s.remembers = true
	s.writer.vars = store.Store{Client: client, Namespace: "default", Path: "x"}
	c := config.Default()
	attend := func() string {
		s.operatorsAt = time.Time{}
		s.ask()
		s.drain()
		return s.closed(c)
	}
	attend()
	must.False(t, s.operatorsKnown)
	down = false
	must.Eq(t, "", attend())
	must.True(t, s.operatorsKnown)

	pause := store.Pause{By: "ada", Why: "upgrade", Since: time.Now(), Until: time.Now().Add(time.Hour)}
	data, err := json.Marshal(pause)
	must.NoError(t, err)
	said = string(data)
	must.StrContains(t, attend(), "paused by ada since ")
	s.listed()
	s.carryOut(c, moveTo(a, "b", store.Entry{}))
	must.Eq(t, 0, s.running, must.Sprint("no move has begun"))
	must.StrContains(t, s.latest[a.Job].text, "not moved now: paused by ada")
	down = true
	must.NotEq(t, "", attend(), must.Sprint("what is known stays"))
	down = false

	// The report bounds each reason's length.
	for _, id := range []string{"b", "c"} {
		s.explain(cluster.JobKey{Namespace: "ml", ID: id}, strings.Repeat("ü", 1000))
	}
	for range 2 {
		s.report(c, s.listed())
	}
	s.drain()
	must.Eq(t, 1, len(written), must.Sprint("nothing has changed"))
	var r store.Report
	must.NoError(t, json.Unmarshal([]byte((<-written).Items["json"]), &r))
	must.StrContains(t, r.Closed, "paused by ada")
	must.Len(t, 3, r.Reasons)
	must.Eq(t, strings.Repeat("ü", maxReasonLen/2), r.Reasons[0].Text)

	said = ""
	must.Eq(t, "", attend())
	c.Windows = []config.Window{{Name: "never", Cron: "0 0 1 1 * 1999", Duration: time.Hour, TimeZone: "UTC"}}
	must.Eq(t, "no further window is scheduled", s.closed(c))
}

// A pause keeps running jobs from moving, not held ones from starting.
func TestPause_held(t *testing.T) {
	s, a := small()
	s.pause, s.writer.held = &store.Pause{By: "ada"}, func() error { return errors.New("lost") }
	delete(s.state.Allocs, a.ID)
	j := s.state.Jobs[a.Job]
	j.Held, j.Groups = true, map[string]cluster.Group{"train": {Count: 1}}
	c := config.Default()
	c.DryRun = true
	must.NotEq(t, "", s.closed(c))
	s.decide(c)
	must.Eq(t, "held; would be placed: placement is disabled", s.latest[a.Job].text)
}

// A new leader decides only once it remembers what earlier ones have decided, and reads that once.
func TestAsk_remembers(t *testing.T) {
	down, lists := true, 0
	nomad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case down:
			http.Error(w, "no leader", http.StatusInternalServerError)
		case r.URL.Path == "/v1/vars" && r.URL.Query().Get("prefix") == "x/twins/":
			_, _ = w.Write([]byte(`[{"Path": "x/twins/000000"}]`))
		case r.URL.Path == "/v1/var/x/twins/000000":
			_ = json.NewEncoder(w).Encode(api.Variable{Items: api.VariableItems{"json": `{"ml/vae": {"submitted_s": 5, "fair_s": 7}}`}})
		case r.URL.Path == "/v1/vars":
			lists++
			_, _ = w.Write([]byte(`[{"Path": "x/jobs/ml/vae"}]`))
		case r.URL.Path == "/v1/var/x/jobs/ml/vae":
			_ = json.NewEncoder(w).Encode(api.Variable{Items: api.VariableItems{"marked": "2026-01-02T03:04:05Z", "last": "2100-01-02T03:04:05Z", "failures": "2"}})
		default:
			http.Error(w, "variable not found", http.StatusNotFound)
		}
	}))
	defer nomad.Close()
	client, err := api.NewClient(&api.Config{Address: nomad.URL})
	must.NoError(t, err)
	s, a := small()
	s.writer.vars = store.Store{Client: client, Namespace: "default", Path: "x"}
	for range 3 {
		s.operatorsAt = time.Time{}
		s.ask()
		s.drain()
		must.Eq(t, !down, s.operatorsKnown)
		down = false
	}
	must.Eq(t, 1, lists)
	must.Eq(t, 2026, s.writer.jobs[a.Job].Marked.Year())
	must.Eq(t, map[cluster.JobKey]store.Twin{a.Job: {SubmittedS: 5, FairS: 7}}, s.before)
	must.StrContains(t, s.snap().blocked(a, "b"), "back-off after 2 failures until 20", must.Sprint("by this process's clock, which may be behind"))
}
