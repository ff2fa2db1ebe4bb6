// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"net/netip"
	"os"
	"testing"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/config"
	"github.com/ebbtide/ebbtide/driver/engine"
	"github.com/ebbtide/ebbtide/driver/progress/prometheus"
)

func TestReach(t *testing.T) {
	under := func(name string, finds ...found) *setup {
		return &setup{settings: &settings{Settings: &config.Settings{Engine: name}}, engine: &fakeEngine{finds: finds}}
	}
	cfg := taskConfig(t, map[string]any{"network_mode": "host"}, nil)
	must.Eq(t, &prometheus.Reach{}, under(engine.Exec).reach(cfg, nil))
	must.Eq(t, &prometheus.Reach{}, under(engine.Docker).reach(cfg, nil), must.Sprint("a container in the host's network"))

	cfg.Env["NOMAD_ADDR_http"], cfg.Env["NOMAD_PORT_http"] = "127.0.0.1:4646", "4646"
	cfg.Resources = &drivers.Resources{
		Ports: &structs.AllocatedPorts{
			{Label: "http", Value: 20000, To: 9100, HostIP: "10.1.2.3"},
			{Label: "same", Value: 20001, To: -1, HostIP: "10.1.2.3"},
		},
		NomadResources: &structs.AllocatedTaskResources{Networks: structs.Networks{{
			IP: "10.1.2.4", ReservedPorts: []structs.Port{{Value: 80}}, DynamicPorts: []structs.Port{{Value: 20002}},
		}}},
	}
	must.Eq(t, []prometheus.Port{
		{Host: netip.MustParseAddrPort("10.1.2.3:20000"), Inside: 9100},
		{Host: netip.MustParseAddrPort("10.1.2.3:20001"), Inside: 20001},
		{Host: netip.MustParseAddrPort("10.1.2.4:80"), Inside: 80},
		{Host: netip.MustParseAddrPort("10.1.2.4:20002"), Inside: 20002},
	}, under(engine.Exec).reach(cfg, nil).Ports)

	own, err := os.Stat("/proc/self/ns/net")
	must.NoError(t, err)
	opens := func(r *prometheus.Reach) {
		t.Helper()
		f, err := r.Namespace(t.Context())
		must.NoError(t, err)
		defer f.Close()
		it, err := f.Stat()
		must.NoError(t, err)
		must.True(t, os.SameFile(own, it))
	}
	cfg.NetworkIsolation = &drivers.NetworkIsolationSpec{Mode: drivers.NetIsolationModeGroup, Path: "/proc/self/ns/net"}
	opens(under(engine.Exec).reach(cfg, nil))

	cfg = taskConfig(t, nil, nil)
	runs := found{State: engine.State{Running: true, PID: os.Getpid()}}
	opens(under(engine.Docker, runs).reach(cfg, nil))
	for _, finds := range [][]found{
		{{}},
		{{err: engine.ErrGone}},
		{runs, {}},
		{runs, {State: engine.State{Running: true, PID: 1}}},
	} {
		_, err := under(engine.Docker, finds...).reach(cfg, nil).Namespace(t.Context())
		must.ErrorIs(t, err, engine.ErrGone)
	}
}

func TestEndpointIsRefusedBeforeStart(t *testing.T) {
	d, first, _, _ := waiting(t, found{err: engine.ErrGone})
	first.started = make(chan *drivers.TaskConfig, 1)
	for address, problem := range map[string]string{
		"127.0.0.1:4646":     "a port that Nomad has given this allocation; it has none, got \"127.0.0.1:4646\"",
		"[fe80::1%25eth0]:1": "with a zone",
		"agent.consul:8500":  "names are not looked up",
	} {
		cfg := taskConfig(t, map[string]any{"network_mode": "host", "progress": map[string]any{"prometheus": "http://" + address + "/metrics", "metric": "loss"}}, nil)
		cfg.ID = "another"
		_, _, err := d.StartTask(cfg)
		must.ErrorContains(t, err, "progress.prometheus: ")
		must.ErrorContains(t, err, problem)
	}
	must.Eq(t, 0, len(first.started))
	_, err := d.task("another")
	must.ErrorIs(t, err, drivers.ErrTaskNotFound)
}
