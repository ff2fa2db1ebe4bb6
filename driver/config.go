// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/zclconf/go-cty/cty"
	ctymsgpack "github.com/zclconf/go-cty/cty/msgpack"

	"github.com/ebbtide/ebbtide/driver/control"
	"github.com/ebbtide/ebbtide/driver/engine"
	"github.com/ebbtide/ebbtide/driver/growth"
	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
)

// Config is the agent's configuration of the plugin: Ebbtide's own options. The
// wrapped driver's options are kept apart, in the form its SetConfig takes.
type Config struct {
	Engine          string  `codec:"engine"`
	Policy          string  `codec:"policy"`
	Mode            string  `codec:"mode"`
	Estimator       string  `codec:"estimator"`
	Alpha           string  `codec:"alpha"`
	Beta            float64 `codec:"beta"`
	Interval        string  `codec:"interval"`
	MaxInterval     string  `codec:"max_interval"`
	PoolCores       float64 `codec:"pool_cores"`
	QuotaMinCores   float64 `codec:"quota_min_cores"`
	NoProgressAfter string  `codec:"no_progress_after"`
	ReapPeriod      string  `codec:"reap_period"`
	ReapGrace       string  `codec:"reap_grace"`
	DockerTimeout   string  `codec:"docker_timeout"`
	DockerOutage    string  `codec:"docker_outage"`
}

// option is one of Ebbtide's own options: where its HCL type and default live,
// so that the schema, the defaults and the reference cannot drift apart.
type option struct{ name, kind, def string }

// options lists Ebbtide's own options. String literals are HCL literals.
func options() []option {
	return []option{
		{"engine", "string", `"docker"`},
		{"policy", "string", `"flowcon"`},
		{"mode", "string", `"weight"`},
		{"estimator", "string", `"robust"`},
		{"alpha", "string", `"adaptive"`},
		{"beta", "number", `2`},
		{"interval", "string", `"20s"`},
		{"max_interval", "string", `"5m"`},
		{"pool_cores", "number", `0`},
		{"quota_min_cores", "number", `1`},
		{"no_progress_after", "string", `"2m"`},
		{"reap_period", "string", `"5m"`},
		{"reap_grace", "string", `"5m"`},
		{"docker_timeout", "string", `"10s"`},
		{"docker_outage", "string", `"2m"`},
	}
}

// ownSchema is the schema of Ebbtide's own options.
func ownSchema() *hclspec.Spec {
	attrs := make(map[string]*hclspec.Spec)
	for _, o := range options() {
		attrs[o.name] = hclspec.NewDefault(hclspec.NewAttr(o.name, o.kind, false), hclspec.NewLiteral(o.def))
	}
	return hclspec.NewObject(attrs)
}

// durations are the parsed forms of the options that are durations.
type durations struct {
	interval, maxInterval, noProgressAfter, reapPeriod, reapGrace, dockerTimeout, dockerOutage time.Duration
}

// settings is a Config that has been validated, with everything parsed.
type settings struct {
	Config
	durations
	alpha flowcon.Alpha
	inner []byte // the wrapped driver's config, as its SetConfig takes it
}

// decodeConfig splits the plugin's config, as Nomad encodes it by ConfigSchema,
// into Ebbtide's own settings and the wrapped driver's. Every error found is
// reported, each naming the field, the value and what is allowed.
func (d *Driver) decodeConfig(data []byte) (*settings, error) {
	schema, err := d.ConfigSchema()
	if err != nil {
		return nil, err
	}
	all, err := decodeBySchema(data, schema)
	if err != nil {
		return nil, fmt.Errorf("decoding the plugin's config: %w", err)
	}

	own := all
	if d.name == DockerName {
		if own, err = blockOrDefaults(all, "ebbtide", ownSchema()); err != nil {
			return nil, err
		}
	}
	s, err := parseOwn(own)
	if err != nil {
		return nil, err
	}

	inner, err := d.innerSchemas()
	if err != nil {
		return nil, err
	}
	var innerVal cty.Value
	if d.name == DockerName {
		if s.Engine != engine.Docker {
			return nil, fmt.Errorf("engine: must be %q when the plugin is installed as %q, got %q", engine.Docker, DockerName, s.Engine)
		}
		innerVal, err = objectFor(all, inner[engine.Docker])
	} else {
		innerVal, err = blockOrDefaults(all, s.Engine, inner[s.Engine])
	}
	if err != nil {
		return nil, err
	}
	if s.inner, err = encodeValue(innerVal); err != nil {
		return nil, fmt.Errorf("encoding the config of the %s driver: %w", s.Engine, err)
	}
	return s, nil
}

// parseOwn decodes and validates Ebbtide's own options.
func parseOwn(val cty.Value) (*settings, error) {
	val, err := objectFor(val, ownSchema())
	if err != nil {
		return nil, err
	}
	data, err := encodeValue(val)
	if err != nil {
		return nil, err
	}
	var cfg Config
	if err := base.MsgPackDecode(data, &cfg); err != nil {
		return nil, fmt.Errorf("decoding the plugin's config: %w", err)
	}
	return cfg.validate()
}

