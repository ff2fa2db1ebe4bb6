// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package cluster models a Nomad cluster: nodes, jobs and non-terminal allocations, from a listing
// and subsequent events. The state may lag, so callers re-read objects before changing them.
// Objects hold only what decisions need: 100,000 allocations take tens of MB.
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

type Node struct {
	ID, Name, Datacenter, Pool, Class string
	// Schedulable means ready, eligible and not draining.
	Schedulable bool
	// Drivers are the healthy drivers. The map is shared between nodes and must not be changed.
	Drivers map[string]bool
	// PoolCores is Ebbtide's elastic pool, in cores; 0 without Ebbtide. Engine is "docker" or
	// "exec".
	PoolCores float64
	Engine    string
	// Capacity is the total for allocations; Used, maintained by State, is their use.
	Capacity, Used Resources
	Devices        []Device // healthy ones
	Index          uint64   // ModifyIndex
}

// Device is a group of alike devices.
type Device struct {
	Vendor, Type, Name string
	Count              int64
}

// Is reports whether a job's request for a device, "type", "vendor/type" or "vendor/type/name", is
// for this one.
func (d Device) Is(request string) bool {
	switch request {
	case d.Type, d.Vendor + "/" + d.Type, d.Vendor + "/" + d.Type + "/" + d.Name:
		return true
	}
	return false
}

// Count is how many of the devices a job's request is for.
func Count(devices []Device, request string) (n int64) {
	for _, d := range devices {
		if d.Is(request) {
			n += d.Count
		}
	}
	return n
}

type Resources struct{ MHz, MemoryMB, DiskMB int64 }

func (r Resources) Plus(o Resources) Resources {
	return Resources{r.MHz + o.MHz, r.MemoryMB + o.MemoryMB, r.DiskMB + o.DiskMB}
}

func (r Resources) Minus(o Resources) Resources {
	return Resources{r.MHz - o.MHz, r.MemoryMB - o.MemoryMB, r.DiskMB - o.DiskMB}
}

func (r Resources) Fits(o Resources) bool {
	return r.MHz <= o.MHz && r.MemoryMB <= o.MemoryMB && r.DiskMB <= o.DiskMB
}

type JobKey struct{ Namespace, ID string }

// Job is a job as registered.
type Job struct {
	Key           JobKey
	Type          string
	Stopped       bool
	Dead          bool          // nothing was running or pending when the job was read
	Template      bool          // periodic or parameterized
	Child         bool          // created from a template; must not be registered
	Held          bool          // a group is held for placement (Hold)
	Migrates      []string      // policies that the job's meta allows to move it
	Cooldown      time.Duration // minimum time between two moves, from the job's meta
	Queued        bool          // it takes part in the queue, by its meta
	Owner         string        // in the queue
	Duration      time.Duration // its author's guess, 0 for none
	Priority      int           // in the queue, among its owner's jobs
	PriorityError string        // why Priority is 0
	Datacenters   []string      // patterns
	Pool          string
	Groups        map[string]Group
	Submitted     time.Time // last registration
	Index         uint64    // ModifyIndex
}

// Suspended returns the allocation from whose checkpoint the held job is to resume, and the node that
// has it; "" if it is not suspended.
func (j *Job) Suspended() (alloc, node string) {
	for _, g := range j.Groups {
		if j.Held && g.Node != "" {
			return g.Adopts, g.Node
		}
	}
	return "", ""
}

// Bound returns the group bound for a move, "" if there is none, or if it is to stay: a stopped or
// completed batch job's, and a suspended one's, which waits.
func (j *Job) Bound() string {
	for name, g := range j.Groups {
		if g.Bound && !j.Stopped && !j.Dead && !j.Held {
			return name
		}
	}
	return ""
}

type Group struct {
	Count int
	// Movable means that all tasks run under Ebbtide and save their state.
	Movable bool
	// Bound means that the group is bound for a move (Mark), to Node; it is "" if only the move is
	// named. Adopts is the allocation from whose checkpoint it resumes there.
	Bound        bool
	Node, Adopts string
	// Shared means that all tasks save to a volume that is the same on every node.
	Shared bool
	// Tasks are names; Drivers are required of a node. Engine is that of tasks with driver
	// "ebbtide": "docker" if they name an image; "" if there are none.
	Tasks, Drivers []string
	Engine         string
	// MovesDisk means that Nomad copies the ephemeral disk to a new allocation.
	MovesDisk bool
	// Requested is per allocation, without `cores`.
	Requested Resources
	Devices   map[string]int64 // requested, by request
}

