// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package seat

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// State is what a container does with its card.
type State string

// States of a container.
const (
	Running State = "running"
	Waiting State = "waiting" // a request of it for memory is not answered yet
	Paused  State = "paused"  // it may submit no work; its memory stays
	Parked  State = "parked"  // its memory is in the host's, or on the way there or back
	Lost    State = "lost"    // its memory did not come back; its processes are ended
)

// Report is how a container fares on its cards. The plugin writes it, and the ebbtide driver
// shows it to people.
type Report struct {
	State State     `json:"state"`
	Since time.Time `json:"since"` // in this state since
	Why   string    `json:"why"`   // a sentence for people; "" while it runs
	Cards []Card    `json:"cards"`
	// Unparked says why it cannot be parked, or could not when that was tried last; "" if it could.
	Unparked string `json:"not_parked"`

	Denied  uint64  `json:"denied"` // requests for memory
	WaitedS float64 `json:"waited_s"`
	Pauses  int     `json:"pauses"`
	PausedS float64 `json:"paused_s"`
	Parks   int     `json:"parks"`
	ParkedS float64 `json:"parked_s"`
}

// Card is what a container has to do with a card, in MiB.
type Card struct {
	UUID       string `json:"uuid"`
	Model      string `json:"model"`
	MemoryMiB  uint64 `json:"memory_mib"`
	ShareMiB   uint64 `json:"share_mib"`
	HeldMiB    uint64 `json:"held_mib"`
	UsedMiB    uint64 `json:"used_mib"` // by NVML
	ParkedMiB  uint64 `json:"parked_mib"`
	WaitingMiB uint64 `json:"waiting_mib"`
}

// ParkedMiB is what is parked of all cards.
func (r Report) ParkedMiB() uint64 {
	var n uint64
	for _, c := range r.Cards {
		n += c.ParkedMiB
	}
	return n
}

// ReportPath is where the report on a task lies in the directory of reports.
func ReportPath(dir, alloc, task string) string {
	return filepath.Join(dir, filepath.Base(alloc)+"."+filepath.Base(task)+".json")
}

// maxReport bounds what is read of a report, in bytes.
const maxReport = 1 << 20

// ReadReport reads a report. The error wraps fs.ErrNotExist if there is none.
func ReadReport(path string) (Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return Report{}, fmt.Errorf("reading how a container fares on its card: %w", err)
	}
	defer f.Close()
	var r Report
	if err := json.NewDecoder(io.LimitReader(f, maxReport)).Decode(&r); err != nil {
		return Report{}, fmt.Errorf("reading how a container fares on its card from %s: %w", path, err)
	}
	return r, nil
}

// WriteReport replaces a report, whole or not at all.
func WriteReport(path string, r Report) error {
	return replace(path, "how a container fares on its card", r)
}
