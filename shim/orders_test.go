// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"encoding/json"
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

func ordered(do string) store.Order {
	return store.Order{Do: do, Act: store.Act{By: "ada", Why: "a test", Since: time.Unix(1e9, 0)}}
}

const since = "since 2001-09-09T01:46:40Z by ada: a test"

// names are the jobs of the report, in order.
func (t *fixture) names() (names []string) {
	for _, q := range t.planner.queuer.standing.first {
		names = append(names, q.Job)
	}
	return names
}

// A job on hold does not start, one at the top is the next, and each leaves the queue when it is told
// to.
func TestOrders(t *testing.T) {
	s := queueing()
	c := config.Default()
	c.DryRun = true
	short, long := s.submit("short", time.Minute, nil), s.submit("long", time.Hour, nil)
	s.submit("high", 2*time.Hour, func(j *cluster.Job) { j.Priority = 5 })
	s.submit("bad", 3*time.Hour, func(j *cluster.Job) { j.QueueError = "ebbtide_queue_priority: must be else" })
	s.decide(c)
	must.Eq(t, []string{"high", "short", "long", "bad"}, s.names())
	must.Eq(t, 5, s.planner.queuer.standing.first[0].Priority)
	must.StrHasSuffix(t, "; ebbtide_queue_priority: must be else", s.planner.queuer.standing.first[3].Why)

	s.orders.Jobs = map[string]store.Order{"ml/short": ordered(store.DoHold), "ml/long": ordered(store.DoTop)}
	s.decide(c)
	must.Eq(t, []string{"long", "high", "bad", "short"}, s.names())
	must.Eq(t, "waits in the queue, number 4: on hold "+since, s.latest[short].text)
	must.StrContains(t, s.latest[long].text, "would be placed: number 1 of the queue")
	must.Eq(t, store.DoTop, s.planner.queuer.standing.first[0].Order)
	must.Eq(t, store.DoHold, s.planner.queuer.standing.first[3].Order)
	must.Eq(t, "on hold "+since, s.planner.queuer.standing.first[3].Why)

	s.orders.Jobs["ml/short"] = ordered(store.DoLeave)
	s.decide(c)
	must.Eq(t, "held; would be placed: out of the queue "+since, s.latest[short].text)
	must.Eq(t, []string{"long", "high", "bad"}, s.names())
}

// A running job that leaves keeps its place, which is no more the queue's.
func TestOrders_leaveRunning(t *testing.T) {
	s := queueing()
	c := config.Default()
	c.DryRun = true
	runs := s.submit("runs", time.Hour, func(j *cluster.Job) { j.Held = false })
	waits := s.submit("waits", time.Hour, nil)
	s.state.Allocs["run"] = &cluster.Alloc{ID: "run", Job: runs, Group: "g", Node: "a", Running: true, Allocated: cluster.Resources{MHz: 600}}
	s.decide(c)
	must.Eq(t, []string{"waits", "runs"}, s.names())
	must.StrContains(t, s.latest[waits].text, "no place is free")

	s.orders.Jobs = map[string]store.Order{"ml/runs": ordered(store.DoLeave)}
	s.decide(c)
	must.Eq(t, []string{"waits"}, s.names())
	must.StrContains(t, s.latest[waits].text, "no node has what it asks for: 600 of cpu_mhz, at most 400")

	// It is the only one: the report does not keep it.
	s.state.Jobs[waits].Stopped, s.orders.Jobs = true, nil
	s.decide(c)
	must.Eq(t, []string{"runs"}, s.names())
	s.orders.Jobs = map[string]store.Order{"ml/runs": ordered(store.DoLeave)}
	s.decide(c)
	must.SliceEmpty(t, s.names())
}

