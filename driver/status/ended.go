// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package status

import (
	"fmt"
	"strings"
	"time"
)

// Ended is the result of an ended task, compared with its twin.
type Ended struct {
	Took time.Duration
	Fair time.Duration // the twin's duration
	Why  string        // why it took longer; "" if it did not
}

// Level reports whether the difference is below 2 % and not worth reporting, as below a second.
func (e Ended) Level() bool { return (e.Fair - e.Took).Abs() < max(e.Took/50, time.Second) }

const (
	endedAfter = "ended after "
	endedFair  = "; with its fair share it would have taken "
)

// String returns the event's text.
func (e Ended) String() string {
	text := fmt.Sprint(endedAfter, roundTime(e.Took), endedFair, roundTime(e.Fair))
	if e.Why != "" {
		text += ": " + e.Why
	}
	return text
}

// ParseEnded parses such an event's text, which may have a prefix; ok is false for other events.
func ParseEnded(text string) (e Ended, ok bool) {
	_, text, found := strings.Cut(text, endedAfter)
	took, rest, parts := strings.Cut(text, endedFair)
	if !found || !parts {
		return Ended{}, false
	}
	fair, why, _ := strings.Cut(rest, ": ")
	var errTook, errFair error
	e.Took, errTook = time.ParseDuration(took)
	e.Fair, errFair = time.ParseDuration(fair)
	e.Why = why
	return e, errTook == nil && errFair == nil
}

// roundTime rounds a duration for display.
func roundTime(d time.Duration) time.Duration {
	if d > 10*time.Minute {
		return d.Round(time.Minute)
	}
	return d.Round(time.Second)
}
