// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
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
	"github.com/ebbtide/ebbtide/shim/cluster"
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
	term.surveyor.nomad = move.API{Client: client}
	term.state.Replace(cluster.FromListing(cluster.Listing{
		Nodes: []*cluster.Node{term.state.Nodes["a"]}, Jobs: []*cluster.Job{term.state.Jobs[a.Job]}, Allocs: []*cluster.Alloc{a},
	}))
	var mute []string
	ask := func() (sum Summary, from source, err error) {
		all := term.surveyor.queries(term.state, term.state.NodeIDs())
		term.surveyor.run(t.Context(), all)
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
	must.Eq(t, source{"alloc", "vae"}, from)

	kept.Updated = time.Now().Add(-time.Hour)
	files[".ebbtide/vae.status.json"] = kept
	_, _, err = ask()
	must.ErrorContains(t, err, "is old")
}
