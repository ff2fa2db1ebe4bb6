// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/internal/optin"
	"github.com/ebbtide/ebbtide/shim/stream"
)

const (
	nodeText = `{"ID": "n1", "Name": "one", "Datacenter": "dc1", "NodePool": "default", "NodeClass": "big", "Status": "ready",
		"SchedulingEligibility": "eligible", "ModifyIndex": %d,
		"Drivers": {"ebbtide": {"Detected": true, "Healthy": true, "Attributes": {"driver.ebbtide.pool_cores": "3.5", "driver.ebbtide.engine": "exec"}}, "exec": {"Detected": true}},
		"NodeResources": {"Cpu": {"CpuShares": 4000, "ReservableCpuCores": [0, 1, 2, 3]}, "Memory": {"MemoryMB": 8000}, "Disk": {"DiskMB": 900}},
		"ReservedResources": {"Cpu": {"CpuShares": 500}, "Memory": {"MemoryMB": 1000}}}`
	jobText = `{"ID": "vae", "Namespace": "ml", "Type": "batch", "Datacenters": ["*"], "NodePool": "default", "ModifyIndex": %d,
		"SubmitTime": 5000, "Constraints": [{"LTarget": "${attr.cpu.arch}", "RTarget": "amd64", "Operand": "="}],
		"Meta": {"ebbtide_migrate": "true"}, "TaskGroups": [
			{"Name": "train", "Count": 1, "Meta": {"ebbtide_migrate": "false"}, "EphemeralDisk": {"SizeMB": 300},
				"Constraints": [{"LTarget": "${meta.ebbtide_hold}", "RTarget": "released", "Operand": "="}], "Tasks": [
				{"Name": "fetch", "Driver": "raw_exec", "Lifecycle": {"Hook": "prestart"}},
				{"Name": "train", "Driver": "ebbtide", "Config": {"image": "train:3", "command": "x", "checkpoint": [{"path": "/alloc/data/c"}]},
					"Resources": {"CPU": 100, "MemoryMB": 64}}]},
			{"Name": "other", "Count": 2, "Tasks": [{"Name": "x", "Driver": "ebbtide", "Config": {"command": "x"}}]}]}`
	allocText = `{"ID": "%s", "Namespace": "ml", "JobID": "vae", "TaskGroup": "train", "NodeID": "n1", "ClientStatus": "%s", "DesiredStatus": "run",
		"ModifyIndex": %d, "CreateTime": 4000, "AllocatedResources": {"Tasks": {"train": {"Cpu": {"CpuShares": 100}, "Memory": {"MemoryMB": 64}}}, "Shared": {"DiskMB": 300}},
		"TaskStates": {"train": {"StartedAt": "2026-01-02T03:04:05Z", "Events": [
			{"Type": "Driver", "Time": 1000, "Details": {"ebbtide": "category"}}, {"Type": "Driver", "Time": 2000, "Details": {"ebbtide": "move"}}]}}}`
)

func event(topic api.Topic, kind string, index uint64, object string) stream.Event {
	return stream.Event{Topic: topic, Type: kind, Index: index, Payload: json.RawMessage(fmt.Sprintf(`{"%s": %s}`, topic, object))}
}

// apply applies an event, and checks whether it has changed the cluster.
func apply(t *testing.T, s *Store, want bool, e stream.Event) {
	t.Helper()
	before, _ := s.Snapshot()
	_, err := s.Apply(e)
	must.NoError(t, err)
	after, _ := s.Snapshot()
	must.Eq(t, want, !reflect.DeepEqual(contents(before), contents(after)), must.Sprintf("%s %s", e.Type, e.Payload))
}

func contents(s Snapshot) []any {
	return []any{slices.Collect(s.Nodes()), slices.Collect(s.Jobs()), slices.Collect(s.Allocs())}
}

func (s *Store) on(node string) []*Alloc { return slices.Collect(s.is.On(node)) }

