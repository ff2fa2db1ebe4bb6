// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/internal/fields"
	"github.com/ebbtide/ebbtide/shim/relocate"
)

// maxGrowth bounds a sum of growth, which is in units of the metric under the published estimator.
const maxGrowth = 1e100

// checkNode returns what is impossible in a node's figures. Such a node is ignored: its figures would
// count in the decisions about all others.
func checkNode(pool float64, n status.Node) error {
	var errs fields.Errors
	counts := func(name string, all map[string]int) (sum int) {
		for _, k := range slices.Sorted(maps.Keys(all)) {
			errs.Bound(fields.Member(name, k), float64(all[k]), 0, relocate.MaxTasks)
			sum += all[k]
		}
		return sum
	}
	errs.Bound("pool_cores", pool, relocate.MinCores, relocate.MaxCores)
	errs.Bound("tasks", float64(n.Tasks), 0, relocate.MaxTasks)
	training := counts("counts", n.Counts)
	counts("specon", n.SpeCon)
	errs.Bound("sized", float64(n.Sized), 0, float64(training))
	if n.RemainingCPUS.Known() {
		errs.Bound("remaining_cpu_s", float64(n.RemainingCPUS), 0, relocate.MaxCPUS)
	}
	for _, k := range slices.Sorted(maps.Keys(n.GrowthSum)) {
		if g := n.GrowthSum[k]; g.Known() {
			errs.Bound(fields.Member("growth_sum", k), float64(g), 0, maxGrowth)
		}
	}
	return errs.Err()
}

// estimate sums up the tasks of an allocation, which ends with its last training task, or returns why
// its end cannot be estimated. at is when its node wrote its summary. Only the node's own times are
// compared: its clock may differ from this machine's.
func estimate(all []reading, at time.Time) (task relocate.Task, why string) {
	task = relocate.Task{ID: all[0].alloc.ID, Node: all[0].alloc.Node, InS: new(float64)}
	why = "its remaining work is unknown" // unless one trains
	longest := 0.0                        // with as many cores as each can use, in seconds
	for _, r := range all {
		fair := r.status.Fair
		now := r.status.Updated
		if at.After(now) {
			now = at
		}
		left, most, in := float64(fair.RemainingCPUS), known(fair.CapCores), fair.Finish.Sub(now).Seconds()
		switch {
		case r.err != nil:
			return task, "cannot read its status: " + r.err.Error()
		case r.status.Kind == string(policy.Service):
			continue // it has no end
		case !fair.RemainingCPUS.Known():
			return task, fmt.Sprintf("its remaining work is unknown (task %s)", r.task)
		case now.Sub(r.status.Updated) > statusMaxAge:
			return task, fmt.Sprintf("the status of task %s is older than %v", r.task, statusMaxAge)
		case !fields.Within(left, 0, relocate.MaxCPUS) || most != 0 && !fields.Within(most, relocate.MinCores, relocate.MaxCores):
			return task, fmt.Sprintf("task %s reports impossible figures: %v CPU-seconds of remaining work, %v cores", r.task, left, most)
		}
		why = ""
		task.LeftCPUS += left
		if most > 0 {
			longest = max(longest, left/most)
		}
		if fair.Finish.IsZero() {
			task.InS = nil
		} else if task.InS != nil {
			*task.InS = max(*task.InS, in)
		}
	}
	if task.LeftCPUS = min(task.LeftCPUS, relocate.MaxCPUS); longest > 0 {
		task.CapCores = min(max(task.LeftCPUS/longest, relocate.MinCores), relocate.MaxCores)
	}
	return task, why
}