// While the queue is drained, all jobs are Nomad's, those that come as well.
func TestOrders_drained(t *testing.T) {
	s := queueing()
	c := config.Default()
	c.DryRun = true
	must.Eq(t, "", queueOff(c, s.orders))
	keys := []cluster.JobKey{s.submit("a", time.Hour, nil), s.submit("b", time.Hour, nil)}
	s.decide(c)
	must.Len(t, 2, s.names())

	act := ordered(store.DoHold).Act
	s.orders.Drained = &act
	s.orders.Jobs = map[string]store.Order{"ml/a": ordered(store.DoHold)}
	keys = append(keys, s.submit("c", time.Hour, nil))
	s.decide(c)
	for _, key := range keys {
		must.Eq(t, "held; would be placed: the queue is drained "+since, s.latest[key].text)
	}
	must.SliceEmpty(t, s.names())
	must.Eq(t, "the queue is drained "+since, queueOff(c, s.orders))

	s.orders.Drained = nil
	s.decide(c)
	must.Len(t, 3, s.names())
	c.Queue.Enabled = false
	must.Eq(t, "the queue is disabled by the shim's configuration", queueOff(c, s.orders))
}

// The shim reads the orders with the pause, acts on a change at once, and drops those for jobs that
// are gone.
func TestOrders_read(t *testing.T) {
	said := store.Orders{Jobs: map[string]store.Order{
		"ml/here": ordered(store.DoTop), "ml/gone": ordered(store.DoHold), "ml/stopped": ordered(store.DoHold), "ml/over": ordered(store.DoLeave),
		"ml/plain": ordered(store.DoTop), "ml/again": ordered(store.DoTop), "ml/new": {Do: store.DoHold, Act: store.Act{Since: time.Now()}},
	}}
	loads := 0
	nomad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !strings.HasSuffix(r.URL.Path, "/orders"):
			http.Error(w, "variable not found", http.StatusNotFound)
		case r.Method == http.MethodPut:
			must.Eq(t, "7", r.URL.Query().Get("cas"))
			var v api.Variable
			must.NoError(t, json.NewDecoder(r.Body).Decode(&v))
			said = store.Orders{}
			must.NoError(t, json.Unmarshal([]byte(v.Items["json"]), &said))
			_ = json.NewEncoder(w).Encode(v)
		default:
			if loads++; loads == 3 { // before the orders are dropped
				said.Jobs["ml/again"] = store.Order{Do: store.DoHold, Act: store.Act{Since: time.Now()}}
			}
			data, err := json.Marshal(said)
			must.NoError(t, err)
			_ = json.NewEncoder(w).Encode(api.Variable{ModifyIndex: 7, Items: api.VariableItems{"json": string(data)}})
		}
	}))
	defer nomad.Close()
	client, err := api.NewClient(&api.Config{Address: nomad.URL})
	must.NoError(t, err)
	s := queueing()
	s.remembers = true
	s.writer.vars, s.writer.held = store.Store{Client: client, Namespace: "default", Path: "x"}, func() error { return nil }
	s.submit("here", time.Hour, nil)
	s.submit("stopped", time.Hour, func(j *cluster.Job) { j.Stopped = true })
	s.submit("over", time.Hour, func(j *cluster.Job) { j.Held, j.Dead = false, true })
	s.submit("plain", time.Hour, func(j *cluster.Job) { j.Queued = false })
	read := func() {
		s.urgent, s.operatorsAt = false, time.Time{}
		s.listed()
		s.ask()
		s.drain()
	}
	c := config.Default()
	c.DryRun = true
	s.Reload(c)
	read()
	must.MapLen(t, 7, said.Jobs, must.Sprint("a dry run changes nothing"))
	must.True(t, s.urgent)
	must.Eq(t, store.DoTop, s.orders.Of(cluster.JobKey{Namespace: "ml", ID: "here"}).Do)

	s.Reload(config.Default())
	read()
	must.False(t, s.urgent, must.Sprint("they have not changed"))
	must.MapContainsKeys(t, said.Jobs, []string{"ml/here", "ml/new", "ml/again"})
	must.MapLen(t, 3, said.Jobs)
}