func TestStore_Apply(t *testing.T) {
	s := NewStore()
	node := func(index int) stream.Event {
		return event(api.TopicNode, "NodeRegistration", uint64(index), fmt.Sprintf(nodeText, index))
	}
	apply(t, s, true, node(5))
	apply(t, s, false, node(5))
	apply(t, s, false, node(4))
	must.Eq(t, &Node{
		ID: "n1", Name: "one", Datacenter: "dc1", Pool: "default", Class: "big", Schedulable: true, Drivers: map[string]bool{"ebbtide": true},
		PoolCores: 3.5, Engine: "exec", Capacity: Resources{3500, 7000, 900, 4}, Index: 5,
	}, s.is.Node("n1"))

	vae := JobKey{"ml", "vae"}
	apply(t, s, true, event(api.TopicJob, "JobRegistered", 6, fmt.Sprintf(jobText, 6)))
	must.Eq(t, &Job{
		Key: vae, Type: "batch", Held: true, Migrates: optin.All(), Datacenters: []string{"*"}, Pool: "default", Submitted: time.Unix(0, 5000), Index: 6,
		Groups: map[string]Group{
			"train": {Count: 1, Movable: true, Tasks: []string{"train"}, Drivers: []string{"ebbtide"}, Engine: "docker", Requested: Resources{100, 64, 300, 0}},
			"other": {Count: 2, Tasks: []string{"x"}, Drivers: []string{"ebbtide"}, Engine: "exec"},
		},
	}, s.is.Job(vae))

	alloc := func(id, status string, index int) stream.Event {
		return event(api.TopicAllocation, "AllocationUpdated", uint64(index), fmt.Sprintf(allocText, id, status, index))
	}
	apply(t, s, true, alloc("a1", "running", 7))
	apply(t, s, true, alloc("a2", "pending", 8))
	must.Eq(t, &Alloc{
		ID: "a1", Job: vae, Group: "train", Task: "train", Node: "n1", Running: true, Allocated: Resources{100, 64, 300, 0},
		Created: time.Unix(0, 4000), Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), MoveRequested: time.Unix(0, 2000), Index: 7,
	}, s.is.Alloc("a1"))
	must.Len(t, 2, s.on("n1"))
	must.Eq(t, Resources{3300, 6872, 300, 4}, s.is.Node("n1").Free())
	must.True(t, Resources{1, 1, 1, 4}.Fits(s.is.Node("n1").Free()))
	must.False(t, Resources{1, 1, 301, 0}.Fits(s.is.Node("n1").Free()))
	must.False(t, Resources{1, 1, 1, 5}.Fits(s.is.Node("n1").Free()))

	apply(t, s, true, alloc("a1", "complete", 9))
	must.Eq(t, map[JobKey]bool{vae: true}, s.Completed())
	must.MapEmpty(t, s.Completed())
	apply(t, s, false, alloc("a1", "failed", 10))
	must.Len(t, 1, s.on("n1"))
	apply(t, s, true, alloc("a2", "lost", 11))
	must.Eq(t, 0, s.is.NumAllocs())
	must.SliceEmpty(t, s.on("n1"))

	apply(t, s, true, event(api.TopicJob, "JobDeregistered", 12, strings.Replace(fmt.Sprintf(jobText, 12), `"batch"`, `"batch", "Stop": true`, 1)))
	must.True(t, s.is.Job(vae).Stopped)
	apply(t, s, true, event(api.TopicJob, "JobDeregistered", 13, fmt.Sprintf(jobText, 12)))
	must.Eq(t, 0, s.is.NumJobs())
	apply(t, s, true, event(api.TopicJob, "JobRegistered", 14, strings.Replace(fmt.Sprintf(jobText, 14), `"true"`, `"false"`, 1)))
	must.SliceEmpty(t, s.is.Job(vae).Migrates)
	apply(t, s, true, event(api.TopicJob, "JobBatchDeregistered", 15, fmt.Sprintf(jobText, 14)))
	must.Eq(t, 0, s.is.NumJobs(), must.Sprint("by garbage collection"))
	apply(t, s, true, event(api.TopicNode, "NodeDeregistration", 14, fmt.Sprintf(nodeText, 5)))
	must.Eq(t, 0, s.is.NumNodes())

	// AllocationUpdated says nothing about the node, whatever it contains.
	apply(t, s, true, node(20))
	e := node(21)
	e.Type, e.Payload = "AllocationUpdated", json.RawMessage(`{"Node": 1}`)
	apply(t, s, false, e)

	// A task's output need not be UTF-8.
	e = alloc("a3", "running", 22)
	e.Payload = append(e.Payload[:len(e.Payload)-1], []byte(", \"said\": \"\xff\"}")...)
	apply(t, s, true, e)

	apply(t, s, false, event(api.TopicEvaluation, "EvaluationUpdated", 15, "{}"))
	_, err := s.Apply(stream.Event{Topic: api.TopicJob, Type: "JobRegistered", Key: "x", Index: 16, Payload: json.RawMessage(`{"Job": 1}`)})
	must.ErrorContains(t, err, "reading event JobRegistered of x")
}

