// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// Names of the driver: its own, and that under which it takes the stock driver's place.
const (
	driverName = "ebbtide"
	dockerName = "docker"
)

// bound is what ties a group to one node.
const bound = "${node.unique.id}"

// movable says which tasks of an allocation save their state, and every reason against
// moving it to a node.
func movable(alloc *api.Allocation, job *api.Job, all []*api.AllocationListStub, from, to *api.Node) (tasks, reasons []string) {
	no := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	if alloc.ClientStatus != api.AllocClientStatusRunning || alloc.DesiredStatus != api.AllocDesiredStatusRun {
		no("it does not run: it is %s, and is to %s", alloc.ClientStatus, alloc.DesiredStatus)
	}
	if from.ID == to.ID {
		no("it is on %s already", to.Name)
	}
	if to.Status != api.NodeStatusReady || to.Drain || to.SchedulingEligibility != api.NodeSchedulingEligible {
		no("node %s takes no allocations: it is %s, %s", to.Name, to.Status, to.SchedulingEligibility)
	}
	switch {
	case job.Stop != nil && *job.Stop:
		no("its job is stopped")
	case alloc.Job != nil && alloc.Job.Version != nil && job.Version != nil && *alloc.Job.Version != *job.Version:
		no("its job has been changed since it was placed")
	}
	switch kind := text(job.Type); {
	case kind != api.JobTypeBatch && kind != api.JobTypeService:
		no("its job is of type %s, not batch or service", kind)
	case text(job.ParentID) != "" || job.Dispatched:
		no("its job was made by another one, and cannot be registered anew")
	}
	group := job.LookupTaskGroup(alloc.TaskGroup)
	if group == nil {
		no("its job has no group %s any more", alloc.TaskGroup)
		return nil, reasons
	}
	reasons = append(reasons, reasonsOfGroup(job, group)...)
	if other := completed(job, alloc.TaskGroup, all); other != "" {
		no("group %s of its job has completed, and Nomad would run it again", other)
	}
	for _, t := range group.Tasks {
		if t.Lifecycle != nil {
			continue // what runs before, beside or after the task
		}
		switch {
		case !ours(t, from):
			no("task %s runs under driver %s on %s, which is not ours", t.Name, t.Driver, from.Name)
		case t.Config["checkpoint"] == nil:
			no("task %s does not say how it saves its state (checkpoint)", t.Name)
		case !ours(t, to):
			no("driver %s on %s is not ours", t.Driver, to.Name)
		case engine(t, from) != engine(t, to):
			no("driver %s runs tasks with engine %s on %s, and with %s on %s", t.Driver, engine(t, from), from.Name, engine(t, to), to.Name)
		}
		tasks = append(tasks, t.Name)
	}
	return tasks, reasons
}

// completed is another group of a batch job that has completed: a new version of the job
// runs everything of it again that has.
func completed(job *api.Job, group string, all []*api.AllocationListStub) string {
	for _, a := range all {
		if text(job.Type) == api.JobTypeBatch && a.TaskGroup != group && a.ClientStatus == api.AllocClientStatusComplete {
			return a.TaskGroup
		}
	}
	return ""
}

// reasonsOfGroup are those that lie in the job alone.
func reasonsOfGroup(job *api.Job, group *api.TaskGroup) (reasons []string) {
	no := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	if group.Count != nil && *group.Count != 1 {
		no("group %s has a count of %d: Nomad would move all of them", text(group.Name), *group.Count)
	}
	d := group.EphemeralDisk
	if moves := d != nil && d.Sticky != nil && *d.Sticky && d.Migrate != nil && *d.Migrate; !moves && !shared(group) {
		no("group %s leaves its disk behind: set ephemeral_disk { sticky = true, migrate = true }, or save to a volume that is the same on every node (checkpoint { shared = true })", text(group.Name))
	}
	for _, u := range []*api.UpdateStrategy{job.Update, group.Update} {
		if u != nil && u.Canary != nil && *u.Canary > 0 {
			no("it is updated with canaries: old and new would run together")
			break
		}
	}
	for _, c := range slices.Concat(job.Constraints, group.Constraints) {
		if strings.HasPrefix(c.LTarget, "${node.unique.") {
			no("its job binds it to a node: %s %s %s", c.LTarget, c.Operand, c.RTarget)
		}
	}
	return reasons
}

// shared says whether all tasks of a group that save their state do so in a volume that is
// the same on every node, so that their disk need not move.
func shared(group *api.TaskGroup) bool {
	some := false
	for _, t := range group.Tasks {
		if t.Lifecycle != nil || t.Config["checkpoint"] == nil {
			continue
		}
		// Of a block Nomad makes a list of maps.
		var blocks []struct{ Shared bool }
		data, err := json.Marshal(t.Config["checkpoint"])
		if err != nil || json.Unmarshal(data, &blocks) != nil || len(blocks) != 1 || !blocks[0].Shared {
			return false
		}
		some = true
	}
	return some
}

// ours says whether a task runs under our driver: another one might make an interrupt of
// a signal that it does not know.
func ours(t *api.Task, node *api.Node) bool {
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

// engine is the one with which our driver runs tasks on a node.
func engine(t *api.Task, node *api.Node) string {
	if t.Driver == dockerName {
		return dockerName
	}
	return node.Drivers[t.Driver].Attributes["driver.ebbtide.engine"]
}

// pin returns a copy of a job in which a group is bound to a node.
func pin(job *api.Job, group, node string) (*api.Job, error) {
	out, err := clone(job)
	if err != nil {
		return nil, err
	}
	g := out.LookupTaskGroup(group)
	g.Constraints = append(g.Constraints, api.NewConstraint(bound, "=", node))
	delete(g.Meta, metaAdopt) // of an earlier move
	return out, nil
}

// unpin returns a copy of a job in which a group is not bound to the node any more.
func unpin(job *api.Job, group, node string) (*api.Job, error) {
	out, err := clone(job)
	if err != nil {
		return nil, err
	}
	g := out.LookupTaskGroup(group)
	if g == nil {
		return nil, fmt.Errorf("the job has no group %s any more", group)
	}
	g.Constraints = slices.DeleteFunc(g.Constraints, func(c *api.Constraint) bool {
		return c.LTarget == bound && c.RTarget == node
	})
	return out, nil
}

// clone copies a job as the API would.
func clone(job *api.Job) (*api.Job, error) {
	data, err := json.Marshal(job)
	if err != nil {
		return nil, fmt.Errorf("copying the job: %w", err)
	}
	out := new(api.Job)
	if err := json.Unmarshal(data, out); err != nil {
		return nil, fmt.Errorf("copying the job: %w", err)
	}
	return out, nil
}

// unplaced says why Nomad does not place a group.
func unplaced(m *api.AllocationMetric) string {
	var why []string
	counted := func(what string, counts map[string]int) {
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			why = append(why, fmt.Sprintf("%s %s", what, name))
		}
	}
	counted("no room:", m.DimensionExhausted)
	for _, name := range slices.Sorted(maps.Keys(m.ConstraintFiltered)) {
		if !strings.HasPrefix(name, bound) { // ours filters all others
			why = append(why, "constraint "+name)
		}
	}
	why = append(why, m.QuotaExhausted...)
	if len(why) == 0 {
		return "the node is not among those that it may use"
	}
	return strings.Join(why, ", ")
}

// text is a string that may be missing.
func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
