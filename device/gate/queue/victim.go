// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package queue

import (
	"cmp"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/device/gate/ledger"
)

// Candidate is a container that could be evicted from a card.
type Candidate struct {
	Container ledger.ContainerID
	Priority  int
	// Idle is since when the gate has heard nothing of its processes.
	Idle time.Duration
	// Pinned is whether one of its processes cannot be evicted, or is not there.
	Pinned bool
	// Bytes is what eviction would free.
	Bytes uint64
}

// Victim returns which container is evicted from a card, so that there is room for a
// request: of those that hold memory, are not pinned and have no higher priority than
// the request, the one of the lowest priority, and of these the one idle longest. Its own
// container is never evicted for a request.
func Victim(r Request, candidates []Candidate) (Candidate, bool) {
	fit := slices.DeleteFunc(slices.Clone(candidates), func(c Candidate) bool {
		return c.Pinned || c.Bytes == 0 || c.Priority > r.Priority || c.Container == r.Container
	})
	if len(fit) == 0 {
		return Candidate{}, false
	}
	return slices.MinFunc(fit, func(a, b Candidate) int {
		return cmp.Or(
			cmp.Compare(a.Priority, b.Priority),
			cmp.Compare(b.Idle, a.Idle),
			cmp.Compare(b.Bytes, a.Bytes),
			cmp.Compare(a.Container, b.Container))
	}), true
}
