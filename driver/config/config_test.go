// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/plan"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/fsp"
	"github.com/ebbtide/ebbtide/driver/policy/policies"
	"github.com/ebbtide/ebbtide/driver/policy/specon"
)

func TestOptions_fields(t *testing.T) {
	kinds := make(map[string]string)
	names := make(map[string]bool)
	for _, o := range Options() {
		must.False(t, names[o.Name], must.Sprint(o.Name, "twice"))
		names[o.Name] = true
		if o.Param == "" {
			kinds[o.Name] = o.Kind
		}
	}
	own := reflect.TypeFor[common]()
	must.Eq(t, own.NumField(), len(kinds))
	for i := range own.NumField() {
		f := own.Field(i)
		must.Eq(t, map[reflect.Kind]string{reflect.String: policy.KindString, reflect.Float64: policy.KindNumber, reflect.Bool: policy.KindBool}[f.Type.Kind()], kinds[f.Tag.Get("json")])
	}
}

func TestParse_defaults(t *testing.T) {
	s, err := Parse(nil)
	must.NoError(t, err)
	must.Eq(t, "auto", s.Policy.Name)
	must.Eq(t, string(s.Policies["auto"]), string(s.Policy.Params))
	for _, p := range policies.All() {
		must.MapContainsKey(t, s.Policies, p.Name)
	}
	s.Policy, s.Policies = policy.Decider{}, nil
	must.Eq(t, &Settings{
		Engine:          EngineDocker,
		Mode:            plan.ModeWeight,
		Estimator:       "robust",
		SpeCon:          specon.DefaultParams(),
		SpeConInterval:  30 * time.Second,
		Interval:        5 * time.Second,
		MaxInterval:     5 * time.Minute,
		QuotaMinCores:   1,
		NoProgressAfter: 2 * time.Minute,
		Turns:           fsp.Balanced,
		DockerTimeout:   10 * time.Second,
		DockerOutage:    2 * time.Minute,
	}, s)
}

// A preset replaces defaults, not what is set.
func TestParse_preset(t *testing.T) {
	for _, name := range policies.PresetNames() {
		_, err := Parse(map[string]any{"preset": name})
		must.NoError(t, err, must.Sprint(name))
		options, err := policies.FindPreset(name)
		must.NoError(t, err)
		for option := range options {
			must.True(t, slices.ContainsFunc(Options(), func(o policy.Option) bool { return o.Name == option }), must.Sprint(option))
		}
	}
	s, err := Parse(map[string]any{"preset": "flowcon-2019", "interval": "30s"})
	must.NoError(t, err)
	must.Eq(t, "flowcon", s.Policy.Name)
	must.StrContains(t, string(s.Policy.Params), `"alpha":0.05`)
	must.Eq(t, plan.ModeQuota, s.Mode)
	must.Eq(t, "published", s.Estimator)
	must.Eq(t, 30*time.Second, s.Interval)
	must.Eq(t, 24*time.Hour, s.MaxInterval)
}

