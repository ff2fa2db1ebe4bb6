// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package top shows what Ebbtide does on a node or in a whole cluster: the model of
// `ebbtide top`, what is made of it for a terminal of a given width, and nothing that reads
// or draws. Package gather reads a View from Nomad's API, package ui shows it live.
//
// Names and texts in a View come from jobs and tasks. They are cleaned where lines are made
// of them (Clean), not before: the JSON has them as they are.
package top

import (
	"cmp"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/device/seat"
	"github.com/ebbtide/ebbtide/driver/status"
)

// View is what is known of a cluster at a time. `ebbtide top -json` prints it.
type View struct {
	Time    time.Time `json:"time"`
	Address string    `json:"address"` // of Nomad's API
	Nodes   []Node    `json:"nodes"`   // that run Ebbtide's driver
	Tasks   []Task    `json:"tasks"`   // that run under Ebbtide
	GPUs    []GPU     `json:"gpus"`    // cards on which tasks have seats
	Moves   []Move    `json:"moves"`   // under way
	// Unread is how many running tasks of these nodes were not asked for a status yet.
	Unread int `json:"unread"`
	// Notes say what is not known, and why.
	Notes []string `json:"notes"`
	// Error says why everything is older than it should be; "" if it is not.
	Error string `json:"error,omitempty"`
}

// Node is a node that runs Ebbtide's driver. What is said of its tasks is in the newest of
// their statuses; without one it is null.
type Node struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	Datacenter string `json:"datacenter"`
	NodePool   string `json:"node_pool"`
	State      string `json:"state"` // ready, draining, ineligible; otherwise Nomad's status: down, disconnected, initializing
	Version    string `json:"version"`
	Engine     string `json:"engine"` // docker, exec
	Policy     string `json:"policy"`

	PoolCores     status.Number  `json:"pool_cores"`
	Use           status.Number  `json:"use"`   // fraction of the pool, over the last interval
	Tasks         int            `json:"tasks"` // under Ebbtide
	Categories    map[string]int `json:"categories"`
	Classes       map[string]int `json:"classes"`
	RemainingCPUS status.Number  `json:"remaining_cpu_s"`
	SavedS        status.Number  `json:"saved_s"`
	Updated       time.Time      `json:"updated,omitzero"` // of the status that says this

	Stale bool   `json:"stale"` // it did not answer when it was asked last, or is not there
	Error string `json:"error,omitempty"`
}

// Key names a task of an allocation.
type Key struct{ Alloc, Task string }

// Task is a task that runs under Ebbtide.
type Task struct {
	Namespace string    `json:"namespace"`
	Job       string    `json:"job"`
	Group     string    `json:"group"`
	Task      string    `json:"task"`
	Alloc     string    `json:"alloc"`
	NodeID    string    `json:"node_id"`
	Node      string    `json:"node"` // its name
	Started   time.Time `json:"started,omitzero"`

	Read  time.Time `json:"read,omitzero"` // when its status was read last
	Stale bool      `json:"stale"`         // it could not be read when that was tried last, or is old
	Error string    `json:"error,omitempty"`

	// Status is what the driver has written of it; null if it could never be read.
	Status *status.Status `json:"status"`
	// Values are the last values of its metric, the oldest first: some that are shown.
	Values []status.Number `json:"values"`
	Events []Event         `json:"events"`
}

// Key is that of the task.
func (t Task) Key() Key { return Key{t.Alloc, t.Task} }

// Late says whether the task's twin has ended, and the task has not.
func (t Task) Late() bool { return t.Status != nil && t.Status.Fair.Late }

// Event is one that Nomad keeps of a task.
type Event struct {
	Time    time.Time `json:"time"`
	Type    string    `json:"type"`
	Message string    `json:"message"`
}

// GPU is a card with the seats of tasks on it, in MiB.
type GPU struct {
	NodeID     string `json:"node_id"`
	Node       string `json:"node"`
	UUID       string `json:"uuid"`
	Model      string `json:"model"`
	MemoryMiB  uint64 `json:"memory_mib"`
	HeldMiB    uint64 `json:"held_mib"`
	UsedMiB    uint64 `json:"used_mib"`
	ParkedMiB  uint64 `json:"parked_mib"`
	WaitingMiB uint64 `json:"waiting_mib"`
	Seats      []Seat `json:"seats"`
}

// Seat is what a task has to do with a card.
type Seat struct {
	Namespace  string     `json:"namespace"`
	Job        string     `json:"job"`
	Task       string     `json:"task"`
	Alloc      string     `json:"alloc"`
	State      seat.State `json:"state"` // running, waiting, paused, parked, lost
	Since      time.Time  `json:"since,omitzero"`
	Why        string     `json:"why"`
	ShareMiB   uint64     `json:"share_mib"`
	HeldMiB    uint64     `json:"held_mib"`
	UsedMiB    uint64     `json:"used_mib"`
	ParkedMiB  uint64     `json:"parked_mib"`
	WaitingMiB uint64     `json:"waiting_mib"`
}

