// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package config knows the plugin's own options in an agent's configuration: their
// names, types and defaults, and what is allowed. It is apart from package driver
// because that links Nomad's drivers, which the command line must not.
package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/driver/growth"
	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/policy/auto"
	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
	"github.com/ebbtide/ebbtide/driver/policy/policies"
	"github.com/ebbtide/ebbtide/driver/policy/specon"
)

// Names of the engines, which are the names of the decorated Nomad drivers.
const (
	EngineDocker = "docker"
	EngineExec   = "exec"
)

// Engines lists the engines in the order in which they are documented.
func Engines() []string { return []string{EngineDocker, EngineExec} }

// Config holds Ebbtide's own options as they are written: durations are text, and
// so is alpha.
type Config struct {
	Engine          string  `codec:"engine" json:"engine"`
	Policy          string  `codec:"policy" json:"policy"`
	Mode            string  `codec:"mode" json:"mode"`
	Estimator       string  `codec:"estimator" json:"estimator"`
	Alpha           string  `codec:"alpha" json:"alpha"`
	Beta            float64 `codec:"beta" json:"beta"`
	Full            float64 `codec:"tradl_full" json:"tradl_full"` // fraction of the pool
	QoETolerance    float64 `codec:"dqoes_alpha" json:"dqoes_alpha"`
	QoEStep         float64 `codec:"dqoes_beta" json:"dqoes_beta"`
	QoERule         string  `codec:"dqoes_step" json:"dqoes_step"`
	ServiceShare    float64 `codec:"service_share" json:"service_share"` // fraction of the pool
	SpeConAlpha     float64 `codec:"specon_alpha" json:"specon_alpha"`
	SpeConInterval  string  `codec:"specon_interval" json:"specon_interval"`
	Interval        string  `codec:"interval" json:"interval"`
	MaxInterval     string  `codec:"max_interval" json:"max_interval"`
	PoolCores       float64 `codec:"pool_cores" json:"pool_cores"`           // cores
	QuotaMinCores   float64 `codec:"quota_min_cores" json:"quota_min_cores"` // cores
	IOWeight        string  `codec:"io_weight" json:"io_weight"`
	NoProgressAfter string  `codec:"no_progress_after" json:"no_progress_after"`
	DockerTimeout   string  `codec:"docker_timeout" json:"docker_timeout"`
	DockerOutage    string  `codec:"docker_outage" json:"docker_outage"`
}

// Kinds of options: HCL's types.
const (
	KindString = "string"
	KindNumber = "number"
)

// Option is one of Ebbtide's own options: where its HCL type and default live, so
// that the schema, the defaults, the doctor and the reference cannot drift apart.
type Option struct {
	Name    string
	Kind    string // KindString or KindNumber
	Default string // a literal, the same in HCL and in JSON
}

// Options lists Ebbtide's own options in the order in which they are documented.
func Options() []Option {
	return []Option{
		{"engine", KindString, `"docker"`},
		{"policy", KindString, `"auto"`},
		{"mode", KindString, `"weight"`},
		{"estimator", KindString, `"robust"`},
		{"alpha", KindString, `"adaptive"`},
		{"beta", KindNumber, `2`},
		{"tradl_full", KindNumber, `0.9`},
		{"dqoes_alpha", KindNumber, `0.1`},
		{"dqoes_beta", KindNumber, `0.1`},
		{"dqoes_step", KindString, `"proportional"`},
		{"service_share", KindNumber, `0.8`},
		{"specon_alpha", KindNumber, `0.01`},
		{"specon_interval", KindString, `"30s"`},
		{"interval", KindString, `"20s"`},
		{"max_interval", KindString, `"5m"`},
		{"pool_cores", KindNumber, `0`},
		{"quota_min_cores", KindNumber, `1`},
		{"io_weight", KindString, `"off"`},
		{"no_progress_after", KindString, `"2m"`},
		{"docker_timeout", KindString, `"10s"`},
		{"docker_outage", KindString, `"2m"`},
	}
}

