// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package validate

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	hcljson "github.com/hashicorp/hcl/v2/json"
	"github.com/hashicorp/nomad/api"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/ebbtide/ebbtide/driver/options"
)

// A task's config is decoded as by a Nomad client, with template variables that may be known
// only on the node.

// decoded are Ebbtide's blocks of a task's config.
type decoded struct {
	options.Blocks
	// fields are the paths of fields with values.
	fields map[string]bool
	// partial says, for a block with unknown fields, why.
	partial map[string]string
}

// decode decodes Ebbtide's blocks and adds findings for errors.
func (c *checker) decode(s scope, vars map[string]cty.Value) decoded {
	d := decoded{fields: make(map[string]bool), partial: make(map[string]string)}
	all := make(map[string]any)
	for _, schema := range options.Schema() {
		raw := s.task.Config[schema.Name]
		if raw == nil {
			continue
		}
		if values := c.decodeBlock(s, schema, raw, vars, &d); values != nil {
			all[schema.Name] = values
		}
	}
	data, err := json.Marshal(all)
	if err == nil {
		err = json.Unmarshal(data, &d.Blocks)
	}
	if err != nil {
		c.add(Error, s, s.find("config"), "config", "cannot be decoded: %v", err)
	}
	d.Command, _ = s.task.Config["command"].(string)
	if args, ok := s.task.Config["args"].([]any); ok {
		for _, a := range args {
			d.Args = append(d.Args, fmt.Sprint(a))
		}
	}
	return d
}

func (c *checker) decodeBlock(s scope, schema options.Block, raw any, vars map[string]cty.Value, d *decoded) map[string]json.RawMessage {
	at := s.find("config", schema.Name)
	bad := func(at *position, field, format string, args ...any) {
		c.add(Error, s, at, field, format, args...)
		d.partial[schema.Name] = "it has errors"
	}
	given, err := oneBlock(raw)
	if err != nil {
		bad(at, schema.Name, "%v", err)
	}
	if given == nil {
		return nil
	}
	known := make(map[string]bool)
	var names []string
	values := make(map[string]json.RawMessage)
	for _, f := range schema.Fields {
		known[f.Name] = true
		names = append(names, f.Name)
		path := schema.Name + "." + f.Name
		data, ok := given[f.Name]
		if !ok || string(data) == "null" {
			if f.Required {
				bad(at, path, "is required")
			}
			continue
		}
		value, unknown, err := decodeField(data, f.Type, vars)
		switch {
		case err != nil:
			bad(s.find("config", schema.Name, f.Name), path, "%v", err)
		case unknown != "":
			d.partial[schema.Name] = fmt.Sprintf("%s has %s, which is only known on the node", path, unknown)
		default:
			values[f.Name], d.fields[path] = value, true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !known[name] {
			bad(s.find("config", schema.Name, name), schema.Name+"."+name, "unknown field%s; allowed are %s", didYouMean(name, names), strings.Join(names, ", "))
		}
	}
	return values
}

// errorHolds reports whether an error of a field holds whatever the unknown fields' values, which
// are paths of blocks or meta keys.
func (d decoded) errorHolds(path, problem string, unknown map[string]bool) bool {
	oneOf := func(keys ...string) bool {
		return slices.ContainsFunc(keys, func(k string) bool { return unknown["meta."+k] })
	}
	switch path {
	case "target.signal":
		return !oneOf(options.KeyAcceptable)
	case "target.stop_signal":
		return !oneOf(options.KeyObjective)
	case "meta." + options.KeyTargetHold:
		return !oneOf(options.KeyAcceptable, options.KeyObjective)
	case "meta." + options.KeyAcceptable, "meta." + options.KeyObjective:
		of := strings.HasPrefix(problem, "must be a number") || d.partial["progress"] == "" // other errors depend on the metric
		return of && !unknown[path]
	}
	block, _, _ := strings.Cut(path, ".")
	if d.partial[block] == "" {
		return !unknown[path]
	}
	switch path {
	case "progress.file", "progress.format", "progress.labels", "progress.quantile", "progress.step", "progress.total", "checkpoint.path":
		return false // these depend on other fields of the block
	}
	return d.fields[path]
}

// oneBlock returns a block's fields, given Nomad's list of maps; nil if there is none.
func oneBlock(raw any) (map[string]json.RawMessage, error) {
	data, err := json.Marshal(raw)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	var one map[string]json.RawMessage
	if json.Unmarshal(data, &one) == nil {
		return one, nil
	}
	var list []map[string]json.RawMessage
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("must be a block, got %s", data)
	}
	switch len(list) {
	case 0:
		return nil, nil
	case 1:
		return list[0], nil
	}
	return nil, fmt.Errorf("must be one block, got %d", len(list))
}

// decodeField decodes a value. unknown is a variable in it that has no value yet.
func decodeField(data []byte, kind string, vars map[string]cty.Value) (value json.RawMessage, unknown string, err error) {
	expr, diags := hcljson.ParseExpression(data, "")
	if diags.HasErrors() {
		return nil, "", fmt.Errorf("cannot be read: %s", problem(diags))
	}
	all := maps.Clone(vars)
	for _, v := range expr.Variables() {
		name := v.RootName()
		switch {
		case all[name] != cty.NilVal:
		case onNode(name):
			all[name], unknown = cty.DynamicVal, "${"+name+"}"
		default:
			return nil, "", fmt.Errorf("uses the unknown variable %q; a string needs quotes", name)
		}
	}
	v, diags := expr.Value(&hcl.EvalContext{Variables: all})
	for _, d := range diags {
		if d.Summary == "Call to unknown function" {
			return nil, "a function", nil
		}
	}
	if diags.HasErrors() {
		return nil, "", fmt.Errorf("cannot be read: %s", problem(diags))
	}
	want, err := typeOf(kind)
	if err != nil {
		return nil, "", err
	}
	converted, err := convert.Convert(v, want)
	if err != nil {
		return nil, "", fmt.Errorf("must be a %s: %w, got %s", kind, err, data)
	}
	if !converted.IsWhollyKnown() {
		return nil, unknown, nil
	}
	value, err = ctyjson.Marshal(converted, want)
	return value, "", err
}

