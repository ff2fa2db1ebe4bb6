// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package doctor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

func TestLoad(t *testing.T) {
	for _, path := range []string{"testdata/good.hcl", "testdata/good.json"} {
		t.Run(path, func(t *testing.T) {
			cfg, err := Load([]string{path})
			must.NoError(t, err)
			must.Eq(t, "/opt/nomad/plugins", cfg.PluginDir)
			must.True(t, cfg.ClientEnabled)
			must.True(t, cfg.PublishAllocationMetrics)
			must.Eq(t, "5m", cfg.MaxKillTimeout)
			must.Eq(t, "http://127.0.0.1:4646", cfg.HTTP)
			must.Eq(t, []string{"docker", "ebbtide-driver", "raw_exec"}, sorted(cfg.Plugins))
			own := cfg.Plugins["ebbtide-driver"]
			must.Eq(t, "10s", own.text("interval", ""))
			must.False(t, own.block("docker").block("gc").flag("image", true))
			must.False(t, cfg.Plugins["docker"].block("gc").block("dangling_containers").flag("enabled", true))
		})
	}
}

func TestLoad_merge(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("10.hcl", `
		data_dir = "/d"
		bind_addr = "10.1.2.3"
		client {
			enabled = true
			max_kill_timeout = "1m"
			options = { "a" = "1", "b" = "1" }
		}
		telemetry { publish_allocation_metrics = true }
		plugin "ebbtide-driver" { config { mode = "quota" beta = 3 } }
		plugin "docker" { config { allow_privileged = true } }
	`)
	write("20.json", `{
		"client": {"max_kill_timeout": "2m", "options": {"b": "2"}},
		"telemetry": {"publish_allocation_metrics": false},
		"ports": {"http": 5646},
		"tls": {"http": true},
		"plugin": {"ebbtide-driver": {"config": {"policy": "none"}}}
	}`)
	write("30.hcl", `plugin "docker" {}`)
	write("40.hcl~", `data_dir = "/no"`)
	write(".#50.hcl", `data_dir = "/no"`)
	write("60.txt", `data_dir = "/no"`)
	last := filepath.Join(t.TempDir(), "last")
	must.NoError(t, os.WriteFile(last, []byte(`client { enabled = false }`), 0o600))

	cfg, err := Load([]string{dir, last})
	must.NoError(t, err)
	must.Eq(t, &Config{
		PluginDir:                "/d/plugins", // Nomad's default
		ClientEnabled:            true,         // false does not override
		MaxKillTimeout:           "2m",
		Options:                  map[string]string{"a": "1", "b": "2"},
		PublishAllocationMetrics: true,
		Plugins: map[string]Block{
			"ebbtide-driver": {"policy": "none"}, // replaced as a whole
			"docker":         {"allow_privileged": true},
		},
		HTTP:    "https://10.1.2.3:5646",
		Written: Written{MaxKillTimeout: "2m"},
	}, cfg)
}

func TestLoad_empty(t *testing.T) {
	cfg, err := Load([]string{t.TempDir()})
	must.NoError(t, err)
	must.Eq(t, &Config{MaxKillTimeout: "30s", HTTP: "http://127.0.0.1:4646"}, cfg)
}

// Errors have file and position, and do not quote the text.
func TestLoad_errors(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.hcl": "vault {\n  token = SECRET-token\n}\n", "b.json": `{"vault": {"token": SECRET}}`,
		"c.hcl": "client {\n  enabled = \"SECRET\"\n}\n", "d.hcl": "client = \"SECRET\"",
	} {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	_, err := Load([]string{dir})
	must.Error(t, err)
	for _, name := range []string{"a.hcl: line 2, column 11", "b.json: ", "c.hcl: ", "d.hcl: "} {
		must.StrContains(t, err.Error(), name)
	}
	must.StrNotContains(t, err.Error(), "SECRET")
}

func TestHTTP(t *testing.T) {
	for text, want := range map[string]string{
		`addresses { http = "10.0.0.7 127.0.0.1" }`:       "http://10.0.0.7:4646",
		`bind_addr = "{{ GetPrivateIP }}"`:                "http://127.0.0.1:4646",
		`bind_addr = "::"`:                                "http://127.0.0.1:4646",
		"bind_addr = \"::1\"\ntls { http = true }":        "https://[::1]:4646",
		"bind_addr = \"10.0.0.7\"\nports { http = 1234 }": "http://10.0.0.7:1234",
	} {
		r, err := parse(text)
		must.NoError(t, err)
		b := new(builder)
		b.add(r)
		must.Eq(t, want, b.finish().HTTP, must.Sprint(text))
	}
}
