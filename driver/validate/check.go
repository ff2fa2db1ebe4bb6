// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package validate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/options"
	"github.com/ebbtide/ebbtide/internal/optin"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/move"
)

// Ebbtide's driver names: its own, and that of the stock driver it may replace.
const (
	driverName = "ebbtide"
	dockerName = "docker"
)

type checker struct {
	file     string
	job      *api.Job
	place    *position // of the job
	migrates []string
	findings []Finding
	plans    []Plan
}

func newChecker(file string, job *api.Job, root *position) *checker {
	c := &checker{file: file, job: job, place: root}
	switch name := text(job.ID); {
	case root.part("Job") != nil:
		c.place = root.part("Job")
	case root.labelled("job", name) != nil:
		c.place = root.labelled("job", name)
	case root.part("job") != nil: // its ID differs from its label
		c.place = root.part("job")
	}
	c.migrates, _ = optin.Policies(job.Meta[optin.Migrate]) // errors are reported with the tasks
	return c
}

// scope is a job, group or task.
type scope struct {
	job   *api.Job
	group *api.TaskGroup // nil for a job
	task  *api.Task      // nil for a group
	// places are its own and the enclosing ones, innermost first.
	places []*position
}

func (s scope) at() string {
	parts := []string{text(s.job.ID)}
	if s.group != nil {
		parts = append(parts, text(s.group.Name))
	}
	if s.task != nil {
		parts = append(parts, s.task.Name)
	}
	return strings.Join(parts, "/")
}

func (s scope) meta() map[string]string {
	switch {
	case s.task != nil:
		return s.task.Meta
	case s.group != nil:
		return s.group.Meta
	}
	return s.job.Meta
}

func (s scope) within(p *position) scope {
	s.places = append([]*position{p}, s.places...)
	return s
}

func (c *checker) scopeOfJob() scope { return scope{job: c.job, places: []*position{c.place}} }

func (c *checker) scopeOfGroup(g *api.TaskGroup) scope {
	s := c.scopeOfJob().within(c.place.labelled("group", text(g.Name)))
	s.group = g
	return s
}

func (c *checker) scopeOfTask(g *api.TaskGroup, t *api.Task) scope {
	around := c.scopeOfGroup(g)
	p := around.places[0].labelled("task", t.Name)
	if p == nil {
		p = c.place.labelled("task", t.Name) // a job with a task but no group
	}
	s := around.within(p)
	s.task = t
	return s
}

// find returns the place of the longest existing prefix of names.
func (s scope) find(names ...string) *position {
	var at *position
	for _, p := range s.places {
		if p != nil {
			at = p
			break
		}
	}
	for _, name := range names {
		next := at.part(name)
		if next == nil {
			break
		}
		at = next
	}
	if at == nil {
		return &position{line: 1, column: 1}
	}
	return at
}

func (c *checker) add(severity Severity, s scope, at *position, field, format string, args ...any) {
	c.findings = append(c.findings, Finding{
		File: c.file, Line: at.line, Column: at.column, Severity: severity,
		At: s.at(), Field: field, Problem: oneLine(fmt.Sprintf(format, args...)),
	})
}

func (c *checker) check() {
	c.metaWithoutEffect(c.scopeOfJob(), slices.Collect(c.tasks(nil)))
	waits, some := false, false
	for _, g := range c.job.TaskGroups {
		s := c.scopeOfGroup(g)
		c.metaWithoutEffect(s, slices.Collect(c.tasks(g)))
		waits = c.isHeld(g) || waits
		ours := false
		for _, t := range g.Tasks {
			st := c.scopeOfTask(g, t)
			c.metaWithoutEffect(st, []*api.Task{t})
			c.foreignBlocks(st)
			if isOurs(c.job, g, t) {
				ours = true
				c.checkTask(st)
			}
		}
		if !ours {
			continue
		}
		some = true
		c.metaOfShim(s)
		for _, t := range g.Tasks {
			c.metaOfShim(c.scopeOfTask(g, t))
		}
		if len(c.migrates) > 0 {
			c.obstacles(g)
		}
	}
	if some {
		c.metaOfShim(c.scopeOfJob())
	}
	c.checkHold(waits)
}