// onNode reports whether a variable may be known on the node: Nomad's, or an environment
// variable in the usual spelling.
func onNode(name string) bool {
	switch name {
	case "node", "attr", "meta", "device", "env":
		return true
	}
	return strings.HasPrefix(name, "NOMAD_") || name == strings.ToUpper(name)
}

func typeOf(kind string) (cty.Type, error) {
	expr, diags := hclsyntax.ParseExpression([]byte(kind), "", hcl.InitialPos)
	if !diags.HasErrors() {
		var t cty.Type
		if t, diags = typeexpr.TypeConstraint(expr); !diags.HasErrors() {
			return t, nil
		}
	}
	return cty.NilType, fmt.Errorf("reading the type %s: %w", kind, diags)
}

// problem joins diagnostics without their positions, which refer to generated text.
func problem(diags hcl.Diagnostics) string {
	var all []string
	for _, d := range diags {
		all = append(all, strings.TrimSuffix(d.Summary, ".")+": "+d.Detail)
	}
	return strings.Join(all, "; ")
}

// maxEditDistance is the largest edit distance of a suggestion.
const maxEditDistance = 2

// didYouMean suggests the nearest name, "" if none is near.
func didYouMean(name string, names []string) string {
	best, distance := "", maxEditDistance+1
	for _, n := range names {
		if d := levenshtein.Distance(name, n, nil); d < distance {
			best, distance = n, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}

// foreignBlocks warns of ignored blocks: Ebbtide's under another driver, and misspelt ones.
func (c *checker) foreignBlocks(s scope) {
	t := s.task
	var names []string
	for _, b := range options.Schema() {
		names = append(names, b.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(t.Config)) {
		ours := slices.Contains(names, name)
		hint := didYouMean(name, names)
		switch mayRun := t.Driver == driverName || t.Driver == dockerName; {
		case ours && !mayRun:
			c.add(Warning, s, s.find("config", name), name, "is a block of driver %s; the task runs under driver %s", driverName, t.Driver)
		case name == "dynamic" && mayRun:
			c.add(Error, s, s.find("config", name), name, "Nomad does not expand dynamic blocks in config, and refuses the task at its start: write out the block")
		case !ours && mayRun && hint != "":
			c.add(Warning, s, s.find("config", name), name, "is not a block of Ebbtide%s", hint)
		}
	}
}

func ports(g *api.TaskGroup, t *api.Task) (all []api.Port) {
	networks := g.Networks
	if t.Resources != nil {
		networks = slices.Concat(networks, t.Resources.Networks)
	}
	for _, n := range networks {
		if n != nil {
			all = append(all, slices.Concat(n.ReservedPorts, n.DynamicPorts)...)
		}
	}
	return all
}

// dynamicPort stands for the first dynamic port.
const dynamicPort = 20000

// portOf returns the port's number, or one standing for it.
func portOf(i int, p api.Port) int {
	if p.Value > 0 {
		return p.Value
	}
	return dynamicPort + i
}

// variables returns the template variables with known or representative values.
func variables(s scope) map[string]cty.Value {
	all := map[string]string{
		"NOMAD_ALLOC_DIR": "/alloc", "NOMAD_TASK_DIR": "/local", "NOMAD_SECRETS_DIR": "/secrets",
		"NOMAD_JOB_ID": text(s.job.ID), "NOMAD_JOB_NAME": text(s.job.Name),
		"NOMAD_GROUP_NAME": text(s.group.Name), "NOMAD_TASK_NAME": s.task.Name,
	}
	for i, p := range ports(s.group, s.task) {
		label := strings.Map(func(r rune) rune {
			if r == '-' {
				return '_'
			}
			return r
		}, p.Label)
		number := fmt.Sprint(portOf(i, p))
		all["NOMAD_IP_"+label], all["NOMAD_HOST_IP_"+label] = "127.0.0.1", "127.0.0.1"
		all["NOMAD_PORT_"+label], all["NOMAD_HOST_PORT_"+label] = number, number
		all["NOMAD_ADDR_"+label], all["NOMAD_HOST_ADDR_"+label] = "127.0.0.1:"+number, "127.0.0.1:"+number
		if p.To > 0 {
			all["NOMAD_PORT_"+label] = fmt.Sprint(p.To)
		}
	}
	for _, meta := range []map[string]string{s.job.Meta, s.group.Meta, s.task.Meta} {
		for k, v := range meta {
			all["NOMAD_META_"+k], all["NOMAD_META_"+strings.ToUpper(k)] = v, v
		}
	}
	maps.Copy(all, s.task.Env)
	vars := make(map[string]cty.Value)
	for k, v := range all {
		if !strings.Contains(v, "${") {
			vars[k] = cty.StringVal(v)
		}
	}
	return vars
}
