// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"encoding/json"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/private"
)

// snapshot is the node's last one, written for `ebbtide snapshot` to the private directory of the
// oldest task's allocation.
type snapshot struct {
	last   policy.Snapshot
	dirty  bool
	holder *task
}

func (s *snapshot) keep(last policy.Snapshot) { s.last, s.dirty = last, true }

func (c *Controller) saveSnapshot() {
	s := &c.snapshot
	if !s.dirty || len(c.tasks) == 0 {
		return
	}
	s.dirty = false
	if was := s.holder; was != c.tasks[0] {
		s.holder = c.tasks[0]
		if was != nil && was.AllocID != s.holder.AllocID {
			for _, name := range []string{private.SnapshotName, private.TwinsName} {
				if err := was.Private.Remove(name); err != nil {
					c.log.Debug("cannot remove an old snapshot file", "alloc_id", was.AllocID, "error", err)
				}
			}
		}
	}
	c.saveTwins(s.holder.Private)
	data, err := json.Marshal(s.last)
	if err == nil {
		err = s.holder.Private.WriteFile(private.SnapshotName, data, false)
	}
	if err != nil {
		c.log.Debug("cannot write the node's snapshot", "error", err)
	}
}
