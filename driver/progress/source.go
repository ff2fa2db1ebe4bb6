// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"context"
	"encoding/json"
)

// Source is where a task's reports come from: its output, a file, TensorBoard's
// event files or a metrics endpoint. It is used by one goroutine.
//
// A source that is not there yet, or no more, is no error: the task may be slow to
// start. An error is worth telling the operator; the source goes on when it can.
type Source interface {
	// Poll returns what is new. It reads a bounded amount and never waits.
	Poll(ctx context.Context) ([]Report, error)
	// Goal says which way the metric improves: GoalMin, GoalMax, or "" while no
	// metric is known.
	Goal() string
	// Note is a sentence for people about what is awaited or assumed, or "".
	Note() string
	// Stats counts what was read.
	Stats() Stats
	// Offset is where the source is, for a later process.
	Offset() json.RawMessage
	// SetOffset goes on where an earlier process was. What it cannot make sense
	// of, it ignores.
	SetOffset(json.RawMessage)
	Close() error
}
