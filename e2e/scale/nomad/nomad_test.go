// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/leader"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/store"
	"github.com/ebbtide/ebbtide/shim/stream"
)

var small = Options{Nodes: 20, PerNode: 10, Trainings: 0.4, Seed: 7}

func start(t *testing.T, o Options) (*Server, *api.Client) {
	t.Helper()
	must.NoError(t, o.Validate())
	s := New(o)
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	client, err := api.NewClient(&api.Config{Address: web.URL})
	must.NoError(t, err)
	return s, client
}

func every(t *testing.T) *api.QueryOptions {
	return (&api.QueryOptions{Namespace: api.AllNamespacesNamespace}).WithContext(t.Context())
}

// Nomad's client can decode the responses.
func TestServer_api(t *testing.T) {
	s, client := start(t, small)
	nodes, meta, err := client.Nodes().List(every(t))
	must.NoError(t, err)
	must.Len(t, small.Nodes, nodes)
	must.Eq(t, firstIndex, meta.LastIndex)
	node, _, err := client.Nodes().Info(nodes[3].ID, every(t))
	must.NoError(t, err)
	must.Eq(t, nodes[3].Name, node.Name)
	must.Eq(t, "60", node.Attributes["driver.ebbtide.pool_cores"])
	must.NotEq(t, nodes[3].ID, nodes[4].ID)

	allocs, _, err := client.Allocations().List(every(t))
	must.NoError(t, err)
	must.Len(t, 200, allocs)
	trainings := 0
	for i, stub := range allocs {
		must.Eq(t, nodes[i/10].ID, stub.NodeID)
		must.Eq(t, api.AllocClientStatusRunning, stub.ClientStatus)
		must.SliceNotEmpty(t, stub.TaskStates[task].Events)
		full, _, err := client.Allocations().Info(stub.ID, every(t))
		must.NoError(t, err)
		must.Eq(t, stub.JobID, *full.Job.ID)
		job, _, err := client.Jobs().Info(stub.JobID, (&api.QueryOptions{Namespace: stub.Namespace}).WithContext(t.Context()))
		must.NoError(t, err)
		must.Eq(t, stub.Namespace, *job.Namespace)
		must.Eq(t, stub.JobType, *job.Type)
		if stub.Namespace == trainingNS {
			trainings++
			of, _, err := client.Jobs().Allocations(stub.JobID, true, every(t))
			must.NoError(t, err)
			must.Len(t, 1, of)
			must.Eq(t, stub.ID, of[0].ID)
		}
	}
	must.Len(t, trainings, s.trainings)
	must.Between(t, 40, trainings, 120)

	jobs, _, err := client.Jobs().List(every(t))
	must.NoError(t, err)
	must.Len(t, trainings+20, jobs)
	must.SliceEmpty(t, s.Requests().Unknown)
	must.Eq(t, 0, s.Requests().Writes())
}

// Lists are paged or whole, and compressed.
func TestServer_pages(t *testing.T) {
	_, client := start(t, small)
	var ids []string
	q := every(t)
	for q.PerPage = 7; ; {
		page, meta, err := client.Nodes().List(q)
		must.NoError(t, err)
		for _, n := range page {
			ids = append(ids, n.ID)
		}
		if q.NextToken = meta.NextToken; q.NextToken == "" {
			break
		}
		must.Len(t, 7, page)
	}
	nodes, _, err := client.Nodes().List(every(t))
	must.NoError(t, err)
	must.Len(t, len(nodes), ids)
	for i, n := range nodes {
		must.Eq(t, n.ID, ids[i])
	}
	q.NextToken = "x"
	_, _, err = client.Nodes().List(q)
	must.ErrorContains(t, err, "400")
	q.NextToken = "1000"
	page, _, err := client.Nodes().List(q)
	must.NoError(t, err)
	must.SliceEmpty(t, page)
}

// Seeds determine the cluster.
func TestServer_seed(t *testing.T) {
	list := func(o Options) []*api.AllocationListStub {
		_, client := start(t, o)
		allocs, _, err := client.Allocations().List(every(t))
		must.NoError(t, err)
		return allocs
	}
	other := small
	other.Seed++
	must.Eq(t, list(small), list(small))
	must.NotEq(t, list(small)[0].ID, list(other)[0].ID)
}

// Objects have about the size of Nomad 1.11.2's, on a node of 64 cores.
func TestServer_sizes(t *testing.T) {
	s, _ := start(t, small)
	size := func(path string) int {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		must.Eq(t, http.StatusOK, w.Code)
		return w.Body.Len()
	}
	must.Between(t, 8_000, size("/v1/nodes?resources=true")/small.Nodes, 20_000)
	must.Between(t, 2_000, size("/v1/allocations?resources=true&task_states=true")/200, 6_000)
	must.Between(t, 2_000, size("/v1/job/"+trainingName(s.trainings[0])), 6_000)
	next := 0
	line, n, err := s.line(&next, Pour{Events: 2, Batch: 1}, 2)
	must.NoError(t, err)
	must.Eq(t, 2, n)
	must.Between(t, 12_000, len(line), 30_000)
}

