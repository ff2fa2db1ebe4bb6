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

// reach restricts a task's metrics endpoint to the ports and the network that Nomad reports to the
// driver, and to the namespace of the task's process. It ignores the environment, which the job can
// set. handle may be nil until the first connection.
func (s *setup) reach(cfg *drivers.TaskConfig, handle *drivers.TaskHandle) *prometheus.Reach {
	r := &prometheus.Reach{Ports: hostPorts(cfg.Resources)}
	switch iso := cfg.NetworkIsolation; {
	case s.Engine == engine.Docker:
		// The job can choose its container's network, which only restricts it.
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

func hostPorts(r *drivers.Resources) (all []prometheus.Port) {
	if r == nil {
		return nil
	}
	add := func(ip string, host, inside int) {
		addr, _ := netip.ParseAddr(ip) // zero if unknown
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
	// The process may have exited and its PID been reused before the open.
	now, err := e.Inspect(ctx, handle)
	if err == nil && (!now.Running || now.PID != before.PID) {
		err = engine.ErrGone
	}
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return ns, nil
}
