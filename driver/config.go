// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
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
	interval, maxInterval, noProgressAfter, dockerTimeout, dockerOutage time.Duration
}

// settings is a Config that has been validated, with everything parsed.
type settings struct {
	Config
	durations
	alpha flowcon.Alpha
	inner map[string]any // the wrapped driver's own options
	reaper
}

// decodeConfig splits the plugin's config, as Nomad encodes it by ConfigSchema,
// into Ebbtide's own settings and the wrapped driver's. Every error found is
// reported, each naming the field, the value and what is allowed.
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

// reaper is the docker driver's gc.dangling_containers: our own reaper goes by it.
type reaper struct {
	enabled, dryRun bool
	period, grace   time.Duration
}

// readReaper reads gc.dangling_containers out of the docker driver's options; the
// exec driver has none.
func readReaper(config map[string]any) (reaper, error) {
	gc, _ := config["gc"].(map[string]any)
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

// parseOwn decodes and validates Ebbtide's own options.
func parseOwn(values map[string]any) (*settings, error) {
	data, err := encode(values)
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
	if !(c.QuotaMinCores > 0) {
		errs = append(errs, fmt.Errorf("quota_min_cores: must be > 0 cores, got %v", c.QuotaMinCores))
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
	s.dockerTimeout = duration("docker_timeout", c.DockerTimeout, time.Second, 5*time.Minute)
	s.dockerOutage = duration("docker_outage", c.DockerOutage, 0, 24*time.Hour)

	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return s, nil
}

// block returns a block of an object, or the defaults of its schema when the
// block is absent.
func block(values map[string]any, name string, schema *hclspec.Spec) (map[string]any, error) {
	if b, ok := values[name].(map[string]any); ok {
		return b, nil
	}
	return withDefaults(nil, schema)
}

// withDefaults returns values, or the schema's defaults when there are none. Nomad
// fills defaults in itself, but only in a block that is written in the agent's
// config.
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

// encode encodes config values as Nomad does for a plugin.
func encode(values map[string]any) ([]byte, error) {
	var data []byte
	if err := base.MsgPackEncode(&data, values); err != nil {
		return nil, fmt.Errorf("encoding config: %w", err)
	}
	return data, nil
}
