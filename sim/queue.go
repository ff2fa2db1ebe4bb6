// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package sim

import "container/heap"

// The kinds of events, in the order in which those of one moment happen.
type kind uint8

const (
	nodeDue   kind = iota // something is due on a node
	nodeBack              // a node has been repaired
	nodeFails             // a node fails
	taskBack              // a task comes to be placed again
	shimDue               // the shim looks at the cluster
)

// event is something that happens to a node or a task.
type event struct {
	at      float64
	kind    kind
	id      int    // index of the node or task
	version uint64 // of the node
}

// queue holds events by time. What happens at one moment has an order of its own: a run
// can be repeated.
type queue struct{ events events }

func (q *queue) push(e event) { heap.Push(&q.events, e) }
func (q *queue) pop()         { heap.Pop(&q.events) }

func (q *queue) first() (event, bool) {
	if len(q.events) == 0 {
		return event{}, false
	}
	return q.events[0], true
}

type events []event

func (e events) Len() int      { return len(e) }
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e events) Less(i, j int) bool {
	a, b := e[i], e[j]
	switch {
	case a.at != b.at:
		return a.at < b.at
	case a.kind != b.kind:
		return a.kind < b.kind
	case a.id != b.id:
		return a.id < b.id
	}
	return a.version < b.version
}
func (e *events) Push(x any) { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}
