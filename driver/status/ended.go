// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package status

import (
	"fmt"
	"strings"
	"time"
)

// Ended is what people are told when a task has ended, beside its twin.
type Ended struct {
	Took time.Duration
	Fair time.Duration // what its twin would have taken
	Why  string        // it took longer; "" if it did not
}

const (
	endedAfter = "ended after "
	endedFair  = "; with its fair share it would have taken "
)

// String returns the text of the event.
func (e Ended) String() string {
	text := fmt.Sprint(endedAfter, roundTime(e.Took), endedFair, roundTime(e.Fair))
	if e.Why != "" {
		text += ": " + e.Why
	}
	return text
}

// ParseEnded reads the text of an event of that kind, which other words may precede; false if it is
// of another.
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

// roundTime leaves a time as people say it.
func roundTime(d time.Duration) time.Duration {
	if d > 10*time.Minute {
		return d.Round(time.Minute)
	}
	return d.Round(time.Second)
}
