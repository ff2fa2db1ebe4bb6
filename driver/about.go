// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package driver is the Nomad task driver plugin "ebbtide". It decorates one of
// Nomad's own drivers (docker or exec, see package engine) and adds a control
// loop (package control) that reads each task's progress while it runs and
// shifts the node's CPU to the tasks that gain most from it.
//
// The decorated driver keeps doing everything it does in stock Nomad: images,
// networks, ports, volumes, devices, logs, exec, signals and statistics. If the
// control loop fails in any way, a task runs on as plain Nomad would run it.
package driver

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/ebbtide/ebbtide/driver/config"
	"github.com/ebbtide/ebbtide/driver/engine"
)

const (
	// Name is the driver's name in jobspecs.
	Name = "ebbtide"

	// DockerName is the driver's name when the binary is installed as "docker".
	// Nomad then prefers it to its built-in docker driver, because its version
	// is not lower, and one driver tracks every container of the node.
	DockerName = "docker"

	// pluginVersion is what Nomad compares with the version of a built-in driver
	// of the same name ("0.1.0"); an external plugin wins from equality on. A
	// pre-release suffix would lose, so it is not the product's version.
	pluginVersion = "0.1.0"
)

// InstalledName is the driver name that follows from the file name of the
// running binary: DockerName when it is installed as "docker", else Name.
func InstalledName() string {
	exe, err := os.Executable()
	if err != nil {
		exe = os.Args[0]
	}
	if filepath.Base(exe) == DockerName {
		return DockerName
	}
	return Name
}

// PluginInfo describes the plugin to Nomad.
func (d *Driver) PluginInfo() (*base.PluginInfoResponse, error) {
	return &base.PluginInfoResponse{
		Type:              base.PluginTypeDriver,
		PluginApiVersions: []string{drivers.ApiVersion010},
		PluginVersion:     pluginVersion,
		Name:              d.name,
	}, nil
}

// ConfigSchema returns the schema of the plugin block's config. Nomad asks for
// it before SetConfig, so it covers both engines: their own options lie in a
// block named after the engine. Installed as "docker", the stock options stay at
// the top level, so that existing agent configurations remain valid, and ours
// lie in a block "ebbtide".
func (d *Driver) ConfigSchema() (*hclspec.Spec, error) {
	inner, err := d.innerSchemas()
	if err != nil {
		return nil, err
	}
	if d.name == DockerName {
		return withBlock(inner[engine.Docker], "ebbtide", ownSchema()), nil
	}
	spec := ownSchema()
	for name, schema := range inner {
		spec = withBlock(spec, name, schema)
	}
	return spec, nil
}

// innerSchemas returns the wrapped drivers' own config schemas by engine name.
func (d *Driver) innerSchemas() (map[string]*hclspec.Spec, error) {
	schemas := make(map[string]*hclspec.Spec)
	for _, name := range config.Engines() {
		inner, err := d.passing(name)
		if err != nil {
			return nil, err
		}
		schema, err := inner.ConfigSchema()
		if err != nil {
			return nil, fmt.Errorf("reading the config schema of the %s driver: %w", name, err)
		}
		schemas[name] = schema
	}
	return schemas, nil
}

// withBlock returns a copy of an object schema with one more optional block.
func withBlock(spec *hclspec.Spec, name string, body *hclspec.Spec) *hclspec.Spec {
	attrs := make(map[string]*hclspec.Spec)
	for key, value := range spec.GetObject().GetAttributes() {
		attrs[key] = value
	}
	attrs[name] = hclspec.NewBlock(name, false, body)
	return hclspec.NewObject(attrs)
}
