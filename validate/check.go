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

// The names of the driver: its own, and that under which it takes the stock driver's place.
const (
	driverName = "ebbtide"
	dockerName = "docker"
)

// checker checks a job.
type checker struct {
	file     string
	job      *api.Job
	place    *place // of the job
	migrates []string
	findings []Finding
	plans    []Plan
}

func newChecker(file string, job *api.Job, root *place) *checker {
	c := &checker{file: file, job: job, place: root}
	switch name := text(job.ID); {
	case root.part("Job") != nil:
		c.place = root.part("Job")
	case root.labelled("job", name) != nil:
		c.place = root.labelled("job", name)
	case root.part("job") != nil: // its ID is not its label
		c.place = root.part("job")
	}
	c.migrates, _ = optin.Policies(job.Meta[optin.Migrate]) // what is wrong is an error of the tasks
	return c
}

// scope is a job, one of its groups or one of its tasks.
type scope struct {
	job   *api.Job
	group *api.TaskGroup // nil: the job
	task  *api.Task      // nil: the group
	// places are its own and those around it, the innermost first.
	places []*place
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

// within is a part of a scope.
func (s scope) within(p *place) scope {
	s.places = append([]*place{p}, s.places...)
	return s
}

// scopeOfJob is the job.
func (c *checker) scopeOfJob() scope { return scope{job: c.job, places: []*place{c.place}} }

func (c *checker) scopeOfGroup(g *api.TaskGroup) scope {
	s := c.scopeOfJob().within(c.place.labelled("group", text(g.Name)))
	s.group = g
	return s
}

func (c *checker) scopeOfTask(g *api.TaskGroup, t *api.Task) scope {
	around := c.scopeOfGroup(g)
	p := around.places[0].labelled("task", t.Name)
	if p == nil {
		p = c.place.labelled("task", t.Name) // a job with a task and no group
	}
	s := around.within(p)
	s.task = t
	return s
}

// find is where the last of the names stands that stands there at all.
func (s scope) find(names ...string) *place {
	var at *place
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
		return &place{line: 1, column: 1}
	}
	return at
}

func (c *checker) add(severity Severity, s scope, at *place, field, format string, args ...any) {
	c.findings = append(c.findings, Finding{
		File: c.file, Line: at.line, Column: at.column, Severity: severity,
		At: s.at(), Field: field, Problem: oneLine(fmt.Sprintf(format, args...)),
	})
}

// check checks the job.
func (c *checker) check() {
	c.metaWithoutEffect(c.scopeOfJob(), slices.Collect(c.tasks(nil)))
	waits, some := false, false
	for _, g := range c.job.TaskGroups {
		s := c.scopeOfGroup(g)
		c.metaWithoutEffect(s, slices.Collect(c.tasks(g)))
		waits = c.waits(g) || waits
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
	c.checkWaiting(waits)
}

// tasks are those of a group, or all.
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

// isOurs says whether a task runs under Ebbtide: by name, or, under docker, if it says
// anything to it.
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

// merged is the meta of a task that is ours, as Nomad merges it.
func merged(job *api.Job, g *api.TaskGroup, t *api.Task) map[string]string {
	all := make(map[string]string)
	for _, meta := range []map[string]string{job.Meta, g.Meta, t.Meta} {
		maps.Copy(all, meta)
	}
	ours := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if key, ok := options.Key(name); ok {
			ours[key] = all[name]
		}
	}
	return ours
}

// metaPlace is where a key of a task's meta stands: in the task, the group or the job.
func (c *checker) metaPlace(s scope, key string) (scope, *place) {
	scopes := []scope{s}
	if s.task != nil {
		scopes = append(scopes, c.scopeOfGroup(s.group))
	}
	for _, s := range append(scopes, c.scopeOfJob()) {
		for name := range s.meta() {
			if k, ok := options.Key(name); ok && k == key {
				return s, s.find("meta", name)
			}
		}
	}
	return s, s.find("meta")
}

