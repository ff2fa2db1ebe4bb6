// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package status

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestEnded_level(t *testing.T) {
	for level, all := range map[bool][]Ended{
		true:  {{}, {Took: 10 * time.Millisecond}, {Took: time.Second, Fair: 1900 * time.Millisecond}, {Took: time.Hour, Fair: time.Hour - time.Minute}},
		false: {{Took: time.Second, Fair: 2 * time.Second}, {Took: time.Hour, Fair: time.Hour - 2*time.Minute}},
	} {
		for _, e := range all {
			must.Eq(t, level, e.Level(), must.Sprint(e))
		}
	}
}

func TestEnded(t *testing.T) {
	for _, e := range []Ended{
		{Took: 42 * time.Minute, Fair: 58 * time.Minute},
		{Took: 91 * time.Second, Fair: 80 * time.Second, Why: "it was taken for 10 CPU-seconds at first: wrongly"},
	} {
		got, ok := ParseEnded("ebbtide: " + e.String())
		must.True(t, ok)
		must.Eq(t, e, got)
	}
	must.Eq(t, "ended after 42m0s; with its fair share it would have taken 58m0s", Ended{Took: 42*time.Minute + time.Second, Fair: 58 * time.Minute}.String())
	for _, text := range []string{"", "ended after 1m", "ended after x; with its fair share it would have taken 1m", "ended after 1m; with its fair share it would have taken"} {
		_, ok := ParseEnded(text)
		must.False(t, ok, must.Sprint(text))
	}
}