// The latest run of a job is known, from events and from listings.
func TestStore_Runs(t *testing.T) {
	s := NewStore()
	said := func(id, job, node string, index int, at int, text string) WireAlloc {
		w := read[WireAlloc](t, fmt.Sprintf(`{"ID": %q, "Namespace": "ml", "JobID": %q, "TaskGroup": "train", "NodeID": %q, "ClientStatus": "complete",
			"ModifyIndex": %d, "TaskStates": {"t": {"StartedAt": "2026-01-02T03:04:05Z", "FinishedAt": "2026-01-02T03:04:15Z", "Events": [{"Time": %d, "Details": {"ebbtide": "move"}}, {"Time": %d, "Details": {"ebbtide_run": %q}}]}}}`,
			id, job, node, index, at, at, text))
		return w
	}
	next := &Alloc{Job: JobKey{"ml", "vae/periodic-1784550000"}, Group: "train"}
	must.MapLen(t, 0, s.Runs(next.Job, next.Group))
	s.applyAlloc(said("a", "vae", "n1", 1, 2000, "cpu_s=2"))
	s.applyAlloc(said("b", "vae/dispatch-1784550000-0a1b2c3d", "n2", 2, 3000, "cpu_s=3"))
	s.applyAlloc(said("c", "vae", "n1", 3, 1000, "cpu_s=1"))
	s.applyAlloc(said("d", "vae", "n1", 4, 9000, strings.Repeat("x", 1000)))
	s.applyAlloc(said("e", "gru", "n1", 5, 9000, "cpu_s=9"))
	vae := JobKey{"ml", "vae/dispatch-1784550000-0a1b2c3d"}
	must.Eq(t, map[string]Run{"t": {vae, "train", "t", "n2", "cpu_s=3", time.Unix(0, 3000), 10 * time.Second}}, s.Runs(next.Job, next.Group))
	must.MapLen(t, 0, s.Runs(JobKey{"default", "vae"}, "train"))
	must.MapLen(t, 0, s.Runs(JobKey{"ml", "vae"}, "other"))

	s.Replace(Listing{Runs: said("f", "vae", "n3", 6, 4000, "cpu_s=4").runs()})
	must.Eq(t, "n3", s.Runs(next.Job, next.Group)["t"].Node)
	s.Replace(Listing{}) // Nomad has forgotten the allocation
	must.Eq(t, "cpu_s=4", s.Runs(next.Job, next.Group)["t"].Text)
}

func read[T any](t *testing.T, text string) (w T) {
	t.Helper()
	must.NoError(t, json.Unmarshal([]byte(text), &w))
	return w
}

// A task with cores has their MHz, whatever its job says.
func TestWire_cores(t *testing.T) {
	j := read[WireJob](t, `{"TaskGroups": [{"Name": "g", "Tasks": [
		{"Name": "a", "Resources": {"CPU": 100, "Cores": 2, "MemoryMB": 64}}, {"Name": "b", "Resources": {"CPU": 300, "Cores": 0}}]}]}`).job()
	must.Eq(t, Resources{300, 64, 0, 2}, j.Groups["g"].Requested)
	a := read[WireAlloc](t, `{"AllocatedResources": {"Tasks": {"a": {"Cpu": {"CpuShares": 4800, "ReservedCores": [1, 3]}, "Memory": {"MemoryMB": 64}}}}}`).alloc()
	must.Eq(t, Resources{4800, 64, 0, 2}, a.Allocated)
}

