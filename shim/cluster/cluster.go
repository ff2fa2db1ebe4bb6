// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package cluster is what the shim knows about a Nomad cluster: nodes, jobs and the
// allocations that are not over, as they were listed and as the event stream has changed
// them since.
//
// Nothing here is sure: what is about to be moved is read again right before. So objects
// hold what decisions need, and no more; a hundred thousand allocations fit into some tens
// of megabytes.
package cluster

import (
	"maps"
	"slices"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/remaining/history"
)

// Node is a client.
type Node struct {
	ID, Name, Datacenter, Pool, Class string
	// Takes says whether it takes allocations: it is ready, eligible and does not drain.
	Takes bool
	// Drivers are those that are healthy there. Nodes with the same ones share them: they
	// must not be changed.
	Drivers map[string]bool
	// PoolCores is Ebbtide's elastic pool, in cores; 0 where Ebbtide is not. Engine is its
	// engine there, "docker" or "exec".
	PoolCores float64
	Engine    string
	// Room is what allocations may have together, and Used what they have; State keeps that.
	Room, Used Resources
	Index      uint64 // of its last change
}

// Resources are an amount of CPU, memory and disk.
type Resources struct{ MHz, MemoryMB, DiskMB int64 }

func (r Resources) plus(o Resources) Resources {
	return Resources{r.MHz + o.MHz, r.MemoryMB + o.MemoryMB, r.DiskMB + o.DiskMB}
}

// Minus is what is left of r.
func (r Resources) Minus(o Resources) Resources {
	return Resources{r.MHz - o.MHz, r.MemoryMB - o.MemoryMB, r.DiskMB - o.DiskMB}
}

// Fits says whether r is no more than o.
func (r Resources) Fits(o Resources) bool {
	return r.MHz <= o.MHz && r.MemoryMB <= o.MemoryMB && r.DiskMB <= o.DiskMB
}

// JobKey names a job.
type JobKey struct{ Namespace, ID string }

// Job is a job as it is registered now.
type Job struct {
	Key         JobKey
	Type        string
	Stopped     bool
	Dead        bool          // when it was read, nothing of it ran or was to run
	Template    bool          // a periodic or parameterized one, of which others are made
	Made        bool          // one of those; it cannot be registered anew
	Migrates    []string      // the policies by which it lets itself be moved, by its own meta
	Cooldown    time.Duration // least time between two moves, by its own meta
	Datacenters []string      // patterns
	Pool        string
	Groups      map[string]Group
	Submitted   time.Time // when somebody last changed it
	Index       uint64    // of its last change
}

// Bound is the group that carries a move's mark (Mark); "" if none does, or the job is stopped.
func (j *Job) Bound() string {
	for name, g := range j.Groups {
		if g.Bound && !j.Stopped {
			return name
		}
	}
	return ""
}

// Group is a task group.
type Group struct {
	Count int
	// Movable says that all its tasks run under Ebbtide and save their state.
	Movable bool
	// Held says that it waits until the shim has found a node for it (Hold).
	Held bool
	// Bound says that it carries a move's mark (Mark).
	Bound bool
	// Tasks are their names, and Drivers those that a node must have. Engine is that of
	// Ebbtide's tasks, "docker" if they name an image; "" if none is Ebbtide's by name.
	Tasks, Drivers []string
	Engine         string
	// Asks is what one allocation asks for. CPU that is asked for in cores is not in it.
	Asks Resources
}

// Hold is the attribute of the constraint by which a job waits until the shim has found a
// node for it. No node has it, unless an operator gives it to some, for all that wait.
const Hold = "${meta.ebbtide_hold}"

// A group that is bound for a move has a constraint on the attribute BoundBy with a value
// that holds Mark, and the ID of the move after it (package move).
const (
	BoundBy = "${node.unique.id}"
	Mark    = "ebbtide-move:"
)

// Marked says whether a constraint carries a move's mark.
func Marked(attribute, value string) bool {
	return attribute == BoundBy && strings.Contains(value, Mark)
}

// Alloc is an allocation that is not over.
type Alloc struct {
	ID      string
	Job     JobKey
	Group   string
	Task    string // the one that has asked to be moved; "" if none has
	Node    string
	Running bool
	Stops   bool // Nomad has asked for its end
	Uses    Resources
	// Started is when its first task has; zero before.
	Started time.Time
	// Asked is when it last asked to be moved; zero if it has not.
	Asked time.Time
	Index uint64 // of its last change
}

// Run is what a whole run of a task took, as the driver has said.
type Run struct {
	Job               JobKey
	Group, Task, Node string
	Text              string // see history.Key.Text
	At                time.Time
}

// Bounds of what is kept of runs: groups, and bytes of a text.
const (
	mostRuns   = 10_000
	longestRun = 256
)

// runKey is that of a group's runs; its job is without what Nomad adds for a dispatch.
type runKey struct {
	job   JobKey
	group string
}

func newRunKey(job JobKey, group string) runKey {
	return runKey{JobKey{job.Namespace, history.Job(job.ID)}, group}
}

