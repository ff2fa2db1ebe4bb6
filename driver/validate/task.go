// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package validate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/checkpoint"
	"github.com/ebbtide/ebbtide/driver/options"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/progress/prometheus"
	"github.com/ebbtide/ebbtide/driver/progress/source"
	"github.com/ebbtide/ebbtide/shim/move"
)

// checkTask runs the driver's checks on a task that runs under Ebbtide.
func (c *checker) checkTask(s scope) {
	t := s.task
	d := c.decode(s, variables(s))
	meta := merged(c.job, s.group, t)
	unknown := make(map[string]bool)
	for key, value := range meta {
		if strings.Contains(value, "${") && slices.Contains(options.MetaKeys(), key) { // resolved on the node, or given at a dispatch
			unknown["meta."+key] = true
		}
	}
	for _, key := range []string{options.KeyMetric, options.KeyGoal} {
		if unknown["meta."+key] && d.partial["progress"] == "" {
			d.partial["progress"] = "meta." + key + " is only known at the start"
		}
	}
	mounts := make(map[string]string)
	for _, m := range t.VolumeMounts {
		if m != nil && m.Destination != nil {
			mounts[*m.Destination] = *m.Destination
		}
	}
	opts, errs := options.Read(options.Input{
		Blocks: d.Blocks, Meta: meta, Env: t.Env,
		Dirs: checkpoint.Dirs{Local: "/local", Alloc: "/alloc", Mounts: mounts},
	})
	for _, e := range errs {
		if d.errorHolds(e.Path, e.Problem, unknown) {
			c.addError(s, e.Path, e.Problem)
		}
	}
	if opts.Progress.Prometheus != "" && opts.Progress.Validate() == nil {
		c.checkEndpoint(s, opts.Progress)
	}
	if err := private.CheckTask(t.Name); err != nil {
		c.add(Error, s, s.find(), "", "%v", err)
	}
	c.checkMounts(s)
	c.warnOfTask(s, opts, d.partial["progress"] != "")
	c.plans = append(c.plans, c.plan(s, opts, d.partial, unknown))
}

// addError adds an error of the driver's checks.
func (c *checker) addError(s scope, path, problem string) {
	if key, ok := strings.CutPrefix(path, "meta."); ok {
		in, at := c.metaPlace(s, key)
		c.add(Error, in, at, path, "%s", problem)
		return
	}
	names := append([]string{"config"}, strings.Split(path, ".")...)
	c.add(Error, s, s.find(names...), path, "%s", problem)
}

// checkEndpoint checks the location of a metrics endpoint as far as it is known.
func (c *checker) checkEndpoint(s scope, cfg progress.Config) {
	reach := &prometheus.Reach{}
	for i, p := range ports(s.group, s.task) {
		port := uint16(portOf(i, p))
		reach.Ports = append(reach.Ports, prometheus.Port{Host: netip.AddrPortFrom(netip.Addr{}, port), Inside: port})
	}
	own := s.task.Config["image"] != nil || s.task.Driver == dockerName
	for _, n := range s.group.Networks {
		own = own || n != nil && n.Mode != "" && n.Mode != "host"
	}
	// In its own network, or at a host address, any port may be right.
	if u, err := url.Parse(cfg.Prometheus); own || err == nil && !loopback(u.Hostname()) {
		reach.Namespace = func(context.Context) (*os.File, error) { return nil, errors.ErrUnsupported }
	}
	var field *progress.FieldError
	if err := source.Check(cfg, reach); errors.As(err, &field) {
		c.addError(s, "progress."+field.Field, fmt.Sprintf("%s, got %q", field.Problem, field.Value))
	}
}

func loopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

func (c *checker) checkMounts(s scope) {
	const alloc = "/alloc-dir" // stands for the allocation's directory on the host
	look := func(at *position, field string, source any) {
		path, ok := source.(string)
		if !ok || strings.Contains(path, "${") {
			return
		}
		if err := private.CheckMount(alloc, alloc+"/"+s.task.Name, path); err != nil {
			c.add(Error, s, at, field, "%v", err)
		}
	}
	config := s.task.Config
	if volumes, ok := config["volumes"].([]any); ok && config["volume_driver"] == nil {
		at := s.find("config").all("volumes")
		for i, v := range volumes {
			from, _, _ := strings.Cut(fmt.Sprint(v), ":")
			if i < len(at) {
				look(at[i], "volumes", from)
			} else {
				look(s.find("config", "volumes"), "volumes", from)
			}
		}
	}
	for _, name := range []string{"mount", "mounts"} {
		for _, m := range blocksOf(config[name]) {
			if m["type"] == "bind" {
				look(s.find("config", name, "source"), name, m["source"])
			}
		}
	}
}

func blocksOf(value any) (all []map[string]any) {
	switch v := value.(type) {
	case map[string]any:
		return []map[string]any{v}
	case []map[string]any:
		return v
	case []any:
		for _, e := range v {
			all = append(all, blocksOf(e)...)
		}
	}
	return all
}

