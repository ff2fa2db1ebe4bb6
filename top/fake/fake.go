// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package fake is a Nomad API for tests of `ebbtide top`: it counts requests and can hang, deny and
// return garbage.
package fake

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/move"
)

// Cluster is an http.Handler. Lock it to change it.
type Cluster struct {
	sync.Mutex
	Nodes    []*api.NodeListStub
	Allocs   []*api.AllocationListStub
	Statuses map[string]string // by allocation; those without do not run under Ebbtide
	History  map[string]string // by allocation
	Claims   []move.Record
	// Variables are the shim's variables other than claims, by path relative to its own.
	Variables map[string]api.VariableItems
	Snapshots map[string]string // by allocation
	// Tokens are the valid tokens; nil: ACLs are disabled.
	Tokens map[string]bool

	Hanging map[string]bool // unresponsive nodes, and allocations whose history hangs
	Broken  map[string]bool // nodes and allocations whose files Nomad fails to read
	Denied  map[string]bool // "variables", "nodes", "histories", or namespaces without read-fs
	Down    bool            // every request fails
	counts  map[string]int
}

func New() *Cluster {
	return &Cluster{
		Statuses: make(map[string]string), History: make(map[string]string), Hanging: make(map[string]bool), Broken: make(map[string]bool), Denied: make(map[string]bool),
		Variables: make(map[string]api.VariableItems), Snapshots: make(map[string]string), counts: make(map[string]int),
	}
}

// Node adds a node with Ebbtide's driver.
func (c *Cluster) Node(id, name string) *api.NodeListStub {
	n := &api.NodeListStub{
		ID: id, Name: name, Datacenter: "dc1", NodePool: "default", Status: api.NodeStatusReady, SchedulingEligibility: api.NodeSchedulingEligible,
		Drivers: map[string]*api.DriverInfo{"ebbtide": {Detected: true, Healthy: true, Attributes: map[string]string{
			"driver.ebbtide.pool_cores": "4", "driver.ebbtide.version": "0.1.0", "driver.ebbtide.engine": "exec", "driver.ebbtide.policy": "auto",
		}}},
	}
	c.Nodes = append(c.Nodes, n)
	return n
}

// Task adds an allocation with one task, named after its job, and its status, modified by
// change.
func (c *Cluster) Task(node, namespace, job string, change func(*status.Status)) (alloc string) {
	now := time.Now().UTC()
	alloc = fmt.Sprintf("%08x-0000-4000-8000-000000000000", len(c.Allocs)+1)
	c.Allocs = append(c.Allocs, &api.AllocationListStub{
		ID: alloc, Namespace: namespace, JobID: job, TaskGroup: "train", NodeID: node, NodeName: node, ClientStatus: api.AllocClientStatusRunning,
		DesiredStatus: api.AllocDesiredStatusRun,
		TaskStates: map[string]*api.TaskState{job: {State: "running", StartedAt: now.Add(-time.Hour), Events: []*api.TaskEvent{
			{Type: api.TaskStarted, Time: now.Add(-time.Hour).UnixNano(), DisplayMessage: "Task started by client"},
			{Type: api.TaskDriverMessage, Time: now.Add(-time.Minute).UnixNano(), DisplayMessage: "ebbtide: converged: loss = 0.31"},
		}}},
	})
	u := status.Unknown()
	s := status.Status{
		Schema: status.Schema, Version: "0.1.0", Task: job, Alloc: alloc, Job: job, Namespace: namespace, Engine: "exec", Policy: "auto",
		Estimator: "robust", Mode: "weight", Kind: "training", Category: "NL", Since: now.Add(-time.Minute),
		Target: status.Target{State: "training", Acceptable: u, Objective: u, QoE: u, Response: u},
		Metric: "loss", Goal: "min", Value: 0.3125, Step: 1200, Total: 5000, Progress: 0.002, Growth: 0.41, Reports: 1200,
		Fair: status.Fair{
			RemainingCPUS: 900, RemainingS: 300, QualityCPUS: u, Source: "steps", Why: "1200 of 5000 steps", AheadCPUS: 61, CapCores: 2,
			Finish: now.Add(10*time.Minute + 30*time.Second), FairFinish: now.Add(14*time.Minute + 30*time.Second),
		},
		Move: status.Move{Step: u}, Resources: status.Resources{MemoryMiB: 911, MemoryGrowth: u, BlockMiBs: u, BlockGrowth: u, NetworkMiBs: u, NetworkGrowth: u},
		Use: 0.45, CPUSeconds: 812, Throttled: u, Rule: "fsp.preferred", Why: "it can end first without making another task late",
		Limit: status.Limit{Fraction: 0.5}, Updated: now,
		Node: status.Node{
			PoolCores: 4, Tasks: 2, Use: 0.9, Counts: map[string]int{"NL": 1, "CL": 1}, Classes: map[string]int{}, GrowthSum: map[string]status.Number{},
			RemainingCPUS: 1800, Sized: 2, SavedS: 250, Alpha: 0.05, IntervalS: 30,
		},
	}
	if change != nil {
		change(&s)
	}
	data, err := s.Encode()
	if err != nil {
		panic(err) // the status is too large
	}
	c.Statuses[alloc] = string(data)
	c.History[alloc] = history(now)
	return alloc
}

