// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package setup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/cli/doctor"
)

// machine is a file system with an agent's configuration.
type machine struct {
	root string
	Options
}

func newMachine(t *testing.T, files map[string]string) machine {
	t.Helper()
	root := t.TempDir()
	m := machine{root, Options{Dir: filepath.Join(root, "etc"), Plugins: filepath.Join(root, "plugins"), GPU: GPUAuto}}
	must.NoError(t, os.Mkdir(m.Dir, 0o755))
	m.put(t, "plugins/ebbtide-driver", "")
	m.put(t, "plugins/ebbtide-gpu", "")
	for name, text := range files {
		m.put(t, name, text)
	}
	return m
}

func (m machine) put(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(m.root, name)
	must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(text, "ROOT", m.root)), 0o644))
}

func (m machine) propose() (*State, *Proposal, error) {
	s, err := Inspect(m.root, m.Options)
	if err != nil {
		return nil, nil, err
	}
	p, err := Propose(s, m.Options)
	return s, p, err
}

// body is the file without its header.
func (m machine) body(t *testing.T, p *Proposal) string {
	t.Helper()
	must.NoError(t, ours(p.New))
	return strings.ReplaceAll(strings.SplitN(string(p.New), "\n", 4)[3], m.root, "ROOT")
}

const client = "data_dir = \"ROOT/data\"\nclient {\n  enabled = true\n}\n"

func TestPropose(t *testing.T) {
	const driver = "plugin \"ebbtide-driver\" {\n  config {\n    engine = \"exec\"\n  }\n}"
	const rest = "\n\n" + killTimeoutBlock + "\n\n" + telemetryBlock + "\n"
	for _, tc := range []struct {
		name   string
		files  map[string]string
		change func(*Options)
		want   string
		notes  []string // substrings
	}{
		{
			name: "nothing but a client", files: map[string]string{"etc/nomad.hcl": client},
			want: "plugin_dir = \"ROOT/plugins\"\n\n" + driver + rest, notes: []string{"engine: exec, as there is no Docker"},
		}, {
			name: "docker, cards", files: map[string]string{"etc/nomad.hcl": client, "run/docker.sock": "", "proc/driver/nvidia/gpus/0000:01:00.0/information": ""},
			want: "plugin_dir = \"ROOT/plugins\"\n\n" + strings.Replace(driver, "exec", "docker", 1) + "\n\n" + dockerBlock +
				"\n\n# Several containers share a card and its memory.\nplugin \"ebbtide-gpu\" {\n  config {\n  }\n}" + rest,
			notes: []string{"GPUs: tasks need"},
		}, {
			name: "exec, cards", files: map[string]string{"etc/nomad.hcl": client},
			change: func(o *Options) { o.Engine, o.GPU = "exec", GPUYes },
			want: "plugin_dir = \"ROOT/plugins\"\n\n" + driver +
				"\n\n# Several containers share a card and its memory.\nplugin \"ebbtide-gpu\" {\n  config {\n    inject = \"devices\"\n  }\n}" + rest,
			notes: []string{"GPUs: tasks need"},
		}, {
			name: "the files say the rest", files: map[string]string{"etc/nomad.hcl": client + `
				plugin_dir = "ROOT/plugins"
				telemetry { publish_allocation_metrics = true }
				client { max_kill_timeout = "1m" }`},
			want: driver + "\n", change: func(o *Options) { o.Engine = "exec" },
		}, {
			name: "the files say everything", files: map[string]string{"etc/nomad.hcl": client + `
				plugin_dir = "ROOT/plugins"
				plugin "ebbtide-driver" { config { engine = "exec" } }
				telemetry { publish_allocation_metrics = true }
				client { max_kill_timeout = "5m" }`},
			want: "# The other files contain all recommended settings.\n", notes: []string{"the driver is configured in ROOT/etc/nomad.hcl"},
		}, {
			name: "options, in the order of the documentation", files: map[string]string{"etc/nomad.hcl": client},
			change: func(o *Options) {
				o.Engine, o.Set = "docker", []string{"pool_cores=4", "docker_timeout=20s", "mode=quota"}
			},
			want: "plugin_dir = \"ROOT/plugins\"\n\nplugin \"ebbtide-driver\" {\n  config {\n    engine         = \"docker\"\n    mode           = \"quota\"\n    pool_cores     = 4\n    docker_timeout = \"20s\"\n  }\n}\n\n" + dockerBlock + rest,
		}, {
			name: "a docker block in another file", files: map[string]string{"etc/nomad.hcl": client + "plugin \"docker\" {\n  config {\n    allow_privileged = true\n  }\n}"},
			change: func(o *Options) { o.Engine = "docker" },
			want:   "plugin_dir = \"ROOT/plugins\"\n\n" + strings.Replace(driver, "exec", "docker", 1) + rest,
		}, {
			name: "the stock driver is forbidden", files: map[string]string{"etc/nomad.hcl": client + "client { options = { \"driver.denylist\" = \"docker\" } }"},
			change: func(o *Options) { o.Engine = "docker" },
			want:   "plugin_dir = \"ROOT/plugins\"\n\n" + strings.Replace(driver, "exec", "docker", 1) + rest,
		}, {
			name: "the plugins lie in the agent's own directory", files: map[string]string{
				"etc/nomad.hcl": client, "data/plugins/ebbtide-driver": "", "proc/driver/nvidia/gpus/0/information": ""},
			want: driver + rest, notes: []string{"engine", "no ebbtide-gpu in ROOT/data/plugins"},
		}, {
			name: "installed as docker", files: map[string]string{"etc/a.hcl": client + "plugin \"docker\" {\n  config {\n    ebbtide {\n      policy = \"auto\"\n    }\n  }\n}"},
			want: strings.TrimPrefix(rest, "\n\n"), notes: []string{"the driver is configured in ROOT/etc/a.hcl"},
		}, {
			name: "a server", files: map[string]string{"etc/nomad.hcl": "server {\n  enabled = true\n}"},
			want: "plugin_dir = \"ROOT/plugins\"\n\n" + driver + rest, notes: []string{"no file in ROOT/etc enables the client", "engine"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t, tc.files)
			if tc.change != nil {
				tc.change(&m.Options)
			}
			_, p, err := m.propose()
			must.NoError(t, err)
			must.Eq(t, tc.want, m.body(t, p))
			must.Len(t, len(tc.notes), p.Notes, must.Sprint(p.Notes))
			for i, part := range tc.notes {
				must.StrContains(t, strings.ReplaceAll(p.Notes[i], m.root, "ROOT"), part)
			}
		})
	}
}

