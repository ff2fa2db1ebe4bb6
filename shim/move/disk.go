// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/hashicorp/nomad/api"
)

// A client over a limit of its garbage collection deletes an allocation's directory as soon as the
// allocation has ended, before the target has copied it. The target starts with an empty disk, and a
// rollback finds nothing. So does a later failure on a target that is over a limit.

// Disk is what a client's garbage collection depends on.
type Disk struct {
	Used, Free uint64  // bytes of the file system with the allocations
	Inodes     float64 // used, in percent
	Allocs     int     // allocations with a directory; 0 if unknown
	Limits     GCLimits
	// Assumed is why the client's limits are unknown. Limits are Nomad's defaults then.
	Assumed error
}

// GCLimits are options of Nomad's client: gc_disk_usage_threshold, gc_inode_usage_threshold (both in
// percent) and gc_max_allocs.
type GCLimits struct {
	Disk, Inodes float64
	Allocs       int
}

// DefaultGCLimits are Nomad's.
var DefaultGCLimits = GCLimits{Disk: 80, Inodes: 70, Allocs: 50}

// Collects returns why the client would collect an allocation that ended now, or once it has stored
// so many more bytes; "" if it would not.
func (d Disk) Collects(more uint64) string {
	percent := 100 * (float64(d.Used) + float64(more)) / (float64(d.Used) + float64(d.Free))
	switch l := d.Limits; {
	case !(percent <= l.Disk):
		with := ""
		if more > 0 {
			with = fmt.Sprintf(" with %d MiB more", more>>20)
		}
		return fmt.Sprintf("its disk is %.1f %% full%s (gc_disk_usage_threshold %g)", percent, with, l.Disk)
	case !(d.Inodes <= l.Inodes):
		return fmt.Sprintf("%.1f %% of its inodes are used (gc_inode_usage_threshold %g)", d.Inodes, l.Inodes)
	}
	return ""
}

// Crowded returns why the client would collect ended allocations when it gets another one; "" if it
// would not. It then collects all of them: it counts those that it is deleting.
func (d Disk) Crowded() string {
	if d.Allocs < d.Limits.Allocs {
		return ""
	}
	return fmt.Sprintf("it has %d allocations (gc_max_allocs %d)", d.Allocs, d.Limits.Allocs)
}

// keeps refuses the move if the source would collect what the target is to copy, or the target what
// it has copied. It fails if either agent cannot be reached: for a dead target Nomad would stop the
// old allocation and lose what it has saved; from a dead source it cannot migrate the disk.
func (m *mover) keeps(ctx context.Context) error {
	group := m.job.LookupTaskGroup(m.alloc.TaskGroup)
	var more uint64 // the copy; on the source, what others may store meanwhile
	if d := group.EphemeralDisk; d != nil && d.SizeMB != nil {
		more = uint64(max(*d.SizeMB, 0)) << 20
	}
	saved := uint64(0)
	for _, t := range m.result.Tasks {
		saved += uint64(max(t.Bytes, 0))
	}
	more = max(more, saved)
	var refused Refused
	for _, node := range []*api.Node{m.from, m.to} {
		d, err := m.nomad.Disk(ctx, node)
		if err != nil {
			return err
		}
		if shared(group) {
			continue // on another disk
		}
		why := d.Collects(more)
		if why == "" && node == m.from {
			why = d.Crowded()
		}
		if why != "" {
			refused.Target = node == m.to && len(refused.Reasons) == 0
			refused.Reasons = append(refused.Reasons, fmt.Sprintf("node %s would delete the checkpoint with the ended allocation: %s; free space there, or save to a volume that is the same on every node (checkpoint { shared = true })", node.Name, why))
		} else if d.Assumed != nil && m.result.Phase == PhaseCheck { // once
			m.opts.Report(m.result.Phase, fmt.Sprintf("node %s: Nomad's default limits of garbage collection are assumed: %v", node.Name, d.Assumed))
		}
	}
	if len(refused.Reasons) > 0 {
		return &refused
	}
	return nil
}

// Disk implements Nomad. The servers know the disk's use, but only a client's own agent its limits.
func (a API) Disk(ctx context.Context, node *api.Node) (Disk, error) {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout) // for both requests
	defer cancel()
	stats, err := a.stats(ctx, node.ID)
	if err != nil {
		return Disk{}, err
	}
	s := stats.AllocDirStats
	if s == nil || s.Size == 0 {
		return Disk{}, fmt.Errorf("node %s does not report the use of its disk", short(node.ID))
	}
	d := Disk{Used: s.Used, Free: s.Available, Inodes: s.InodesUsedPercent}
	if d.Limits, d.Allocs, d.Assumed = a.limits(ctx, node); d.Assumed != nil {
		d.Limits, d.Allocs = DefaultGCLimits, 0
	}
	return d, nil
}

// limits asks a node's agent, which answers for itself only, and needs agent:read.
func (a API) limits(ctx context.Context, node *api.Node) (l GCLimits, allocs int, err error) {
	if a.Agent == nil {
		return l, 0, errors.New("its agent is not asked")
	}
	client, err := a.Agent(node)
	if err != nil {
		return l, 0, err
	}
	defer client.Close()
	var self struct {
		Config struct {
			Client struct {
				GCDiskUsageThreshold, GCInodeUsageThreshold float64
				GCMaxAllocs                                 int
			}
		}
		Stats struct {
			Client struct {
				Node   string `json:"node_id"`
				Allocs string `json:"num_allocations"`
			}
		}
	}
	if _, err := client.Raw().Query("/v1/agent/self", &self, query(ctx, "")); err != nil {
		return l, 0, fmt.Errorf("reading the configuration of its agent, which needs agent:read: %w", err)
	}
	c := self.Config.Client
	l = GCLimits{c.GCDiskUsageThreshold, c.GCInodeUsageThreshold, c.GCMaxAllocs}
	allocs, err = strconv.Atoi(self.Stats.Client.Allocs)
	switch {
	case self.Stats.Client.Node != node.ID:
		return l, 0, fmt.Errorf("node %q answers at its address", self.Stats.Client.Node)
	case err != nil || l.Disk <= 0 || l.Inodes <= 0 || l.Allocs <= 0:
		return l, 0, fmt.Errorf("its agent reports the limits %+v, with %q allocations", l, self.Stats.Client.Allocs)
	}
	return l, allocs, nil
}