// validate parses and checks every option.
func (c Config) validate() (*settings, error) {
	s := &settings{Config: c}
	var errs []error
	oneOf := func(field, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			errs = append(errs, fmt.Errorf("%s: must be one of %s, got %q", field, strings.Join(allowed, ", "), value))
		}
	}
	oneOf("engine", c.Engine, engine.Names()...)
	oneOf("policy", c.Policy, control.Policies()...)
	oneOf("mode", c.Mode, string(limits.ModeWeight), string(limits.ModeQuota))
	oneOf("estimator", c.Estimator, growth.KindRobust, growth.KindPublished)

	var err error
	if s.alpha, err = flowcon.ParseAlpha(c.Alpha); err != nil {
		errs = append(errs, fmt.Errorf("alpha: %w", err))
	}
	if !(c.Beta >= 1 && c.Beta <= 100) {
		errs = append(errs, fmt.Errorf("beta: must be from 1 to 100, got %v", c.Beta))
	}
	if !(c.PoolCores >= 0) {
		errs = append(errs, fmt.Errorf("pool_cores: must be ≥ 0 cores (0 = the node's CPU less what Nomad reserves), got %v", c.PoolCores))
	}
	if !(c.QuotaMinCores >= 0) {
		errs = append(errs, fmt.Errorf("quota_min_cores: must be ≥ 0 cores, got %v", c.QuotaMinCores))
	}

	duration := func(field, value string, least, most time.Duration) time.Duration {
		v, err := time.ParseDuration(value)
		if err != nil || v < least || v > most {
			errs = append(errs, fmt.Errorf("%s: must be a duration from %s to %s, got %q", field, least, most, value))
		}
		return v
	}
	s.interval = duration("interval", c.Interval, time.Second, time.Hour)
	s.maxInterval = duration("max_interval", c.MaxInterval, time.Second, 24*time.Hour)
	if s.interval > s.maxInterval {
		errs = append(errs, fmt.Errorf("max_interval: must not be less than interval (%s), got %q", c.Interval, c.MaxInterval))
	}
	s.noProgressAfter = duration("no_progress_after", c.NoProgressAfter, time.Second, 24*time.Hour)
	s.reapPeriod = duration("reap_period", c.ReapPeriod, time.Second, 24*time.Hour)
	s.reapGrace = duration("reap_grace", c.ReapGrace, time.Second, 24*time.Hour)
	s.dockerTimeout = duration("docker_timeout", c.DockerTimeout, time.Second, 5*time.Minute)
	s.dockerOutage = duration("docker_outage", c.DockerOutage, 0, 24*time.Hour)

	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return s, nil
}

// decodeBySchema decodes msgpack that Nomad encoded by a schema. No data means
// that the plugin block is absent: the schema's defaults.
func decodeBySchema(data []byte, schema *hclspec.Spec) (cty.Value, error) {
	if len(data) == 0 {
		return schemaDefaults(schema)
	}
	spec, diags := hclspecutils.Convert(schema)
	if diags.HasErrors() {
		return cty.NilVal, diags
	}
	return ctymsgpack.Unmarshal(data, hcldec.ImpliedType(spec))
}

// schemaDefaults is the value of an empty block under a schema.
func schemaDefaults(schema *hclspec.Spec) (cty.Value, error) {
	spec, diags := hclspecutils.Convert(schema)
	if diags.HasErrors() {
		return cty.NilVal, diags
	}
	val, diags, _ := hclutils.ParseHclInterface(map[string]any{}, spec, nil)
	if diags.HasErrors() {
		return cty.NilVal, diags
	}
	return val, nil
}

// blockOrDefaults returns a block of an object, or its defaults when the block
// is absent (the wrapped driver's own defaults sit inside its schema).
func blockOrDefaults(obj cty.Value, name string, schema *hclspec.Spec) (cty.Value, error) {
	if obj.Type().HasAttribute(name) {
		if block := obj.GetAttr(name); !block.IsNull() {
			return block, nil
		}
	}
	val, err := schemaDefaults(schema)
	if err != nil {
		return cty.NilVal, fmt.Errorf("defaults of the block %q: %w", name, err)
	}
	return val, nil
}

// objectFor returns the part of an object that a schema describes.
func objectFor(obj cty.Value, schema *hclspec.Spec) (cty.Value, error) {
	attrs := make(map[string]cty.Value)
	for name := range schema.GetObject().GetAttributes() {
		if !obj.Type().HasAttribute(name) {
			return cty.NilVal, fmt.Errorf("config has no attribute %q", name)
		}
		attrs[name] = obj.GetAttr(name)
	}
	return cty.ObjectVal(attrs), nil
}
