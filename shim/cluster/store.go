// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	json2 "github.com/go-json-experiment/json"
	"github.com/google/btree"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/remaining/history"
	"github.com/ebbtide/ebbtide/shim/stream"
)

// Snapshot is a cluster at one moment. It is immutable; its iterators follow the order of IDs.
type Snapshot struct {
	nodes         *btree.BTreeG[*Node]
	jobs          *btree.BTreeG[*Job]
	allocs        *btree.BTreeG[*Alloc]
	byNode, byJob *btree.BTreeG[*Alloc]
	runs          *lru.Cache[runKey, map[string]Run] // shared: the latest runs; by task
}

// degree of the trees: with 32, an item takes some 11 bytes.
const degree = 32

func newSnapshot() Snapshot {
	runs, err := lru.New[runKey, map[string]Run](maxRuns)
	if err != nil {
		panic(err) // only for a size ≤ 0
	}
	return Snapshot{
		nodes:  btree.NewG(degree, func(a, b *Node) bool { return a.ID < b.ID }),
		jobs:   btree.NewG(degree, func(a, b *Job) bool { return a.Key.Compare(b.Key) < 0 }),
		allocs: btree.NewG(degree, func(a, b *Alloc) bool { return a.ID < b.ID }),
		byNode: btree.NewG(degree, func(a, b *Alloc) bool {
			return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.ID, b.ID)) < 0
		}),
		byJob: btree.NewG(degree, func(a, b *Alloc) bool { return cmp.Or(a.Job.Compare(b.Job), strings.Compare(a.ID, b.ID)) < 0 }),
		runs:  runs,
	}
}

// String is the namespace and the ID with a slash between them, ParseKey its inverse: a namespace has no
// slash.
func (k JobKey) String() string { return k.Namespace + "/" + k.ID }

func ParseKey(text string) JobKey {
	namespace, id, _ := strings.Cut(text, "/")
	return JobKey{namespace, id}
}

// Compare orders keys by namespace, then by ID.
func (k JobKey) Compare(o JobKey) int {
	return cmp.Or(strings.Compare(k.Namespace, o.Namespace), strings.Compare(k.ID, o.ID))
}

// Node, Job and Alloc return nil for what is not there.
func (s Snapshot) Node(id string) *Node {
	n, _ := s.nodes.Get(&Node{ID: id})
	return n
}

func (s Snapshot) Job(key JobKey) *Job {
	j, _ := s.jobs.Get(&Job{Key: key})
	return j
}

func (s Snapshot) Alloc(id string) *Alloc {
	a, _ := s.allocs.Get(&Alloc{ID: id})
	return a
}

func (s Snapshot) Nodes() iter.Seq[*Node]   { return all(s.nodes) }
func (s Snapshot) Jobs() iter.Seq[*Job]     { return all(s.jobs) }
func (s Snapshot) Allocs() iter.Seq[*Alloc] { return all(s.allocs) }

func (s Snapshot) NumNodes() int  { return s.nodes.Len() }
func (s Snapshot) NumJobs() int   { return s.jobs.Len() }
func (s Snapshot) NumAllocs() int { return s.allocs.Len() }

func all[T any](t *btree.BTreeG[T]) iter.Seq[T] {
	return func(yield func(T) bool) { t.Ascend(yield) }
}

// On returns a node's allocations, Of a job's.
func (s Snapshot) On(node string) iter.Seq[*Alloc] {
	return func(yield func(*Alloc) bool) {
		s.byNode.AscendGreaterOrEqual(&Alloc{Node: node}, func(a *Alloc) bool { return a.Node == node && yield(a) })
	}
}

func (s Snapshot) Of(job JobKey) iter.Seq[*Alloc] {
	return func(yield func(*Alloc) bool) {
		s.byJob.AscendGreaterOrEqual(&Alloc{Job: job}, func(a *Alloc) bool { return a.Job == job && yield(a) })
	}
}

