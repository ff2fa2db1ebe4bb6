// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package handoff

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// State is the state of a container on its card.
type State string

const (
	Running State = "running"
	Waiting State = "waiting" // a request for memory is unanswered
	Paused  State = "paused"  // it may submit no work; its memory stays on the card
	Parked  State = "parked"  // its memory is parked, or being parked or restored
	Lost    State = "lost"    // its memory could not be restored; its processes are killed
)

// Report is a container's state on its cards, which the plugin writes and the ebbtide driver
// publishes.
type Report struct {
	State State     `json:"state"`
	Since time.Time `json:"since"` // start of this state
	Why   string    `json:"why"`   // human-readable; "" while running
	Cards []Card    `json:"cards"`
	// Unparked is why it cannot be parked, or why the last attempt failed.
	Unparked string `json:"not_parked"`

	Denied  uint64  `json:"denied"` // requests for memory
	WaitedS float64 `json:"waited_s"`
	Pauses  int     `json:"pauses"`
	PausedS float64 `json:"paused_s"`
	Parks   int     `json:"parks"`
	ParkedS float64 `json:"parked_s"`
}

// Card is a container's use of a card, in MiB.
type Card struct {
	UUID       string `json:"uuid"`
	Model      string `json:"model"`
	MemoryMiB  uint64 `json:"memory_mib"`
	ShareMiB   uint64 `json:"share_mib"`
	HeldMiB    uint64 `json:"held_mib"`
	UsedMiB    uint64 `json:"used_mib"` // according to NVML
	ParkedMiB  uint64 `json:"parked_mib"`
	WaitingMiB uint64 `json:"waiting_mib"`
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

const maxReport = 1 << 20

// ReadReport reads a report. The error wraps fs.ErrNotExist if there is none.
func ReadReport(path string) (Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return Report{}, fmt.Errorf("reading a container's report: %w", err)
	}
	defer f.Close()
	var r Report
	if err := json.NewDecoder(io.LimitReader(f, maxReport)).Decode(&r); err != nil {
		return Report{}, fmt.Errorf("reading a container's report from %s: %w", path, err)
	}
	return r, nil
}

// WriteReport atomically replaces a report.
func WriteReport(path string, r Report) error {
	return replace(path, "a container's report", r)
}
