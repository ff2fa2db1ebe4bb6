// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gather

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/queue"
	"github.com/ebbtide/ebbtide/shim/store"
	"github.com/ebbtide/ebbtide/top"
	"github.com/ebbtide/ebbtide/top/fake"
)

// reader returns a Gatherer and its clock, which the test advances.
func reader(t *testing.T, c *fake.Cluster, change func(*Options)) (g *Gatherer, later func(time.Duration)) {
	t.Helper()
	nomad := httptest.NewServer(c)
	t.Cleanup(nomad.Close)
	client, err := api.NewClient(&api.Config{Address: nomad.URL})
	must.NoError(t, err)
	t.Cleanup(client.Close)
	o := Options{Client: client, Shim: store.Store{Client: client, Namespace: "default", Path: "ebbtide/shim"}}
	if change != nil {
		change(&o)
	}
	g = New(o)
	now := time.Now()
	g.now = func() time.Time { return now }
	return g, func(d time.Duration) { now = now.Add(d) }
}

func refresh(t *testing.T, g *Gatherer, visible []top.Key, budget int) *top.View {
	t.Helper()
	v, err := g.Refresh(context.Background(), visible, budget)
	must.NoError(t, err)
	return v
}

func TestRefresh(t *testing.T) {
	c := fake.New()
	c.Node("aa11", "one")
	c.Node("bb22", "two")
	c.Nodes = append(c.Nodes, &api.NodeListStub{ID: "ff00", Name: "plain", Status: api.NodeStatusReady, Drivers: map[string]*api.DriverInfo{"docker": {}}})
	mlp := c.Task("aa11", "ml", "mlp", nil)
	c.Task("bb22", "vision", "vae", func(s *status.Status) { fake.Seat(s, handoff.Parked, 0, 408) })
	delete(c.Statuses, c.Task("aa11", "ml", "web", nil)) // another driver
	c.Task("ff00", "ml", "other", nil)                   // a node without Ebbtide
	c.Claims = []move.Record{{ID: "4f02", Namespace: "ml", Job: "mlp", Alloc: mlp, Source: "aa11", Target: "bb22", Phase: "wait", Owner: "shim", Why: "it ends sooner"}}

	g, _ := reader(t, c, nil)
	v := refresh(t, g, nil, 100)
	must.Eq(t, []string{}, v.Notes)
	must.Eq(t, 0, v.Unread)
	must.Len(t, 2, v.Nodes)
	must.Eq(t, "one", v.Nodes[0].Name)
	must.Eq(t, 250, float64(v.Nodes[0].SavedS))
	must.Eq(t, 0.9, float64(v.Nodes[0].Use))
	must.Len(t, 2, v.Tasks)
	must.Eq(t, "mlp", v.Tasks[0].Job)
	must.Eq(t, "one", v.Tasks[0].Node)
	must.Eq(t, "loss", v.Tasks[0].Status.Metric)
	must.Len(t, 2, v.Tasks[0].Events)
	must.False(t, v.Tasks[0].Stale)
	must.Len(t, 1, v.GPUs)
	must.Eq(t, 408, v.GPUs[0].ParkedMiB)
	must.Len(t, 1, v.Moves)
	must.Eq(t, "one", v.Moves[0].From)
	must.Eq(t, "two", v.Moves[0].To)
	must.Eq(t, "it ends sooner", v.Moves[0].Why)
	must.Eq(t, 0, c.Counts()["unknown"])

	data, err := json.Marshal(v)
	must.NoError(t, err)
	var again top.View
	must.NoError(t, json.Unmarshal(data, &again))
	must.Eq(t, "mlp", again.Tasks[0].Job)

	// A visible task's curve is read, but not with each refresh.
	v = refresh(t, g, []top.Key{v.Tasks[0].Key()}, 100)
	must.Eq(t, 1, c.Counts()["stream"])
	must.Eq(t, 64, len(v.Tasks[0].Values))
	refresh(t, g, []top.Key{v.Tasks[0].Key()}, 100)
	must.Eq(t, 1, c.Counts()["stream"])
	rows, err := g.Curve(context.Background(), v.Tasks[0])
	must.NoError(t, err)
	must.Len(t, 300, rows)
}

