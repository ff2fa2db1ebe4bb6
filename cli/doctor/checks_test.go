// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package doctor

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl"
	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/shim/move"
)

func healthy(t *testing.T) *Snapshot {
	cfg, err := Load([]string{"testdata/good.hcl"})
	must.NoError(t, err)
	inForce, err := Load([]string{"testdata/good.hcl"})
	must.NoError(t, err)
	return &Snapshot{
		Paths: []string{"/etc/nomad.d"},
		Files: cfg,
		API: API{
			Address: "http://127.0.0.1:4646", Config: inForce, Version: "1.11.2",
			Disk:      &move.Disk{Used: 1, Free: 1, Inodes: 1, Allocs: 1, Limits: move.DefaultGCLimits},
			Algorithm: "spread", Others: true,
			Node: &Node{
				Attributes: map[string]string{
					"driver.ebbtide": "1", "driver.ebbtide.version": "0.1.0", "driver.ebbtide.engine": "docker",
					"driver.ebbtide.policy": "flowcon", "driver.ebbtide.mode": "weight", "driver.ebbtide.estimator": "robust",
					"driver.ebbtide.pool_cores": "7.500000",
				},
				Drivers: map[string]DriverInfo{
					"ebbtide": {Detected: true, Healthy: true, Description: "Healthy"},
					"docker":  {Detected: true, Healthy: true, Description: "Healthy"},
				},
			},
		},
		Host: &Host{
			Root:    true,
			Plugins: []File{{Name: "ebbtide-driver", Executable: true, Ours: true, Nomad: "1.11.3"}, {Name: "README"}},
			Agents:  []Process{{PID: 7, UID: 0}},
			Cgroups: []CgroupMount{{Version: 2, Path: "/sys/fs/cgroup", Controllers: []string{"cpuset", "cpu"}}},
			Docker: &Docker{
				Endpoint: "unix:///var/run/docker.sock", Version: "28.5.2", CgroupDriver: "systemd", CgroupVersion: "2",
				LiveRestore: true, CPUShares: true, CPUQuota: true,
			},
		},
	}
}

// asDocker installs the plugin as "docker".
func asDocker(s *Snapshot) {
	delete(s.Files.Plugins, "ebbtide-driver")
	s.Files.Plugins["docker"] = Block{"endpoint": "unix:///x", "ebbtide": []map[string]any{{"mode": "quota"}}}
	s.API.Config = s.Files
	s.Host.Plugins = []File{{Name: "docker", Executable: true, Ours: true}}
	attrs := make(map[string]string)
	for k, v := range s.API.Node.Attributes {
		attrs[strings.Replace(k, "driver.ebbtide.", "driver.docker.ebbtide.", 1)] = v
	}
	s.API.Node.Attributes = attrs
	delete(s.API.Node.Drivers, "ebbtide")
}

func own(s *Snapshot) Block { return s.Files.Plugins["ebbtide-driver"] }

// stock sets the stock docker driver's config.
func stock(t *testing.T, s *Snapshot, text string) {
	var b map[string]any
	must.NoError(t, hcl.Decode(&b, text))
	s.Files.Plugins["docker"] = b
}

