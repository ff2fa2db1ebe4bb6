// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package doctor

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/shim/move"
)

// agentSelf is a shortened response with ignored fields.
const agentSelf = `{
  "config": {
    "PluginDir": "/nowhere/plugins", "DataDir": "/nowhere", "Consul": {"Token": "SECRET-consul"},
    "Client": {"Enabled": true, "MaxKillTimeout": "300s", "Options": {"driver.denylist": "docker"},
      "GCDiskUsageThreshold": 80, "GCInodeUsageThreshold": 70, "GCMaxAllocs": 50},
    "Telemetry": {"PublishAllocationMetrics": true},
    "Plugins": [{"Name": "ebbtide-driver", "Args": null, "Config": {"engine": "exec", "docker": [{"auth": [{"config": "SECRET-auth"}]}]}}],
    "Version": {"Version": "1.11.2", "VersionPrerelease": ""}
  },
  "member": {"Name": ""},
  "stats": {"client": {"node_id": "n1", "num_allocations": "3"}}
}`

const hostStats = `{"AllocDirStats": {"Size": 100, "Used": 90, "Available": 10, "InodesUsedPercent": 4.5}}`

// serve returns an agent's API with responses by path.
func serve(t *testing.T, answers map[string]string) string {
	for _, name := range []string{"NOMAD_ADDR", "NOMAD_TOKEN", "NOMAD_NAMESPACE", "NOMAD_REGION", "NOMAD_CACERT", "NOMAD_HTTP_AUTH"} {
		t.Setenv(name, "")
	}
	t.Setenv("NOMAD_TOKEN", "SECRET-token")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Nomad-Token") != "SECRET-token" {
			http.Error(w, "SECRET-answer", http.StatusForbidden)
			return
		}
		answer, ok := answers[r.URL.Path]
		if !ok {
			http.Error(w, "SECRET-answer", http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte(answer))
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func node(hostname string) string {
	return `{"ID": "n1", "Attributes": {"unique.hostname": "` + hostname + `", "driver.ebbtide.version": "0.1.0", "driver.ebbtide.engine": "exec"},
		"Drivers": {"ebbtide": {"Detected": true, "Healthy": true, "HealthDescription": "Healthy", "New": 1}}}`
}

func report(t *testing.T, o Options) (*Snapshot, string) {
	s, err := Gather(t.Context(), o)
	must.NoError(t, err)
	var out strings.Builder
	must.NoError(t, Write(&out, Examine(s)))
	must.StrNotContains(t, out.String(), "SECRET")
	return s, out.String()
}

func TestGather_api(t *testing.T) {
	addr := serve(t, map[string]string{"/v1/agent/self": agentSelf, "/v1/node/n1": node("elsewhere.example"), "/v1/client/stats": hostStats})
	s, out := report(t, Options{Address: strings.Replace(addr, "http://", "http://user:SECRET-password@", 1)})
	must.Nil(t, s.Host)
	must.Eq(t, "1.11.2", s.API.Version)
	must.Eq(t, "300s", s.API.Config.MaxKillTimeout)
	must.StrContains(t, s.HostSkipped, "elsewhere.example")
	must.StrContains(t, out, `"ebbtide" is healthy on the node: engine exec`)
	must.StrContains(t, out, addr+" responds")
	must.Eq(t, &move.Disk{Used: 90, Free: 10, Inodes: 4.5, Allocs: 3, Limits: move.DefaultGCLimits}, s.API.Disk)
	must.StrContains(t, out, "its disk is 90.0 % full (gc_disk_usage_threshold 80)")
}

func TestGather_cores(t *testing.T) {
	for resources, want := range map[string]bool{
		`null`: false, `{"Tasks": {"train": {"Cpu": {"CpuShares": 100}}}}`: false,
		`{"Tasks": {"train": {"Cpu": {"CpuShares": 100, "ReservedCores": [1]}}}}`: true,
	} {
		addr := serve(t, map[string]string{"/v1/agent/self": agentSelf, "/v1/node/n1": node("elsewhere.example"),
			"/v1/allocations": `[{"ID": "a1", "AllocatedResources": ` + resources + `}]`})
		s, _ := report(t, Options{Address: addr})
		must.Eq(t, want, s.API.Node.Cores, must.Sprint(resources))
	}
}

func TestGather_algorithm(t *testing.T) {
	const (
		two     = `[{"ID": "n1"}, {"ID": "n2"}]`
		binpack = `{"SchedulerConfig": {"SchedulerAlgorithm": "binpack"}}`
	)
	for name, tc := range map[string]struct {
		nodes, cluster, pool string // responses, "" for none
		others               bool
		want                 string
	}{
		"two nodes":       {two, binpack, `{"Name": "gpu"}`, true, "binpack"},
		"one node":        {`[{"ID": "n1"}]`, binpack, "", false, "binpack"},
		"the pool's own":  {two, binpack, `{"SchedulerConfiguration": {"SchedulerAlgorithm": "spread"}}`, true, "spread"},
		"pool has none":   {two, binpack, `{"SchedulerConfiguration": {"SchedulerAlgorithm": ""}}`, true, "binpack"},
		"pool unreadable": {two, binpack, "", true, "binpack"},
		"may not read":    {two, "", "", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			answers := map[string]string{"/v1/agent/self": agentSelf,
				"/v1/node/n1": strings.Replace(node("elsewhere.example"), `"ID": "n1"`, `"ID": "n1", "NodePool": "gpu"`, 1)}
			for path, answer := range map[string]string{
				"/v1/nodes": tc.nodes, "/v1/operator/scheduler/configuration": tc.cluster, "/v1/node/pool/gpu": tc.pool,
			} {
				if answer != "" {
					answers[path] = answer
				}
			}
			s, _ := report(t, Options{Address: serve(t, answers)})
			must.Eq(t, tc.others, s.API.Others)
			must.Eq(t, tc.want, s.API.Algorithm)
		})
	}
}

