// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package sim

import "container/heap"

// Kinds of events, in the order in which simultaneous events are handled.
type kind uint8

const (
	nodeDue kind = iota
	nodeBack
	nodeFails
	taskBack // a task is placed again
	shimDue  // the shim's next pass
	placesDue
)

type event struct {
	at      float64
	kind    kind
	id      int    // node or task index
	version uint64 // of the node
}

// timeline orders events by time, and reproducibly within a time.
type timeline struct{ events events }

func (q *timeline) push(e event) { heap.Push(&q.events, e) }
func (q *timeline) pop()         { heap.Pop(&q.events) }

func (q *timeline) peek() (event, bool) {
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
