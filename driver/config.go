// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	ctymsgpack "github.com/zclconf/go-cty/cty/msgpack"

	"github.com/ebbtide/ebbtide/driver/config"
	"github.com/ebbtide/ebbtide/driver/engine"
	"github.com/ebbtide/ebbtide/driver/options"
	"github.com/ebbtide/ebbtide/driver/policy"
)

func ownSchema() *hclspec.Spec {
	attrs := make(map[string]*hclspec.Spec)
	for _, o := range config.Options() {
		attrs[o.Name] = hclspec.NewDefault(hclspec.NewAttr(o.Name, o.Kind, false), hclspec.NewLiteral(o.Default))
	}
	return hclspec.NewObject(attrs)
}

type settings struct {
	*config.Settings
	inner map[string]any // options of the decorated driver
	reaper
}

// decodeConfig splits the plugin's config, encoded by ConfigSchema, into Ebbtide's settings and the
// decorated driver's. It reports all errors.
func (d *Driver) decodeConfig(data []byte) (*settings, error) {
	all := make(map[string]any)
	if len(data) > 0 { // no data: the plugin block is absent
		if err := base.MsgPackDecode(data, &all); err != nil {
			return nil, fmt.Errorf("decoding the plugin's config: %w", err)
		}
	}
	inner, err := d.innerSchemas()
	if err != nil {
		return nil, err
	}

	if d.name == DockerName {
		own, err := block(all, "ebbtide", ownSchema())
		if err != nil {
			return nil, err
		}
		s, err := parseOwn(own)
		if err != nil {
			return nil, err
		}
		if s.Engine != engine.Docker {
			return nil, fmt.Errorf("engine: must be %q when the plugin is installed as %q, got %q", engine.Docker, DockerName, s.Engine)
		}
		if s.inner, err = withDefaults(all, inner[engine.Docker]); err != nil {
			return nil, err
		}
		delete(s.inner, "ebbtide")
		s.reaper, err = readReaper(s.inner)
		return s, err
	}

	own, err := withDefaults(all, ownSchema())
	if err != nil {
		return nil, err
	}
	s, err := parseOwn(own)
	if err != nil {
		return nil, err
	}
	if s.inner, err = block(all, s.Engine, inner[s.Engine]); err != nil {
		return nil, err
	}
	s.reaper, err = readReaper(s.inner)
	return s, err
}

// reaper is the docker driver's gc.dangling_containers; it configures Ebbtide's reaper.
type reaper struct {
	enabled, dryRun bool
	period, grace   time.Duration
}

// readReaper reads gc.dangling_containers from the docker driver's options; the exec
// driver has none.
func readReaper(inner map[string]any) (reaper, error) {
	gc, _ := inner["gc"].(map[string]any)
	values, ok := gc["dangling_containers"].(map[string]any)
	if !ok {
		return reaper{}, nil
	}
	var r reaper
	r.enabled, _ = values["enabled"].(bool)
	r.dryRun, _ = values["dry_run"].(bool)
	var errs []error
	read := func(name string) time.Duration {
		text, _ := values[name].(string)
		v, err := time.ParseDuration(text)
		if err != nil || v <= 0 {
			errs = append(errs, fmt.Errorf("gc.dangling_containers.%s: must be a duration > 0, got %q", name, text))
		}
		return v
	}
	r.period, r.grace = read("period"), read("creation_grace")
	if !r.enabled {
		return reaper{}, nil
	}
	return r, errors.Join(errs...)
}

// imageGC bounds the time an instance of the docker driver takes to remove its tasks' images; 0 if
// it removes none.
func (s *settings) imageGC() time.Duration {
	gc, _ := s.inner["gc"].(map[string]any)
	if on, _ := gc["image"].(bool); !on {
		return 0
	}
	text, _ := gc["image_delay"].(string)
	delay, _ := time.ParseDuration(text) // validated by the docker driver
	return delay + time.Minute
}

func parseOwn(values map[string]any) (*settings, error) {
	values = maps.Clone(values)
	for _, o := range config.Options() {
		if o.Kind != policy.KindNumber || values[o.Name] == nil {
			continue
		}
		v, err := options.Number(values[o.Name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.Name, err)
		}
		values[o.Name] = v
	}
	own, err := config.Parse(values)
	if err != nil {
		return nil, err
	}
	return &settings{Settings: own}, nil
}

func block(values map[string]any, name string, schema *hclspec.Spec) (map[string]any, error) {
	if b, ok := values[name].(map[string]any); ok {
		return b, nil
	}
	return withDefaults(nil, schema)
}

// withDefaults returns values, or the schema's defaults if there are none: Nomad fills
// in defaults only in blocks present in the agent's config.
func withDefaults(values map[string]any, schema *hclspec.Spec) (map[string]any, error) {
	if len(values) > 0 {
		return values, nil
	}
	spec, diags := hclspecutils.Convert(schema)
	if diags.HasErrors() {
		return nil, diags
	}
	val, diags, _ := hclutils.ParseHclInterface(map[string]any{}, spec, nil)
	if diags.HasErrors() {
		return nil, diags
	}
	data, err := ctymsgpack.Marshal(val, val.Type())
	if err != nil {
		return nil, fmt.Errorf("encoding the defaults of a config schema: %w", err)
	}
	defaults := make(map[string]any)
	if err := base.MsgPackDecode(data, &defaults); err != nil {
		return nil, fmt.Errorf("decoding the defaults of a config schema: %w", err)
	}
	return defaults, nil
}

func encode(values map[string]any) ([]byte, error) {
	var data []byte
	if err := base.MsgPackEncode(&data, values); err != nil {
		return nil, fmt.Errorf("encoding config: %w", err)
	}
	return data, nil
}