func TestPropose_errors(t *testing.T) {
	ok := map[string]string{"etc/nomad.hcl": client}
	for _, tc := range []struct {
		name   string
		files  map[string]string
		change func(*Options)
		want   []string
	}{
		{"options", ok, func(o *Options) {
			o.Dir, o.Engine, o.GPU, o.Set = "etc", "podman", "maybe", []string{"mode=hard", "x", "polcy=fsp", "engine=exec", "alpha=1", "alpha=2"}
		}, []string{
			`-config: must be an absolute path, got "etc"`, `-engine: must be one of docker, exec, got "podman"`,
			`-gpu: must be one of auto, yes, no, got "maybe"`, `-set: must be NAME=VALUE, got "x"`,
			`-set: mode: must be one of weight, quota, got "hard"`, `-set: polcy: unknown option; allowed are`,
			"-set: the engine must be set with -engine", "-set: alpha is given twice",
		}},
		{"no directory", nil, func(o *Options) { o.Dir += "/none" }, []string{"does not exist", "install Nomad first"}},
		{"a file", ok, func(o *Options) { o.Dir += "/nomad.hcl" }, []string{"-config: must be a directory"}},
		{"not an agent's file", map[string]string{"etc/nomad.hcl": "client {"}, nil, []string{"nomad.hcl", "not valid in an agent's configuration"}},
		{"not installed", ok, func(o *Options) { o.Plugins += "/none" }, []string{"-plugins: there is no ebbtide-driver in", "install the package"}},
		{"another plugin_dir", map[string]string{"etc/nomad.hcl": client + `plugin_dir = "/elsewhere"`}, nil, []string{`plugin_dir: "/elsewhere" in`, "nomad.hcl"}},
		{"other plugins", map[string]string{"etc/nomad.hcl": client, "data/plugins/podman": ""}, nil, []string{"has plugins that would no longer be loaded: podman"}},
		{"no GPU plugin", map[string]string{"etc/nomad.hcl": client, "data/plugins/ebbtide-driver": ""}, func(o *Options) { o.GPU = GPUYes }, []string{"-gpu: yes, but there is no ebbtide-gpu in"}},
		{"configured already", map[string]string{"etc/nomad.hcl": client + `plugin "ebbtide-driver" { config { } }`}, func(o *Options) { o.Engine = "exec" }, []string{"-engine, -set: the driver is already configured in", "nomad.hcl"}},
		{"not ours", map[string]string{"etc/nomad.hcl": client, "etc/ebbtide.hcl": "# mine\n"}, nil, []string{"ebbtide.hcl: was not written by ebbtide setup"}},
		{"changed", map[string]string{"etc/nomad.hcl": client, "etc/ebbtide.hcl": head("\na\n") + "\n\nb\n"}, nil, []string{"ebbtide.hcl: was edited since ebbtide setup wrote it"}},
		{"cut off", map[string]string{"etc/nomad.hcl": client, "etc/ebbtide.hcl": mark}, nil, []string{"was edited since"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t, tc.files)
			if tc.change != nil {
				tc.change(&m.Options)
			}
			_, _, err := m.propose()
			must.Error(t, err)
			for _, want := range tc.want {
				must.StrContains(t, err.Error(), want)
			}
		})
	}
}

