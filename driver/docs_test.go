// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/client/taskenv"
	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/jobspec2"
	"github.com/hashicorp/nomad/plugins/drivers"
	pstructs "github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"github.com/zclconf/go-cty/cty"
	ctymsgpack "github.com/zclconf/go-cty/cty/msgpack"

	"github.com/ebbtide/ebbtide/driver/config"
	"github.com/ebbtide/ebbtide/driver/engine"
	"github.com/ebbtide/ebbtide/driver/validate"
)

// The reference lists every node attribute; see also internal/reference.
func TestDocs_attributes(t *testing.T) {
	text, err := os.ReadFile("../docs/reference.md")
	must.NoError(t, err)
	_, section, ok := strings.Cut(string(text), "### Node attributes\n")
	must.True(t, ok)
	section, _, _ = strings.Cut(section, "\n#")
	var named []string
	for _, m := range regexp.MustCompile("`(driver\\.ebbtide(?:\\.[a-z_.]+)?)`").FindAllStringSubmatch(section, -1) {
		named = append(named, m[1])
	}
	stock := &drivers.Fingerprint{
		Attributes: map[string]*pstructs.Attribute{"driver.docker.version": pstructs.NewStringAttribute("28.0")},
		Health:     drivers.HealthStateHealthy,
	}
	s := &setup{settings: &settings{Settings: &config.Settings{Engine: engine.Docker}}}
	attributes := slices.Collect(maps.Keys((&Driver{name: Name}).decorate(s, stock).Attributes))
	must.SliceContainsAll(t, named, attributes)
}

// examples returns the HCL blocks of one kind in jobspecs/ and the documentation.
func examples(t *testing.T, kind string) map[string]string {
	found := make(map[string]string)
	files, err := filepath.Glob("../jobspecs/*.hcl")
	must.NoError(t, err)
	pages, err := filepath.Glob("../docs/*.md")
	must.NoError(t, err)
	fence := regexp.MustCompile("(?ms)^```hcl\n(.*?)^```")
	for _, path := range append(files, append(pages, "../README.md")...) {
		data, err := os.ReadFile(path)
		must.NoError(t, err)
		if filepath.Ext(path) == ".hcl" {
			if kind == "job" {
				found[filepath.Base(path)] = string(data)
			}
			continue
		}
		for i, m := range fence.FindAllStringSubmatch(string(data), -1) {
			if strings.HasPrefix(m[1], kind+" ") {
				found[fmt.Sprintf("%s, block %d", filepath.Base(path), i+1)] = m[1]
			}
		}
	}
	must.MapNotEmpty(t, found)
	return found
}

func TestDocs_jobs(t *testing.T) {
	for name, text := range examples(t, "job") {
		t.Run(name, func(t *testing.T) {
			job, err := jobspec2.Parse(name, strings.NewReader(text))
			must.NoError(t, err)
			for _, group := range job.TaskGroups {
				for _, task := range group.Tasks {
					must.NoError(t, checkTask(t, job, group, task))
				}
			}
			must.Zero(t, validate.Jobspec(name, []byte(text), validate.Options{}).Count(validate.Error))
		})
	}
}

// checkTask decodes a task's config as a Nomad client does and validates it.
func checkTask(t *testing.T, job *api.Job, group *api.TaskGroup, task *api.Task) error {
	name := engine.Exec
	if task.Config["image"] != nil {
		name = engine.Docker
	}
	inner, err := engine.NewDriver(t.Context(), name, hclog.NewNullLogger())
	must.NoError(t, err)
	schema, err := inner.TaskConfigSchema()
	must.NoError(t, err)
	spec, diags := hclspecutils.Convert(withBlocks(schema))
	must.False(t, diags.HasErrors())
	vars := make(map[string]cty.Value)
	for name, value := range map[string]string{
		"NOMAD_TASK_DIR": "/local", "NOMAD_ALLOC_DIR": "/alloc",
		"NOMAD_ADDR_http": "127.0.0.1:8000", "NOMAD_ADDR_metrics": "127.0.0.1:9100",
	} {
		vars[name] = cty.StringVal(value)
	}
	val, _, errs := hclutils.ParseHclInterface(task.Config, spec, vars)
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	cfg := &drivers.TaskConfig{Env: make(map[string]string)}
	must.NoError(t, cfg.EncodeDriverConfig(val))
	for _, meta := range []map[string]string{job.Meta, group.Meta, task.Meta} {
		for k, v := range meta {
			cfg.Env[taskenv.MetaPrefix+k] = v
		}
	}
	_, err = readTaskOptions(cfg)
	return err
}