// warnOfTask warns of valid options that cannot take effect.
func (c *checker) warnOfTask(s scope, o *options.Task, partial bool) {
	t := s.task
	if noOutput(t) {
		c.add(Warning, s, s.find("logs", "disabled"), "logs", "Nomad does not collect the task's output, from which its progress is read: remove disabled, or set progress.file, .tensorboard or .prometheus")
	}
	if kind := text(c.job.Type); o.Targets.Objective != nil && kind != api.JobTypeBatch && kind != api.JobTypeSysbatch {
		in, at := c.metaPlace(s, options.KeyObjective)
		c.add(Warning, in, at, "meta."+options.KeyObjective, "Nomad restarts the tasks of a %s job whatever their exit status: set type = \"batch\" in the job", kind)
	}
	if metric, _ := o.Progress.Declared(); o.Targets.QoE > 0 && metric == "" && !partial {
		in, at := c.metaPlace(s, options.KeyQoE)
		c.add(Warning, in, at, "meta."+options.KeyQoE, "without a metric a loss may be taken for the response time: set progress.metric and its source")
	}
	names := make(map[string]bool)
	for _, p := range ports(s.group, t) {
		names[strings.ReplaceAll(p.Label, "-", "_")] = true
	}
	address, _ := firstField(t.Config["progress"], "prometheus").(string)
	for _, prefix := range []string{"${NOMAD_ADDR_", "${NOMAD_PORT_"} {
		_, after, ok := strings.Cut(address, prefix)
		label, _, closed := strings.Cut(after, "}")
		if ok && closed && !names[label] {
			has := "none"
			if len(names) > 0 {
				has = strings.Join(slices.Sorted(maps.Keys(names)), ", ")
			}
			c.add(Warning, s, s.find("config", "progress", "prometheus"), "progress.prometheus", "the group has no port %q; it has %s", label, has)
		}
	}
}

// noOutput reports whether a task's progress is to be read from output that Nomad does not collect.
func noOutput(t *api.Task) bool {
	l := t.LogConfig
	return l != nil && l.Disabled != nil && *l.Disabled && !slices.ContainsFunc([]string{"file", "tensorboard", "prometheus"}, func(source string) bool {
		return firstField(t.Config["progress"], source) != nil
	})
}

func firstField(blocks any, name string) any {
	if all := blocksOf(blocks); len(all) > 0 {
		return all[0][name]
	}
	return nil
}

func (c *checker) plan(s scope, o *options.Task, partial map[string]string, unknown map[string]bool) Plan {
	p := Plan{At: s.at(), Task: s.task.Name, Progress: o.Progress, Unknown: partial["progress"]}
	read := reads(o, p.Unknown)
	if noOutput(s.task) {
		read = "progress: none, as Nomad does not collect the task's output"
	}
	p.Actions = append(p.Actions, read, shares(s.task, o, unknown), c.moves(s.group))
	for _, block := range slices.Sorted(maps.Keys(partial)) {
		if block != "progress" {
			p.Actions = append(p.Actions, block+": not checked, as "+partial[block])
		}
	}
	return p
}

func reads(o *options.Task, unknown string) string {
	if unknown != "" {
		return "progress: unknown, as " + unknown
	}
	where := source.Where(o.Progress)
	switch {
	case where == "":
		where = "its output"
	case o.Progress.Prometheus != "":
		where = "its endpoint" // its port may be a representative
	}
	metric, goal := o.Progress.Declared()
	switch {
	case metric == "" && o.Progress.Goal != "":
		metric = "the metric that it finds (" + goal + ")"
	case metric == "":
		metric = "the training loss, or the closest metric,"
	case goal == "":
		metric += " (min, by default)"
	default:
		metric += " (" + goal + ")"
	}
	return fmt.Sprintf("progress: reads %s from %s", metric, where)
}

func shares(t *api.Task, o *options.Task, unknown map[string]bool) string {
	text := "cpu: a training task"
	switch {
	case !o.Limit:
		text = "cpu: never limited, by its options"
	case unknown["meta."+options.KeyQoE]:
		text += ", or with " + options.KeyQoE + " a service"
	case o.Targets.QoE > 0:
		text = fmt.Sprintf("cpu: a service, with a response time of %v s", o.Targets.QoE)
	}
	if t.Resources != nil && t.Resources.Cores != nil && *t.Resources.Cores > 0 {
		text = fmt.Sprintf("cpu: never limited, as it has reserved cores (%d)", *t.Resources.Cores)
	}
	if v := o.Targets.Acceptable; v != nil {
		text += fmt.Sprintf("; yields CPU from %v on when the node is full", *v)
	}
	if v := o.Targets.Objective; v != nil {
		text += fmt.Sprintf("; complete at %v", *v)
	}
	for _, key := range []string{options.KeyAcceptable, options.KeyObjective} {
		if unknown["meta."+key] {
			text += "; " + key + " is only known at the start"
		}
	}
	return text
}

func (c *checker) moves(g *api.TaskGroup) string {
	var why []string
	saves := false
	for _, t := range g.Tasks {
		saves = saves || t.Config["checkpoint"] != nil
	}
	for _, o := range move.Obstacles(c.job, g) {
		why = append(why, o.Why)
	}
	switch {
	case !saves:
		return "moves: none, as no task has a checkpoint block"
	case len(why) > 0:
		return "moves: none; " + strings.Join(why, "; ")
	case len(c.migrates) > 0:
		return "moves: by the shim (" + strings.Join(c.migrates, ", ") + ") and by ebbtide move"
	}
	return "moves: by ebbtide move, but not by the shim without ebbtide_migrate in the job's meta"
}