func TestExamine(t *testing.T) {
	cases := map[string]struct {
		change func(*testing.T, *Snapshot)
		check  string // check to inspect; "" if all are ok
		want   Status
		seen   string // substring
		do     string // substring
		add    string // substring
	}{
		"healthy":   {change: func(*testing.T, *Snapshot) {}},
		"as docker": {change: func(_ *testing.T, s *Snapshot) { asDocker(s) }},

		"disk full": {func(_ *testing.T, s *Snapshot) { s.API.Disk.Used = 9 },
			"garbage collection", Warn, "its disk is 90.0 % full (gc_disk_usage_threshold 80)", "free space", ""},
		"many allocations": {func(_ *testing.T, s *Snapshot) { s.API.Disk.Allocs = 50 },
			"garbage collection", Warn, "it has 50 allocations (gc_max_allocs 50)", "raise the limit", ""},
		"low limits": {func(_ *testing.T, s *Snapshot) { s.API.Disk.Limits.Disk = 60 },
			"garbage collection", Warn, "gc_disk_usage_threshold 60", "let the shim read them", ""},
		"disk unknown": {func(_ *testing.T, s *Snapshot) { s.API.Disk = nil }, "garbage collection", Skip, "unknown", "", ""},

		"configuration unreadable": {func(_ *testing.T, s *Snapshot) { s.Files, s.FilesErr = nil, errors.New("a.hcl: line 3") },
			"configuration", Fail, "line 3", "fix the file", ""},
		"configuration of a server": {func(_ *testing.T, s *Snapshot) { s.Files.ClientEnabled = false },
			"configuration", Warn, "not a client", "", "enabled = true"},
		"configuration of the agent": {func(_ *testing.T, s *Snapshot) { s.Files, s.Paths = nil, nil },
			"configuration", OK, "from the running agent", "", ""},
		"configuration unknown": {func(_ *testing.T, s *Snapshot) {
			s.Files, s.API = nil, API{Address: "a", Asked: true, Err: errors.New("x")}
		},
			"configuration", Skip, "-config", "", ""},

		"api denied": {func(_ *testing.T, s *Snapshot) { s.API = API{Address: "a", Err: errors.New("x"), Denied: true} },
			"api", Warn, "rejects the token", "NOMAD_TOKEN", `policy = "read"`},
		"api asked and down": {func(_ *testing.T, s *Snapshot) { s.API = API{Address: "a", Asked: true, Err: errors.New("refused")} },
			"api", Fail, "a: refused", "NOMAD_ADDR", ""},
		"api guessed and down": {func(_ *testing.T, s *Snapshot) { s.API = API{Address: "a", Err: errors.New("refused")} },
			"api", Skip, "refused", "", ""},
		"api without the node": {func(_ *testing.T, s *Snapshot) { s.API.Node, s.API.NodeErr = nil, errors.New("404") },
			"api", Warn, "404", "wait", ""},
		"api that hides the node": {func(_ *testing.T, s *Snapshot) {
			s.API.Node, s.API.NodeErr, s.API.NodeDenied = nil, errors.New("403"), true
		}, "api", Warn, "cannot read the node", "NOMAD_TOKEN", "node {"},
		"api of a server": {func(_ *testing.T, s *Snapshot) { s.API.Node = nil },
			"api", Warn, "not a client", "", ""},

		"other files than in force": {func(_ *testing.T, s *Snapshot) {
			s.API.Config.MaxKillTimeout = "30s"
			delete(s.API.Config.Plugins, "docker")
			s.Files.Options = map[string]string{"driver.denylist": "java"}
		}, "configuration in force", Warn, `client.max_kill_timeout, client.options, plugin "docker"`, "restart", ""},

		"old Nomad": {func(_ *testing.T, s *Snapshot) { s.API.Version = "1.9.3" }, "nomad version", Warn, "1.9.3", "1.11 or 2.0", ""},
		"new Nomad": {func(_ *testing.T, s *Snapshot) { s.API.Version = "1.110.0" }, "nomad version", Warn, "1.110.0", "", ""},
		"Nomad by its node": {func(_ *testing.T, s *Snapshot) {
			s.API.Version = ""
			s.API.Node.Attributes["nomad.version"] = "1.11.9"
		}, "nomad version", OK, "1.11.9", "", ""},
		"Nomad not asked": {func(_ *testing.T, s *Snapshot) { s.API = API{Err: errors.New("x")} }, "nomad version", Skip, "drivers of Nomad 1.11.3", "", ""},
		"Nomad 2":         {func(_ *testing.T, s *Snapshot) { s.API.Version = "2.0.5" }, "nomad version", OK, "2.0.5; the plugin contains the drivers of Nomad 1.11.3", "", ""},
		"Nomad 2, to come": {func(_ *testing.T, s *Snapshot) { s.API.Version = "2.0.6-dev" },
			"nomad version", Warn, "read up to 2.0.5", "changelog", ""},
		"Nomad 2, cores": {func(_ *testing.T, s *Snapshot) { s.API.Version, s.API.Node.Cores = "2.0.5", true },
			"nomad version", Warn, "GH-28272", "docs/operations.md", ""},
		"Nomad 1.11.9, cores": {func(_ *testing.T, s *Snapshot) { s.API.Version, s.API.Node.Cores = "1.11.9", true },
			"nomad version", Warn, "GH-28272", "", ""},
		"cores, not fixed there": {func(_ *testing.T, s *Snapshot) { s.API.Version, s.API.Node.Cores = "2.0.4", true },
			"nomad version", OK, "", "", ""},
		"cores, linked": {func(_ *testing.T, s *Snapshot) {
			s.API.Version, s.API.Node.Cores, s.Host.Plugins[0].Nomad = "2.0.5", true, "2.0.5"
		}, "nomad version", OK, "2.0.5; the plugin contains the drivers of Nomad 2.0.5", "", ""},
		"cores, exec": {func(_ *testing.T, s *Snapshot) {
			s.API.Version, s.API.Node.Cores, own(s)["engine"] = "2.0.5", true, "exec"
		}, "nomad version", OK, "", "", ""},
		"drivers by the node": {func(_ *testing.T, s *Snapshot) {
			s.Host = nil
			s.API.Node.Attributes["driver.ebbtide.nomad_version"] = "1.11.3"
		}, "nomad version", OK, "drivers of Nomad 1.11.3", "", ""},
		"drivers unknown": {func(_ *testing.T, s *Snapshot) { s.Host.Plugins[0].Nomad = "" }, "nomad version", OK, "is unknown", "", ""},

		"not root": {func(_ *testing.T, s *Snapshot) { s.Host.Agents = []Process{{7, 0}, {8, 1000}} },
			"root", Fail, "8 (user 1000)", "as root", ""},
		"no agent": {func(_ *testing.T, s *Snapshot) { s.Host.Agents = nil }, "root", Skip, "no agent runs", "", ""},
		"another machine": {func(_ *testing.T, s *Snapshot) { s.Host, s.HostSkipped = nil, "elsewhere" },
			"root", Skip, "elsewhere", "", ""},
		"another machine, plugin": {func(_ *testing.T, s *Snapshot) { s.Host, s.HostSkipped = nil, "elsewhere" },
			"plugin", Skip, "was not checked: elsewhere", "", ""},
		"another machine, cgroups": {func(_ *testing.T, s *Snapshot) { s.Host, s.HostSkipped = nil, "elsewhere" },
			"cgroups", Skip, "elsewhere", "", ""},
		"another machine, docker": {func(_ *testing.T, s *Snapshot) { s.Host, s.HostSkipped = nil, "elsewhere" },
			"docker", Skip, "elsewhere", "", ""},

		"cgroup v1 and v2": {func(_ *testing.T, s *Snapshot) {
			s.Host.Cgroups = []CgroupMount{{Version: 2, Path: "/u"}, {Version: 1, Path: "/c", Controllers: []string{"cpu", "cpuacct"}}}
		}, "cgroups", OK, "version 1, the cpu controller is at /c", "", ""},
		"cgroup v2 without cpu": {func(_ *testing.T, s *Snapshot) {
			s.Host.Cgroups = []CgroupMount{{Version: 2, Path: "/u", Controllers: []string{"memory"}}}
		}, "cgroups", Fail, "without the cpu controller", "cgroup_disable", ""},
		"cgroups read-only": {func(_ *testing.T, s *Snapshot) { s.Host.Cgroups[0].ReadOnly = true }, "cgroups", Fail, "read-only", "writable", ""},
		"no cgroups":        {func(_ *testing.T, s *Snapshot) { s.Host.Cgroups = nil }, "cgroups", Fail, "no cgroups", "", "mount -t cgroup2"},
		"no /proc": {func(_ *testing.T, s *Snapshot) { s.Host.CgroupsErr = errors.New("no mountinfo") },
			"cgroups", Warn, "no mountinfo", "/proc", ""},

		"no plugin_dir": {func(_ *testing.T, s *Snapshot) { s.Files.PluginDir = "" }, "plugin", Fail, "plugin_dir", "", "plugin_dir ="},
		"no such directory": {func(_ *testing.T, s *Snapshot) {
			s.Host.Plugins, s.Host.PluginsErr = nil, errors.New("no such directory")
		},
			"plugin", Fail, "no such directory", "create the directory", "/opt/nomad/plugins/ebbtide-driver"},
		"nothing installed": {func(_ *testing.T, s *Snapshot) { s.Host.Plugins = nil; delete(s.Files.Plugins, "ebbtide-driver") },
			"plugin", Fail, "no Ebbtide in /opt/nomad/plugins", "install -D", `plugin "ebbtide-driver"`},
		"nothing installed elsewhere": {func(_ *testing.T, s *Snapshot) { s.Host = nil; delete(s.Files.Plugins, "ebbtide-driver") },
			"plugin", Fail, "no plugin block", "", `plugin "ebbtide-driver"`},
		"block without binary": {func(_ *testing.T, s *Snapshot) { s.Host.Plugins = nil },
			"plugin", Fail, "the file /opt/nomad/plugins/ebbtide-driver does not exist", "", "install -D -m 0755"},
		"binary without block": {func(_ *testing.T, s *Snapshot) { delete(s.Files.Plugins, "ebbtide-driver") },
			"plugin", Fail, `no block plugin "ebbtide-driver", so Nomad ignores it`, "add to the agent's configuration", `plugin "ebbtide-driver"`},
		"binary under another name": {func(_ *testing.T, s *Snapshot) {
			s.Host.Plugins[0].Name = "ebb"
			delete(s.Files.Plugins, "ebbtide-driver")
		},
			"plugin", Fail, `no block plugin "ebb"`, "", `plugin "ebb"`},
		"binary as docker without block": {func(_ *testing.T, s *Snapshot) { asDocker(s); delete(s.Files.Plugins, "docker") },
			"plugin", Fail, `no block plugin "docker"`, "", "ebbtide {"},
		"not executable": {func(_ *testing.T, s *Snapshot) { s.Host.Plugins[0].Executable = false },
			"plugin", Fail, "not executable", "", "chmod 0755 /opt/nomad/plugins/ebbtide-driver"},
		"not ours": {func(_ *testing.T, s *Snapshot) { s.Host.Plugins[0].Ours = false }, "plugin", Warn, "is not a build of", "", ""},
		"twice": {func(_ *testing.T, s *Snapshot) {
			s.Host.Plugins = append(s.Host.Plugins, File{Name: "docker", Executable: true, Ours: true})
		}, "plugin", Fail, "several names", "keep one", ""},

		"unknown option": {func(_ *testing.T, s *Snapshot) { own(s)["polcy"] = "none" },
			"plugin options", Fail, "polcy: unknown option", "", ""},
		"wrong value": {func(_ *testing.T, s *Snapshot) { own(s)["mode"] = "hard" },
			"plugin options", Fail, `mode: must be one of weight, quota, got "hard"`, "", ""},
		"wrong duration": {func(_ *testing.T, s *Snapshot) { own(s)["interval"] = "20" },
			"plugin options", Fail, `interval: must be a duration from 1s to 1h0m0s, got "20"`, "", ""},
		"intervals crossed": {func(_ *testing.T, s *Snapshot) { own(s)["interval"] = "10m" },
			"plugin options", Fail, "max_interval: must not be less", "", ""},
		"wrong numbers":       {func(_ *testing.T, s *Snapshot) { own(s)["beta"] = 0.5 }, "plugin options", Fail, "beta: must be ≥ 1, got 0.5", "", ""},
		"wrong alpha":         {func(_ *testing.T, s *Snapshot) { own(s)["alpha"] = "-1" }, "plugin options", Fail, "alpha: must be", "", ""},
		"alpha as number":     {func(_ *testing.T, s *Snapshot) { own(s)["alpha"] = 0.05 }, "plugin options", OK, "alpha = 0.05", "", ""},
		"null is the default": {func(_ *testing.T, s *Snapshot) { own(s)["mode"] = nil }, "plugin options", OK, "", "", ""},
		"number in quotes":    {func(_ *testing.T, s *Snapshot) { own(s)["beta"] = "3" }, "plugin options", OK, `beta = "3"`, "", ""},
		"no number":           {func(_ *testing.T, s *Snapshot) { own(s)["beta"] = "two" }, "plugin options", Fail, `beta: must be a number, got "two"`, "", ""},
		"not finite":          {func(_ *testing.T, s *Snapshot) { own(s)["pool_cores"] = "NaN" }, "plugin options", Fail, `pool_cores: must be a number, got "NaN"`, "", ""},
		"no text":             {func(_ *testing.T, s *Snapshot) { own(s)["policy"] = []any{"x"} }, "plugin options", Fail, "policy: must be a string, got a value of another type", "", ""},
		"duration as number": {func(_ *testing.T, s *Snapshot) { own(s)["interval"] = 20 },
			"plugin options", Fail, `interval: must be a duration from 1s to 1h0m0s, got "20"`, "", ""},
		"quota of nothing": {func(_ *testing.T, s *Snapshot) { own(s)["quota_min_cores"] = 0 },
			"plugin options", Fail, "quota_min_cores: must be > 0 cores, got 0", "", ""},
		"exec as docker": {func(_ *testing.T, s *Snapshot) {
			asDocker(s)
			s.Files.Plugins["docker"]["ebbtide"] = []map[string]any{{"engine": "exec"}}
		}, "plugin options", Fail, `engine: must be "docker"`, "", ""},

		"ebbtide forbidden": {func(_ *testing.T, s *Snapshot) {
			s.Files.Options = map[string]string{"driver.allowlist": "docker, exec"}
		},
			"driver", Fail, `"driver.allowlist" disables the driver "ebbtide"`, "allow list", ""},
		"docker, which is ebbtide, forbidden": {func(_ *testing.T, s *Snapshot) {
			asDocker(s)
			s.Files.Options = map[string]string{"driver.denylist": "java,docker"}
		}, "driver", Fail, `"driver.denylist" disables the driver "docker"`, "", ""},
		"driver absent": {func(_ *testing.T, s *Snapshot) { s.API.Node.Attributes = nil; delete(s.API.Node.Drivers, "ebbtide") },
			"driver", Fail, `the node has no driver "ebbtide"`, "restart", ""},
		"driver undetected": {func(_ *testing.T, s *Snapshot) {
			s.API.Node.Attributes = nil
			s.API.Node.Drivers["ebbtide"] = DriverInfo{Description: "Failed to\nconnect"}
		}, "driver", Fail, "Failed to connect", "30 seconds", ""},
		"driver unhealthy": {func(_ *testing.T, s *Snapshot) {
			s.API.Node.Drivers["ebbtide"] = DriverInfo{Detected: true, Description: "sick"}
		}, "driver", Fail, "not healthy on the node: sick", "", ""},
		"driver is the stock one": {func(_ *testing.T, s *Snapshot) { asDocker(s); s.API.Node.Attributes = nil },
			"driver", Fail, "Nomad's own", "restart", ""},
		"driver under the other name": {func(_ *testing.T, s *Snapshot) {
			a, n := s.API.Node.Attributes, maps.Clone(s.API.Node.Drivers)
			asDocker(s)
			s.API.Node.Attributes, s.API.Node.Drivers = a, n
		}, "driver", Warn, `runs as "ebbtide"`, "wait", ""},

		"reaper on": {func(t *testing.T, s *Snapshot) { stock(t, s, ``) },
			"reaper", Fail, "removes Ebbtide's containers after about five minutes", "one of the three", "dangling_containers"},
		"reaper on, no block": {func(t *testing.T, s *Snapshot) { delete(s.Files.Plugins, "docker") },
			"reaper", Fail, "is on", "", `"driver.denylist" = "docker"`},
		"reaper on, by default": {func(t *testing.T, s *Snapshot) { stock(t, s, "gc { dangling_containers { period = \"1h\" }\n }") },
			"reaper", Fail, "is on", "", ""},
		"reaper on, from the agent": {func(t *testing.T, s *Snapshot) {
			s.Files, s.Paths = nil, nil
			s.API.Config.Plugins["docker"] = Block{"gc": []any{map[string]any{"dangling_containers": []any{map[string]any{"enabled": true}}}}}
		}, "reaper", Fail, "is on", "", ""},
		"reaper off": {func(t *testing.T, s *Snapshot) { stock(t, s, "gc { dangling_containers { enabled = false }\n }") },
			"reaper", OK, "is off", "", ""},
		"reaper off, as text": {func(t *testing.T, s *Snapshot) { stock(t, s, "gc { dangling_containers { enabled = \"false\" }\n }") },
			"reaper", OK, "is off", "", ""},
		"reaper only logs": {func(t *testing.T, s *Snapshot) { stock(t, s, "gc { dangling_containers { dry_run = true }\n }") },
			"reaper", OK, "dry_run", "", ""},
		"reaper of another daemon": {func(t *testing.T, s *Snapshot) { stock(t, s, `endpoint = "tcp://10.0.0.9:2376"`) },
			"reaper", OK, "another Docker daemon", "", ""},
		"reaper of the same daemon": {func(t *testing.T, s *Snapshot) { stock(t, s, `endpoint = "unix:///run/docker.sock"`) },
			"reaper", Fail, "is on", "", ""},
		"stock driver denied": {func(t *testing.T, s *Snapshot) {
			stock(t, s, ``)
			s.Files.Options = map[string]string{"driver.denylist": "java, docker"}
		}, "reaper", OK, `"driver.denylist"`, "", ""},
		"stock driver denied by the old name": {func(t *testing.T, s *Snapshot) {
			stock(t, s, ``)
			s.Files.Options = map[string]string{"driver.blacklist": "docker"}
		}, "reaper", OK, `"driver.blacklist"`, "", ""},
		"stock driver not allowed": {func(t *testing.T, s *Snapshot) {
			stock(t, s, ``)
			s.Files.Options = map[string]string{"driver.allowlist": "ebbtide"}
		}, "reaper", OK, `"driver.allowlist"`, "", ""},
		"reaper and engine exec": {func(t *testing.T, s *Snapshot) { stock(t, s, ``); own(s)["engine"] = "exec" },
			"reaper", OK, "engine exec", "", ""},
		"reaper and ebbtide as docker": {func(_ *testing.T, s *Snapshot) { asDocker(s) },
			"reaper", OK, "replaces the stock", "", ""},
		"reaper without ebbtide": {func(_ *testing.T, s *Snapshot) {
			delete(s.Files.Plugins, "ebbtide-driver")
			s.Host.Plugins, s.API = nil, API{Err: errors.New("x")}
		}, "reaper", Skip, "not installed", "", ""},
		"reaper unknown": {func(_ *testing.T, s *Snapshot) { s.Files, s.API.Config, s.Host = nil, nil, nil },
			"reaper", Warn, "cannot check", "docs/operations.md", ""},

		"stock options missed": {func(t *testing.T, s *Snapshot) {
			stock(t, s, "allow_privileged = true\nauth { config = \"SECRET-x\" }\nextra_labels = [\"a\"]\ngc { image = true }")
		}, "docker options", Warn, "allow_privileged, extra_labels", "repeat those", "docker {"},

		"docker down": {func(_ *testing.T, s *Snapshot) {
			s.Host.Docker = &Docker{Endpoint: "e", Err: errors.New("cannot connect")}
		},
			"docker", Fail, "e: cannot connect", "systemctl start docker", "endpoint ="},
		"docker denied": {func(_ *testing.T, s *Snapshot) {
			s.Host.Docker = &Docker{Endpoint: "e", Err: errors.New("x"), Denied: true}
		},
			"docker", Warn, "permission denied", "as root", ""},
		"docker rootless":       {func(_ *testing.T, s *Snapshot) { s.Host.Docker.Rootless = true }, "docker", Fail, "rootless", "", ""},
		"docker without limits": {func(_ *testing.T, s *Snapshot) { s.Host.Docker.CPUQuota = false }, "docker", Fail, "cannot set", "cgroups", ""},
		"docker not needed":     {func(_ *testing.T, s *Snapshot) { own(s)["engine"] = "exec" }, "docker", Skip, "exec", "", ""},
		"no live-restore": {func(_ *testing.T, s *Snapshot) { s.Host.Docker.LiveRestore = false },
			"live-restore", Warn, "stops all containers", "daemon.json", `"live-restore": true`},

		"images removed": {func(_ *testing.T, s *Snapshot) { delete(own(s), "docker") }, "clean-up", OK, "set docker.gc.image = false", "", ""},
		"images removed, as docker": {func(_ *testing.T, s *Snapshot) { asDocker(s) },
			"clean-up", OK, "set gc.image = false", "", ""},
		"image_delay": {func(_ *testing.T, s *Snapshot) {
			own(s)["docker"] = []map[string]any{{"gc": []map[string]any{{"image_delay": "soon"}}}}
		}, "clean-up", Fail, `docker.gc.image_delay: must be a duration, got "soon"`, "", "image_delay ="},
		"containers kept": {func(_ *testing.T, s *Snapshot) {
			own(s)["docker"] = []map[string]any{{"gc": []map[string]any{{"container": false}}}}
		}, "clean-up", Warn, "stay on the disk", "", "container = true"},

		"no metrics": {func(_ *testing.T, s *Snapshot) { s.Files.PublishAllocationMetrics = false },
			"allocation metrics", Warn, "charts", "restart", "publish_allocation_metrics = true"},
		"short max_kill_timeout": {func(_ *testing.T, s *Snapshot) { s.Files.MaxKillTimeout = "30s" },
			"max_kill_timeout", Warn, "30s", "", `max_kill_timeout = "5m"`},
		"long max_kill_timeout":  {func(_ *testing.T, s *Snapshot) { s.Files.MaxKillTimeout = "300s" }, "max_kill_timeout", OK, "5m0s", "", ""},
		"wrong max_kill_timeout": {func(_ *testing.T, s *Snapshot) { s.Files.MaxKillTimeout = "5" }, "max_kill_timeout", Fail, `got "5"`, "", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := healthy(t)
			c.change(t, s)
			findings := Examine(s)

			var out strings.Builder
			must.NoError(t, Write(&out, findings))
			must.NoError(t, WriteJSON(&out, findings))
			must.StrNotContains(t, out.String(), "SECRET")

			for _, f := range findings {
				// Every problem has a remedy.
				if f.Status == Warn || f.Status == Fail {
					must.NotEq(t, "", f.Do, must.Sprint(f))
				}
				if c.check == "" {
					must.Eq(t, OK, f.Status, must.Sprint(f))
				}
			}
			if c.check == "" {
				return
			}
			must.True(t, slices.ContainsFunc(findings, func(f Finding) bool {
				return f.Name == c.check && f.Status == c.want && strings.Contains(f.Seen, c.seen) &&
					strings.Contains(f.Do, c.do) && strings.Contains(f.Add, c.add)
			}), must.Sprint(out.String()))
			must.Eq(t, slices.ContainsFunc(findings, func(f Finding) bool { return f.Status == Fail }), Failed(findings))
		})
	}
}

