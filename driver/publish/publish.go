// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package publish publishes a task's state: status, history and picture in the allocation's shared
// directory, and task events. The task can write there, so these files are never read back. Tools
// and later processes of the plugin use the allocation's private directory (package private).
package publish

import (
	"errors"
	"io/fs"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/status"
)

const firstPicture = 5

// Task publishes one task. It must be used by one goroutine.
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
	mark          string // events since the last row
	failed        bool
	loggedAt      time.Time
}

// Target identifies a task and where to publish it.
type Target struct {
	Event            // with its IDs
	SharedDir string // the allocation's shared directory (NOMAD_ALLOC_DIR)
	Private   private.Dir
	Plots     *Plots
	Emit      func(Event) // called in another goroutine
}

// New returns a Task. An unwritable directory is logged and becomes an event; the task
// is not affected.
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

// Changed requests a write of the status and, with row, of a history row.
func (p *Task) Changed(row bool) { p.dirty, p.rowDue = true, p.rowDue || row }

// Happened adds a mark to the next row of the history, and to the picture.
func (p *Task) Happened(what string) {
	if p.mark != "" {
		what = p.mark + ", " + what
	}
	p.mark = what
	p.Changed(true)
}

// Due reports whether the status has changed and was last written at least every ago.
func (p *Task) Due(now time.Time, every time.Duration) bool {
	return p.dirty && now.Sub(p.written) >= every
}

// Write writes the status, a pending row of the history, and the state for a later
// process. A final status is the task's last.
func (p *Task) Write(st status.Status, row status.Row, state []byte, now time.Time, final bool) {
	p.written, p.dirty = now, false
	err := p.private.WriteSealed(private.StateName(p.name), state, false)
	data, encErr := st.Encode()
	err = errors.Join(err, encErr)
	if encErr == nil {
		err = errors.Join(err, p.private.WriteFile(private.StatusName(p.name), data, false))
	}
	if p.writer == nil { // the task has replaced the directory
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

// Marker writes a file next to the status, for which a task may wait.
func (p *Task) Marker(name string, content any) {
	if p.writer != nil {
		p.failedWrite(p.writer.Marker(name, content))
	}
}

// failedWrite reports that files cannot be written, and that they can again.
func (p *Task) failedWrite(err error) {
	if (err != nil) == p.failed {
		return
	}
	p.failed = err != nil
	level := hclog.Debug // a task can alternate it at will
	if now := time.Now(); now.Sub(p.loggedAt) >= eventEvery && !errors.Is(err, fs.ErrNotExist) {
		level, p.loggedAt = hclog.Warn, now
	}
	if err == nil {
		p.log.Log(level, "the task's status can be written again")
		return
	}
	p.log.Log(level, "cannot write the task's status; the task is not affected", "error", err)
	if !errors.Is(err, fs.ErrNotExist) { // the allocation's directory is gone
		p.Enqueue("status", "cannot write status files (the task and its limits are not affected): "+err.Error())
	}
}
