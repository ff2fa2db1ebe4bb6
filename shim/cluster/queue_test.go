// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// Jobs of other drivers are in the queue, too: nothing else has checked their meta.
func TestJob_queueMeta(t *testing.T) {
	for _, tc := range []struct {
		owner, duration, priority string
		want                      Job
	}{
		{"", "", "", Job{Owner: "ml"}},
		{"vision", "2h", "-7", Job{Owner: "vision", Duration: 2 * time.Hour, Priority: -7}},
		{"\x1b[2J", "long", "101", Job{Owner: "ml", QueueError: `ebbtide_owner: must be a name of at most 64 bytes, got "\x1b[2J"; ` +
			`ebbtide_duration: must be a duration from 1s to 8760h0m0s, such as 2h30m, got "long"; ebbtide_queue_priority: must be a whole number from -100 to 100, got "101"`}},
	} {
		j := WireJob{Namespace: "ml", Meta: map[string]string{
			"ebbtide_queue": "true", "ebbtide_owner": tc.owner, "ebbtide_duration": tc.duration, "ebbtide_queue_priority": tc.priority,
		}}.job()
		must.Eq(t, tc.want, Job{Owner: j.Owner, Duration: j.Duration, Priority: j.Priority, QueueError: j.QueueError})
	}
}