func TestJob_child(t *testing.T) {
	for text, want := range map[string][2]bool{
		`{}`:                                    {false, false},
		`{"Periodic": {"Spec": "@daily"}}`:      {true, false},
		`{"ParameterizedJob": {"Payload": ""}}`: {true, false},
		`{"ParentID": "nightly"}`:               {false, true},
		`{"ParentID": "train", "Dispatched": true, "ParameterizedJob": {"Payload": ""}}`: {false, true},
	} {
		j := read[WireJob](t, text).job()
		must.Eq(t, want, [2]bool{j.Template, j.Child}, must.Sprint(text))
	}
}

// Old events repeated by the stream do not restore what is gone.
func TestStore_Replace(t *testing.T) {
	s := NewStore()
	apply(t, s, true, event(api.TopicAllocation, "AllocationUpdated", 7, fmt.Sprintf(allocText, "gone", "running", 7)))
	l := Listing{
		Nodes:  []*Node{read[WireNode](t, fmt.Sprintf(nodeText, 5)).node()},
		Jobs:   []*Job{read[WireJob](t, fmt.Sprintf(jobText, 6)).job()},
		Allocs: []*Alloc{read[WireAlloc](t, fmt.Sprintf(allocText, "a1", "running", 9)).alloc()},
	}
	l.Indexes = Indexes{Nodes: 10, Jobs: 10, Allocs: 10}
	s.Replace(l)
	must.Eq(t, 1, s.is.NumNodes())
	must.Eq(t, 1, s.is.NumJobs())
	must.Eq(t, 1, s.is.NumAllocs())
	apply(t, s, false, event(api.TopicAllocation, "AllocationUpdated", 7, fmt.Sprintf(allocText, "gone", "running", 7)))
	apply(t, s, false, event(api.TopicAllocation, "AllocationUpdated", 9, fmt.Sprintf(allocText, "a2", "running", 8)))
	apply(t, s, true, event(api.TopicAllocation, "AllocationUpdated", 11, fmt.Sprintf(allocText, "a3", "running", 11)))
	must.Eq(t, 2, s.is.NumAllocs())
}

// Whatever their order and repetition, the newest events win, and the index by node agrees.
func TestStore_idempotent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := NewStore()
		newest := map[string]int{}
		status := map[string]string{}
		seen := 0
		for range rapid.IntRange(0, 30).Draw(t, "events") {
			if rapid.IntRange(0, 5).Draw(t, "node") == 0 {
				seen++
				_, err := s.Apply(event(api.TopicNode, "NodeRegistration", uint64(seen), fmt.Sprintf(nodeText, seen)))
				must.NoError(t, err)
			}
			id := rapid.SampledFrom([]string{"a1", "a2", "a3"}).Draw(t, "id")
			index := rapid.IntRange(1, 20).Draw(t, "index")
			st := rapid.SampledFrom([]string{"pending", "running"}).Draw(t, "status")
			_, err := s.Apply(event(api.TopicAllocation, "AllocationUpdated", uint64(index), fmt.Sprintf(allocText, id, st, index)))
			must.NoError(t, err)
			if index > newest[id] {
				newest[id], status[id] = index, st
			}
		}
		must.Eq(t, len(newest), s.is.NumAllocs())
		var uses Resources
		for a := range s.is.Allocs() {
			must.Eq(t, uint64(newest[a.ID]), a.Index)
			uses = uses.Plus(a.Allocated)
			must.Eq(t, status[a.ID] == "running", a.Running)
		}
		must.Eq(t, slices.Collect(s.is.Allocs()), s.on("n1"))
		must.Eq(t, s.on("n1"), slices.Collect(s.is.Of(JobKey{"ml", "vae"})))
		if n := s.is.Node("n1"); n != nil {
			must.Eq(t, uses, n.Used)
		}
	})
}