// The shim's code reads the expected cluster and its events.
func TestServer_shim(t *testing.T) {
	s, client := start(t, small)
	events, err := stream.Open(t.Context(), stream.Nomad(client, cluster.Topics()...), time.Minute)
	must.NoError(t, err)
	defer events.Close()
	listing, err := cluster.List(t.Context(), client)
	must.NoError(t, err)
	model := cluster.NewStore()
	model.Replace(listing)
	state, _ := model.Snapshot()
	must.Eq(t, []int{small.Nodes, 200, len(s.trainings)}, []int{state.NumNodes(), state.NumAllocs(), state.NumJobs()})
	for n := range state.Nodes() {
		must.True(t, n.Schedulable)
		must.Eq(t, poolCores, n.PoolCores)
		must.Len(t, small.PerNode, slices.Collect(state.On(n.ID)))
		must.True(t, cluster.Resources{}.Fits(n.Free()), must.Sprint("a node has more than it can hold"))
	}
	for j := range state.Jobs() {
		must.True(t, j.Groups[group].Movable)
		must.Eq(t, 1, j.Groups[group].Count)
	}

	poured := make(chan error, 1)
	go func() { poured <- s.Pour(t.Context(), Pour{Events: 31, Batch: 4}) }()
	changed := make(map[string]bool)
	applied := 0
	for applied < 31 {
		b, err := events.Next(t.Context())
		must.NoError(t, err)
		for _, e := range b.Events {
			applied++
			c, err := model.Apply(e)
			must.NoError(t, err)
			must.Eq(t, e.Topic == api.TopicAllocation, c.Is != nil)
			if c.Is != nil {
				changed[e.Key] = true
			}
		}
	}
	must.NoError(t, <-poured)
	must.Eq(t, 31, applied)
	state, _ = model.Snapshot()
	must.Eq(t, []int{small.Nodes, 200}, []int{state.NumNodes(), state.NumAllocs()})

	// A new listing has the changes.
	listing, err = cluster.List(t.Context(), client)
	must.NoError(t, err)
	for _, a := range listing.Allocs {
		must.Eq(t, changed[a.ID], a.Index > firstIndex)
	}
	must.SliceEmpty(t, s.Requests().Unknown)
}