// Default is the Config of an empty block.
func Default() Config {
	values := make(map[string]json.RawMessage)
	for _, o := range Options() {
		values[o.Name] = json.RawMessage(o.Default)
	}
	var c Config
	data, err := json.Marshal(values)
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		panic(err) // the literals are constants
	}
	return c
}

// Settings is a Config that has been validated, with everything parsed.
type Settings struct {
	Engine          string
	Policy          string
	Mode            limits.Mode
	Estimator       string
	Params          auto.Params // of all policies
	SpeCon          specon.Params
	SpeConInterval  time.Duration
	Interval        time.Duration
	MaxInterval     time.Duration
	PoolCores       float64 // cores; 0 = the node's CPU less what Nomad reserves
	QuotaMinCores   float64 // cores
	IOWeight        bool
	NoProgressAfter time.Duration
	DockerTimeout   time.Duration
	DockerOutage    time.Duration // 0 = a task is given up at once
}

// Validate parses and checks every option. Its error joins all that is wrong
// (see errors.Join), each naming the field, the value and what is allowed.
func (c Config) Validate() (*Settings, error) {
	s := &Settings{
		Engine:        c.Engine,
		Policy:        c.Policy,
		Mode:          limits.Mode(c.Mode),
		Estimator:     c.Estimator,
		PoolCores:     c.PoolCores,
		QuotaMinCores: c.QuotaMinCores,
		IOWeight:      c.IOWeight == "on",
	}
	var errs []error
	oneOf := func(field, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			errs = append(errs, fmt.Errorf("%s: must be one of %s, got %q", field, strings.Join(allowed, ", "), value))
		}
	}
	oneOf("engine", c.Engine, Engines()...)
	oneOf("policy", c.Policy, policies.Names()...)
	oneOf("mode", c.Mode, string(limits.ModeWeight), string(limits.ModeQuota))
	oneOf("estimator", c.Estimator, growth.KindRobust, growth.KindPublished)

	oneOf("io_weight", c.IOWeight, "on", "off")

	var err error
	p := auto.DefaultParams()
	p.Flowcon.Beta, p.Tradl.Full, p.ServiceShare = c.Beta, c.Full, c.ServiceShare
	p.Dqoes.Alpha, p.Dqoes.Beta, p.Dqoes.Step = c.QoETolerance, c.QoEStep, dqoes.Step(c.QoERule)
	if p.Flowcon.Alpha, err = flowcon.ParseAlpha(c.Alpha); err != nil {
		errs = append(errs, fmt.Errorf("alpha: %w", err))
	}
	s.Params, s.SpeCon = p, specon.Params{Alpha: c.SpeConAlpha}
	oneOf("dqoes_step", c.QoERule, string(dqoes.StepPublished), string(dqoes.StepProportional))
	for _, f := range []struct {
		field string
		value float64
	}{{"tradl_full", c.Full}, {"dqoes_alpha", c.QoETolerance}, {"dqoes_beta", c.QoEStep}, {"service_share", c.ServiceShare}, {"specon_alpha", c.SpeConAlpha}} {
		if !(f.value > 0 && f.value <= 1) {
			errs = append(errs, fmt.Errorf("%s: must be a fraction > 0 and ≤ 1, got %v", f.field, f.value))
		}
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
	s.Interval = duration("interval", c.Interval, time.Second, time.Hour)
	s.MaxInterval = duration("max_interval", c.MaxInterval, time.Second, 24*time.Hour)
	if s.MaxInterval > 0 && s.Interval > s.MaxInterval { // one that is no duration has been reported
		errs = append(errs, fmt.Errorf("max_interval: must not be less than interval (%s), got %q", c.Interval, c.MaxInterval))
	}
	s.SpeConInterval = duration("specon_interval", c.SpeConInterval, time.Second, time.Hour)
	s.NoProgressAfter = duration("no_progress_after", c.NoProgressAfter, time.Second, 24*time.Hour)
	s.DockerTimeout = duration("docker_timeout", c.DockerTimeout, time.Second, 5*time.Minute)
	s.DockerOutage = duration("docker_outage", c.DockerOutage, 0, 24*time.Hour)

	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return s, nil
}
