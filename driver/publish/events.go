// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package publish

import "time"

// eventEvery is the minimum time between two events of a task. Nomad keeps ten events
// per task, and each costs an update of the allocation.
const eventEvery = 30 * time.Second

// Event is a task event.
type Event struct {
	TaskID, AllocID, TaskName string
	Message                   string
	Annotations               map[string]string // its kind, as Annotation, and data for tools
}

// Events throttles a task's events. Of queued events of one kind only the latest is
// sent; kinds keep their order.
type Events struct {
	task    Event // its IDs
	emit    func(Event)
	last    time.Time
	waiting []note
	dropped int
}

type note struct{ kind, message string }

// Enqueue queues an event. The kind is also an annotation.
func (e *Events) Enqueue(kind, message string) {
	for i := range e.waiting {
		if e.waiting[i].kind == kind {
			e.waiting[i].message = message
			e.dropped++
			return
		}
	}
	e.waiting = append(e.waiting, note{kind, message})
}

// Send sends an event immediately, if a user waits for it or it is unique in the task's life.
func (e *Events) Send(kind, message string, now time.Time) {
	e.last = now
	ev := e.task
	ev.Message, ev.Annotations = message, map[string]string{Annotation: kind}
	go e.emit(ev)
}

// Drop removes a queued event.
func (e *Events) Drop(kind string) {
	for i := range e.waiting {
		if e.waiting[i].kind == kind {
			e.waiting = append(e.waiting[:i], e.waiting[i+1:]...)
			e.dropped++
			return
		}
	}
}

// Dropped returns the number of events replaced or removed before they were sent.
func (e *Events) Dropped() int { return e.dropped }

// Waiting returns the number of events not yet sent.
func (e *Events) Waiting() int { return len(e.waiting) }

// Flush sends the next event if it is due.
func (e *Events) Flush(now time.Time) {
	if len(e.waiting) == 0 || !e.last.IsZero() && now.Sub(e.last) < eventEvery {
		return
	}
	n := e.waiting[0]
	e.waiting = e.waiting[1:]
	e.Send(n.kind, n.message, now)
}
