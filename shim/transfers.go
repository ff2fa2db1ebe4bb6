// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"maps"
	"time"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/limits"
)

// transfers are what this process is moving or releasing, and what keeps it from doing more.
type transfers struct {
	budget     *limits.Budget
	busy       map[cluster.JobKey]bool // jobs being moved, recovered or released
	inbound    map[string]int          // being moved to the node, by node
	rejected   map[cluster.JobKey]map[string]time.Time
	unreadable map[cluster.JobKey]bool // jobs with a record that cannot be read
}

func newTransfers(c config.Limits) transfers {
	return transfers{
		budget: limits.NewBudget(c), busy: make(map[cluster.JobKey]bool), inbound: make(map[string]int),
		rejected: make(map[cluster.JobKey]map[string]time.Time), unreadable: make(map[cluster.JobKey]bool),
	}
}

// clone returns a copy, which later changes leave as it is.
func (l transfers) clone() transfers {
	rejected := make(map[cluster.JobKey]map[string]time.Time, len(l.rejected))
	for job, nodes := range l.rejected {
		rejected[job] = maps.Clone(nodes)
	}
	return transfers{l.budget.Clone(), maps.Clone(l.busy), maps.Clone(l.inbound), rejected, maps.Clone(l.unreadable)}
}

func (l transfers) doneInbound(node string) {
	if l.inbound[node]--; l.inbound[node] <= 0 {
		delete(l.inbound, node)
	}
}

// The shim cannot check everything that Nomad's scheduler does (constraints, devices, ports,
// volumes, quotas), so it plans each move first. After a rejection the next best node is planned,
// up to maxAttempts nodes; rejections expire.
const (
	maxAttempts  = 5
	rejectionTTL = 10 * time.Minute
)

// reject records that Nomad would not place the job on the node.
func (l transfers) reject(job cluster.JobKey, node string) {
	if l.rejected[job] == nil {
		l.rejected[job] = make(map[string]time.Time)
	}
	l.rejected[job][node] = time.Now()
}

// isRejected reports whether Nomad rejected the job for this node, or for maxAttempts nodes.
func (l transfers) isRejected(job cluster.JobKey, node string) bool {
	nodes := l.rejected[job]
	return len(nodes) >= maxAttempts || !nodes[node].IsZero()
}

func (l transfers) expireRejections() {
	for job, nodes := range l.rejected {
		if maps.DeleteFunc(nodes, func(_ string, at time.Time) bool { return time.Since(at) > rejectionTTL }); len(nodes) == 0 {
			delete(l.rejected, job)
		}
	}
}

// schedule is the schedule of a policy that does not run on every pass.
type schedule struct {
	last    time.Time
	refused int // since the last regular run
}

func (k *schedule) due(every time.Duration) bool { return time.Since(k.last) >= every }

func (k *schedule) done() {
	if !k.last.IsZero() {
		k.refused = 0
	}
	k.last = time.Now()
}

// retryNow makes the policy due immediately, at most maxAttempts times in a row.
func (k *schedule) retryNow() {
	if k.refused++; k.refused < maxAttempts {
		k.last = time.Time{}
	}
}