func TestServer_heartbeat(t *testing.T) {
	o := small
	o.Heartbeat = time.Millisecond
	s, client := start(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	body, err := client.Raw().Response("/v1/event/stream?topic=Node", (&api.QueryOptions{}).WithContext(ctx))
	must.NoError(t, err)
	text := make([]byte, 9)
	_, err = io.ReadFull(body, text)
	must.NoError(t, err)
	must.Eq(t, "{}\n{}\n{}\n", string(text))
	_, err = client.Raw().Response("/v1/event/stream?topic=Deployment", every(t))
	must.ErrorContains(t, err, "501")
	must.NoError(t, body.Close())
	must.Eq(t, 2, s.Requests().Known["GET stream"])
}

// Only training tasks have a status.
func TestServer_status(t *testing.T) {
	s, client := start(t, small)
	a := small.alloc(s.trainings[0])
	alloc := &api.Allocation{ID: a.id, NodeID: small.nodeID(a.number / small.PerNode), Namespace: trainingNS}
	files, _, err := client.AllocFS().List(alloc, private.DirName, every(t))
	must.NoError(t, err)
	must.Len(t, 1, files)
	st, err := move.API{Client: client}.Status(t.Context(), alloc, task)
	must.NoError(t, err)
	must.Eq(t, a.id, st.Alloc)
	sum := 0
	for _, n := range st.Node.Counts {
		sum += n
	}
	must.Positive(t, sum)
	must.Eq(t, sum, st.Node.Tasks)

	for i := range small.allocs() {
		if a := small.alloc(i); !a.training {
			alloc.ID = a.id
			break
		}
	}
	_, _, err = client.AllocFS().List(alloc, private.DirName, every(t))
	must.ErrorContains(t, err, "no such file")
	_, err = move.API{Client: client}.Status(t.Context(), alloc, task)
	must.ErrorIs(t, err, fs.ErrNotExist)
}

// Unsupported requests are refused, and counted as writes if they may be.
func TestServer_unknown(t *testing.T) {
	s, client := start(t, small)
	_, _, err := client.Jobs().Register(job(trainingNS, "new", 1), nil)
	must.ErrorContains(t, err, "501")
	_, err = client.Status().Leader()
	must.ErrorContains(t, err, "501")
	must.Eq(t, []string{"PUT /v1/jobs", "GET /v1/status/leader"}, s.Requests().Unknown)
	must.Eq(t, 1, s.Requests().Writes())
	for _, path := range []string{"/v1/node/x", "/v1/allocation/x", "/v1/job/x", "/v1/job/train-000999", "/v1/job/service-00099"} {
		_, err := client.Raw().Query(path, nil, every(t))
		must.ErrorContains(t, err, "404")
	}
}

func TestServer_Pour(t *testing.T) {
	s, client := start(t, small)
	must.ErrorIs(t, s.Pour(t.Context(), Pour{Events: 1, Batch: 1}), errNobody)
	must.ErrorContains(t, s.Pour(t.Context(), Pour{Events: 1}), "batch")
	events, err := stream.Open(t.Context(), stream.Nomad(client, cluster.Topics()...), time.Minute)
	must.NoError(t, err)
	defer events.Close()
	must.NoError(t, s.Pour(t.Context(), Pour{Events: 3, Batch: 1, Rate: 1e6}))
	b, err := events.Next(t.Context())
	must.NoError(t, err)
	must.Len(t, 2, b.Events)
}

// memory and leader work on its variables.
func TestVariables(t *testing.T) {
	s, client := start(t, small)
	model := store.Store{Client: client, Namespace: "ops", Path: "ebbtide/shim"}
	key := cluster.JobKey{Namespace: trainingNS, ID: "a.b"}
	want := store.Job{Marked: time.Unix(5, 0).UTC(), Failures: 2}
	must.NoError(t, model.SaveJob(t.Context(), key, want))
	jobs, err := model.Jobs(t.Context())
	must.NoError(t, err)
	must.Eq(t, map[cluster.JobKey]store.Job{key: want}, jobs)
	must.NoError(t, model.AddEntry(t.Context(), store.Entry{Time: time.Unix(7, 0), Job: "a.b"}))
	notes, err := model.Entries(t.Context())
	must.NoError(t, err)
	must.Len(t, 1, notes)
	must.NoError(t, model.DeleteJob(t.Context(), key))
	jobs, err = model.Jobs(t.Context())
	must.NoError(t, err)
	must.MapEmpty(t, jobs)
	must.Eq(t, 3, s.Requests().Writes())

	lock := func(path string) *leader.Variable {
		return &leader.Variable{Client: client, Namespace: "ops", Path: path, TTL: 10 * time.Second, Delay: 5 * time.Second, Holder: "me"}
	}
	one, two := lock("l"), lock("l")
	must.ErrorIs(t, one.Renew(t.Context()), leader.ErrLost)
	must.NoError(t, one.Acquire(t.Context()))
	must.ErrorIs(t, two.Acquire(t.Context()), leader.ErrHeld)
	must.NoError(t, one.Renew(t.Context()))
	must.ErrorIs(t, two.Renew(t.Context()), leader.ErrLost)
	_, _, err = client.Variables().Update(&api.Variable{Path: "l", Items: api.VariableItems{"a": "b"}}, &api.WriteOptions{Namespace: "ops"})
	must.Error(t, err)
	must.NoError(t, one.Release(t.Context()))
	must.ErrorIs(t, one.Renew(t.Context()), leader.ErrLost)
	must.NoError(t, two.Acquire(t.Context()))

	// After twice the TTL the lock is free, and available after the delay.
	now := time.Now()
	s.variables.mu.Lock()
	s.variables.now = func() time.Time { return now }
	s.variables.mu.Unlock()
	must.NoError(t, two.Renew(t.Context()))
	pass := func(d time.Duration) {
		s.variables.mu.Lock()
		defer s.variables.mu.Unlock()
		now = now.Add(d)
	}
	pass(20 * time.Second)
	must.ErrorIs(t, two.Renew(t.Context()), leader.ErrLost)
	must.ErrorIs(t, one.Acquire(t.Context()), leader.ErrHeld)
	pass(5 * time.Second)
	must.NoError(t, one.Acquire(t.Context()))
	must.Eq(t, 4, s.Requests().Writes()) // excluding the lock's
}

// A leader's real loop works on it.
func TestVariables_leader(t *testing.T) {
	_, client := start(t, small)
	done := errors.New("done")
	lock := &leader.Variable{Client: client, Namespace: "default", Path: "ebbtide/shim/leader", TTL: 10 * time.Second, Delay: time.Second}
	err := leader.Run(t.Context(), lock, leader.Options{TTL: lock.TTL, Retry: time.Second, Report: func(error) {}}, func(_ context.Context, held *leader.Term) error {
		must.NoError(t, held.Held())
		return done
	})
	must.ErrorIs(t, err, done)
}

func TestOptions_Validate(t *testing.T) {
	for want, o := range map[string]Options{
		"nodes":                     {PerNode: 1},
		"allocations per node":      {Nodes: 1},
		"fraction of training jobs": {Nodes: 1, PerNode: 1, Trainings: 1.5},
	} {
		must.ErrorContains(t, o.Validate(), want)
	}
	must.True(t, strings.HasPrefix(uuid(small.draw(drawNode, 0), 255), "000000ff-"))
	for _, id := range []string{"", "x", uuid(small.draw(drawNode, 0), 20)} {
		_, ok := number(id, 20)
		must.False(t, ok)
	}
}