// Each returns the jobs' allocations, with their jobs. The jobs are in the order of Jobs. For many of
// them it is faster than Of.
func (s Snapshot) Each(jobs []*Job) iter.Seq2[*Job, *Alloc] {
	return func(yield func(*Job, *Alloc) bool) {
		left := jobs
		s.byJob.Ascend(func(a *Alloc) bool {
			for len(left) > 0 && left[0].Key.Compare(a.Job) < 0 {
				left = left[1:]
			}
			return len(left) > 0 && (left[0].Key != a.Job || yield(left[0], a))
		})
	}
}

// maxRuns and maxRunText bound the remembered runs: groups, and bytes per text.
const (
	maxRuns    = 10_000
	maxRunText = 256
)

// runKey identifies a group; the job's ID has no dispatch suffix.
type runKey struct {
	job   JobKey
	group string
}

func newRunKey(job JobKey, group string) runKey {
	return runKey{JobKey{job.Namespace, history.Job(job.ID)}, group}
}

// Runs returns the last completed run of each task of a job's group, to be read only. Runs are kept
// after Nomad has removed their allocations.
func (s Snapshot) Runs(job JobKey, group string) map[string]Run {
	runs, _ := s.runs.Get(newRunKey(job, group))
	return runs
}

func (s Snapshot) setRun(r Run) {
	key := newRunKey(r.Job, r.Group)
	was, _ := s.runs.Get(key)
	if r.At.Before(was[r.Task].At) {
		return
	}
	tasks := make(map[string]Run, len(was)+1)
	maps.Copy(tasks, was)
	tasks[r.Task] = r
	s.runs.Add(key, tasks)
}

// Store follows a cluster. It is safe for concurrent use.
type Store struct {
	mu        sync.Mutex
	is        Snapshot
	listed    Indexes
	current   bool
	completed map[JobKey]bool
	drivers   map[string]map[string]bool // sets shared by nodes, by their joined names
}

// NewStore returns an empty Store, which is not current.
func NewStore() *Store {
	return &Store{is: newSnapshot(), completed: make(map[JobKey]bool), drivers: make(map[string]map[string]bool)}
}

// Snapshot returns the cluster as it is now. That is not current between Lost and Replace.
func (s *Store) Snapshot() (now Snapshot, current bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Snapshot{s.is.nodes.Clone(), s.is.jobs.Clone(), s.is.allocs.Clone(), s.is.byNode.Clone(), s.is.byJob.Clone(), s.is.runs}, s.current
}

// Lost records that the connection to the cluster is lost.
func (s *Store) Lost() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = false
}

// Completed returns the jobs with an allocation that has completed since the last call.
func (s *Store) Completed() map[JobKey]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	completed := s.completed
	s.completed = make(map[JobKey]bool)
	return completed
}

// Replace replaces the cluster by a listing, and makes the Store current. Events which the listing
// includes are ignored: the stream starts with old ones, and a terminal allocation must not reappear.
// Runs that the listing lacks are kept.
func (s *Store) Replace(l Listing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	runs := s.is.runs
	s.is, s.listed, s.current = newSnapshot(), l.Indexes, true
	s.is.runs = runs
	for _, r := range l.Runs {
		s.is.setRun(r)
	}
	for _, n := range l.Nodes {
		s.setNode(n)
	}
	for _, j := range l.Jobs {
		s.is.jobs.ReplaceOrInsert(j)
	}
	for _, a := range l.Allocs {
		s.setAlloc(a)
	}
}

func (s *Store) setNode(n *Node) {
	names := strings.Join(slices.Sorted(maps.Keys(n.Drivers)), " ")
	if s.drivers[names] == nil {
		s.drivers[names] = n.Drivers
	}
	next := *n
	next.Drivers, next.Used = s.drivers[names], Resources{}
	for a := range s.is.On(n.ID) {
		next.Used = next.Used.Plus(a.Allocated)
	}
	s.is.nodes.ReplaceOrInsert(&next)
}

// setAlloc adds an allocation, or replaces it: its job and node never change.
func (s *Store) setAlloc(a *Alloc) {
	more := a.Allocated
	if old, replaced := s.is.allocs.ReplaceOrInsert(a); replaced {
		more = more.Minus(old.Allocated)
	}
	s.is.byNode.ReplaceOrInsert(a)
	s.is.byJob.ReplaceOrInsert(a)
	s.use(a.Node, more)
}

