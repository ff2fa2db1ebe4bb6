// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"context"
	"encoding/json"
)

// Source is the origin of a task's reports: its output, a file, TensorBoard event files
// or a metrics endpoint. It is used by one goroutine.
//
// A source that does not exist (yet) is no error. Errors are for the operator; the
// source recovers if it can.
type Source interface {
	// Poll returns new reports. It reads a bounded amount and never blocks.
	Poll(ctx context.Context) ([]Report, error)
	// Goal is the direction in which the metric improves: GoalMin, GoalMax, or "" while
	// no metric is known.
	Goal() string
	// Note describes what is missing or assumed, or is "".
	Note() string
	// Stats counts what was read.
	Stats() Stats
	// Offset is the position, for a later process.
	Offset() json.RawMessage
	// SetOffset continues at an earlier process's position; invalid data is ignored.
	SetOffset(json.RawMessage)
	Close() error
}
