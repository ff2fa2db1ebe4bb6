// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestJob_queuePriority(t *testing.T) {
	for value, want := range map[string]Job{
		"":    {},
		"-7":  {Priority: -7},
		"101": {PriorityError: `ebbtide_queue_priority: must be a whole number from -100 to 100, got "101"`},
	} {
		j := WireJob{Namespace: "ml", Meta: map[string]string{"ebbtide_queue": "true", "ebbtide_queue_priority": value}}.job()
		must.Eq(t, want, Job{Priority: j.Priority, PriorityError: j.PriorityError})
	}
}
