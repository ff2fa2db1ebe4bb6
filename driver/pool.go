// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"runtime"
	"strings"

	"github.com/hashicorp/nomad/client/lib/idset"
	"github.com/hashicorp/nomad/client/lib/numalib/hw"
	"github.com/hashicorp/nomad/plugins/base"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/plan"
	"github.com/ebbtide/ebbtide/driver/policy"
)

// poolCores returns the size of the node's elastic pool in cores: the operator's, or the cores
// Nomad may use. Nomad's topology already excludes its reserved cores; package control subtracts
// tasks with `cores`.
func (d *Driver) poolCores(configured float64, agent *base.AgentConfig) (policy.Cores, error) {
	in := plan.PoolInput{Configured: configured, NodeCores: runtime.NumCPU()}
	if agent != nil && agent.Driver != nil && agent.Driver.Topology != nil {
		topology := agent.Driver.Topology
		in.NodeCores = max(topology.NumCores(), 1)
		in.UsableCores = topology.UsableCores().Size()
		// reserved.cpu is in MHz; convert it by the speed of one core.
		if n := topology.NumCores(); n > 0 {
			in.CoreMHz = float64(topology.TotalCompute()) / float64(n)
			in.ReservedMHz = float64(topology.OverrideWitholdCompute)
		}
	}
	var err error
	if in.ContainerCores, err = limits.OwnQuota(); err != nil {
		d.logger.Warn("cannot read the plugin's own CPU quota; sizing the pool without it", "error", err)
	}
	return plan.Pool(in)
}

func cpusetSize(list string) float64 {
	return float64(idset.Parse[hw.CoreID](list).Size())
}

func trimDriver(key string) string { return strings.TrimPrefix(key, "driver.") }

// nodeMemory returns the node's memory in bytes, 0 if unknown.
func nodeMemory() float64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return float64(info.Totalram) * float64(info.Unit)
}