func TestList(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	refuse := ""
	nomad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.URL.Path)
		refused := r.URL.Path == refuse
		mu.Unlock()
		if refused {
			http.Error(w, "Permission denied", http.StatusForbidden)
			return
		}
		w.Header().Set("X-Nomad-Index", "42")
		w.Header().Set("X-Nomad-LastContact", "0")
		switch r.URL.Path {
		case "/v1/nodes":
			must.Eq(t, "true", r.URL.Query().Get("resources"))
			must.Eq(t, "2000", r.URL.Query().Get("per_page"))
			// The second page is newer.
			if token := r.URL.Query().Get("next_token"); token == "" {
				w.Header().Set("X-Nomad-NextToken", "n2")
				fmt.Fprintf(w, "[%s]", fmt.Sprintf(nodeText, 5))
			} else {
				must.Eq(t, "n2", token)
				w.Header().Set("X-Nomad-Index", "43")
				fmt.Fprintf(w, "[%s]", strings.Replace(fmt.Sprintf(nodeText, 5), `"n1"`, `"n2"`, 1))
			}
		case "/v1/jobs":
			must.Eq(t, "*", r.URL.Query().Get("namespace"))
			must.Eq(t, "", r.URL.Query().Get("per_page"))
			if r.URL.Query().Get("filter") == boundJobs {
				fmt.Fprint(w, `[{"ID": "bound", "Namespace": "ml"}, {"ID": "vae", "Namespace": "ml", "Meta": {"ebbtide_migrate": "true"}}]`)
				return
			}
			fmt.Fprint(w, `[{"ID": "vae", "Namespace": "ml", "Meta": {"ebbtide_migrate": "true"}}, {"ID": "plain", "Namespace": "ml"},
				{"ID": "gone", "Namespace": "ml", "Meta": {"ebbtide_migrate": "true"}}]`)
		case "/v1/allocations":
			fmt.Fprintf(w, "[%s, %s]", fmt.Sprintf(allocText, "a1", "running", 9), fmt.Sprintf(allocText, "a2", "complete", 9))
		case "/v1/job/vae":
			must.Eq(t, "ml", r.URL.Query().Get("namespace"))
			fmt.Fprintf(w, jobText, 6)
		case "/v1/job/bound":
			fmt.Fprint(w, `{"ID": "bound", "Namespace": "ml", "TaskGroups": [{"Name": "g", "Constraints": [{"LTarget": "${node.unique.id}", "RTarget": "n1,ebbtide-move:7"}]}]}`)
		default:
			http.Error(w, "job not found", http.StatusNotFound)
		}
	}))
	defer nomad.Close()
	client, err := api.NewClient(&api.Config{Address: nomad.URL})
	must.NoError(t, err)
	l, err := List(t.Context(), client)
	must.NoError(t, err)
	must.Eq(t, Indexes{42, 42, 42}, l.Indexes)
	s := NewStore()
	s.Replace(l)
	must.Eq(t, 2, s.is.NumNodes())
	must.Eq(t, 2, s.is.NumJobs())
	must.Eq(t, "g", s.is.Job(JobKey{"ml", "bound"}).Bound(), must.Sprint("also without a meta key"))
	must.Eq(t, 1, s.is.NumAllocs())
	must.SliceNotContains(t, asked, "/v1/job/plain")

	for _, path := range []string{"/v1/nodes", "/v1/job/vae"} {
		mu.Lock()
		refuse = path
		mu.Unlock()
		_, err = List(t.Context(), client)
		must.ErrorContains(t, err, "403")
	}
}