func TestRefresh_options(t *testing.T) {
	c := fake.New()
	c.Node("aa11", "one")
	c.Node("bb22", "two")
	c.Task("aa11", "ml", "mlp-1", nil)
	c.Task("aa11", "ml", "vae", nil)
	c.Task("bb22", "ml", "mlp-2", nil)
	for _, tc := range []struct {
		node, job string
		want      []string
	}{
		{"", "", []string{"mlp-1", "mlp-2", "vae"}},
		{"one", "", []string{"mlp-1", "vae"}},
		{"bb", "", []string{"mlp-2"}},
		{"", "mlp-*", []string{"mlp-1", "mlp-2"}},
		{"one", "mlp-*", []string{"mlp-1"}},
	} {
		g, _ := reader(t, c, func(o *Options) { o.Node, o.Job = tc.node, tc.job })
		var jobs []string
		for _, task := range refresh(t, g, nil, 100).Tasks {
			jobs = append(jobs, task.Job)
		}
		must.Eq(t, tc.want, jobs, must.Sprint(tc))
	}

	// Of the queue, jobs are selected; its owners are those of all jobs.
	c.Variables["report"] = api.VariableItems{"json": `{"queue":[{"namespace":"ml","job":"mlp-9"},{"namespace":"ml","job":"gru"}],"owners":[{"name":"ml","weight":2,"share":0.5}]}`}
	g, _ := reader(t, c, func(o *Options) { o.Job = "mlp-*" })
	v := refresh(t, g, nil, 100)
	must.Eq(t, []store.Queued{{Namespace: "ml", Job: "mlp-9"}}, v.Queue)
	must.Eq(t, []queue.OwnerShare{{Owner: queue.Owner{Name: "ml", Weight: 2}, Share: 0.5}}, v.Owners)

	g, _ = reader(t, c, func(o *Options) { o.Node = "three" })
	_, err := g.Refresh(context.Background(), nil, 100)
	must.ErrorContains(t, err, `no node has the name or ID prefix "three"`)
}

func TestRefresh_denied(t *testing.T) {
	c := fake.New()
	c.Node("aa11", "one")
	c.Task("aa11", "ml", "mlp", nil)
	c.Task("aa11", "secret", "vae", nil)
	c.Denied["variables"], c.Denied["secret"] = true, true
	g, _ := reader(t, c, nil)
	v := refresh(t, g, nil, 100)
	must.Len(t, 1, v.Notes)
	must.StrContains(t, v.Notes[0], "cannot read moves and the queue: permission denied: the token needs the variables ebbtide/shim")
	must.Len(t, 2, v.Tasks)
	must.False(t, v.Tasks[0].Stale)
	must.True(t, v.Tasks[1].Stale)
	must.StrContains(t, v.Tasks[1].Error, "the token needs read-fs in namespace secret")
	must.False(t, v.Nodes[0].Stale)

	c.Lock()
	c.Denied["nodes"] = true
	c.Unlock()
	g, _ = reader(t, c, nil)
	_, err := g.Refresh(context.Background(), nil, 100)
	must.ErrorContains(t, err, "listing the nodes: permission denied: the token needs node:read")
}

func TestRefresh_noHistory(t *testing.T) {
	c := fake.New()
	c.Node("aa11", "one")
	delete(c.History, c.Task("aa11", "ml", "mlp", nil))
	c.History[c.Task("aa11", "ml", "vae", nil)] = "\x00\xff,,,\n,\"\n"
	for _, denied := range []bool{false, true} {
		c.Lock()
		c.Denied["histories"] = denied
		c.Unlock()
		g, _ := reader(t, c, nil)
		var keys []top.Key
		for _, task := range refresh(t, g, nil, 100).Tasks {
			keys = append(keys, task.Key())
		}
		v := refresh(t, g, keys, 100)
		must.False(t, v.Nodes[0].Stale)
		for _, task := range v.Tasks {
			must.False(t, task.Stale)
			must.Eq(t, []status.Number{}, task.Values)
		}
	}
	must.Eq(t, 4, c.Counts()["stream"])
}

// Histories replaced with named pipes occasionally cost one timeout, and make no node stale.
func TestRefresh_pipes(t *testing.T) {
	c := fake.New()
	c.Node("aa11", "one")
	for i := range 10 {
		c.Hanging[c.Task("aa11", "ml", fmt.Sprintf("job-%d", i), nil)] = true
	}
	g, later := reader(t, c, nil)
	var keys []top.Key
	for _, task := range refresh(t, g, nil, 100).Tasks {
		keys = append(keys, task.Key())
	}
	v := refresh(t, g, keys, 100)
	must.Eq(t, 1, c.Counts()["stream"])
	must.Eq(t, 20, c.Counts()["cat"])
	must.False(t, v.Nodes[0].Stale)
	must.False(t, v.Tasks[0].Stale)
	later(curveInterval)
	must.Eq(t, 1, func() int { refresh(t, g, keys[:1], 100); return c.Counts()["stream"] }())
}

