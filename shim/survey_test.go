// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/move"
)

// Summaries come from files that tasks cannot write: a forged status is ignored.
func TestSummarise(t *testing.T) {
	files := make(map[string]status.Status) // by path
	nomad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		file := r.URL.Query().Get("path")
		if st, ok := files[file]; ok && strings.HasSuffix(r.URL.Path, "/cat/alloc") {
			data, err := st.Encode()
			must.NoError(t, err)
			_, _ = w.Write(data)
			return
		}
		var list []api.AllocFileInfo
		for name := range files {
			if base, ok := strings.CutPrefix(name, file+"/"); ok {
				list = append(list, api.AllocFileInfo{Name: base})
			}
		}
		if list == nil {
			http.Error(w, "open /nomad/x: no such file or directory", http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(list)
	}))
	defer nomad.Close()
	client, err := api.NewClient(&api.Config{Address: nomad.URL})
	must.NoError(t, err)
	term, a := small()
	term.planner.surveyor.nomad = move.API{Client: client}
	delete(term.state.Nodes, "b")
	var mute []string
	ask := func() (sum Summary, from source, err error) {
		all := term.planner.surveyor.queries(term.snap())
		term.planner.surveyor.run(t.Context(), all)
		i := slices.IndexFunc(all, func(q query) bool { return q.node == a.Node })
		mute = all[i].noStatus
		return all[i].sum, all[i].from, all[i].err
	}

	forged := status.Status{Alloc: "alloc", Task: "vae", Updated: time.Now(), Node: status.Node{Tasks: 99}}
	files["alloc/data/ebbtide/vae.json"] = forged
	sum, _, err := ask()
	must.NoError(t, err)
	must.Eq(t, 0, sum.Tasks, must.Sprint("the allocation is not known to be Ebbtide's"))
	must.Eq(t, []string{"alloc"}, mute, must.Sprint("it need not be asked each time"))

	g := term.state.Jobs[a.Job].Groups["train"]
	g.Engine = "exec"
	term.state.Jobs[a.Job].Groups["train"] = g
	a.Started = time.Now()
	_, _, err = ask()
	must.NoError(t, err)
	a.Started = time.Now().Add(-time.Hour)
	_, _, err = ask()
	must.ErrorContains(t, err, "allocation alloc has no status")

	kept := forged
	kept.Node.Tasks = 2
	files[".ebbtide/vae.status.json"] = kept
	sum, from, err := ask()
	must.NoError(t, err)
	must.Eq(t, 2, sum.Tasks)
	must.Eq(t, "alloc vae", from.alloc+" "+from.task)
}

// A status counts while it changes: a node's clock may be wrong. Only at the first sight, its own
// time has to do.
func TestSource_fresh(t *testing.T) {
	now := time.Now()
	first := source{alloc: "a", task: "t", updated: now.Add(-time.Minute)}
	must.True(t, first.fresh(source{}))
	same := source{alloc: "a", task: "t", updated: first.updated}
	must.True(t, same.fresh(first))
	must.Eq(t, first.changed, same.changed)
	same.changed = now.Add(-time.Hour)
	still := same
	must.False(t, still.fresh(same), must.Sprint("it has not changed for an hour"))

	for _, wrong := range []time.Duration{-24 * time.Hour, 24 * time.Hour} {
		first := source{alloc: "a", task: "t", updated: now.Add(wrong)}
		must.False(t, first.fresh(source{alloc: "a", task: "other", updated: now}))
		stale := first
		must.False(t, stale.fresh(first))
		next := source{alloc: "a", task: "t", updated: now.Add(wrong + time.Second)}
		must.True(t, next.fresh(first), must.Sprint("it has changed"))
	}
}

// A node whose clock is a day slow has a summary once its status has changed. Of two tasks, the one
// that is written counts.
func TestSummarise_clock(t *testing.T) {
	term, a := small()
	at := time.Now().Add(-24 * time.Hour)
	nomad := &clocked{ended: at.Add(-time.Minute), runs: at}
	term.planner.surveyor.nomad = nomad
	ask := func(last source) (source, error) {
		_, from, _, err := term.planner.surveyor.summarise(t.Context(), []reporter{{Alloc: a}}, last)
		return from, err
	}
	first, err := ask(source{})
	must.ErrorContains(t, err, "is older than 10m0s")
	must.Eq(t, "runs", first.task)
	none, err := ask(first)
	must.ErrorContains(t, err, "is older than 10m0s")
	must.Eq(t, source{}, none, must.Sprint("all tasks are asked again"))
	nomad.runs = nomad.runs.Add(time.Second)
	next, err := ask(first)
	must.NoError(t, err)
	must.Eq(t, "runs", next.task)
}

// clocked serves the statuses of two tasks.
type clocked struct{ ended, runs time.Time }

func (*clocked) StatusFiles(context.Context, *api.Allocation) ([]string, error) {
	return []string{"ended", "runs"}, nil
}

func (c *clocked) Status(_ context.Context, a *api.Allocation, task string) (status.Status, error) {
	return status.Status{Alloc: a.ID, Updated: map[string]time.Time{"ended": c.ended, "runs": c.runs}[task]}, nil
}
