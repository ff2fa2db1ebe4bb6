// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package cluster models a Nomad cluster: nodes, jobs and non-terminal allocations, from a listing
// and subsequent events. A Store follows the cluster; decisions are made on its Snapshots. These may
// lag, so callers re-read objects before changing them. Objects are immutable and hold only what
// decisions need: 100,000 allocations take tens of MB.
package cluster

import (
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
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
	// Capacity is the total for allocations; Used, maintained by Store, is their use.
	Capacity, Used Resources
	Devices        []Device // healthy ones
	Index          uint64   // ModifyIndex
}

// Free is what allocations do not use.
func (n *Node) Free() Resources { return n.Capacity.Minus(n.Used) }

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

// Resources are amounts. Cores are reserved ones; an allocation of Cores has their MHz, too, which its
// job does not name.
type Resources struct{ MHz, MemoryMB, DiskMB, Cores int64 }

func (r Resources) Plus(o Resources) Resources {
	return Resources{r.MHz + o.MHz, r.MemoryMB + o.MemoryMB, r.DiskMB + o.DiskMB, r.Cores + o.Cores}
}

func (r Resources) Minus(o Resources) Resources {
	return Resources{r.MHz - o.MHz, r.MemoryMB - o.MemoryMB, r.DiskMB - o.DiskMB, r.Cores - o.Cores}
}

func (r Resources) Fits(o Resources) bool {
	return r.MHz <= o.MHz && r.MemoryMB <= o.MemoryMB && r.DiskMB <= o.DiskMB && r.Cores <= o.Cores
}

type JobKey struct{ Namespace, ID string }

// Job is a job as registered.
type Job struct {
	Key         JobKey
	Type        string
	Stopped     bool
	Dead        bool          // nothing was running or pending when the job was read
	Template    bool          // periodic or parameterized
	Child       bool          // created from a template; must not be registered
	Held        bool          // a group is held for placement (Hold)
	Migrates    []string      // policies that the job's meta allows to move it
	Cooldown    time.Duration // minimum time between two moves, from the job's meta
	Queued      bool          // it takes part in the queue, by its meta
	Owner       string        // in the queue
	Duration    time.Duration // its author's guess, 0 for none
	Priority    int           // in the queue, among its owner's jobs
	QueueError  string        // which of the last three are not what the job's meta says, and why; "" for none
	Datacenters []string      // patterns
	Pool        string
	Groups      map[string]Group
	Submitted   time.Time // last registration
	Index       uint64    // ModifyIndex
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

// Awaits reports whether the job, while it has no allocation, waits bound for the node of its checkpoint:
// it has been suspended, and then released to Nomad without a place.
func (j *Job) Awaits() bool {
	g := j.Groups[j.Bound()]
	return g.Adopts != "" && g.Node != ""
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
	// Requested is per allocation.
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
	Created   time.Time // by the server's clock
	// Started is the first task's start, by the node's clock; zero if not started.
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

// Topics returns the event topics that Apply needs.
func Topics() []api.Topic { return []api.Topic{api.TopicNode, api.TopicJob, api.TopicAllocation} }
