// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/policy/auto"
	"github.com/ebbtide/ebbtide/driver/policy/specon"
)

// Every field is an option, in both encodings and of the same kind.
func TestOptions_fields(t *testing.T) {
	fields := reflect.TypeFor[Config]()
	must.Len(t, fields.NumField(), Options())
	for i, o := range Options() {
		f := fields.Field(i)
		must.Eq(t, o.Name, f.Tag.Get("codec"))
		must.Eq(t, o.Name, f.Tag.Get("json"))
		must.Eq(t, map[reflect.Kind]string{reflect.String: KindString, reflect.Float64: KindNumber}[f.Type.Kind()], o.Kind)
	}
}

func TestDefault(t *testing.T) {
	s, err := Default().Validate()
	must.NoError(t, err)
	must.Eq(t, &Settings{
		Engine:          EngineDocker,
		Policy:          "auto",
		Mode:            limits.ModeWeight,
		Estimator:       "robust",
		Params:          auto.DefaultParams(),
		SpeCon:          specon.DefaultParams(),
		SpeConInterval:  30 * time.Second,
		Interval:        20 * time.Second,
		MaxInterval:     5 * time.Minute,
		QuotaMinCores:   1,
		NoProgressAfter: 2 * time.Minute,
		DockerTimeout:   10 * time.Second,
		DockerOutage:    2 * time.Minute,
	}, s)
}

func TestConfig_Validate(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		want   string // the whole error; "" = valid
	}{
		"engine":    {func(c *Config) { c.Engine = "podman" }, `engine: must be one of docker, exec, got "podman"`},
		"exec":      {func(c *Config) { c.Engine = "exec" }, ""},
		"policy":    {func(c *Config) { c.Policy = "flow" }, `policy: must be one of auto, flowcon, tradl, dqoes, none, got "flow"`},
		"none":      {func(c *Config) { c.Policy = "none" }, ""},
		"io_weight": {func(c *Config) { c.IOWeight = "yes" }, `io_weight: must be one of on, off, got "yes"`},
		"mode":      {func(c *Config) { c.Mode = "hard" }, `mode: must be one of weight, quota, got "hard"`},
		"no mode":   {func(c *Config) { c.Mode = "none" }, `mode: must be one of weight, quota, got "none"`},
		"quota":     {func(c *Config) { c.Mode = "quota" }, ""},
		"estimator": {func(c *Config) { c.Estimator = "x" }, `estimator: must be one of robust, published, got "x"`},
		"published": {func(c *Config) { c.Estimator = "published" }, ""},

		"alpha":        {func(c *Config) { c.Alpha = "-0.1" }, `alpha: must be "adaptive" or a number ≥ 0, got "-0.1"`},
		"alpha text":   {func(c *Config) { c.Alpha = "auto" }, `alpha: must be "adaptive" or a number ≥ 0, got "auto"`},
		"alpha number": {func(c *Config) { c.Alpha = "0.05" }, ""},
		"alpha 0":      {func(c *Config) { c.Alpha = "0" }, ""},

		"beta":        {func(c *Config) { c.Beta = 0.5 }, `beta: must be from 1 to 100, got 0.5`},
		"beta 1":      {func(c *Config) { c.Beta = 1 }, ""},
		"beta 101":    {func(c *Config) { c.Beta = 101 }, `beta: must be from 1 to 100, got 101`},
		"full":        {func(c *Config) { c.Full = 1.5 }, `tradl_full: must be a fraction > 0 and ≤ 1, got 1.5`},
		"tolerance":   {func(c *Config) { c.QoETolerance = 0 }, `dqoes_alpha: must be a fraction > 0 and ≤ 1, got 0`},
		"step":        {func(c *Config) { c.QoEStep = math.NaN() }, `dqoes_beta: must be a fraction > 0 and ≤ 1, got NaN`},
		"step rule":   {func(c *Config) { c.QoERule = "fast" }, `dqoes_step: must be one of published, proportional, got "fast"`},
		"share":       {func(c *Config) { c.ServiceShare = -1 }, `service_share: must be a fraction > 0 and ≤ 1, got -1`},
		"gain":        {func(c *Config) { c.SpeConAlpha = 0 }, `specon_alpha: must be a fraction > 0 and ≤ 1, got 0`},
		"gain time":   {func(c *Config) { c.SpeConInterval = "0s" }, `specon_interval: must be a duration from 1s to 1h0m0s, got "0s"`},
		"pool":        {func(c *Config) { c.PoolCores = -1 }, `pool_cores: must be ≥ 0 cores (0 = the node's CPU less what Nomad reserves), got -1`},
		"pool 1.5":    {func(c *Config) { c.PoolCores = 1.5 }, ""},
		"quota -1":    {func(c *Config) { c.QuotaMinCores = -1 }, `quota_min_cores: must be > 0 cores, got -1`},
		"quota 0":     {func(c *Config) { c.QuotaMinCores = 0 }, `quota_min_cores: must be > 0 cores, got 0`},
		"quota 0.001": {func(c *Config) { c.QuotaMinCores = 0.001 }, ""},

		"interval":      {func(c *Config) { c.Interval = "20" }, `interval: must be a duration from 1s to 1h0m0s, got "20"`},
		"interval 1s":   {func(c *Config) { c.Interval = "1s" }, ""},
		"max interval":  {func(c *Config) { c.MaxInterval = "2s" }, `max_interval: must not be less than interval (20s), got "2s"`},
		"max = min":     {func(c *Config) { c.MaxInterval = "20s" }, ""},
		"max no time":   {func(c *Config) { c.MaxInterval = "soon" }, `max_interval: must be a duration from 1s to 24h0m0s, got "soon"`},
		"no progress":   {func(c *Config) { c.NoProgressAfter = "soon" }, `no_progress_after: must be a duration from 1s to 24h0m0s, got "soon"`},
		"docker":        {func(c *Config) { c.DockerTimeout = "6m" }, `docker_timeout: must be a duration from 1s to 5m0s, got "6m"`},
		"outage":        {func(c *Config) { c.DockerOutage = "-1s" }, `docker_outage: must be a duration from 0s to 24h0m0s, got "-1s"`},
		"outage 0":      {func(c *Config) { c.DockerOutage = "0s" }, ""},
		"a second line": {func(c *Config) { c.Mode = "a\nb" }, `mode: must be one of weight, quota, got "a\nb"`},

		"all at once": {func(c *Config) { c.Mode, c.Policy, c.Beta = "x", "y", 0 },
			`policy: must be one of auto, flowcon, tradl, dqoes, none, got "y"` + "\n" +
				`mode: must be one of weight, quota, got "x"` + "\n" +
				`beta: must be from 1 to 100, got 0`},
	} {
		t.Run(name, func(t *testing.T) {
			config := Default()
			c.change(&config)
			s, err := config.Validate()
			if c.want == "" {
				must.NoError(t, err)
				must.NotNil(t, s)
				return
			}
			must.EqError(t, err, c.want)
			must.Nil(t, s)
		})
	}
}