// All errors are reported at once.
func TestCheckOwn_all(t *testing.T) {
	must.Eq(t, []string{
		`beta: must be a number, got "two"`,
		`mode: must be one of weight, quota, got "a\nb"`,
		`interval: must be a duration from 1s to 1h0m0s, got "20"`,
		"polcy: unknown option; allowed are alpha, beta, docker_outage, docker_timeout, dqoes_alpha, dqoes_beta, dqoes_headroom, dqoes_step, engine, " +
			"estimator, fsp_floor, fsp_prefer, gpu_fair_finish, interval, max_interval, metrics_address, mode, no_progress_after, policy, pool_cores, preset, quota_min_cores, service_share, specon_alpha, specon_interval, tradl_full, docker, exec",
	}, WrongOptions(Block{"beta": "two", "mode": "a\nb", "interval": 20, "polcy": "none", "docker": Block{}}, "docker", "exec"))
	must.SliceEmpty(t, WrongOptions(nil))
}

// Suggested configuration is valid.
func TestExamine_hcl(t *testing.T) {
	for _, text := range []string{
		blockHCL, reaperHCL,
		install{file: "docker"}.wrap("gc {\n  container = true\n}"),
		install{file: "ebbtide-driver"}.wrap("# auth, as in plugin \"docker\""),
	} {
		_, err := parse(text)
		must.NoError(t, err)
	}
	r, err := parse(reaperHCL)
	must.NoError(t, err)
	b := new(builder)
	b.add(r)
	must.False(t, b.Plugins["docker"].block("gc").block("dangling_containers").flag("enabled", true) &&
		b.Options["driver.denylist"] != "docker")
}

