// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/ebbtide/ebbtide/driver/engine"
	"github.com/ebbtide/ebbtide/driver/progress/prometheus"
)

// reach says where a task's metrics endpoint may be. It goes by the ports and the network
// that Nomad tells the driver and by where the task's process is, not by the environment,
// which the job can set. handle may be nil while nothing is connected to.
func (s *setup) reach(cfg *drivers.TaskConfig, handle *drivers.TaskHandle) *prometheus.Reach {
	r := &prometheus.Reach{Ports: hostPorts(cfg.Resources)}
	switch iso := cfg.NetworkIsolation; {
	case s.Engine == engine.Docker:
		// The job chooses its container's network; what it says can only restrict it.
		var config struct {
			NetworkMode string `codec:"network_mode"`
		}
		if err := cfg.DecodeDriverConfig(&config); err != nil || config.NetworkMode != "host" {
			r.Namespace = func(ctx context.Context) (*os.File, error) { return openNamespace(ctx, s.engine, handle) }
		}
	case iso != nil && iso.Path != "":
		r.Namespace = func(context.Context) (*os.File, error) { return os.Open(iso.Path) }
	}
	return r
}

// hostPorts are the ports of the host that Nomad has given an allocation, or a task.
func hostPorts(r *drivers.Resources) (all []prometheus.Port) {
	if r == nil {
		return nil
	}
	add := func(ip string, host, inside int) {
		addr, _ := netip.ParseAddr(ip) // the zero one is an address that is not known
		all = append(all, prometheus.Port{Host: netip.AddrPortFrom(addr, uint16(host)), Inside: uint16(inside)})
	}
	if r.Ports != nil {
		for _, p := range *r.Ports {
			inside := p.Value
			if p.To > 0 {
				inside = p.To
			}
			add(p.HostIP, p.Value, inside)
		}
	}
	if r.NomadResources != nil { // the older form, resources { network {} }
		for _, n := range r.NomadResources.Networks {
			for _, p := range slices.Concat(n.ReservedPorts, n.DynamicPorts) {
				add(n.IP, p.Value, p.Value)
			}
		}
	}
	return all
}

// openNamespace opens the network namespace of a running task's process.
func openNamespace(ctx context.Context, e engine.Engine, handle *drivers.TaskHandle) (*os.File, error) {
	before, err := e.Inspect(ctx, handle)
	if err != nil {
		return nil, err
	}
	if !before.Running || before.PID == 0 {
		return nil, engine.ErrGone
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", before.PID))
	if err != nil {
		return nil, err
	}
	// The process may have ended, and its number be another's, before it was opened.
	now, err := e.Inspect(ctx, handle)
	if err == nil && (!now.Running || now.PID != before.PID) {
		err = engine.ErrGone
	}
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return ns, nil
}