func TestParse(t *testing.T) {
	type values = map[string]any
	for name, tc := range map[string]struct {
		values values
		want   string // the whole error; "" = valid
	}{
		"engine":  {values{"engine": "podman"}, `engine: must be one of docker, exec, got "podman"`},
		"exec":    {values{"engine": "exec"}, ""},
		"policy":  {values{"policy": "flow"}, `policy: must be one of auto, fsp, flowcon, tradl, dqoes, none, got "flow"`},
		"none":    {values{"policy": "none"}, ""},
		"preset":  {values{"preset": "flowcon"}, `preset: must be one of flowcon-2019, flowcon-2022, specon, tradl, dqoes, got "flowcon"`},
		"mode":    {values{"mode": "hard"}, `mode: must be one of weight, quota, got "hard"`},
		"no mode": {values{"mode": "none"}, `mode: must be one of weight, quota, got "none"`},
		"quota":   {values{"mode": "quota"}, ""},
		"metrics": {values{"metrics_address": "0.0.0.0:9464"}, `metrics_address: must be a loopback address with a port, like 127.0.0.1:9464 or [::1]:9464, ` +
			`or unix: with the absolute path of a socket, or empty, got "0.0.0.0:9464"`},
		"loopback":  {values{"metrics_address": "127.0.0.1:9464"}, ""},
		"estimator": {values{"estimator": "x"}, `estimator: must be one of robust, published, got "x"`},
		"published": {values{"estimator": "published"}, ""},

		"alpha":        {values{"alpha": "-0.1"}, `alpha: must be "adaptive" or a number ≥ 0, got "-0.1"`},
		"alpha text":   {values{"alpha": "auto"}, `alpha: must be "adaptive" or a number ≥ 0, got "auto"`},
		"alpha number": {values{"alpha": "0.05"}, ""},
		"alpha 0":      {values{"alpha": "0"}, ""},

		"beta":        {values{"beta": 0.5}, `beta: must be ≥ 1, got 0.5`},
		"beta 1":      {values{"beta": 1.0}, ""},
		"full":        {values{"tradl_full": 1.5}, `tradl_full: must be > 0 and ≤ 1, got 1.5`},
		"tolerance":   {values{"dqoes_alpha": 0.0}, `dqoes_alpha: must be > 0 and < 1, got 0`},
		"tolerance 1": {values{"dqoes_alpha": 1.0}, `dqoes_alpha: must be > 0 and < 1, got 1`},
		"step":        {values{"dqoes_beta": math.NaN()}, `dqoes_beta: must be a finite number, got NaN`},
		"step rule":   {values{"dqoes_step": "fast"}, `dqoes_step: must be one of "published", "proportional", got "fast"`},
		"headroom":    {values{"dqoes_headroom": false}, ""},
		"share":       {values{"service_share": -1.0}, `service_share: must be > 0 and ≤ 1, got -1`},
		"gain":        {values{"specon_alpha": 0.0}, `specon_alpha: must be a fraction > 0 and ≤ 1, got 0`},
		"gain time":   {values{"specon_interval": "0s"}, `specon_interval: must be a duration from 1s to 1h0m0s, got "0s"`},
		"pool":        {values{"pool_cores": -1.0}, `pool_cores: must be ≥ 0 cores (0 = the node's CPU less what Nomad reserves), got -1`},
		"pool 1.5":    {values{"pool_cores": 1.5}, ""},
		"quota -1":    {values{"quota_min_cores": -1.0}, `quota_min_cores: must be > 0 cores, got -1`},
		"quota 0":     {values{"quota_min_cores": 0.0}, `quota_min_cores: must be > 0 cores, got 0`},
		"quota 0.001": {values{"quota_min_cores": 0.001}, ""},

		"interval":      {values{"interval": "20"}, `interval: must be a duration from 1s to 1h0m0s, got "20"`},
		"interval 1s":   {values{"interval": "1s"}, ""},
		"max interval":  {values{"max_interval": "2s"}, `max_interval: must not be less than interval (5s), got "2s"`},
		"max = min":     {values{"max_interval": "5s"}, ""},
		"max no time":   {values{"max_interval": "soon"}, `max_interval: must be a duration from 1s to 24h0m0s, got "soon"`},
		"no progress":   {values{"no_progress_after": "soon"}, `no_progress_after: must be a duration from 1s to 24h0m0s, got "soon"`},
		"docker":        {values{"docker_timeout": "6m"}, `docker_timeout: must be a duration from 1s to 5m0s, got "6m"`},
		"outage":        {values{"docker_outage": "-1s"}, `docker_outage: must be a duration from 0s to 24h0m0s, got "-1s"`},
		"outage 0":      {values{"docker_outage": "0s"}, ""},
		"a second line": {values{"mode": "a\nb"}, `mode: must be one of weight, quota, got "a\nb"`},

		"all at once": {values{"mode": "x", "policy": "y", "beta": 0.0},
			`policy: must be one of auto, fsp, flowcon, tradl, dqoes, none, got "y"` + "\n" +
				`mode: must be one of weight, quota, got "x"` + "\n" +
				`beta: must be ≥ 1, got 0`},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Parse(tc.values)
			if tc.want == "" {
				must.NoError(t, err)
				must.NotNil(t, s)
				return
			}
			must.EqError(t, err, tc.want)
			must.Nil(t, s)
		})
	}
}
