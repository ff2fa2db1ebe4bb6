// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/shoenig/test/must"
	ctymsgpack "github.com/zclconf/go-cty/cty/msgpack"

	"github.com/ebbtide/ebbtide/driver/engine"
)

// encodeHCL encodes a config block as a Nomad agent does for a plugin.
func encodeHCL(t *testing.T, spec *hclspec.Spec, text string) ([]byte, error) {
	t.Helper()
	dec, diags := hclspecutils.Convert(spec)
	must.False(t, diags.HasErrors(), must.Sprint(diags))
	file, diags := hclsyntax.ParseConfig([]byte(text), "agent.hcl", hcl.InitialPos)
	must.False(t, diags.HasErrors(), must.Sprint(diags))
	val, diags := hcldec.Decode(file.Body, dec, &hcl.EvalContext{Functions: hclutils.GetStdlibFuncs()})
	if diags.HasErrors() {
		return nil, diags
	}
	return ctymsgpack.Marshal(val, val.Type())
}

func newDriver(t *testing.T, name string) *Driver {
	return New(t.Context(), name, hclog.NewNullLogger())
}

func TestConfigDefaults(t *testing.T) {
	for name, text := range map[string]string{"no block": "", "empty block": "docker {}"} {
		t.Run(name, func(t *testing.T) {
			d := newDriver(t, Name)
			spec, err := d.ConfigSchema()
			must.NoError(t, err)
			data, err := encodeHCL(t, spec, text)
			must.NoError(t, err)
			if text == "" {
				data = nil
			}
			s, err := d.decodeConfig(data)
			must.NoError(t, err)
			must.Eq(t, engine.Docker, s.Engine)
			must.Eq(t, "auto", s.Policy.Name)
			must.Eq(t, "weight", s.Mode)
			must.Eq(t, "robust", s.Estimator)
			must.Eq(t, `{"alpha":"adaptive","beta":2}`, string(s.Policies["flowcon"]))
			must.Eq(t, 5*time.Second, s.Interval)
			must.Eq(t, reaper{enabled: true, period: 5 * time.Minute, grace: 5 * time.Minute}, s.reaper)
			must.Eq(t, 4*time.Minute, s.imageGC(), must.Sprint("Nomad's 3m and one for the removal"))
			gc := s.inner["gc"].(map[string]any)
			must.Eq[any](t, "3m", gc["image_delay"], must.Sprint("the docker driver's own defaults"))
		})
	}
}

func TestConfigIsSplit(t *testing.T) {
	d := newDriver(t, Name)
	spec, err := d.ConfigSchema()
	must.NoError(t, err)
	data, err := encodeHCL(t, spec, `
engine = "exec"
alpha  = "0.05"
exec { no_pivot_root = true }
docker { endpoint = "unix:///nowhere" }
`)
	must.NoError(t, err)
	s, err := d.decodeConfig(data)
	must.NoError(t, err)
	must.Eq(t, `{"alpha":0.05,"beta":2}`, string(s.Policies["flowcon"]))
	must.Eq[any](t, true, s.inner["no_pivot_root"])
	must.MapNotContainsKey(t, s.inner, "endpoint")
	must.False(t, s.reaper.enabled, must.Sprint("the exec driver has no containers"))
}

func TestConfigAsDocker(t *testing.T) {
	d := newDriver(t, DockerName)
	spec, err := d.ConfigSchema()
	must.NoError(t, err)
	data, err := encodeHCL(t, spec, `
endpoint = "unix:///nowhere"
allow_privileged = true
gc {
  dangling_containers {
    period = "7s"
    dry_run = true
  }
}
ebbtide { mode = "quota" }
`)
	must.NoError(t, err)
	s, err := d.decodeConfig(data)
	must.NoError(t, err)
	must.Eq(t, "quota", s.Mode)
	must.Eq[any](t, "unix:///nowhere", s.inner["endpoint"])
	must.Eq[any](t, true, s.inner["allow_privileged"])
	must.MapNotContainsKey(t, s.inner, "ebbtide")
	must.Eq(t, reaper{enabled: true, dryRun: true, period: 7 * time.Second, grace: 5 * time.Minute}, s.reaper)

	data, err = encodeHCL(t, spec, `ebbtide { engine = "exec" }`)
	must.NoError(t, err)
	_, err = d.decodeConfig(data)
	must.ErrorContains(t, err, `engine: must be "docker" when the plugin is installed as "docker", got "exec"`)

	data, err = encodeHCL(t, spec, `endpoint = "unix:///stock/config"`)
	must.NoError(t, err)
	_, err = d.decodeConfig(data)
	must.NoError(t, err, must.Sprint("a stock config needs no block of ours"))
}

