// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package top is the model and the text rendering of `ebbtide top`. Input: Nomad's API, read by
// package gather into a View. Output: lines for a terminal of a given width, which package ui
// displays, or the View as JSON. Start with view.go.
//
// Names and texts come from jobs and tasks. They are cleaned when rendered (Clean); the JSON has
// them verbatim.
package top

import (
	"cmp"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/queue"
	"github.com/ebbtide/ebbtide/shim/store"
)

// View is the state of a cluster, as printed by `ebbtide top -json`.
type View struct {
	Time    time.Time `json:"time"`
	Address string    `json:"address"` // of Nomad's API
	Nodes   []Node    `json:"nodes"`   // with Ebbtide's driver
	Tasks   []Task    `json:"tasks"`   // under Ebbtide
	GPUs    []GPU     `json:"gpus"`    // with seats in use
	Moves   []Move    `json:"moves"`   // in progress
	// Queue are the jobs of the shim's queue, in its order.
	Queue []store.Queued `json:"queue"`
	// Owners are those of all its jobs.
	Owners []queue.OwnerShare `json:"owners"`
	// Unread counts the running tasks whose status has not been requested yet.
	Unread int `json:"unread"`
	// Notes report data that could not be read, and why.
	Notes []string `json:"notes"`
	// Error is the reason why the view is outdated.
	Error string `json:"error,omitempty"`
}

// Node is a node with Ebbtide's driver. Its task figures come from its newest status, and are null
// without one.
type Node struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	Datacenter string `json:"datacenter"`
	NodePool   string `json:"node_pool"`
	State      string `json:"state"` // ready, draining, ineligible, or Nomad's status
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
	Updated       time.Time      `json:"updated,omitzero"` // of the newest status

	Stale bool   `json:"stale"` // unresponsive or down
	Error string `json:"error,omitempty"`
}

type Key struct{ Alloc, Task string }

type Task struct {
	Namespace string    `json:"namespace"`
	Job       string    `json:"job"`
	Group     string    `json:"group"`
	Task      string    `json:"task"`
	Alloc     string    `json:"alloc"`
	NodeID    string    `json:"node_id"`
	Node      string    `json:"node"` // name
	Started   time.Time `json:"started,omitzero"`

	Read  time.Time `json:"read,omitzero"` // last read of the status
	Stale bool      `json:"stale"`         // the last read failed, or the status is old
	Error string    `json:"error,omitempty"`

	// Status is the driver's; null if never read.
	Status *status.Status `json:"status"`
	// Values are recent values of the metric, or steps, oldest first. Not all tasks have them.
	Values []status.Number `json:"values"`
	Events []Event         `json:"events"`
}

func (t Task) Key() Key { return Key{t.Alloc, t.Task} }

// Late reports whether the twin has finished before the task.
func (t Task) Late() bool { return t.Status != nil && t.Status.Fair.Late }

// Event is a task event in Nomad.
type Event struct {
	Time    time.Time `json:"time"`
	Type    string    `json:"type"`
	Message string    `json:"message"`
}

// GPU is a card with its seats.
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

// Seat is a task's use of a card.
type Seat struct {
	Namespace  string        `json:"namespace"`
	Job        string        `json:"job"`
	Task       string        `json:"task"`
	Alloc      string        `json:"alloc"`
	State      handoff.State `json:"state"` // running, waiting, yielding, parked, lost
	Since      time.Time     `json:"since,omitzero"`
	Why        string        `json:"why"`
	ShareMiB   uint64        `json:"share_mib"`
	HeldMiB    uint64        `json:"held_mib"`
	UsedMiB    uint64        `json:"used_mib"`
	ParkedMiB  uint64        `json:"parked_mib"`
	WaitingMiB uint64        `json:"waiting_mib"`
}

// Move is a move in progress, or a task prepared for one.
type Move struct {
	ID        string    `json:"id"` // "" for a task prepared without a known claim
	Namespace string    `json:"namespace"`
	Job       string    `json:"job"`
	Alloc     string    `json:"alloc"` // the source
	From      string    `json:"from"`  // node names
	To        string    `json:"to"`
	Phase     string    `json:"phase"`
	Owner     string    `json:"owner"`          // the process that executes it
	Why       string    `json:"why"`            // "" for a move by hand
	Until     time.Time `json:"until,omitzero"` // end of its claim, or of the task's lease
}

// Finish derives cards and prepared moves from the tasks, and sorts everything.
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

// seats collects the cards from the tasks' reports.
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

// Task returns a task; nil if it is not in the view.
func (v *View) Task(k Key) *Task {
	for i := range v.Tasks {
		if v.Tasks[i].Key() == k {
			return &v.Tasks[i]
		}
	}
	return nil
}

// Totals are sums over a View.
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

// Totals returns the sums. Unknown figures of a node count as 0.
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

// Namespaces returns the tasks' namespaces, sorted.
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