// Hold is the attribute of the constraint that holds a job for placement by the shim. Nodes do not
// have it unless an operator sets it to release held jobs there.
const Hold = "${meta.ebbtide_hold}"

// A group bound for a move has a constraint on BoundBy with a value that contains Mark and the
// move's ID (package move).
const (
	BoundBy = "${node.unique.id}"
	Mark    = "ebbtide-move:"
)

// BoundTo returns the node in the value of such a constraint, "" if it names only the move.
func BoundTo(value string) string {
	node, _, _ := strings.Cut(value, Mark)
	return strings.TrimSuffix(node, ",")
}

// HasMark reports whether a constraint binds a group for a move.
func HasMark(attribute, value string) bool {
	return attribute == BoundBy && strings.Contains(value, Mark)
}

// Alloc is a non-terminal allocation.
type Alloc struct {
	ID        string
	Job       JobKey
	Group     string
	Task      string // the task that requested a move, "" if none
	Node      string
	Running   bool
	Stopping  bool // Nomad wants to stop it
	Allocated Resources
	Devices   []Device
	// Started is the first task's start; zero if not started.
	Started time.Time
	// MoveRequested is the time of the last request, zero if none.
	MoveRequested time.Time
	Index         uint64 // ModifyIndex
}

// Run is the driver's record of a task's completed run.
type Run struct {
	Job               JobKey
	Group, Task, Node string
	Text              string // see history.Key.Text
	At                time.Time
	Took              time.Duration // from its start to its end; 0 if unknown
}

// Bounds of the stored runs: groups, and bytes per text.
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

// State is a cluster. It is not safe for concurrent use.
type State struct {
	Nodes  map[string]*Node
	Jobs   map[JobKey]*Job
	Allocs map[string]*Alloc
	// Completed are jobs with an allocation that has completed since the caller last cleared the
	// map.
	Completed map[JobKey]bool

	on      map[string]map[string]*Alloc // by node, then by ID
	drivers map[string]map[string]bool   // sets shared by nodes, by their joined names
	listed  Indexes
	runs    *lru.LRU[runKey, map[string]Run] // by task; least recently used groups are dropped
}

func New() *State {
	return &State{
		Nodes: make(map[string]*Node), Jobs: make(map[JobKey]*Job), Allocs: make(map[string]*Alloc), Completed: make(map[JobKey]bool),
		on: make(map[string]map[string]*Alloc), drivers: make(map[string]map[string]bool),
		runs: newRuns(),
	}
}

func newRuns() *lru.LRU[runKey, map[string]Run] {
	runs, err := lru.NewLRU[runKey, map[string]Run](maxRuns, nil)
	if err != nil {
		panic(err) // only for a size ≤ 0
	}
	return runs
}

// Runs returns the last completed run of each task of a job's group. Runs are kept after Nomad has
// removed their allocations.
func (s *State) Runs(job JobKey, group string) map[string]Run {
	runs, _ := s.runs.Get(newRunKey(job, group))
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

func (s *State) NodeIDs() []string { return slices.Sorted(maps.Keys(s.Nodes)) }

// On returns a node's allocations by ID. The map must not be changed.
func (s *State) On(node string) map[string]*Alloc { return s.on[node] }

// Free returns the node's resources not used by allocations.
func (s *State) Free(node *Node) Resources { return node.Capacity.Minus(node.Used) }

// Indexes are a listing's Raft indexes: it includes all events up to them.
type Indexes struct{ Nodes, Jobs, Allocs uint64 }

// Listing is everything listed, without terminal allocations.
type Listing struct {
	Indexes
	Nodes  []*Node
	Jobs   []*Job
	Allocs []*Alloc
	Runs   []Run
}

// Replace replaces the state with other, which must not be used afterwards. It keeps runs that
// other lacks.
func (s *State) Replace(other *State) {
	runs := s.runs
	for _, tasks := range other.runs.Values() {
		for _, r := range tasks {
			s.setRun(r)
		}
	}
	*s = *other
	s.runs = runs
}

// FromListing returns a State that ignores events included in the listing: the stream starts with
// old ones, and a terminal allocation must not reappear.
func FromListing(l Listing) *State {
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
		n.Used = n.Used.Plus(a.Allocated)
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
		n.Used = n.Used.Plus(a.Allocated)
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
		n.Used = n.Used.Minus(a.Allocated)
	}
}

// Topics returns the event topics that Apply needs.
func Topics() []api.Topic { return []api.Topic{api.TopicNode, api.TopicJob, api.TopicAllocation} }
