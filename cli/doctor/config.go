// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package doctor

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl"
	"github.com/hashicorp/hcl/hcl/parser"
)

// raw is the used part of an agent's configuration, with Nomad's names
// (command/agent/config.go).
type raw struct {
	DataDir   string `hcl:"data_dir"`
	PluginDir string `hcl:"plugin_dir"`
	BindAddr  string `hcl:"bind_addr"`
	Ports     *struct {
		HTTP int `hcl:"http"`
	} `hcl:"ports"`
	Addresses *struct {
		HTTP string `hcl:"http"`
	} `hcl:"addresses"`
	TLS *struct {
		HTTP bool `hcl:"http"`
	} `hcl:"tls"`
	Client *struct {
		Enabled        bool              `hcl:"enabled"`
		Options        map[string]string `hcl:"options"`
		MaxKillTimeout string            `hcl:"max_kill_timeout"`
	} `hcl:"client"`
	Telemetry *struct {
		Publish bool `hcl:"publish_allocation_metrics"`
	} `hcl:"telemetry"`
	Plugins []*struct {
		Name   string         `hcl:",key"`
		Config map[string]any `hcl:"config"`
	} `hcl:"plugin"`
}

// builder merges files as Nomad does: later values win, maps are merged, a plugin's config is
// replaced as a whole.
type builder struct {
	Config
	dataDir, bindAddr, httpAddr string
	httpPort                    int
	tls                         bool
}

func (b *builder) add(r *raw) {
	later := func(to *string, v string) {
		if v != "" {
			*to = v
		}
	}
	later(&b.dataDir, r.DataDir)
	later(&b.PluginDir, r.PluginDir)
	later(&b.bindAddr, r.BindAddr)
	if r.Ports != nil && r.Ports.HTTP != 0 {
		b.httpPort = r.Ports.HTTP
	}
	if r.Addresses != nil {
		later(&b.httpAddr, r.Addresses.HTTP)
	}
	if r.TLS != nil {
		b.tls = b.tls || r.TLS.HTTP
	}
	if c := r.Client; c != nil {
		b.ClientEnabled = b.ClientEnabled || c.Enabled
		later(&b.MaxKillTimeout, c.MaxKillTimeout)
		if b.Options == nil {
			b.Options = make(map[string]string)
		}
		maps.Copy(b.Options, c.Options)
	}
	if r.Telemetry != nil {
		b.PublishAllocationMetrics = b.PublishAllocationMetrics || r.Telemetry.Publish
	}
	for _, p := range r.Plugins {
		if b.Plugins == nil {
			b.Plugins = make(map[string]Block)
		}
		if _, ok := b.Plugins[p.Name]; !ok || len(p.Config) > 0 {
			b.Plugins[p.Name] = p.Config
		}
	}
}

// finish adds Nomad's defaults.
func (b *builder) finish() *Config {
	pluginDir, killTimeout := b.PluginDir, b.MaxKillTimeout
	if b.PluginDir == "" && b.dataDir != "" {
		b.PluginDir = filepath.Join(b.dataDir, "plugins")
	}
	if b.MaxKillTimeout == "" {
		b.MaxKillTimeout = "30s"
	}
	host := b.httpAddr
	if host == "" {
		host = b.bindAddr
	}
	// Lists of addresses, templates and wildcards all include this machine.
	host = strings.Fields(host + " 127.0.0.1")[0]
	if ip := net.ParseIP(host); strings.Contains(host, "{{") || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	port := b.httpPort
	if port == 0 {
		port = 4646
	}
	scheme := "http"
	if b.tls {
		scheme = "https"
	}
	b.Written = Written{PluginDir: pluginDir, MaxKillTimeout: killTimeout}
	b.HTTP = scheme + "://" + net.JoinHostPort(host, strconv.Itoa(port))
	return &b.Config
}

// Load reads and merges an agent's configuration from files and directories (their *.hcl and
// *.json files, sorted), as the agent does with its -config flags. Errors do not quote content.
func Load(paths []string) (*Config, error) {
	b := new(builder)
	var errs []error
	for _, path := range paths {
		files, err := Files(path)
		if err != nil {
			errs = append(errs, fmt.Errorf("listing configuration files: %w", err))
			continue
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				errs = append(errs, fmt.Errorf("reading a configuration file: %w", err))
				continue
			}
			r, err := parse(string(data))
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", file, err))
				continue
			}
			b.add(r)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return b.finish(), nil
}

// parse decodes a file. Its error has the position but not the text, which may be secret.
func parse(text string) (*raw, error) {
	r := new(raw)
	err := hcl.Decode(r, text)
	if err == nil {
		return r, nil
	}
	if pos := new(parser.PosError); errors.As(err, &pos) {
		return nil, fmt.Errorf("line %d, column %d: not valid in an agent's configuration", pos.Pos.Line, pos.Pos.Column)
	}
	return nil, errors.New("not a valid agent configuration")
}

// Files lists the files of a -config path: itself, or a directory's configuration files in the
// agent's order.
func Files(path string) ([]string, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !fi.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() || !strings.HasSuffix(name, ".hcl") && !strings.HasSuffix(name, ".json") || strings.HasPrefix(name, ".#") {
			continue
		}
		files = append(files, filepath.Join(path, name))
	}
	slices.Sort(files)
	return files, nil
}