// metaWithoutEffect warns of keys that do nothing for any of the tasks that have them.
func (c *checker) metaWithoutEffect(s scope, tasks []*api.Task) {
	for _, name := range slices.Sorted(maps.Keys(s.meta())) {
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
		switch at := s.find("meta", name); {
		case !run:
			c.add(Warning, s, at, "meta."+key, "has no effect: no task here runs under driver %s (or %s, in whose place it may be installed)", driverName, dockerName)
		case len(options.WithoutSeat(map[string]string{key: ""})) > 0 && !seated:
			c.add(Warning, s, at, "meta."+key, "has no effect: no task here has a seat on a shared GPU (resources { device %q {} })", gpuSeat)
		}
	}
}

// gpuSeat is the device that is a seat on a shared GPU.
const gpuSeat = "nvidia/share"

func hasSeat(t *api.Task) bool {
	return t.Resources != nil && slices.ContainsFunc(t.Resources.Devices, func(d *api.RequestedDevice) bool {
		return d != nil && (d.Name == "share" || d.Name == gpuSeat || strings.HasPrefix(d.Name, gpuSeat+"/"))
	})
}

// metaOfShim warns of keys for the shim that are not where it looks, or not written as it
// reads them: it reads the job's own meta, since Nomad lists no other.
func (c *checker) metaOfShim(s scope) {
	for _, name := range slices.Sorted(maps.Keys(s.meta())) {
		key, _ := options.Key(name)
		if key != optin.Migrate && key != optin.Cooldown {
			continue
		}
		if _, ok := c.job.Meta[key]; !ok {
			c.add(Warning, s, s.find("meta", name), "meta."+key, "the shim does not see it here: set %s in the meta of the job itself", key)
		}
	}
}

// obstacles warns of what keeps the shim from moving a group of a job that may be moved.
func (c *checker) obstacles(g *api.TaskGroup) {
	for _, o := range move.Obstacles(c.job, g) {
		s := c.scopeOf(g, o)
		if s.find(o.Field) == s.find() && c.place.part(o.Field) != nil {
			s = c.scopeOfJob() // from which it has come to its groups
		}
		c.add(Warning, s, s.find(o.Field), o.Field, "the shim will not move it (%s): %s", optin.Migrate, o.Why)
	}
}

// scopeOf is where an obstacle stands.
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

// waits says whether a group waits for the shim.
func (c *checker) waits(g *api.TaskGroup) bool {
	all := slices.Concat(c.job.Constraints, g.Constraints)
	for _, t := range g.Tasks {
		all = append(all, t.Constraints...)
	}
	return slices.ContainsFunc(all, func(x *api.Constraint) bool { return x != nil && x.LTarget == cluster.Hold })
}

// checkWaiting checks the two parts of a job that waits for the shim: the key and the
// constraint.
func (c *checker) checkWaiting(waits bool) {
	s := c.scopeOfJob()
	seen := false // by the shim, which reads no job without a key in its own meta
	for name := range c.job.Meta {
		seen = seen || strings.HasPrefix(name, options.Prefix)
	}
	const field = "constraint"
	switch {
	case !waits && c.job.Meta[options.KeyPlacementHold] == "true":
		c.add(Warning, s, s.find("meta", options.KeyPlacementHold), "meta."+options.KeyPlacementHold, "the job does not wait for the shim: it needs constraint { attribute = %q, value = \"released\" }, too", cluster.Hold)
	case !waits:
	case c.job.IsPeriodic() || c.job.IsParameterized():
		c.add(Warning, s, s.find(field), field, "it waits for ever: what a periodic or parameterized job makes cannot be let run by the shim; take the constraint %s out", cluster.Hold)
	case !seen:
		c.add(Warning, s, s.find(field), field, "it waits for ever: the shim does not see the job; set %s = \"true\" in the meta of the job itself", options.KeyPlacementHold)
	case len(c.job.TaskGroups) != 1 || c.job.TaskGroups[0].Count != nil && *c.job.TaskGroups[0].Count != 1:
		c.add(Warning, s, s.find(field), field, "the shim places only jobs with one group, of count 1: this one runs where Nomad places it")
	}
}

// text is a string that may be missing.
func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
