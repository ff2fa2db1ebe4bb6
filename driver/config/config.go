// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package config defines the plugin's options in the agent's configuration: names,
// types, defaults and validation (Parse). The policies add theirs. It is separate from
// package driver, which links Nomad's drivers, for the command line.
package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/driver/growth"
	"github.com/ebbtide/ebbtide/driver/plan"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/fsp"
	"github.com/ebbtide/ebbtide/driver/policy/policies"
	"github.com/ebbtide/ebbtide/driver/policy/specon"
	"github.com/ebbtide/ebbtide/internal/fields"
	"github.com/ebbtide/ebbtide/internal/metricsserver"
)

const (
	EngineDocker = "docker"
	EngineExec   = "exec"
)

func Engines() []string { return []string{EngineDocker, EngineExec} }

// common are the options that belong to no policy, unparsed: durations are strings.
type common struct {
	Engine          string  `json:"engine"`
	Policy          string  `json:"policy"`
	Preset          string  `json:"preset"`
	Mode            string  `json:"mode"`
	Estimator       string  `json:"estimator"`
	SpeConAlpha     float64 `json:"specon_alpha"`
	SpeConInterval  string  `json:"specon_interval"`
	Interval        string  `json:"interval"`
	MaxInterval     string  `json:"max_interval"`
	PoolCores       float64 `json:"pool_cores"`      // cores
	QuotaMinCores   float64 `json:"quota_min_cores"` // cores
	NoProgressAfter string  `json:"no_progress_after"`
	GPUFairFinish   bool    `json:"gpu_fair_finish"`
	DockerTimeout   string  `json:"docker_timeout"`
	DockerOutage    string  `json:"docker_outage"`
	Metrics         string  `json:"metrics_address"`
}

func Options() []policy.Option {
	const text, number = policy.KindString, policy.KindNumber
	return slices.Concat([]policy.Option{
		{Name: "engine", Kind: text, Default: `"docker"`, Allowed: either(Engines()...),
			Doc: "Nomad driver that runs the tasks; `config` takes its options. Constrain jobs with `${attr.driver.ebbtide.engine}`."},
		{Name: "policy", Kind: text, Default: `"` + policies.Names()[0] + `"`, Allowed: either(policies.Names()...),
			Doc: "How CPU is divided; see below."},
		{Name: "preset", Kind: text, Default: `""`, Allowed: either(policies.PresetNames()...),
			Doc: "A paper's setting, as [published](../driver/policy/policies/presets.go), instead of the defaults below."},
		{Name: "mode", Kind: text, Default: `"weight"`, Allowed: either(string(plan.ModeWeight), string(plan.ModeQuota)),
			Doc: "Limits are weights, effective while CPU is short, or hard quotas."},
		{Name: "estimator", Kind: text, Default: `"robust"`, Allowed: either(growth.KindRobust, growth.KindPublished),
			Doc: "How growth is measured; `published`: from raw values, as in the papers."},
	}, policies.Options(), []policy.Option{
		{Name: "specon_alpha", Kind: number, Default: `0.01`, Allowed: "> 0, ≤ 1",
			Doc: "SpeCon: a task slows down while its metric moves less than this fraction of its range per interval."},
		{Name: "specon_interval", Kind: text, Default: `"30s"`, Allowed: "1s to 1h",
			Doc: "SpeCon: length of that interval."},
		{Name: "interval", Kind: text, Default: `"5s"`, Allowed: "1s to 1h",
			Doc: "Time between decisions; FlowCon's paper has 20 s. A join or leave is decided at once."},
		{Name: "max_interval", Kind: text, Default: `"5m"`, Allowed: "1s to 24h, ≥ `interval`",
			Doc: "Maximum interval; the interval doubles while all tasks have converged."},
		{Name: "pool_cores", Kind: number, Default: `0`, Allowed: "0 to the node's CPUs",
			Doc: "Cores to divide. 0: all CPUs less Nomad's `reserved` and those of `cores` tasks."},
		{Name: "quota_min_cores", Kind: number, Default: `1`, Allowed: "> 0",
			Doc: "Minimum quota of a task in cores, where the pool has room."},
		{Name: "no_progress_after", Kind: text, Default: `"2m"`, Allowed: "1s to 24h",
			Doc: "Time without a report until an event says so."},
		{Name: "gpu_fair_finish", Kind: policy.KindBool, Default: `true`, Allowed: "`true`, `false`",
			Doc: "Training tasks on a shared GPU go there [one after the other](gpu.md#time), too (`auto`, `fsp`)."},
		{Name: "docker_timeout", Kind: text, Default: `"10s"`, Allowed: "1s to 5m",
			Doc: "Timeout of Ebbtide's own calls to Docker."},
		{Name: "docker_outage", Kind: text, Default: `"2m"`, Allowed: "0s to 24h",
			Doc: "How long Docker may be unreachable before tasks count as lost. `0s`: as in stock Nomad."},
		{Name: "metrics_address", Kind: text, Default: `""`, Allowed: "a loopback address with a port, or `unix:` and an absolute path",
			Doc: "Address of the [metrics](metrics.md). Empty: disabled."},
	})
}

// either lists allowed values as Markdown.
func either(values ...string) string { return "`" + strings.Join(values, "`, `") + "`" }