// Move is a move that is under way, or a task that is prepared for one.
type Move struct {
	ID        string    `json:"id"` // "" of a task that is prepared, where no record is known
	Namespace string    `json:"namespace"`
	Job       string    `json:"job"`
	Alloc     string    `json:"alloc"` // the old one
	From      string    `json:"from"`  // names of nodes
	To        string    `json:"to"`
	Phase     string    `json:"phase"`
	Owner     string    `json:"owner"`          // the process that carries it out
	Until     time.Time `json:"until,omitzero"` // its claim, or the task's lease, ends then
}

// Finish adds to a View what follows from its tasks: the cards, the tasks that are prepared
// for a move, and the order of everything.
func (v *View) Finish() {
	slices.SortFunc(v.Nodes, func(a, b Node) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	slices.SortFunc(v.Tasks, byName)
	for _, t := range v.Tasks {
		known := slices.ContainsFunc(v.Moves, func(m Move) bool { return m.Namespace == t.Namespace && m.Job == t.Job })
		if t.Status == nil || t.Status.Move.State == "" || t.Status.Move.State == status.MoveFailed || known {
			continue
		}
		v.Moves = append(v.Moves, Move{
			Namespace: t.Namespace, Job: t.Job, Alloc: t.Alloc, From: t.Node, Phase: t.Status.Move.State, Until: t.Status.Move.Until,
		})
	}
	slices.SortFunc(v.Moves, func(a, b Move) int { return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Job, b.Job)) })
	v.seats()
}

// seats gathers the cards from what is said of each task's.
func (v *View) seats() {
	at := make(map[[2]string]int)
	for _, t := range v.Tasks {
		if t.Status == nil || t.Status.GPU == nil {
			continue
		}
		r := t.Status.GPU
		for _, c := range r.Cards {
			key := [2]string{t.NodeID, c.UUID}
			i, ok := at[key]
			if !ok {
				i = len(v.GPUs)
				at[key] = i
				v.GPUs = append(v.GPUs, GPU{NodeID: t.NodeID, Node: t.Node, UUID: c.UUID, Model: c.Model})
			}
			g := &v.GPUs[i]
			g.MemoryMiB = max(g.MemoryMiB, c.MemoryMiB)
			g.HeldMiB += c.HeldMiB
			g.UsedMiB += c.UsedMiB
			g.ParkedMiB += c.ParkedMiB
			g.WaitingMiB += c.WaitingMiB
			g.Seats = append(g.Seats, Seat{
				Namespace: t.Namespace, Job: t.Job, Task: t.Task, Alloc: t.Alloc, State: r.State, Since: r.Since, Why: r.Why,
				ShareMiB: c.ShareMiB, HeldMiB: c.HeldMiB, UsedMiB: c.UsedMiB, ParkedMiB: c.ParkedMiB, WaitingMiB: c.WaitingMiB,
			})
		}
	}
	slices.SortStableFunc(v.GPUs, func(a, b GPU) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.NodeID, b.NodeID), cmp.Compare(a.UUID, b.UUID))
	})
}

// Task finds a task; nil if it is not there.
func (v *View) Task(k Key) *Task {
	for i := range v.Tasks {
		if v.Tasks[i].Key() == k {
			return &v.Tasks[i]
		}
	}
	return nil
}

// Totals are sums over a whole View.
type Totals struct {
	Nodes      int            `json:"nodes"`
	StaleNodes int            `json:"stale_nodes"`
	Cores      status.Number  `json:"cores"` // of all pools
	UsedCores  status.Number  `json:"used_cores"`
	SavedS     status.Number  `json:"saved_s"`
	Tasks      int            `json:"tasks"`
	Late       int            `json:"late"`
	Categories map[string]int `json:"categories"`
}

// Totals returns the sums. What is not known of a node counts as 0.
func (v *View) Totals() Totals {
	t := Totals{Nodes: len(v.Nodes), Tasks: len(v.Tasks), Categories: make(map[string]int)}
	for _, n := range v.Nodes {
		if n.Stale {
			t.StaleNodes++
		}
		if n.PoolCores.Known() {
			t.Cores += n.PoolCores
			if n.Use.Known() {
				t.UsedCores += n.PoolCores * n.Use
			}
		}
		if n.SavedS.Known() {
			t.SavedS += n.SavedS
		}
	}
	for _, task := range v.Tasks {
		if task.Late() {
			t.Late++
		}
		if task.Status != nil && task.Status.Category != "" {
			t.Categories[task.Status.Category]++
		}
	}
	return t
}

// Namespaces are those of the tasks, in order.
func (v *View) Namespaces() []string {
	seen := make(map[string]bool)
	var all []string
	for _, t := range v.Tasks {
		if !seen[t.Namespace] {
			seen[t.Namespace] = true
			all = append(all, t.Namespace)
		}
	}
	slices.Sort(all)
	return all
}