func history(now time.Time) string {
	var rows []status.Row
	for i := range 300 {
		r := status.NewRow()
		r.Time, r.CPUSeconds, r.Step, r.Total = now.Add(time.Duration(i-300)*10*time.Second), float64(i), float64(4*i), 5000
		r.Value = 0.3 + 2*math.Exp(-float64(i)/60)
		rows = append(rows, r)
	}
	return string(status.FormatHistory(rows))
}

// Seat sets a task's seat on a card of 1024 MiB. Sizes are in MiB.
func Seat(s *status.Status, state handoff.State, held, parked uint64) {
	s.GPU = &handoff.Report{State: state, Since: s.Since, Cards: []handoff.Card{{
		UUID: "GPU-5a1f", Model: "NVIDIA A2", MemoryMiB: 1024, ShareMiB: 408, HeldMiB: held, UsedMiB: held, ParkedMiB: parked,
	}}}
	if state != handoff.Running {
		s.GPU.Why = "its memory is in the host's, to make room for others"
	}
}

// Files counts the requests for files.
func (c *Cluster) Files() int {
	c.Lock()
	defer c.Unlock()
	return c.counts["cat"] + c.counts["stream"]
}

// Counts returns the number of requests, by the last fixed element of their path.
func (c *Cluster) Counts() map[string]int {
	c.Lock()
	defer c.Unlock()
	return maps.Clone(c.counts)
}

func (c *Cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.Lock()
	hang := c.serve(w, r)
	c.Unlock()
	if hang {
		// Drain the body, so that the server detects a disconnect.
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}
}

// serve responds, or reports that the request hangs.
func (c *Cluster) serve(w http.ResponseWriter, r *http.Request) (hang bool) {
	if c.Down {
		http.Error(w, "No cluster leader", http.StatusInternalServerError)
		return false
	}
	if c.Tokens != nil && !c.Tokens[r.Header.Get("X-Nomad-Token")] {
		http.Error(w, "Permission denied", http.StatusForbidden)
		return false
	}
	switch base, name := path.Dir(r.URL.Path), path.Base(r.URL.Path); {
	case r.URL.Path == "/v1/acl/token/self":
		c.counts["self"]++
		if c.Tokens == nil {
			http.Error(w, "ACL support disabled", http.StatusBadRequest)
			return false
		}
		answer(w, api.ACLToken{Name: "a viewer's"})
	case r.URL.Path == "/v1/nodes":
		c.counts["nodes"]++
		if c.Denied["nodes"] {
			http.Error(w, "Permission denied", http.StatusForbidden)
			return false
		}
		answer(w, c.Nodes)
	case r.URL.Path == "/v1/allocations":
		c.counts["allocations"]++
		running := strings.Contains(r.URL.Query().Get("filter"), `"`+api.AllocClientStatusRunning+`"`)
		page(w, r, slices.DeleteFunc(slices.Clone(c.Allocs), func(a *api.AllocationListStub) bool {
			return (a.ClientStatus == api.AllocClientStatusRunning) != running
		}))
	case name == "allocations" && path.Dir(base) == "/v1/node":
		c.counts["node"]++
		answer(w, c.allocationsOf(path.Base(base)))
	case r.URL.Path == "/v1/vars":
		c.counts["variables"]++
		if c.Denied["variables"] {
			http.Error(w, "Permission denied", http.StatusForbidden)
			return false
		}
		metas := []api.VariableMetadata{}
		list := func(name string) {
			if full := shimPath + name; strings.HasPrefix(full, r.URL.Query().Get("prefix")) {
				metas = append(metas, api.VariableMetadata{Namespace: "default", Path: full})
			}
		}
		for i := range c.Claims {
			list(fmt.Sprintf("claims/%d", i))
		}
		for name := range c.Variables {
			list(name)
		}
		answer(w, metas)
	case base == "/v1/var/ebbtide/shim/claims":
		c.counts["variables"]++
		i, err := strconv.Atoi(name)
		if err != nil || i >= len(c.Claims) {
			http.Error(w, "variable not found", http.StatusNotFound)
			return false
		}
		record, _ := json.Marshal(c.Claims[i])
		answer(w, api.Variable{Namespace: "default", Path: strings.TrimPrefix(r.URL.Path, "/v1/var/"), ModifyIndex: 7, Items: api.VariableItems{"record": string(record)}})
	case strings.HasPrefix(r.URL.Path, "/v1/var/"+shimPath):
		c.counts["variables"]++
		items, ok := c.Variables[strings.TrimPrefix(r.URL.Path, "/v1/var/"+shimPath)]
		switch {
		case c.Denied["variables"]:
			http.Error(w, "Permission denied", http.StatusForbidden)
		case !ok:
			http.Error(w, "variable not found", http.StatusNotFound)
		default:
			answer(w, api.Variable{Namespace: "default", Path: strings.TrimPrefix(r.URL.Path, "/v1/var/"), ModifyIndex: 7, Items: items})
		}
	case base == "/v1/client/fs/cat", base == "/v1/client/fs/stream", base == "/v1/client/fs/stat":
		return c.file(w, r, path.Base(base), name)
	default:
		c.counts["unknown"]++
		http.Error(w, "unknown path "+r.URL.Path, http.StatusNotImplemented)
	}
	return false
}