func TestGather_thisMachine(t *testing.T) {
	own, err := os.Hostname()
	must.NoError(t, err)
	t.Setenv("NOMAD_ADDR", "") // restored at the end
	addr := serve(t, map[string]string{"/v1/agent/self": agentSelf, "/v1/node/n1": node(own)})
	t.Setenv("NOMAD_ADDR", addr)
	s, out := report(t, Options{})
	must.NotNil(t, s.Host)
	must.Nil(t, s.Host.Docker) // engine exec
	must.StrContains(t, out, "/nowhere/plugins")
}

func TestGather_files(t *testing.T) {
	addr := serve(t, map[string]string{"/v1/agent/self": agentSelf})
	s, out := report(t, Options{Paths: []string{"testdata/good.hcl"}, Address: addr})
	must.NotNil(t, s.Host)
	must.StrContains(t, out, "node cannot be read: unexpected status 404 Not Found")
	must.StrContains(t, out, `plugin "docker", plugin "ebbtide-driver", plugin "raw_exec"`)
}

func TestGather_denied(t *testing.T) {
	addr := serve(t, nil)
	t.Setenv("NOMAD_TOKEN", "SECRET-other")
	_, out := report(t, Options{Address: addr})
	must.StrContains(t, out, "rejects the token")
}

func TestGather_unreachable(t *testing.T) {
	serve(t, nil)
	srv := httptest.NewServer(nil)
	srv.Close()
	s, out := report(t, Options{Address: srv.URL})
	must.True(t, s.API.Asked)
	must.True(t, Failed(Examine(s)))
	must.StrContains(t, out, "connection refused")
	_, err := Gather(t.Context(), Options{Paths: []string{"testdata/none.hcl"}})
	must.ErrorIs(t, err, os.ErrNotExist)
}

func TestLocal(t *testing.T) {
	for _, c := range []struct {
		files             bool
		address, hostname string
		want              bool
	}{
		{true, "http://10.0.0.1:4646", "x", true},
		{false, "http://127.0.0.1:4646", "", true},
		{false, "http://127.0.0.1:4646", "another", false}, // a tunnel
		{false, "http://localhost:4646", "", true},
		{false, "https://[::1]:4646", "", true},
		{false, "unix:///run/nomad.sock", "", true},
		{false, "http://nomad.example:4646", "", false},
	} {
		got, why := local(c.files, c.address, c.hostname)
		must.Eq(t, c.want, got, must.Sprint(c))
		must.Eq(t, got, why == "")
	}
}

