// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"encoding/json"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/private"
)

// snapshot keeps the last one of the node where `ebbtide snapshot` finds it: in the
// private directory of the allocation that came first.
type snapshot struct {
	last    policy.Snapshot
	dirty   bool
	carrier *task
}

// keep notes a snapshot.
func (s *snapshot) keep(last policy.Snapshot) { s.last, s.dirty = last, true }

// keepSnapshot writes the last snapshot, once a tick at most.
func (c *Controller) keepSnapshot() {
	s := &c.snapshot
	if !s.dirty || len(c.tasks) == 0 {
		return
	}
	s.dirty = false
	if was := s.carrier; was != c.tasks[0] {
		s.carrier = c.tasks[0]
		if was != nil && was.AllocID != s.carrier.AllocID {
			for _, name := range []string{private.SnapshotName, private.TwinsName} {
				if err := was.Private.Remove(name); err != nil {
					c.log.Debug("an old file of the node stays behind", "alloc_id", was.AllocID, "error", err)
				}
			}
		}
	}
	c.keepTwins(s.carrier.Private)
	data, err := json.Marshal(s.last)
	if err == nil {
		err = s.carrier.Private.WriteFile(private.SnapshotName, data, false)
	}
	if err != nil {
		c.log.Debug("cannot write the node's snapshot", "error", err)
	}
}