func TestClean(t *testing.T) {
	must.Eq(t, "a b", clean("a\nb\x1b"))
	must.Eq(t, 301, len([]rune(clean(strings.Repeat("é", 400)))))
}

func TestExamine_cards(t *testing.T) {
	for name, tc := range map[string]struct {
		cards  []Card
		listed bool
		want   []Status
		seen   string
	}{
		"no plugin":  {},
		"no card":    {nil, true, []Status{Warn}, "the agent has the plugin ebbtide-gpu, but the node has no card"},
		"all well":   {[]Card{{Name: "H100", Seats: 4, Shared: true, Parking: true}}, true, []Status{OK}, "H100: 4 seats, containers can be parked"},
		"no gate":    {[]Card{{Name: "H100", Seats: 4}}, true, []Status{Warn}, "H100 is assigned without a gate"},
		"old driver": {[]Card{{Name: "H100", Seats: 4, Shared: true, OverShare: "deny", NotParked: "driver 535"}}, true, []Status{Warn}, "not parked (driver 535), and the plugin has over_share = \"deny\""},
		"unloads":    {[]Card{{Name: "H100", Seats: 4, Shared: true, Parking: true, Persistence: "Disabled"}}, true, []Status{OK, Warn}, "H100"},
		"one is lost": {
			[]Card{{Name: "A", Seats: 4, Unhealthy: "it has disappeared", Shared: true, Parking: true}, {Name: "B", Seats: 4, Shared: true, Parking: true}},
			true, []Status{Warn, OK}, "A is unhealthy: it has disappeared",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := healthy(t)
			s.API.Node.Cards = tc.cards
			if tc.listed {
				s.Files.Plugins["ebbtide-gpu"] = Block{}
			}
			var got []Status
			for i, f := range checkCards(s) {
				if got = append(got, f.Status); i == 0 {
					must.StrContains(t, f.Seen, tc.seen)
				}
			}
			must.Eq(t, tc.want, got)
		})
	}
	s := healthy(t)
	s.Files.Plugins["ebbtide-gpu"] = Block{}
	s.API.Node = nil
	must.Eq(t, Skip, checkCards(s)[0].Status)
}