// shimPath is the prefix of the shim's variables.
const shimPath = "ebbtide/shim/"

// allocationsOf returns a node's allocations as Nomad lists them.
func (c *Cluster) allocationsOf(node string) []*api.Allocation {
	var all []*api.Allocation
	for _, a := range c.Allocs {
		if a.NodeID != node {
			continue
		}
		group := api.NewTaskGroup(a.TaskGroup, 1)
		for task := range a.TaskStates {
			group.AddTask(api.NewTask(task, "ebbtide"))
		}
		job := &api.Job{ID: &a.JobID, TaskGroups: []*api.TaskGroup{group}}
		all = append(all, &api.Allocation{ID: a.ID, Namespace: a.Namespace, JobID: a.JobID, Job: job, TaskGroup: a.TaskGroup, NodeID: node, ClientStatus: a.ClientStatus})
	}
	return all
}

// file responds with a file, or reports that the request hangs.
func (c *Cluster) file(w http.ResponseWriter, r *http.Request, how, id string) (hang bool) {
	c.counts[how]++
	var alloc *api.AllocationListStub
	for _, a := range c.Allocs {
		if a.ID == id {
			alloc = a
		}
	}
	switch {
	case alloc == nil:
		http.Error(w, "Unknown allocation", http.StatusNotFound)
		return false
	case c.Hanging[alloc.NodeID], c.Hanging[id] && strings.HasSuffix(r.URL.Query().Get("path"), ".csv"):
		return true
	case c.Broken[alloc.NodeID], c.Broken[id]:
		http.Error(w, "No path to node", http.StatusInternalServerError)
		return false
	case c.Denied[alloc.Namespace]:
		http.Error(w, "Permission denied", http.StatusForbidden)
		return false
	}
	if how == "stream" && c.Denied["histories"] {
		http.Error(w, "not available", http.StatusInternalServerError)
		return false
	}
	text, ok := "", false
	if r.URL.Query().Get("path") == path.Join(private.DirName, private.SnapshotName) {
		text, ok = c.Snapshots[id]
	}
	for task := range alloc.TaskStates {
		switch r.URL.Query().Get("path") {
		case path.Join(private.DirName, private.StatusName(task)):
			text, ok = c.Statuses[id]
		case path.Join("alloc", status.Dir, task+".csv"):
			text, ok = c.History[id]
		}
	}
	if !ok {
		http.Error(w, "open /nomad/x: no such file or directory", http.StatusInternalServerError)
		return false
	}
	switch how {
	case "cat":
		_, _ = io.WriteString(w, text)
		return false
	case "stat":
		answer(w, api.AllocFileInfo{Name: id, Size: int64(len(text))})
		return false
	}
	offset, _ := strconv.Atoi(r.URL.Query().Get("offset"))
	answer(w, api.StreamFrame{File: id, Data: []byte(text[max(0, len(text)-offset):])})
	return false
}

func answer(w http.ResponseWriter, v any) {
	// Without all of these headers, Nomad's client ignores the token of the next page.
	w.Header().Set("X-Nomad-Index", "7")
	w.Header().Set("X-Nomad-LastContact", "0")
	w.Header().Set("X-Nomad-KnownLeader", "true")
	_ = json.NewEncoder(w).Encode(v)
}

func page[T any](w http.ResponseWriter, r *http.Request, all []T) {
	q := r.URL.Query()
	from, _ := strconv.Atoi(q.Get("next_token"))
	from = min(max(from, 0), len(all))
	to := len(all)
	if size, err := strconv.Atoi(q.Get("per_page")); err == nil && size > 0 && from+size < to {
		to = from + size
		w.Header().Set("X-Nomad-NextToken", strconv.Itoa(to))
	}
	answer(w, append([]T{}, all[from:to]...))
}