// tasks yields a group's tasks, or all.
func (c *checker) tasks(of *api.TaskGroup) func(func(*api.Task) bool) {
	return func(yield func(*api.Task) bool) {
		for _, g := range c.job.TaskGroups {
			for _, t := range g.Tasks {
				if (of == nil || of == g) && !yield(t) {
					return
				}
			}
		}
	}
}

// isOurs reports whether a task runs under Ebbtide: by its driver, or for docker by any option
// of Ebbtide's.
func isOurs(job *api.Job, g *api.TaskGroup, t *api.Task) bool {
	if t.Driver == driverName {
		return true
	}
	if t.Driver != dockerName {
		return false
	}
	for _, b := range options.Schema() {
		if t.Config[b.Name] != nil {
			return true
		}
	}
	return len(merged(job, g, t)) > 0
}

// atDispatch stands for a value that is only known at a dispatch of a parameterized job.
const atDispatch = "${dispatch}"

// merged returns Ebbtide's keys of a task's meta, merged as by Nomad.
func merged(job *api.Job, g *api.TaskGroup, t *api.Task) map[string]string {
	all := make(map[string]string)
	for _, meta := range []map[string]string{job.Meta, dispatched(job), g.Meta, t.Meta} {
		maps.Copy(all, meta)
	}
	return options.Ours(all)
}

// dispatched returns the keys of a parameterized job to which each dispatch gives the value; that of
// an optional key in the job's meta is its default.
func dispatched(job *api.Job) map[string]string {
	keys := make(map[string]string)
	if p := job.ParameterizedJob; p != nil {
		for _, name := range p.MetaOptional {
			if job.Meta[name] == "" {
				keys[name] = atDispatch
			}
		}
		for _, name := range p.MetaRequired {
			keys[name] = atDispatch
		}
	}
	return keys
}

// metaPlace finds a key of a task's meta in the task, group or job.
func (c *checker) metaPlace(s scope, key string) (scope, *position) {
	scopes := []scope{s}
	if s.task != nil {
		scopes = append(scopes, c.scopeOfGroup(s.group))
	}
	is := func(name string) bool {
		k, ok := options.Key(name)
		return ok && k == key
	}
	for _, s := range append(scopes, c.scopeOfJob()) {
		for name := range s.meta() {
			if is(name) {
				return s, s.find("meta", name)
			}
		}
	}
	if p := c.job.ParameterizedJob; p != nil {
		s := c.scopeOfJob()
		for field, names := range map[string][]string{"meta_required": p.MetaRequired, "meta_optional": p.MetaOptional} {
			i := slices.IndexFunc(names, is)
			if i < 0 {
				continue
			}
			if all := c.place.part("parameterized").all(field); len(all) == len(names) {
				return s, all[i]
			}
			return s, s.find("parameterized", field) // the list is computed
		}
	}
	return s, s.find("meta")
}

// metaWithoutEffect warns of keys that affect none of the tasks in their scope.
func (c *checker) metaWithoutEffect(s scope, tasks []*api.Task) {
	keys := maps.Clone(s.meta())
	if s.group == nil {
		keys = dispatched(c.job)
		maps.Copy(keys, s.meta())
	}
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		key, ok := options.Key(name)
		if !ok {
			continue
		}
		run, seated := false, false
		for _, t := range tasks {
			mayRun := t.Driver == driverName || t.Driver == dockerName
			run = run || mayRun
			seated = seated || mayRun && hasSeat(t)
		}
		switch _, at := c.metaPlace(s, key); {
		case !run:
			c.add(Warning, s, at, "meta."+key, "has no effect: no task here runs under driver %s (or %s, which it may replace)", driverName, dockerName)
		case len(options.WithoutSeat(map[string]string{key: ""})) > 0 && !seated:
			c.add(Warning, s, at, "meta."+key, "has no effect: no task here has a seat on a shared GPU (resources { device %q {} })", gpuSeat)
		}
	}
}