func TestRefresh_invalid(t *testing.T) {
	for name, file := range map[string]string{
		"empty": "", "torn": `{"alloc": "x`, "another's": `{"alloc": "x"}`, "huge": "{" + strings.Repeat(" ", status.MaxStatus),
		"numbers": `{"value": "x"}`,
	} {
		c := fake.New()
		c.Node("aa11", "one")
		c.Statuses[c.Task("aa11", "ml", "bad", nil)] = file
		c.Task("aa11", "ml", "good", nil)
		g, _ := reader(t, c, nil)
		v := refresh(t, g, nil, 100)
		must.Len(t, 2, v.Tasks, must.Sprint(name))
		must.True(t, v.Tasks[0].Stale, must.Sprint(name))
		must.StrContains(t, v.Tasks[0].Error, errInvalid.Error(), must.Sprint(name))
		must.False(t, v.Tasks[1].Stale, must.Sprint(name))
	}
}

// A hanging node costs a refresh one timeout; its tasks are stale, and it is probed with one file
// later.
func TestRefresh_hangs(t *testing.T) {
	c := fake.New()
	c.Node("aa11", "one")
	c.Node("bb22", "two")
	for i := range 60 {
		c.Task("aa11", "ml", fmt.Sprintf("a%02d", i), nil)
	}
	c.Task("bb22", "ml", "b", nil)
	g, later := reader(t, c, nil)
	must.Eq(t, 61, len(refresh(t, g, nil, 100).Tasks))

	c.Lock()
	c.Hanging["aa11"] = true
	c.Unlock()
	before := c.Files()
	v := refresh(t, g, nil, 100)
	must.Eq(t, 4, c.Files()-before) // three lanes for 60 tasks, one file on the other node
	for _, task := range v.Tasks {
		must.Eq(t, task.Node == "one", task.Stale)
		must.NotNil(t, task.Status)
	}
	must.True(t, v.Nodes[0].Stale)
	must.False(t, v.Nodes[1].Stale)

	before = c.Files()
	refresh(t, g, nil, 100)
	must.Eq(t, 1, c.Files()-before)

	c.Lock()
	clear(c.Hanging)
	c.Unlock()
	later(probeInterval)
	before = c.Files()
	must.False(t, refresh(t, g, nil, 100).Nodes[0].Stale)
	must.Eq(t, 2, c.Files()-before)
}

// Nomad sends some errors with status 200.
func TestRefresh_errorBody(t *testing.T) {
	c := fake.New()
	c.Node("aa11", "one")
	c.Node("bb22", "two")
	c.Task("aa11", "ml", "a", nil)
	c.Statuses[c.Task("aa11", "secret", "b", nil)] = "Permission denied\n"
	c.Statuses[c.Task("aa11", "ml", "c", nil)] = "failed to open: open /x/.ebbtide/c.status.json: no such file or directory\n"
	c.Statuses[c.Task("bb22", "ml", "d", nil)] = "No path to node\n"
	g, _ := reader(t, c, nil)
	v := refresh(t, g, nil, 100)
	must.Len(t, 3, v.Tasks)
	must.False(t, v.Tasks[0].Stale)
	must.StrContains(t, v.Tasks[1].Error, "No path to node")
	must.StrContains(t, v.Tasks[2].Error, "permission denied: the token needs read-fs in namespace secret")
	must.False(t, v.Nodes[0].Stale)
	must.True(t, v.Nodes[1].Stale)
}

func TestRefresh_broken(t *testing.T) {
	c := fake.New()
	c.Node("aa11", "one")
	c.Node("bb22", "two")
	c.Broken[c.Task("aa11", "ml", "bad", nil)] = true
	c.Task("aa11", "ml", "good", nil)
	for i := range 10 {
		c.Task("bb22", "ml", fmt.Sprintf("job-%d", i), nil)
	}
	c.Broken["bb22"] = true
	g, _ := reader(t, c, nil)
	v := refresh(t, g, nil, 100)
	must.Eq(t, 2+maxFailed, c.Files())
	must.Len(t, 12, v.Tasks)
	must.False(t, v.Nodes[0].Stale)
	must.True(t, v.Nodes[1].Stale)
	for _, task := range v.Tasks {
		must.Eq(t, task.Job != "good", task.Stale)
	}
}