func TestExamine_algorithm(t *testing.T) {
	for name, tc := range map[string]struct {
		api  API
		want []Status
		seen string
	}{
		"spread":                 {API{Others: true, Algorithm: "spread"}, []Status{OK}, "spread"},
		"binpack":                {API{Others: true, Algorithm: "binpack"}, []Status{Warn}, "binpack, Nomad's default"},
		"unknown":                {API{Others: true}, []Status{Skip}, "operator"},
		"binpack of a lone node": {API{Algorithm: "binpack"}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var got []Status
			for _, f := range checkAlgorithm(&Snapshot{API: tc.api}) {
				got = append(got, f.Status)
				must.StrContains(t, f.Seen, tc.seen)
			}
			must.Eq(t, tc.want, got)
		})
	}
}

func TestCards(t *testing.T) {
	yes, no, wait, off := true, false, "wait", "Disabled"
	node := &api.Node{NodeResources: &api.NodeResources{Devices: []*api.NodeDeviceResource{
		{Vendor: "nvidia", Type: "gpu", Name: "other"},
		{
			Vendor: "nvidia", Type: "share", Name: "H100", Instances: []*api.NodeDevice{{Healthy: true}, {HealthDescription: "lost"}},
			Attributes: map[string]*api.Attribute{"shared": {BoolVal: &yes}, "parking": {BoolVal: &yes}, "over_share": {StringVal: &wait}, "persistence_mode": {StringVal: &off}},
		},
		{Vendor: "nvidia", Type: "share", Name: "T4", Instances: []*api.NodeDevice{{HealthDescription: "not offered"}}, Attributes: map[string]*api.Attribute{"healthy": {BoolVal: &yes}}},
		{Vendor: "nvidia", Type: "share", Name: "L4", Instances: []*api.NodeDevice{{HealthDescription: "gone"}}, Attributes: map[string]*api.Attribute{"healthy": {BoolVal: &no}}},
	}}}
	must.Eq(t, []Card{
		{Name: "H100", Seats: 2, Unhealthy: "lost", Shared: true, Parking: true, OverShare: "wait", Persistence: off}, {Name: "T4", Seats: 1}, {Name: "L4", Seats: 1, Unhealthy: "gone"},
	}, cards(node))
	must.SliceEmpty(t, cards(&api.Node{}))
}

func TestExamine_bound(t *testing.T) {
	must.SliceEmpty(t, checkBound(&Snapshot{}))
	out := checkBound(&Snapshot{API: API{Bound: []string{"ml/vae"}}})
	must.Len(t, 1, out)
	must.Eq(t, Warn, out[0].Status)
	must.StrContains(t, out[0].Seen, "ml/vae is bound")
}