// gpuSeat is the device name of a seat on a shared GPU.
const gpuSeat = "nvidia/share"

func hasSeat(t *api.Task) bool {
	return t.Resources != nil && slices.ContainsFunc(t.Resources.Devices, func(d *api.RequestedDevice) bool {
		return d != nil && (d.Name == "share" || d.Name == gpuSeat || strings.HasPrefix(d.Name, gpuSeat+"/"))
	})
}

// metaOfShim warns of keys that the shim does not read, as they are not in the job's own meta:
// Nomad lists no other.
func (c *checker) metaOfShim(s scope) {
	for _, name := range slices.Sorted(maps.Keys(s.meta())) {
		key, _ := options.Key(name)
		if key != optin.Migrate && key != optin.Cooldown {
			continue
		}
		if _, ok := c.job.Meta[key]; !ok {
			c.add(Warning, s, s.find("meta", name), "meta."+key, "the shim does not read it here: set %s in the job's own meta", key)
		}
	}
}

// obstacles warns of what prevents moves of a group whose job allows them.
func (c *checker) obstacles(g *api.TaskGroup) {
	for _, o := range move.Obstacles(c.job, g) {
		s := c.scopeOf(g, o)
		if s.find(o.Field) == s.find() && c.place.part(o.Field) != nil {
			s = c.scopeOfJob() // inherited from the job
		}
		c.add(Warning, s, s.find(o.Field), o.Field, "the shim will not move it (%s): %s", optin.Migrate, o.Why)
	}
}

func (c *checker) scopeOf(g *api.TaskGroup, o move.Obstacle) scope {
	switch o.Scope {
	case move.ScopeTask:
		for _, t := range g.Tasks {
			if t.Name == o.Task {
				return c.scopeOfTask(g, t)
			}
		}
	case move.ScopeGroup:
		return c.scopeOfGroup(g)
	}
	return c.scopeOfJob()
}

// isHeld reports whether a group is held for placement.
func (c *checker) isHeld(g *api.TaskGroup) bool {
	all := slices.Concat(c.job.Constraints, g.Constraints)
	for _, t := range g.Tasks {
		all = append(all, t.Constraints...)
	}
	return slices.ContainsFunc(all, func(x *api.Constraint) bool { return x != nil && x.LTarget == cluster.Hold })
}

// checkHold checks the meta key and the constraint that hold a job.
func (c *checker) checkHold(waits bool) {
	s := c.scopeOfJob()
	seen := false // by the shim, which reads only jobs with one of its keys in their own meta
	for name := range c.job.Meta {
		seen = seen || strings.HasPrefix(name, options.Prefix)
	}
	const field = "constraint"
	switch {
	case !waits && (c.job.Meta[options.KeyPlacementHold] == "true" || c.job.Meta[options.KeyQueue] == "true"):
		key := options.KeyPlacementHold
		if c.job.Meta[key] != "true" {
			key = options.KeyQueue
		}
		c.add(Warning, s, s.find("meta", key), "meta."+key, "the job is not held: it also needs constraint { attribute = %q, value = \"released\" }", cluster.Hold)
	case !waits:
	case c.job.IsPeriodic() || c.job.IsParameterized():
		c.add(Warning, s, s.find(field), field, "it is held indefinitely: the shim cannot release the children of periodic or parameterized jobs; remove the constraint %s", cluster.Hold)
	case !seen:
		c.add(Warning, s, s.find(field), field, "it is held indefinitely: the shim does not read the job; set %s = \"true\" in the job's own meta", options.KeyPlacementHold)
	case len(c.job.TaskGroups) != 1 || c.job.TaskGroups[0].Count != nil && *c.job.TaskGroups[0].Count != 1:
		c.add(Warning, s, s.find(field), field, "the shim only places jobs with one group of count 1; Nomad places this one")
	}
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