func (s *Store) dropAlloc(a *Alloc) {
	if a == nil {
		return
	}
	s.is.allocs.Delete(a)
	s.is.byNode.Delete(a)
	s.is.byJob.Delete(a)
	s.use(a.Node, Resources{}.Minus(a.Allocated))
}

// use adds to what allocations use of a node.
func (s *Store) use(node string, more Resources) {
	if n := s.is.Node(node); n != nil && more != (Resources{}) {
		next := *n
		next.Used = n.Used.Plus(more)
		s.is.nodes.ReplaceOrInsert(&next)
	}
}

// Change is what an event has changed: a job, or an allocation, which Was nil before or Is nil now, of
// a job that may be unknown.
type Change struct {
	Job     *Job
	Was, Is *Alloc
}

// Runs returns what the Snapshot's does.
func (s *Store) Runs(job JobKey, group string) map[string]Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.is.Runs(job, group)
}

// Apply applies an event. Repeated and outdated events change nothing.
func (s *Store) Apply(e stream.Event) (c Change, err error) {
	var payload struct {
		Node       *WireNode
		Job        *WireJob
		Allocation *WireAlloc
	}
	switch {
	case e.Topic == api.TopicNode && e.Type == "AllocationUpdated":
		// A client updated an allocation, which repeats the unchanged node.
		return c, nil
	case s.includes(e):
		return c, nil
	}
	if err := json2.Unmarshal(e.Payload, &payload, stream.Tolerant); err != nil {
		return c, fmt.Errorf("reading event %s of %s: %w", e.Type, e.Key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case payload.Node != nil:
		s.applyNode(e.Type, payload.Node.node())
	case payload.Job != nil:
		c.Job = s.applyJob(e.Type, payload.Job.job())
	case payload.Allocation != nil:
		if c.Was, c.Is = s.applyAlloc(*payload.Allocation); c.Was != nil || c.Is != nil {
			c.Job = s.is.Job(JobKey{payload.Allocation.Namespace, payload.Allocation.JobID})
		}
	}
	return c, nil
}

// includes reports whether the event is part of the listing, or of no interest.
func (s *Store) includes(e stream.Event) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.Topic {
	case api.TopicNode:
		return e.Index <= s.listed.Nodes
	case api.TopicJob:
		return e.Index <= s.listed.Jobs
	case api.TopicAllocation:
		return e.Index <= s.listed.Allocs
	}
	return true
}

func (s *Store) applyNode(kind string, n *Node) {
	old := s.is.Node(n.ID)
	switch {
	case kind == "NodeDeregistration":
		s.is.nodes.Delete(n)
	case old == nil || old.Index < n.Index:
		s.setNode(n)
	}
}

func (s *Store) applyJob(kind string, j *Job) (changed *Job) {
	switch {
	case kind == "JobDeregistered" && j.Stopped:
		// Stopped but not purged: it may be started again.
	case kind == "JobDeregistered", kind == "JobBatchDeregistered": // garbage collection
		s.is.jobs.Delete(j)
		return nil
	}
	if old := s.is.Job(j.Key); old != nil && old.Index >= j.Index {
		return nil
	}
	s.is.jobs.ReplaceOrInsert(j)
	return j
}

func (s *Store) applyAlloc(w WireAlloc) (was, is *Alloc) {
	old := s.is.Alloc(w.ID)
	if old != nil && old.Index >= w.ModifyIndex {
		return nil, nil
	}
	for _, r := range w.runs() {
		s.is.setRun(r)
	}
	if w.terminal() {
		if s.dropAlloc(old); old != nil && w.ClientStatus == api.AllocClientStatusComplete && w.DesiredStatus == api.AllocDesiredStatusRun {
			s.completed[old.Job] = true
		}
		return old, nil
	}
	a := w.alloc()
	if old != nil && a.Allocated == (Resources{}) {
		a.Allocated, a.Devices = old.Allocated, old.Devices
	}
	s.setAlloc(a)
	return old, a
}