// A snapshot does not change while events are applied, also by concurrent readers and writers.
func TestStore_Snapshot(t *testing.T) {
	s := NewStore()
	alloc := func(id, status string, index int) stream.Event {
		return event(api.TopicAllocation, "AllocationUpdated", uint64(index), fmt.Sprintf(allocText, id, status, index))
	}
	apply(t, s, true, event(api.TopicNode, "NodeRegistration", 1, fmt.Sprintf(nodeText, 1)))
	for i := range 200 {
		apply(t, s, true, alloc(fmt.Sprint("a", i), "running", 2+i))
	}
	before, current := s.Snapshot()
	must.False(t, current, must.Sprint("nothing has been listed"))
	used := before.Node("n1").Used
	var wait sync.WaitGroup
	for range 2 {
		wait.Go(func() {
			for range 20 {
				must.Eq(t, 200, len(slices.Collect(before.On("n1"))))
				now, _ := s.Snapshot()
				must.Eq(t, len(slices.Collect(now.On("n1"))), now.NumAllocs())
				must.Eq(t, int64(100*now.NumAllocs()), now.Node("n1").Used.MHz)
			}
		})
	}
	for i := range 200 {
		_, err := s.Apply(alloc(fmt.Sprint("a", i), "complete", 300+i))
		must.NoError(t, err)
	}
	wait.Wait()
	must.Eq(t, 200, before.NumAllocs())
	must.Eq(t, used, before.Node("n1").Used)
	must.NotNil(t, before.Alloc("a7"))
	must.Nil(t, s.is.Alloc("a7"))
	must.Eq(t, Resources{}, s.is.Node("n1").Used)

	s.Replace(Listing{})
	_, current = s.Snapshot()
	must.True(t, current)
	s.Lost()
	_, current = s.Snapshot()
	must.False(t, current)
}

// A change names what it is about.
func TestStore_changes(t *testing.T) {
	s := NewStore()
	change := func(e stream.Event) Change {
		c, err := s.Apply(e)
		must.NoError(t, err)
		return c
	}
	alloc := func(status string, index int) stream.Event {
		return event(api.TopicAllocation, "AllocationUpdated", uint64(index), fmt.Sprintf(allocText, "a1", status, index))
	}
	c := change(alloc("pending", 1))
	must.Nil(t, c.Was)
	must.Nil(t, c.Job, must.Sprint("it is unknown"))
	c = change(event(api.TopicJob, "JobRegistered", 2, fmt.Sprintf(jobText, 2)))
	must.Eq(t, Change{Job: s.is.Job(JobKey{"ml", "vae"})}, c)
	must.NotNil(t, c.Job)
	must.Eq(t, Change{}, change(event(api.TopicJob, "JobRegistered", 3, fmt.Sprintf(jobText, 2))), must.Sprint("repeated"))
	c = change(alloc("running", 4))
	must.False(t, c.Was.Running)
	must.True(t, c.Is.Running)
	must.True(t, c.Job.Held)
	must.Eq(t, Change{}, change(alloc("running", 4)), must.Sprint("repeated"))
	c = change(alloc("complete", 5))
	must.True(t, c.Was.Running)
	must.Nil(t, c.Is)
	must.Eq(t, Change{}, change(alloc("complete", 6)), must.Sprint("it has been gone before"))
}

// Events per second: see docs/evaluation.md.
func BenchmarkApply(b *testing.B) {
	s := NewStore()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		e := event(api.TopicAllocation, "AllocationUpdated", uint64(i), fmt.Sprintf(allocText, fmt.Sprint("a", i%1000), "running", i))
		if _, err := s.Apply(e); err != nil {
			b.Fatal(err)
		}
	}
}

// Each is Of for each of the jobs.
func TestSnapshot_Each(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := func(i int) JobKey { return JobKey{"ml", fmt.Sprint(i)} }
		var l Listing
		for i := range rapid.IntRange(0, 6).Draw(t, "jobs") {
			l.Jobs = append(l.Jobs, &Job{Key: key(i)})
		}
		for i, of := range rapid.SliceOfN(rapid.IntRange(0, 7), 0, 10).Draw(t, "allocations") {
			l.Allocs = append(l.Allocs, &Alloc{ID: fmt.Sprint(i), Job: key(of)})
		}
		s := NewStore()
		s.Replace(l)
		var jobs []*Job
		var want, got []string
		for j := range s.is.Jobs() {
			if !rapid.Bool().Draw(t, "asked for") {
				continue
			}
			jobs = append(jobs, j)
			for a := range s.is.Of(j.Key) {
				want = append(want, j.Key.ID+" "+a.ID)
			}
		}
		for range 2 {
			got = nil
			for j, a := range s.is.Each(jobs) {
				got = append(got, j.Key.ID+" "+a.ID)
			}
			must.Eq(t, want, got)
		}
	})
}
