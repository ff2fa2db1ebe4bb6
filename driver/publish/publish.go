// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package publish shows people and tools what becomes of a task: its status, history and
// picture in the allocation's shared directory, and events in Nomad. All of that is
// output: the task can write there, so nothing is read back. What tools act on, and what
// a later process of the plugin goes on with, is written to the allocation's private
// directory (package private).
package publish

import (
	"errors"
	"io/fs"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/status"
)

// firstPicture is how many reports a picture needs to show anything.
const firstPicture = 5

// Task publishes what becomes of one task. It is used by one goroutine.
type Task struct {
	Events
	name    string
	log     hclog.Logger
	plots   *Plots
	private private.Dir
	writer  *status.Writer // nil: the directory could not be opened

	dirty, rowDue bool
	written       time.Time
	drawn         bool
	mark          string // what happened since the last row
	failed        bool
	loggedAt      time.Time
}

// Target says where a task is shown.
type Target struct {
	Event            // whose events they are
	SharedDir string // the allocation's shared directory (NOMAD_ALLOC_DIR)
	Private   private.Dir
	Plots     *Plots
	Emit      func(Event) // called from a goroutine of its own
}

// New returns what publishes one task. A directory that cannot be written is logged and
// is an event; the task is not affected.
func New(t Target, log hclog.Logger) *Task {
	p := &Task{
		Events: Events{task: t.Event, emit: t.Emit}, name: t.TaskName,
		log: log, plots: t.Plots, private: t.Private, dirty: true,
	}
	var err error
	if p.writer, err = status.NewWriter(t.SharedDir, t.TaskName, status.Options{}); err != nil {
		p.failedWrite(err)
	}
	return p
}

// Changed says that the status is to be written, and with row that the history gets a row.
func (p *Task) Changed(row bool) { p.dirty, p.rowDue = true, p.rowDue || row }

// Happened marks the next row of the history, and with it the picture.
func (p *Task) Happened(what string) {
	if p.mark != "" {
		what = p.mark + ", " + what
	}
	p.mark = what
	p.Changed(true)
}

// Due says whether the status has changed and was not written for some time.
func (p *Task) Due(now time.Time, every time.Duration) bool {
	return p.dirty && now.Sub(p.written) >= every
}

// Write writes the status, a row of the history if there is a new one, and what a later
// process goes on with. A final status is the task's last.
func (p *Task) Write(st status.Status, row status.Row, state []byte, now time.Time, final bool) {
	p.written, p.dirty = now, false
	err := p.private.WriteSealed(private.StateName(p.name), state, false)
	data, encErr := st.Encode()
	err = errors.Join(err, encErr)
	if encErr == nil {
		err = errors.Join(err, p.private.WriteFile(private.StatusName(p.name), data, false))
	}
	if p.writer == nil { // the task is in the way, which is its own loss only
		p.failedWrite(err)
		return
	}
	if encErr == nil {
		err = errors.Join(err, p.writer.Encoded(st, data))
	}
	if p.rowDue || final {
		row.Event = p.mark
		p.rowDue, p.mark = false, ""
		err = errors.Join(err, p.writer.Append(row))
		switch {
		case final:
			p.plots.request(p.writer, last)
		case row.Event != "" || !p.drawn && st.Reports >= firstPicture:
			p.drawn = true
			p.plots.request(p.writer, soon)
		case p.drawn:
			p.plots.request(p.writer, whenDue)
		}
	}
	p.failedWrite(err)
}

// Marker writes a file beside the status that a task may wait for.
func (p *Task) Marker(name string, content any) {
	if p.writer != nil {
		p.failedWrite(p.writer.Marker(name, content))
	}
}

// failedWrite notes that files cannot be written, once, and that they can again.
func (p *Task) failedWrite(err error) {
	if (err != nil) == p.failed {
		return
	}
	p.failed = err != nil
	level := hclog.Debug // a task can make it flip as often as it likes
	if now := time.Now(); now.Sub(p.loggedAt) >= eventEvery && !errors.Is(err, fs.ErrNotExist) {
		level, p.loggedAt = hclog.Warn, now
	}
	if err == nil {
		p.log.Log(level, "the task's status can be written again")
		return
	}
	p.log.Log(level, "cannot write the task's status; the task is not affected", "error", err)
	if !errors.Is(err, fs.ErrNotExist) { // the allocation's directory is gone
		p.Enqueue("status", "its status files cannot be written; the task and its limits are not affected: "+err.Error())
	}
}