func TestInnerReaperIsOff(t *testing.T) {
	in := map[string]any{"gc": map[string]any{"image": true, "dangling_containers": map[string]any{"enabled": true}}}
	out := withoutReaper(in)
	must.Eq[any](t, false, out["gc"].(map[string]any)["dangling_containers"].(map[string]any)["enabled"])
	must.Eq[any](t, true, out["gc"].(map[string]any)["image"])
	must.Eq[any](t, true, in["gc"].(map[string]any)["dangling_containers"].(map[string]any)["enabled"], must.Sprint("the settings stay as they are"))
	must.Eq(t, map[string]any{"x": 1}, withoutReaper(map[string]any{"x": 1}))
}

func TestConfigErrors(t *testing.T) {
	for name, c := range map[string]struct {
		config string
		want   []string
	}{
		"engine": {`engine = "podman"`, []string{`engine: must be one of docker, exec, got "podman"`}},
		"beta":   {`beta = 0.5`, []string{`beta: must be ≥ 1, got 0.5`}},
		"quota":  {`quota_min_cores = 0`, []string{`quota_min_cores: must be > 0 cores, got 0`}},
		"reaper": {"docker {\n gc {\n dangling_containers {\n period = \"often\"\n}\n}\n}",
			[]string{`gc.dangling_containers.period: must be a duration > 0, got "often"`}},
		"all at once":       {"mode = \"x\"\npolicy = \"y\"\nbeta = 0", []string{"mode:", "policy:", "beta:"}},
		"unknown":           {`alfa = "1"`, []string{"alfa", "alpha"}},
		"unknown in engine": {`docker { endpiont = "x" }`, []string{"endpiont"}},
		"wrong type":        {`beta = "two"`, []string{"beta"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDriver(t, Name)
			spec, err := d.ConfigSchema()
			must.NoError(t, err)
			data, err := encodeHCL(t, spec, c.config)
			if err == nil {
				err = d.SetConfig(&base.Config{PluginConfig: data})
			}
			must.Error(t, err)
			for _, want := range c.want {
				must.ErrorContains(t, err, want)
			}
		})
	}
}

// A number that a float64 cannot hold exactly arrives as text.
func TestConfigFractions(t *testing.T) {
	d := newDriver(t, Name)
	spec, err := d.ConfigSchema()
	must.NoError(t, err)
	data, err := encodeHCL(t, spec, "quota_min_cores = 0.3\npool_cores = 1.7\nbeta = 2.1")
	must.NoError(t, err)
	s, err := d.decodeConfig(data)
	must.NoError(t, err)
	must.Eq(t, 0.3, s.QuotaMinCores)
	must.Eq(t, 1.7, s.PoolCores)
	must.Eq(t, `{"alpha":"adaptive","beta":2.1}`, string(s.Policies["flowcon"]))
}

func TestConfigCanBeSetAgainWhileThereAreNoTasks(t *testing.T) {
	d := newDriver(t, Name)
	spec, err := d.ConfigSchema()
	must.NoError(t, err)
	for _, policy := range []string{"flowcon", "none"} {
		data, err := encodeHCL(t, spec, `engine = "exec"`+"\npolicy = \""+policy+`"`)
		must.NoError(t, err)
		must.NoError(t, d.SetConfig(&base.Config{PluginConfig: data}))
		must.Eq(t, policy, d.setup.Load().Policy.Name)
	}
	d.tasks["x"] = &task{}
	must.ErrorContains(t, d.SetConfig(&base.Config{}), "while it has tasks")
}