func TestLook_link(t *testing.T) {
	m := newMachine(t, map[string]string{"etc/nomad.hcl": client})
	must.NoError(t, os.Symlink("nomad.hcl", filepath.Join(m.Dir, FileName)))
	_, err := Inspect(m.root, m.Options)
	must.ErrorContains(t, err, "must be a regular file or not exist")
}

// The file satisfies doctor and is stable.
func TestWrite(t *testing.T) {
	m := newMachine(t, map[string]string{"etc/nomad.hcl": client, "run/docker.sock": ""})
	s, p, err := m.propose()
	must.NoError(t, err)
	must.False(t, p.UpToDate())
	remains, err := Unresolved(s, p)
	must.NoError(t, err)
	must.SliceEmpty(t, remains)
	must.NoError(t, Write(p))

	cfg, err := doctor.Load([]string{m.Dir})
	must.NoError(t, err)
	must.True(t, cfg.ClientEnabled)
	must.True(t, cfg.PublishAllocationMetrics)
	must.Eq(t, "5m", cfg.MaxKillTimeout)
	must.Eq(t, m.Plugins, cfg.PluginDir)

	fi, err := os.Stat(p.Path)
	must.NoError(t, err)
	must.Eq(t, 0o644, fi.Mode().Perm())
	_, p, err = m.propose()
	must.NoError(t, err)
	must.True(t, p.UpToDate())
	must.Eq(t, "", p.Diff())

	// Other options replace it, keeping its mode.
	must.NoError(t, os.Chmod(p.Path, 0o640))
	m.Set = []string{"mode=quota"}
	_, p, err = m.propose()
	must.NoError(t, err)
	must.StrContains(t, p.Diff(), "+    mode   = \"quota\"\n")
	must.NoError(t, Write(p))
	fi, err = os.Stat(p.Path)
	must.NoError(t, err)
	must.Eq(t, 0o640, fi.Mode().Perm())
	entries, err := os.ReadDir(m.Dir)
	must.NoError(t, err)
	must.Len(t, 2, entries)
}

func TestRemains(t *testing.T) {
	m := newMachine(t, map[string]string{"etc/z.hcl": client + "client { max_kill_timeout = \"1m\" }\nplugin \"docker\" {\n  config {\n    allow_privileged = true\n  }\n}"})
	m.Engine = "docker"
	s, p, err := m.propose()
	must.NoError(t, err)
	remains, err := Unresolved(s, p)
	must.NoError(t, err)
	var names []string
	for _, f := range remains {
		names = append(names, f.Name)
	}
	must.Eq(t, []string{"reaper", "docker options", "max_kill_timeout"}, names)
}

func TestDiff(t *testing.T) {
	text := func(lines ...string) []byte {
		if len(lines) == 0 {
			return nil
		}
		return []byte(strings.Join(lines, "\n") + "\n")
	}
	for _, tc := range []struct {
		old, new []byte
		want     string
	}{
		{nil, text("a", "b"), "--- /dev/null\n+++ f\n@@ -0,0 +1,2 @@\n+a\n+b\n"},
		{text("a"), text("a"), ""},
		{text("a"), text("b"), "--- f\n+++ f\n@@ -1 +1 @@\n-a\n+b\n"},
		{text("1", "2", "3", "4", "5", "6", "7", "8", "9"), text("1", "x", "2", "3", "4", "5", "6", "7", "8"),
			"--- f\n+++ f\n@@ -1,4 +1,5 @@\n 1\n+x\n 2\n 3\n 4\n@@ -6,4 +7,3 @@\n 6\n 7\n 8\n-9\n"},
	} {
		p := Proposal{Path: "f", Old: tc.old, New: tc.new}
		must.Eq(t, tc.want, p.Diff())
	}
}
