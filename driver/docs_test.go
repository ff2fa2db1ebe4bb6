// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/client/taskenv"
	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/jobspec2"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"github.com/zclconf/go-cty/cty"
	ctymsgpack "github.com/zclconf/go-cty/cty/msgpack"

	"github.com/ebbtide/ebbtide/driver/config"
	"github.com/ebbtide/ebbtide/driver/engine"
	"github.com/ebbtide/ebbtide/driver/options"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/status"
)

// The reference has a row for everything that can be written or read.
func TestDocs_reference(t *testing.T) {
	text, err := os.ReadFile("../docs/driver.md")
	must.NoError(t, err)
	// row is the line of a table that begins with the name.
	row := func(name string) string {
		line := regexp.MustCompile("(?m)^\\| `" + regexp.QuoteMeta(name) + "` \\|.*$").FindString(string(text))
		must.NotEq(t, "", line, must.Sprintf("docs/driver.md has no row for `%s`", name))
		return line
	}
	for _, o := range config.Options() {
		must.StrContains(t, row(o.Name), "| "+o.Kind+" |")
		must.StrContains(t, row(o.Name), "| `"+o.Default+"` |")
	}
	for _, key := range options.MetaKeys() {
		row(key)
	}
	for _, block := range options.Schema() {
		for _, field := range block.Fields {
			row(field.Name)
		}
	}
	for _, preset := range progress.Presets() {
		row(preset)
	}

	for _, field := range jsonFields("", reflect.TypeFor[status.Status]()) {
		row(field)
	}
	dir := t.TempDir()
	writer, err := status.NewWriter(dir, "task", status.Options{})
	must.NoError(t, err)
	must.NoError(t, writer.Append(status.Row{}))
	history, err := os.ReadFile(filepath.Join(dir, status.Dir, "task.csv"))
	must.NoError(t, err)
	header, _, _ := strings.Cut(string(history), "\n")
	must.StrContains(t, string(text), "`"+header+"`")
}

// jsonFields are the names of a struct's fields in JSON, nested ones as paths.
func jsonFields(prefix string, t reflect.Type) (names []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Type.Kind() == reflect.Pointer && f.Type.Elem().Kind() == reflect.Struct:
			f.Type = f.Type.Elem()
		case f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct:
			f.Type, name = f.Type.Elem(), name+"[]"
		}
		switch {
		case f.Anonymous:
			names = append(names, jsonFields(prefix, f.Type)...)
		case f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[time.Time]():
			names = append(names, jsonFields(prefix+name+".", f.Type)...)
		default:
			names = append(names, prefix+name)
		}
	}
	return names
}

// examples are the HCL blocks of one kind in jobspecs/ and in the documentation.
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

// Every job that is shown is one that Nomad and the driver take.
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
		})
	}
}

// checkTask decodes a task's config as a Nomad client does and has it checked.
func checkTask(t *testing.T, job *api.Job, group *api.TaskGroup, task *api.Task) error {
	name := engine.Exec
	if task.Config["image"] != nil {
		name = engine.Docker
	}
	inner, err := engine.NewDriver(t.Context(), name, hclog.NewNullLogger())
	must.NoError(t, err)
	schema, err := inner.TaskConfigSchema()
	must.NoError(t, err)
	spec, diags := hclspecutils.Convert(withOurBlocks(schema))
	must.False(t, diags.HasErrors())
	vars := make(map[string]cty.Value)
	for name, value := range map[string]string{
		"NOMAD_TASK_DIR": "/local", "NOMAD_ALLOC_DIR": "/alloc",
		"NOMAD_ADDR_http": "127.0.0.1:8000", "NOMAD_ADDR_metrics": "127.0.0.1:9100",
	} {
		vars[name] = cty.StringVal(value)
	}
	val, _, errs := hclutils.ParseHclInterface(task.Config, spec, vars)
	must.SliceEmpty(t, errs)

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

// Every plugin block that is shown is one that the agent takes.
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
