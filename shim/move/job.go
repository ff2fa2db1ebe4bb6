// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/checkpoint"
)

// Ebbtide's driver names: its own, and that of the stock driver it may replace.
const (
	driverName = "ebbtide"
	dockerName = "docker"
)

// movable returns the tasks that save their state, and every reason against the move.
func movable(alloc *api.Allocation, job *api.Job, from, to *api.Node) (tasks, reasons []string) {
	no := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	tasks, reasons = savable(alloc, job, from)
	if from.ID == to.ID {
		no("it is already on %s", to.Name)
	}
	if to.Status != api.NodeStatusReady || to.Drain || to.SchedulingEligibility != api.NodeSchedulingEligible {
		no("node %s accepts no allocations: it is %s, %s", to.Name, to.Status, to.SchedulingEligibility)
	}
	group := job.LookupTaskGroup(alloc.TaskGroup)
	if group == nil {
		return tasks, reasons
	}
	for _, o := range Obstacles(job, group) {
		reasons = append(reasons, o.Why)
	}
	for _, name := range tasks {
		switch t := taskOf(group, name); {
		case !runsEbbtide(t, from): // reported
		case !runsEbbtide(t, to):
			no("driver %s on %s is not Ebbtide's", t.Driver, to.Name)
		case engine(t, from) != engine(t, to):
			no("driver %s uses engine %s on %s, but %s on %s", t.Driver, engine(t, from), from.Name, engine(t, to), to.Name)
		}
	}
	return tasks, reasons
}

// savable returns the tasks that are to save their state, and what keeps them from it where they run.
func savable(alloc *api.Allocation, job *api.Job, node *api.Node) (tasks, reasons []string) {
	no := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	if alloc.ClientStatus != api.AllocClientStatusRunning || alloc.DesiredStatus != api.AllocDesiredStatusRun {
		no("it is not running: client status %s, desired status %s", alloc.ClientStatus, alloc.DesiredStatus)
	}
	switch {
	case job.Stop != nil && *job.Stop:
		no("its job is stopped")
	case alloc.Job != nil && alloc.Job.Version != nil && job.Version != nil && *alloc.Job.Version != *job.Version:
		no("its job has changed since it was placed")
	}
	group := job.LookupTaskGroup(alloc.TaskGroup)
	if group == nil {
		no("its job no longer has group %q", alloc.TaskGroup)
		return nil, reasons
	}
	for _, t := range group.Tasks {
		if t.Lifecycle != nil {
			continue // prestart, sidecar or poststop tasks
		}
		if ours := t.Driver == driverName || t.Driver == dockerName; ours && !runsEbbtide(t, node) { // others: Obstacles
			no("task %s runs under driver %s on %s, which is not Ebbtide's", t.Name, t.Driver, node.Name)
		}
		tasks = append(tasks, t.Name)
	}
	return tasks, reasons
}

// deploying reports whether a deployment has not ended.
func deploying(d *api.Deployment) bool {
	if d == nil {
		return false
	}
	switch d.Status {
	case api.DeploymentStatusSuccessful, api.DeploymentStatusFailed, api.DeploymentStatusCancelled:
		return false
	}
	return true
}

// Obstacle is a reason in the jobspec against moving a group.
type Obstacle struct {
	Scope Scope
	Task  string // for ScopeTask
	Field string // attribute or block in that scope, such as "count"
	Why   string
}

// Scope is the part of a jobspec that a field belongs to.
type Scope string

const (
	ScopeJob   Scope = "job"
	ScopeGroup Scope = "group"
	ScopeTask  Scope = "task"
)

