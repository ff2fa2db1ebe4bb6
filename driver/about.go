// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

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

	// DockerName is the driver's name when installed as "docker". Nomad prefers it to the built-in
	// docker driver of no higher version, and one driver tracks all containers.
	DockerName = "docker"

	// pluginVersion must not be lower than the version of Nomad's built-in driver of the same name
	// ("0.1.0"). A pre-release suffix would count as lower, so this is not the product's version.
	pluginVersion = "0.1.0"
)

// InstalledName derives the driver name, DockerName or Name, from the binary's file name.
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

func (d *Driver) PluginInfo() (*base.PluginInfoResponse, error) {
	return &base.PluginInfoResponse{
		Type:              base.PluginTypeDriver,
		PluginApiVersions: []string{drivers.ApiVersion010},
		PluginVersion:     pluginVersion,
		Name:              d.name,
	}, nil
}

// ConfigSchema returns the schema of the plugin block. Nomad requests it before SetConfig, so it
// covers both engines, each in its own block. Installed as "docker", the stock options stay at the
// top level, so existing configurations remain valid, and Ebbtide's options are in a block
// "ebbtide".
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

func (d *Driver) innerSchemas() (map[string]*hclspec.Spec, error) {
	schemas := make(map[string]*hclspec.Spec)
	for _, name := range config.Engines() {
		inner, err := d.queryInstance(name)
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

func withBlock(spec *hclspec.Spec, name string, body *hclspec.Spec) *hclspec.Spec {
	attrs := make(map[string]*hclspec.Spec)
	for key, value := range spec.GetObject().GetAttributes() {
		attrs[key] = value
	}
	attrs[name] = hclspec.NewBlock(name, false, body)
	return hclspec.NewObject(attrs)
}
