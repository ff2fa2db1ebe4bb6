// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package handoff

import (
	"path/filepath"
	"time"
)

// State is the state of a container on its card.
type State string

const (
	Running  State = "running"
	Waiting  State = "waiting"  // a request for memory is unanswered
	Yielding State = "yielding" // it may submit no work, because others come first on its card (Turns)
	Parked   State = "parked"   // its memory is parked, or being parked or restored
	Lost     State = "lost"     // its memory could not be restored; its processes are killed
)

// Report is a container's state on its cards, which the plugin writes and the ebbtide driver
// publishes.
type Report struct {
	State    State     `json:"state"` // `running`, `waiting` (for memory), `yielding` (others come first on its card), `parked`, `lost`
	Since    time.Time `json:"since"` // start of this state
	Why      string    `json:"why"`   // why it does not run; empty while running
	Cards    []Card    `json:"cards"`
	Unparked string    `json:"not_parked"` // why its memory cannot be parked or the last attempt failed; empty after a success
	NoYield  string    `json:"no_yield"`   // why it never yields; empty: it may
	BusyS    *float64  `json:"busy_s"`     // seconds in which a kernel of it ran, from 0 after parking; null: unknown

	Denied  uint64  `json:"denied"`   // denied requests
	WaitedS float64 `json:"waited_s"` // total wait of granted requests
	Pauses  int     `json:"pauses"`   // pauses, including those for parking
	PausedS float64 `json:"paused_s"` // duration of completed pauses
	Parks   int     `json:"parks"`    // times parked
	ParkedS float64 `json:"parked_s"` // duration of completed parkings
}

// Card is a container's use of a card, in MiB.
type Card struct {
	UUID       string `json:"uuid"`        // of the card
	Model      string `json:"model"`       // of the card
	MemoryMiB  uint64 `json:"memory_mib"`  // of the card
	ShareMiB   uint64 `json:"share_mib"`   // the task's share
	HeldMiB    uint64 `json:"held_mib"`    // memory granted to the task
	UsedMiB    uint64 `json:"used_mib"`    // memory used according to NVML; far above `held_mib`: allocations bypass the gate
	ParkedMiB  uint64 `json:"parked_mib"`  // part of `held_mib` in host memory
	WaitingMiB uint64 `json:"waiting_mib"` // requested memory, not granted yet
}

// ParkedMiB is the total parked memory of all cards.
func (r Report) ParkedMiB() uint64 {
	var n uint64
	for _, c := range r.Cards {
		n += c.ParkedMiB
	}
	return n
}

// ReportPath returns the path of a task's report in the directory of reports.
func ReportPath(dir, alloc, task string) string {
	return filepath.Join(dir, filepath.Base(alloc)+"."+filepath.Base(task)+".json")
}

// ReadReport reads a report. The error wraps fs.ErrNotExist if there is none.
func ReadReport(path string) (Report, error) { return read[Report](path, "a container's report") }

// WriteReport atomically replaces a report.
func WriteReport(path string, r Report) error {
	return replace(path, "a container's report", r)
}
