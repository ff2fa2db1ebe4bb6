// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package handoff

import (
	"path/filepath"
	"slices"
	"time"
)

// Turns says which tasks yield because others come first on their card. The ebbtide driver writes it
// into the directory of reports, the plugin follows it.
type Turns struct {
	Until time.Time `json:"until"` // after that all run: the driver may have ended
	Yield []string  `json:"yield"` // by Holder
}

// Holder names a task in Turns.
func Holder(alloc, task string) string { return filepath.Base(ReportPath("", alloc, task)) }

// Yields reports whether a task yields.
func (t Turns) Yields(now time.Time, alloc, task string) bool {
	return now.Before(t.Until) && slices.Contains(t.Yield, Holder(alloc, task))
}

func turnsPath(reports string) string { return filepath.Join(reports, "turns.json") }

// ReadTurns reads the turns in a directory of reports. The error wraps fs.ErrNotExist if there are none.
func ReadTurns(reports string) (Turns, error) { return read[Turns](turnsPath(reports), "the turns") }

// WriteTurns atomically replaces the turns in a directory of reports.
func WriteTurns(reports string, t Turns) error { return replace(turnsPath(reports), "the turns", t) }