// Settings are the options, validated and parsed.
type Settings struct {
	Engine          string
	Policy          policy.Decider
	Policies        map[string]json.RawMessage
	Mode            plan.Mode
	Estimator       string
	SpeCon          specon.Params
	SpeConInterval  time.Duration
	Interval        time.Duration
	MaxInterval     time.Duration
	PoolCores       float64 // cores; 0 = the node's CPU less Nomad's reserve
	QuotaMinCores   float64 // cores
	NoProgressAfter time.Duration
	Turns           fsp.Prefer // who goes first on a shared GPU; "" = all run at once
	DockerTimeout   time.Duration
	DockerOutage    time.Duration // 0 = give up after one attempt
	Metrics         metricsserver.Address
}

// Parse validates and parses the options; values holds those that are set as strings,
// float64s and bools. The error is a fields.Errors with all errors.
func Parse(values map[string]any) (*Settings, error) {
	var errs fields.Errors
	named, _ := values["preset"].(string)
	preset, err := policies.FindPreset(named)
	if err != nil {
		errs.Add("preset", "%v", err)
	}
	all := make(map[string]json.RawMessage)
	for _, o := range Options() {
		all[o.Name] = json.RawMessage(cmp.Or(preset[o.Name], o.Default))
		value, ok := values[o.Name]
		if !ok || value == nil {
			continue
		}
		data, err := json.Marshal(value)
		if err != nil { // NaN and ±Inf
			errs.Add(o.Name, "must be a finite number, got %v", value)
			continue
		}
		all[o.Name] = data
	}
	var c common
	data, err := json.Marshal(all)
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		return nil, fmt.Errorf("decoding the options: %w", err)
	}
	s := c.parse(&errs)
	s.Policies = make(map[string]json.RawMessage)
	for _, p := range policies.All() {
		d, err := p.Configure(all)
		var wrong fields.Errors
		if errors.As(err, &wrong) {
			errs.Merge(wrong)
		} else if err != nil {
			return nil, err
		}
		s.Policies[p.Name] = d.Params
		if p.Name != c.Policy {
			continue
		}
		s.Policy = d
		if c.GPUFairFinish && slices.ContainsFunc(p.Options, func(o policy.Option) bool { return o.Name == fsp.OptionPrefer }) {
			if err := json.Unmarshal(all[fsp.OptionPrefer], &s.Turns); err != nil {
				return nil, fmt.Errorf("decoding option %s: %w", fsp.OptionPrefer, err)
			}
		}
	}
	if err := errs.Err(); err != nil {
		return nil, err
	}
	return s, nil
}

func (c common) parse(errs *fields.Errors) *Settings {
	s := &Settings{
		Engine:        c.Engine,
		Mode:          plan.Mode(c.Mode),
		Estimator:     c.Estimator,
		SpeCon:        specon.Params{Alpha: c.SpeConAlpha},
		PoolCores:     c.PoolCores,
		QuotaMinCores: c.QuotaMinCores,
	}
	oneOf := func(field, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			errs.Add(field, "must be one of %s, got %q", strings.Join(allowed, ", "), value)
		}
	}
	oneOf("engine", c.Engine, Engines()...)
	oneOf("policy", c.Policy, policies.Names()...)
	oneOf("mode", c.Mode, string(plan.ModeWeight), string(plan.ModeQuota))
	oneOf("estimator", c.Estimator, growth.KindRobust, growth.KindPublished)
	if !(c.SpeConAlpha > 0 && c.SpeConAlpha <= 1) {
		errs.Add("specon_alpha", "must be a fraction > 0 and ≤ 1, got %v", c.SpeConAlpha)
	}
	if !(c.PoolCores >= 0) {
		errs.Add("pool_cores", "must be ≥ 0 cores (0 = the node's CPU less what Nomad reserves), got %v", c.PoolCores)
	}
	if !(c.QuotaMinCores > 0) {
		errs.Add("quota_min_cores", "must be > 0 cores, got %v", c.QuotaMinCores)
	}

	duration := func(field, value string, least, most time.Duration) time.Duration {
		v, err := time.ParseDuration(value)
		if err != nil || v < least || v > most {
			errs.Add(field, "must be a duration from %s to %s, got %q", least, most, value)
		}
		return v
	}
	s.Interval = duration("interval", c.Interval, time.Second, time.Hour)
	s.MaxInterval = duration("max_interval", c.MaxInterval, time.Second, 24*time.Hour)
	if s.MaxInterval > 0 && s.Interval > s.MaxInterval { // an invalid duration has been reported
		errs.Add("max_interval", "must not be less than interval (%s), got %q", c.Interval, c.MaxInterval)
	}
	s.SpeConInterval = duration("specon_interval", c.SpeConInterval, time.Second, time.Hour)
	s.NoProgressAfter = duration("no_progress_after", c.NoProgressAfter, time.Second, 24*time.Hour)
	s.DockerTimeout = duration("docker_timeout", c.DockerTimeout, time.Second, 5*time.Minute)
	s.DockerOutage = duration("docker_outage", c.DockerOutage, 0, 24*time.Hour)
	var err error
	if s.Metrics, err = metricsserver.Parse(c.Metrics); err != nil {
		errs.Add("metrics_address", "%v", err)
	}
	return s
}