// The driver rejects whatever the command line's validation, which has none of Nomad's code,
// rejects.
func TestValidate(t *testing.T) {
	for config, valid := range map[string]bool{
		``:                                               true,
		`progress { metric = "loss" }`:                   true,
		`progress { metric = loss }`:                     false,
		`progress { metric = 7 }`:                        true,
		`progress { scale = 0.3 }`:                       true,
		`progress { scale = "0.3" }`:                     true,
		`progress { scale = "much" }`:                    false,
		`progress { scale = 0 }`:                         false,
		`progress { scale = true }`:                      false,
		`progress = { metric = "loss" }`:                 true,
		`progress = [{ metric = "loss" }]`:               true,
		`progress = "loss"`:                              false,
		`progress = null`:                                true,
		`progress = []`:                                  true,
		"progress {}\nprogress {}":                       false,
		`progress { metric = null }`:                     true,
		`progress { metric = ["loss"] }`:                 false,
		`progress { metrics = "loss" }`:                  false,
		`progress { preset = "kears" }`:                  false,
		`progress { file = "${NOMAD_TASK_DIR}/m.csv" }`:  true,
		`progress { file = "/etc/m.csv" }`:               false,
		`progress { file = "$${NOMAD_TASK_DIR}/m.csv" }`: true, // Nomad interpolates it nevertheless
		"progress {\nprometheus = \"http://localhost:8000/\"\nmetric = \"x\"\nlabels {\na = \"b\"\n}\n}":              true,
		"progress {\nprometheus = \"http://localhost:8000/\"\nmetric = \"x\"\nlabels = { a = \"b\" }\n}":              true,
		"progress {\nprometheus = \"http://localhost:8000/\"\nmetric = \"x\"\nlabels = [{ a = \"b\" }, { c = 1 }]\n}": true,
		"progress {\nprometheus = \"http://localhost:8000/\"\nmetric = \"x\"\nquantile = 95\n}":                       false,
		`target { grace = "1m" }`:                                  true,
		`target { grace = 60 }`:                                    false,
		`target { signal = "SIGUSR1" }`:                            false, // without meta
		`checkpoint {}`:                                            false,
		`checkpoint { path = "/local/x" }`:                         true,
		`checkpoint { path = "" }`:                                 false,
		"checkpoint {\npath = \"/local/x\"\nshared = \"false\"\n}": true,
		"checkpoint {\npath = \"/local/x\"\nshared = true\n}":      false,
		"checkpoint {\npath = \"/local/x\"\nlease = \"2h\"\n}":     false,
		"checkpoint {\npath = \"/local/${upper(\"x\")}\"\n}":       true,
	} {
		text := "job \"j\" {\ntype = \"batch\"\ngroup \"g\" {\nnetwork {\nport \"http\" { static = 8000 }\n}\ntask \"t\" {\ndriver = \"ebbtide\"\nconfig {\ncommand = \"x\"\n" + config + "\n}\n}\n}\n}"
		job, err := jobspec2.Parse("x.hcl", strings.NewReader(text))
		must.NoError(t, err, must.Sprint(config))
		err = checkTask(t, job, job.TaskGroups[0], job.TaskGroups[0].Tasks[0])
		test.Eq(t, valid, err == nil, test.Sprint(config, err))
		r := validate.Jobspec("x.hcl", []byte(text), validate.Options{})
		test.Eq(t, valid, r.Count(validate.Error) == 0, test.Sprint(config, r.Findings))
	}
}

func TestDocs_plugins(t *testing.T) {
	for name, text := range examples(t, "plugin") {
		t.Run(name, func(t *testing.T) {
			file, diags := hclparse.NewParser().ParseHCL([]byte(text), name)
			must.False(t, diags.HasErrors(), must.Sprint(diags))
			content, diags := file.Body.Content(hcldec.ImpliedSchema(&hcldec.BlockMapSpec{
				TypeName: "plugin", LabelNames: []string{"name"}, Nested: hcldec.ObjectSpec{},
			}))
			must.False(t, diags.HasErrors(), must.Sprint(diags))
			for _, plugin := range content.Blocks {
				as := Name
				if plugin.Labels[0] == DockerName {
					as = DockerName
				}
				d := New(t.Context(), as, hclog.NewNullLogger())
				schema, err := d.ConfigSchema()
				must.NoError(t, err)
				spec, diags := hclspecutils.Convert(schema)
				must.False(t, diags.HasErrors())
				val, diags := hcldec.Decode(plugin.Body, &hcldec.BlockSpec{TypeName: "config", Nested: spec}, nil)
				must.False(t, diags.HasErrors(), must.Sprint(diags))
				data, err := ctymsgpack.Marshal(val, val.Type())
				must.NoError(t, err)
				_, err = d.decodeConfig(data)
				must.NoError(t, err)
			}
		})
	}
}
