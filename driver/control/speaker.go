// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import "time"

// eventEvery is the least time between two events of a task. Nomad keeps ten
// events a task, and each costs an update of the allocation.
const eventEvery = 30 * time.Second

// speaker holds a task's events back so that they come one at a time. What is
// overtaken while it waits is not sent: of two changes of category only the last
// matters. Other kinds wait in order.
type speaker struct {
	task    Task
	last    time.Time
	waiting []note
}

type note struct{ kind, message string }

// say queues an event. kind is also sent as an annotation, for tools.
func (sp *speaker) say(message, kind string) {
	for i := range sp.waiting {
		if sp.waiting[i].kind == kind {
			sp.waiting[i].message = message
			return
		}
	}
	sp.waiting = append(sp.waiting, note{kind, message})
}

// tell sends an event at once: it says what a person has waited for, and comes
// once in a task's life.
func (sp *speaker) tell(message, kind string, now time.Time, emit func(Event)) {
	sp.last = now
	emit(Event{
		TaskID: sp.task.ID, AllocID: sp.task.AllocID, TaskName: sp.task.Name,
		Message:     message,
		Annotations: map[string]string{"ebbtide": kind},
	})
}

// drop takes back what has not been sent yet.
func (sp *speaker) drop(kind string) {
	for i := range sp.waiting {
		if sp.waiting[i].kind == kind {
			sp.waiting = append(sp.waiting[:i], sp.waiting[i+1:]...)
			return
		}
	}
}

// flush sends the next event when it is time.
func (sp *speaker) flush(now time.Time, emit func(Event)) {
	if len(sp.waiting) == 0 || !sp.last.IsZero() && now.Sub(sp.last) < eventEvery {
		return
	}
	n := sp.waiting[0]
	sp.waiting = sp.waiting[1:]
	sp.tell(n.message, n.kind, now, emit)
}
