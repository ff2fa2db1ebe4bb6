// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"math"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/status"
)

const mib = 1 << 20

// resources are a task's uses of resources other than CPU, and its growth efficiency for each
// (FlowCon, eq. 2). R is a rate in MiB/s for disk and network, whose capacity is unknown, and a
// fraction of the node's for memory. NaN: unknown.
type resources struct {
	last limits.Resources // at the previous decision

	memory, memoryG   float64 // MiB
	block, blockG     float64 // MiB/s
	network, networkG float64 // MiB/s
}

func newResources() resources {
	n := math.NaN()
	return resources{limits.Resources{MemoryBytes: n, BlockBytes: n, NetworkBytes: n}, n, n, n, n, n, n}
}

// close ends a measurement interval of the given seconds. progress is P, nil if unknown; node is
// the node's memory in bytes.
func (r *resources) close(now limits.Resources, seconds, node float64, progress *float64) {
	rate := func(now, before float64) float64 {
		// A sum over processes falls when a process exits.
		return max(now-before, 0) / mib / seconds
	}
	r.memory = now.MemoryBytes / mib
	r.block = rate(now.BlockBytes, r.last.BlockBytes)
	r.network = rate(now.NetworkBytes, r.last.NetworkBytes)
	r.last = now
	r.memoryG = efficiency(progress, now.MemoryBytes/node)
	r.blockG = efficiency(progress, r.block)
	r.networkG = efficiency(progress, r.network)
}

func efficiency(progress *float64, use float64) float64 {
	if progress == nil || !(use > 0) || math.IsInf(use, 0) {
		return math.NaN()
	}
	if g := *progress / use; !math.IsInf(g, 0) {
		return g
	}
	return math.NaN()
}

func (r resources) status() status.Resources {
	return status.Resources{
		MemoryMiB: status.Number(r.memory), MemoryGrowth: status.Number(r.memoryG),
		BlockMiBs: status.Number(r.block), BlockGrowth: status.Number(r.blockG),
		NetworkMiBs: status.Number(r.network), NetworkGrowth: status.Number(r.networkG),
	}
}