func TestRefresh_down(t *testing.T) {
	c := fake.New()
	c.Down = true
	g, later := reader(t, c, nil)
	_, err := g.Refresh(context.Background(), nil, 100)
	must.ErrorContains(t, err, "No cluster leader")

	c.Lock()
	c.Down = false
	c.Node("aa11", "one")
	c.Task("aa11", "ml", "mlp", nil)
	c.Unlock()
	must.Len(t, 1, refresh(t, g, nil, 100).Tasks)
	c.Lock()
	c.Down = true
	c.Unlock()
	later(listInterval)
	v := refresh(t, g, nil, 100)
	must.Len(t, 1, v.Tasks)
	must.True(t, v.Tasks[0].Stale)
	must.StrContains(t, v.Error, "showing the listing of ")
}

func TestRefresh_old(t *testing.T) {
	c := fake.New()
	c.Node("aa11", "one")
	c.Task("aa11", "ml", "mlp", func(s *status.Status) { s.Updated = s.Updated.Add(-statusMaxAge - time.Minute) })
	g, _ := reader(t, c, nil)
	v := refresh(t, g, nil, 100)
	must.True(t, v.Tasks[0].Stale)
	must.True(t, v.Nodes[0].Stale)
}

// A refresh of a thousand tasks stays within its budget, visible tasks first and all in turn.
func TestRefresh_thousand(t *testing.T) {
	c := fake.New()
	for n := range 20 {
		id := fmt.Sprintf("%02d00", n)
		c.Node(id, "node-"+id)
		for i := range 50 {
			c.Task(id, "ml", fmt.Sprintf("job-%02d-%02d", n, i), nil)
		}
	}
	g, later := reader(t, c, nil)
	const budget = 100
	v := refresh(t, g, nil, budget)
	must.Eq(t, 900, v.Unread)
	must.Len(t, 100, v.Tasks)
	must.Eq(t, budget, c.Files())
	var visible []top.Key
	for _, task := range v.Tasks[:20] {
		visible = append(visible, task.Key())
	}
	for i := range 20 {
		before := c.Files()
		later(time.Second)
		v = refresh(t, g, visible, budget)
		must.LessEq(t, budget, c.Files()-before, must.Sprint(i))
		for _, k := range visible {
			must.Eq(t, g.now(), v.Task(k).Read)
		}
	}
	must.Eq(t, 0, v.Unread)
	must.Len(t, 1000, v.Tasks)
	oldest := slices.MinFunc(v.Tasks, func(a, b top.Task) int { return a.Read.Compare(b.Read) })
	must.LessEq(t, 14*time.Second, g.now().Sub(oldest.Read))
	// 21 s: an initial listing, then one every 5 s.
	must.Eq(t, map[string]int{"nodes": 5, "allocations": 5, "variables": 10}, lists(c))
}

func lists(c *fake.Cluster) map[string]int {
	counts := c.Counts()
	delete(counts, "cat")
	delete(counts, "stream")
	return counts
}

// A task without a status is retried every minute, a new one on every refresh.
func TestRefresh_noStatus(t *testing.T) {
	c := fake.New()
	c.Node("aa11", "one")
	delete(c.Statuses, c.Task("aa11", "ml", "web", nil))
	g, later := reader(t, c, nil)
	asked := func() int {
		before := c.Files()
		must.Len(t, 0, refresh(t, g, nil, 100).Tasks)
		return c.Files() - before
	}
	must.Eq(t, 1, asked())
	later(2 * time.Second)
	must.Eq(t, 0, asked())
	later(noStatusRetry)
	must.Eq(t, 1, asked())
	c.Lock()
	c.Allocs[0].TaskStates["web"].StartedAt = g.now()
	c.Unlock()
	later(listInterval)
	must.Eq(t, 1, asked())
	later(2 * time.Second)
	must.Eq(t, 1, asked())
}

func TestAll(t *testing.T) {
	c := fake.New()
	c.Node("aa11", "one")
	for i := range 5 {
		c.Task("aa11", "ml", fmt.Sprintf("job-%d", i), nil)
	}
	g, _ := reader(t, c, nil)
	v, err := g.All(context.Background(), 3)
	must.NoError(t, err)
	must.Len(t, 5, v.Tasks)
	for _, task := range v.Tasks {
		must.Eq(t, 64, len(task.Values))
	}

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = g.All(ctx, 3)
	must.ErrorIs(t, err, context.Canceled)
}