func TestPlugins(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "a"), []byte("#!/bin/sh\n"), 0o755))
	must.NoError(t, os.WriteFile(filepath.Join(dir, "b"), nil, 0o644))
	must.NoError(t, os.Mkdir(filepath.Join(dir, "c"), 0o755))
	must.NoError(t, os.Symlink("a", filepath.Join(dir, "d")))
	must.NoError(t, os.Symlink("none", filepath.Join(dir, "e")))
	files, err := Plugins(dir)
	must.NoError(t, err)
	must.Eq(t, []File{{Name: "a", Executable: true}, {Name: "b"}, {Name: "d", Executable: true}}, files)
	_, err = Plugins(filepath.Join(dir, "none"))
	must.ErrorIs(t, err, os.ErrNotExist)
}

func TestAgents(t *testing.T) {
	proc := t.TempDir()
	for pid, line := range map[string]string{
		"30": "/usr/bin/nomad\x00agent\x00-config\x00/etc\x00", "4": "nomad\x00agent\x00",
		"5": "nomad\x00status\x00", "6": "agent\x00", "7": "", "self": "nomad\x00agent\x00",
	} {
		must.NoError(t, os.Mkdir(filepath.Join(proc, pid), 0o755))
		must.NoError(t, os.WriteFile(filepath.Join(proc, pid, "cmdline"), []byte(line), 0o644))
	}
	found := agents(proc)
	must.Len(t, 2, found)
	must.Eq(t, 4, found[0].PID)
	must.Eq(t, os.Geteuid(), found[0].UID)
	must.Eq(t, 30, found[1].PID)
}

func TestCgroupMounts(t *testing.T) {
	const text = `30 1 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs rw
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:4 - cgroup2 cgroup2 rw
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct ro,nosuid shared:5 - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
broken
`
	got := cgroupMounts(text, func(path string) string {
		must.Eq(t, "/sys/fs/cgroup/unified", path)
		return "cpuset cpu io\n"
	})
	must.Eq(t, []CgroupMount{
		{Version: 2, Path: "/sys/fs/cgroup/unified", Controllers: []string{"cpuset", "cpu", "io"}},
		{Version: 1, Path: "/sys/fs/cgroup/cpu,cpuacct", Controllers: []string{"rw", "cpu", "cpuacct"}, ReadOnly: true},
	}, got)
}

// dockerd returns a Docker daemon that returns the given info.
func dockerd(t *testing.T, info string) string {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.41")
		if strings.HasSuffix(r.URL.Path, "/info") {
			_, _ = w.Write([]byte(info))
		}
	}))
	t.Cleanup(srv.Close)
	return strings.Replace(srv.URL, "http://", "tcp://", 1)
}

func TestAskDocker(t *testing.T) {
	at := dockerd(t, `{"ServerVersion": "28.5.2", "CgroupDriver": "systemd", "CgroupVersion": "2", "LiveRestoreEnabled": true,
		"CPUShares": true, "CpuCfsQuota": true, "SecurityOptions": ["name=seccomp", "name=rootless"]}`)
	want := &Docker{Endpoint: at, Version: "28.5.2", CgroupDriver: "systemd", CgroupVersion: "2",
		LiveRestore: true, CPUShares: true, CPUQuota: true, Rootless: true}
	must.Eq(t, want, askDocker(t.Context(), Block{"endpoint": at}))

	t.Setenv("DOCKER_HOST", at)
	must.Eq(t, want, askDocker(t.Context(), nil))

	d := askDocker(t.Context(), Block{"endpoint": "unix:///nowhere/docker.sock"})
	must.ErrorContains(t, d.Err, "cannot connect")
	must.False(t, d.Denied)
	d = askDocker(t.Context(), Block{"endpoint": "::::"})
	must.Error(t, d.Err)
}