// Obstacles returns the reasons in the jobspec against moving a group.
func Obstacles(job *api.Job, group *api.TaskGroup) (all []Obstacle) {
	add := func(o Obstacle, format string, args ...any) {
		o.Why = fmt.Sprintf(format, args...)
		all = append(all, o)
	}
	ofJob := func(field string) Obstacle { return Obstacle{Scope: ScopeJob, Field: field} }
	ofGroup := func(field string) Obstacle { return Obstacle{Scope: ScopeGroup, Field: field} }
	ofTask := func(t *api.Task, field string) Obstacle {
		return Obstacle{Scope: ScopeTask, Task: t.Name, Field: field}
	}

	switch kind := text(job.Type); {
	case kind != api.JobTypeBatch && kind != api.JobTypeService:
		add(ofJob("type"), "its job's type is %q, must be batch or service", kind)
	case text(job.ParentID) != "" || job.Dispatched:
		add(ofJob(""), "its job was dispatched or created periodically and cannot be re-registered")
	case job.IsPeriodic():
		add(ofJob("periodic"), "its job is periodic, and its children cannot be re-registered")
	case job.IsParameterized():
		add(ofJob("parameterized"), "its job is parameterized, and its dispatched jobs cannot be re-registered")
	case job.Multiregion != nil:
		add(ofJob("multiregion"), "its job is multiregion, and a move in one region would register it in all")
	case kind == api.JobTypeBatch && len(job.TaskGroups) > 1:
		add(ofJob("group"), "its batch job has several groups: Nomad would re-run those that complete during the move")
	}
	if group.Count != nil && *group.Count != 1 {
		add(ofGroup("count"), "group %s has a count of %d, must be 1: Nomad would replace all of them", text(group.Name), *group.Count)
	}
	d := group.EphemeralDisk
	if moves := d != nil && d.Sticky != nil && *d.Sticky && d.Migrate != nil && *d.Migrate; !moves && !shared(group) {
		add(ofGroup("ephemeral_disk"), "group %s would lose its disk: set ephemeral_disk { sticky = true, migrate = true }, or save to a volume that is the same on every node (checkpoint { shared = true })", text(group.Name))
	}
	canaries := func(u *api.UpdateStrategy) bool { return u != nil && u.Canary != nil && *u.Canary > 0 }
	if inGroup := canaries(group.Update); inGroup || canaries(job.Update) {
		at := ofJob("update")
		if inGroup {
			at = ofGroup("update")
		}
		add(at, "its update block has canaries: old and new would run side by side")
	}
	if d := group.ShutdownDelay; d != nil && *d > 0 {
		add(ofGroup("shutdown_delay"), "group %s has a shutdown_delay of %v, for which it would stay frozen before its end", text(group.Name), *d)
	}
	if d := group.Disconnect; d != nil && (d.LostAfter != nil && *d.LostAfter > 0 || d.Replace != nil && !*d.Replace) {
		add(ofGroup("disconnect"), "group %s has a disconnect block: Nomad would start it on the target while its disconnected source still runs it, or leave it bound to a disconnected target", text(group.Name))
	}
	for _, t := range group.Tasks {
		if t.ShutdownDelay > 0 {
			add(ofTask(t, "shutdown_delay"), "task %s has a shutdown_delay of %v, for which it would stay frozen before its end", t.Name, t.ShutdownDelay)
		}
	}
	for _, where := range []struct {
		at          Obstacle
		constraints []*api.Constraint
	}{{ofJob("constraint"), job.Constraints}, {ofGroup("constraint"), group.Constraints}} {
		for _, c := range where.constraints {
			if strings.HasPrefix(c.LTarget, "${node.unique.") {
				add(where.at, "its job is constrained to a node: %s %s %s", c.LTarget, c.Operand, c.RTarget)
			}
		}
	}
	for _, t := range group.Tasks {
		switch {
		case t.Lifecycle != nil: // prestart, sidecar or poststop tasks
		case t.Driver != driverName && t.Driver != dockerName:
			add(ofTask(t, "driver"), "task %s runs under driver %s, must be ebbtide", t.Name, t.Driver)
		case t.Config["checkpoint"] == nil:
			add(ofTask(t, "config"), "task %s has no checkpoint block in its config", t.Name)
		}
	}
	return all
}

// saving is what a move needs of a task's checkpoint block.
type saving struct {
	timeout, lease time.Duration
	asked, shared  bool
}

// savingOf reads a task's checkpoint block. The driver has already rejected invalid values.
func savingOf(t *api.Task) saving {
	s := saving{timeout: checkpoint.DefaultTimeout(checkpoint.DefaultSignal), lease: checkpoint.DefaultLease, asked: true}
	// Nomad encodes a block as a list of maps.
	var blocks []struct {
		Signal, Timeout, Lease string
		Shared                 bool
	}
	data, err := json.Marshal(t.Config["checkpoint"])
	if err != nil || json.Unmarshal(data, &blocks) != nil || len(blocks) != 1 {
		return s
	}
	s.shared, s.asked = blocks[0].Shared, blocks[0].Signal != checkpoint.NoSignal
	s.timeout = checkpoint.DefaultTimeout(blocks[0].Signal)
	if d, err := time.ParseDuration(blocks[0].Timeout); err == nil {
		s.timeout = d
	}
	if d, err := time.ParseDuration(blocks[0].Lease); err == nil {
		s.lease = d
	}
	return s
}

// shared reports whether all tasks that save do so to a volume present on every node, so that
// the disk need not move.
func shared(group *api.TaskGroup) bool {
	some := false
	for _, t := range group.Tasks {
		if t.Lifecycle != nil || t.Config["checkpoint"] == nil {
			continue
		}
		if !savingOf(t).shared {
			return false
		}
		some = true
	}
	return some
}

// runsEbbtide reports whether the task runs under our driver: another one may turn an unknown
// signal into an interrupt.
func runsEbbtide(t *api.Task, node *api.Node) bool {
	info := node.Drivers[t.Driver]
	if info == nil || !info.Detected || !info.Healthy {
		return false
	}
	switch t.Driver {
	case driverName:
		return true
	case dockerName:
		return node.Attributes["driver.docker.ebbtide.version"] != "" || info.Attributes["driver.docker.ebbtide.version"] != ""
	}
	return false
}

func engine(t *api.Task, node *api.Node) string {
	if t.Driver == dockerName {
		return dockerName
	}
	return node.Drivers[t.Driver].Attributes["driver.ebbtide.engine"]
}

// placementFailure says why Nomad did not place a group.
func placementFailure(m *api.AllocationMetric) string {
	var why []string
	counted := func(what string, counts map[string]int) {
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			why = append(why, fmt.Sprintf("%s %s", what, name))
		}
	}
	counted("exhausted:", m.DimensionExhausted)
	for _, name := range slices.Sorted(maps.Keys(m.ConstraintFiltered)) {
		if !strings.HasPrefix(name, boundBy) { // the move's own, which filters all other nodes
			why = append(why, "constraint "+name)
		}
	}
	why = append(why, m.QuotaExhausted...)
	if len(why) == 0 {
		return "the node is not eligible for the job"
	}
	return strings.Join(why, ", ")
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