// State is a cluster. It is not safe for concurrent use.
type State struct {
	Nodes  map[string]*Node
	Jobs   map[JobKey]*Job
	Allocs map[string]*Alloc
	// Completed are jobs of which an allocation has ended by itself, since somebody has
	// cleared it.
	Completed map[JobKey]bool

	on      map[string]map[string]*Alloc // by node, then by ID
	drivers map[string]map[string]bool   // sets that nodes share, by their names
	listed  Indexes
	runs    *lru.LRU[runKey, map[string]Run] // by task; the last ones
}

// New returns an empty State.
func New() *State {
	return &State{
		Nodes: make(map[string]*Node), Jobs: make(map[JobKey]*Job), Allocs: make(map[string]*Alloc), Completed: make(map[JobKey]bool),
		on: make(map[string]map[string]*Alloc), drivers: make(map[string]map[string]bool),
		runs: newRuns(),
	}
}

func newRuns() *lru.LRU[runKey, map[string]Run] {
	runs, err := lru.NewLRU[runKey, map[string]Run](mostRuns, nil)
	if err != nil {
		panic(err) // the size is not positive
	}
	return runs
}

// Runs are the last whole runs of the tasks of an allocation's group, by the tasks. They
// outlast the listings in which Nomad still has their allocations.
func (s *State) Runs(a *Alloc) map[string]Run {
	runs, _ := s.runs.Get(newRunKey(a.Job, a.Group))
	return runs
}

func (s *State) setRun(r Run) {
	key := newRunKey(r.Job, r.Group)
	tasks, ok := s.runs.Get(key)
	if !ok {
		tasks = make(map[string]Run)
		s.runs.Add(key, tasks)
	}
	if !r.At.Before(tasks[r.Task].At) {
		tasks[r.Task] = r
	}
}

// NodeIDs are the IDs of the nodes, in order.
func (s *State) NodeIDs() []string { return slices.Sorted(maps.Keys(s.Nodes)) }

// On are the allocations of a node, by their IDs. It must not be changed.
func (s *State) On(node string) map[string]*Alloc { return s.on[node] }

// Left is what a node has left for allocations.
func (s *State) Left(node *Node) Resources { return node.Room.Minus(node.Used) }

// Indexes say which state of Nomad's a listing shows: events up to these are in it.
type Indexes struct{ Nodes, Jobs, Allocs uint64 }

// Listing is everything that Nomad has listed, without the allocations that are over.
// What is not in it is no more.
type Listing struct {
	Indexes
	Nodes  []*Node
	Jobs   []*Job
	Allocs []*Alloc
	Runs   []Run
}

// Become takes another State over, which is used no more, and keeps the runs that are not
// in it.
func (s *State) Become(other *State) {
	runs := s.runs
	for _, tasks := range other.runs.Values() {
		for _, r := range tasks {
			s.setRun(r)
		}
	}
	*s = *other
	s.runs = runs
}

// Listed returns a State that is as a listing says. Events that it holds change nothing any
// more: Nomad's stream begins with old ones, and an allocation that is over must not come
// back.
func Listed(l Listing) *State {
	s := New()
	s.listed = l.Indexes
	for _, r := range l.Runs {
		s.setRun(r)
	}
	for _, n := range l.Nodes {
		s.setNode(n)
	}
	for _, j := range l.Jobs {
		s.setJob(j)
	}
	for _, a := range l.Allocs {
		s.setAlloc(a)
	}
	return s
}

func (s *State) setNode(n *Node) {
	names := strings.Join(slices.Sorted(maps.Keys(n.Drivers)), " ")
	if s.drivers[names] == nil {
		s.drivers[names] = n.Drivers
	}
	n.Drivers = s.drivers[names]
	n.Used = Resources{}
	for _, a := range s.on[n.ID] {
		n.Used = n.Used.plus(a.Uses)
	}
	s.Nodes[n.ID] = n
}

func (s *State) setJob(j *Job) { s.Jobs[j.Key] = j }

func (s *State) setAlloc(a *Alloc) {
	s.dropAlloc(a.ID)
	s.Allocs[a.ID] = a
	if s.on[a.Node] == nil {
		s.on[a.Node] = make(map[string]*Alloc)
	}
	s.on[a.Node][a.ID] = a
	if n := s.Nodes[a.Node]; n != nil {
		n.Used = n.Used.plus(a.Uses)
	}
}

func (s *State) dropAlloc(id string) {
	a := s.Allocs[id]
	if a == nil {
		return
	}
	delete(s.Allocs, id)
	delete(s.on[a.Node], id)
	if len(s.on[a.Node]) == 0 {
		delete(s.on, a.Node)
	}
	if n := s.Nodes[a.Node]; n != nil {
		n.Used = n.Used.Minus(a.Uses)
	}
}

// Topics are those of the event stream that Apply needs.
func Topics() []api.Topic { return []api.Topic{api.TopicNode, api.TopicJob, api.TopicAllocation} }
