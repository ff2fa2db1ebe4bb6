// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/placement"
	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/queue"
)

// queuer releases the held jobs of the queue in the order of fair finish, and suspends running ones
// for them.
type queuer struct {
	*term
	jobs  map[cluster.JobKey]*queuedJob // waiting, running, or ended before their twins
	at    time.Time                     // until when the twins have run
	order []memory.Queued               // of the last pass, for the report
}

// queuedJob is what the shim remembers of a job.
type queuedJob struct {
	queue.Job
	alloc      string    // running
	released   time.Time // to Node; its allocation is not there yet
	suspending bool
}

// placedWithin bounds the time until a released job has its allocation: then it waits in Nomad's
// queue, and has no place.
const placedWithin = time.Minute

// maxQueued bounds the report; maxStatuses the statuses read in a pass.
const (
	maxQueued   = 200
	maxStatuses = 500
)

// take returns the held jobs that take part in the queue, and removes them from the others.
func (q *queuer) take(c config.Config, held *[]*cluster.Job) (waiting []*cluster.Job) {
	if !c.Queue.Enabled {
		clear(q.jobs)
		q.show([]memory.Queued{})
		return nil
	}
	*held = slices.DeleteFunc(*held, func(j *cluster.Job) bool {
		if j.Queued {
			waiting = append(waiting, j)
		}
		return j.Queued
	})
	return waiting
}

// pass decides which waiting jobs start.
func (q *queuer) pass(c config.Config, waiting []*cluster.Job) {
	now := time.Now()
	runs := q.allocated(waiting)
	waiting = slices.DeleteFunc(waiting, func(j *cluster.Job) bool {
		_, _, why := single(j)
		if runs[j.Key] {
			if alloc, _ := j.Suspended(); q.state.Allocs[alloc] != nil {
				return true // its end has not been seen yet
			}
			why = alreadyRuns
		}
		why = cmp.Or(why, q.leaves(j.Key))
		if why != "" {
			q.placer.releaseOne(c, policies.Queue, move.Place{}, j, placement.Output{Rule: placement.RuleNone, Why: why}, true)
		}
		return why != ""
	})
	reads := q.update(c, waiting, now)
	if len(q.jobs) == 0 {
		q.show([]memory.Queued{})
		q.at = time.Time{} // no twin runs until the next job comes
		return
	}
	if len(waiting) == 0 && len(q.orders.Jobs) == 0 {
		reads = nil // no decision needs them
	}
	in := queue.Input{NowS: seconds(now), Params: queue.DefaultParams()}
	in.Params.CostS = c.Queue.Cost.Seconds()
	for _, owner := range slices.Sorted(maps.Keys(c.Queue.Weights)) {
		in.Owners = append(in.Owners, queue.Owner{Name: owner, Weight: c.Queue.Weights[owner]})
	}
	var keys []cluster.JobKey
	for _, key := range slices.SortedFunc(maps.Keys(q.jobs), compareKeys) {
		keys, in.Jobs = append(keys, key), append(in.Jobs, q.jobs[key].Job)
	}
	requests := requestsOf(in.Jobs)
	since := q.at
	q.at = now
	q.eachNodeChunk(func(ids []string) {
		for _, id := range ids {
			if n := q.state.Nodes[id]; n != nil && n.Schedulable {
				in.Nodes = append(in.Nodes, queue.Node{ID: id, Capacity: q.capacity(n, requests)})
			}
		}
	}, func() {
		q.restrict(in, keys)
		q.obey(in, keys)
		q.fetch(func() func() {
			q.read(reads)
			ready := make(map[int]bool)
			for _, r := range reads {
				i, ok := slices.BinarySearchFunc(keys, r.alloc.Job, compareKeys)
				if !ok || r.err != nil || r.status.Alloc != r.alloc.ID {
					continue
				}
				if !r.status.Fair.Finish.IsZero() {
					left := max(r.status.Fair.Finish.Sub(r.status.Updated).Seconds(), 0) // by the node's clock
					in.Jobs[i].RemainingS = &left
				}
				ready[i] = r.status.Reports > 0
			}
			for i := range in.Jobs { // before its first report, a signal might kill a trainer without a handler yet
				in.Jobs[i].Suspendable = in.Jobs[i].Suspendable && ready[i]
			}
			if !since.IsZero() {
				in.Advance(now.Sub(since).Seconds())
			}
			if err := in.Validate(); err != nil {
				q.log.Error("skipping the queue's decision: invalid input", "error", err)
				return func() {}
			}
			out := queue.Decide(in)
			return func() { q.apply(c, in, keys, out) }
		})
	})
}

// update brings the remembered jobs up to date, and returns the statuses that tell what running ones
// still need.
func (q *queuer) update(c config.Config, waiting []*cluster.Job, now time.Time) (reads []reading) {
	maps.DeleteFunc(q.jobs, func(key cluster.JobKey, _ *queuedJob) bool { return q.leaves(key) != "" })
	for _, j := range waiting {
		k := q.jobs[j.Key]
		if k == nil {
			k = &queuedJob{}
			q.jobs[j.Key] = k
		}
		if !k.released.IsZero() && now.Sub(k.released) < placedWithin && !q.isRejected(j.Key, k.Node) {
			continue // this state may be older than the release
		}
		name, group, _ := single(j)
		was := queue.Job{FairS: k.FairS, RemainingS: q.expected(j, name, 0)}
		if alloc, _ := j.Suspended(); alloc != "" {
			was = q.suspendedAs(j, name, k)
		} else {
			q.startsOver(j.Key)
			if k.Ended || k.alloc != "" { // it was submitted again
				was.FairS = 0
			}
		}
		k.Job = queue.Job{
			ID: j.Key.Namespace + "/" + j.Key.ID, Owner: j.Owner, Needs: needs(group.Requested, group.Devices), SubmittedS: seconds(j.Submitted),
			FairS: was.FairS, ServedS: was.ServedS, RemainingS: was.RemainingS,
		}
		k.alloc, k.released = "", time.Time{}
	}
	for id, a := range q.state.Allocs {
		j := q.state.Jobs[a.Job]
		if j == nil || !j.Queued || j.Held || a.Stopping || q.leaves(a.Job) != "" {
			continue
		}
		k := q.jobs[a.Job]
		if k == nil { // before this shim led
			k = &queuedJob{Job: queue.Job{ID: a.Job.Namespace + "/" + a.Job.ID, Owner: j.Owner, SubmittedS: seconds(j.Submitted)}}
			q.jobs[a.Job] = k
		}
		k.alloc, k.released, k.Ended = id, time.Time{}, false
		k.Node, k.Needs = a.Node, needs(a.Allocated, devicesOf(a, j))
		if !a.Started.IsZero() {
			k.SinceS, k.ServedS = seconds(a.Started), max(now.Sub(a.Started).Seconds(), 0)+q.servedBefore(a.Job)
		}
		k.CostS = q.journal.jobs[a.Job].CostS
		k.Suspendable = k.suspending || q.suspendable(c, a, j)
		k.RemainingS = q.expected(j, a.Group, k.ServedS)
		if g := j.Groups[a.Group]; a.Running && len(reads) < maxStatuses {
			reads = append(reads, tasksOf(a, g)...)
		}
	}
	maps.DeleteFunc(q.jobs, func(key cluster.JobKey, k *queuedJob) bool {
		j := q.state.Jobs[key]
		switch {
		case j == nil:
		case k.alloc != "" && q.state.Allocs[k.alloc] != nil:
			return false
		case j.Queued && j.Held && !j.Stopped && !q.unreadable[key]:
			return false
		case !j.Stopped && !k.released.IsZero() && now.Sub(k.released) < placedWithin:
			return false
		}
		if k.Ended, k.Node, k.alloc, k.RemainingS = true, "", "", nil; k.FairS < k.ServedS {
			return false // it has ended before its twin
		}
		return true
	})
	return reads
}

// expected is what a job still needs by its author's guess or, without one, by its last run, in
// seconds; nil if there is neither, or it was wrong.
func (q *queuer) expected(j *cluster.Job, group string, served float64) *float64 {
	took := j.Duration
	if took == 0 {
		for _, run := range q.state.Runs(j.Key, group) {
			took = max(took, run.Took)
		}
	}
	if left := took.Seconds() - served; left > 0 {
		return &left
	}
	return nil
}

// Names of resources besides devices'.
const (
	cpuMHz   = "cpu_mhz"
	memoryMB = "memory_mb"
	diskMB   = "disk_mb"
)

func needs(r cluster.Resources, devices map[string]int64) queue.Resources {
	out := make(queue.Resources, 3+len(devices))
	for name, x := range map[string]int64{cpuMHz: r.MHz, memoryMB: r.MemoryMB, diskMB: r.DiskMB} {
		if x > 0 {
			out[name] = float64(x)
		}
	}
	for request, n := range devices {
		if n > 0 {
			out[request] = float64(n)
		}
	}
	return out
}

// devicesOf returns an allocation's devices by its job's requests.
func devicesOf(a *cluster.Alloc, j *cluster.Job) map[string]int64 {
	out := make(map[string]int64)
	for request := range j.Groups[a.Group].Devices {
		out[request] = cluster.Count(a.Devices, request)
	}
	return out
}

// requestsOf returns the device requests of the jobs.
func requestsOf(jobs []queue.Job) []string {
	names := make(map[string]bool)
	for _, j := range jobs {
		for name := range j.Needs {
			names[name] = true
		}
	}
	for _, other := range []string{cpuMHz, memoryMB, diskMB} {
		delete(names, other)
	}
	return slices.Sorted(maps.Keys(names))
}

// capacity is what jobs of the queue may use of a node: what is free, and what they have.
func (q *queuer) capacity(n *cluster.Node, requests []string) queue.Resources {
	free := q.state.Free(n)
	devices := make(map[string]int64)
	for _, request := range requests {
		devices[request] = cluster.Count(n.Devices, request)
	}
	for _, a := range q.state.On(n.ID) {
		if k := q.jobs[a.Job]; k != nil && k.alloc == a.ID {
			free = free.Plus(a.Allocated)
			continue
		}
		for _, request := range requests {
			devices[request] -= cluster.Count(a.Devices, request)
		}
	}
	return needs(free, devices)
}

// restrict sets the nodes on which waiting jobs may run, as far as the shim knows; nil for all.
func (q *queuer) restrict(in queue.Input, keys []cluster.JobKey) {
	known := make(map[string]bool, len(in.Nodes))
	for _, n := range in.Nodes {
		known[n.ID] = true
	}
	alike := make(map[string][]string) // feasible nodes, by what they depend on
	for i, key := range keys {
		in.Jobs[i].Feasible = nil
		if in.Jobs[i].Node != "" && !known[in.Jobs[i].Node] {
			in.Jobs[i].Node, in.Jobs[i].Feasible = "", []string{} // the node is no more the queue's
			continue
		}
		j := q.state.Jobs[key]
		if in.Jobs[i].Node != "" || in.Jobs[i].Ended || j == nil {
			continue
		}
		_, group, _ := single(j)
		if _, node := j.Suspended(); node != "" && !group.Shared && q.state.Nodes[node] != nil { // its checkpoint is there
			in.Jobs[i].Feasible = []string{}
			if n := q.state.Nodes[node]; known[node] && q.feasible(n, j, group, cluster.Resources{}) && !q.isRejected(key, node) {
				in.Jobs[i].Feasible = []string{node}
			}
			continue
		}
		kind := fmt.Sprint(j.Pool, j.Datacenters, group.Drivers, group.Engine)
		feasible, ok := alike[kind]
		if !ok {
			feasible = []string{}
			for _, n := range in.Nodes {
				if q.feasible(q.state.Nodes[n.ID], j, group, cluster.Resources{}) {
					feasible = append(feasible, n.ID)
				}
			}
			alike[kind] = feasible
		}
		if len(q.rejected[key]) > 0 {
			feasible = slices.DeleteFunc(slices.Clone(feasible), func(id string) bool { return q.isRejected(key, id) })
		}
		if len(feasible) < len(in.Nodes) {
			in.Jobs[i].Feasible = feasible
		}
	}
}

// apply releases the jobs that start, and explains the others.
func (q *queuer) apply(c config.Config, in queue.Input, keys []cluster.JobKey, out queue.Output) {
	order := make([]memory.Queued, len(out.Jobs)) // by rank
	decisions := out.Jobs
	for i, key := range keys {
		k, j := q.jobs[key], q.state.Jobs[key]
		if k != nil {
			k.FairS = in.Jobs[i].FairS
		}
		if in.Jobs[i].Ended {
			continue
		}
		d := decisions[0]
		if decisions = decisions[1:]; k == nil || j == nil {
			continue
		}
		if o := q.orders.Of(key); o.Do == memory.DoStop && in.Jobs[i].Suspendable && k.Node != "" {
			d.Rule, d.Why = queue.RuleYield, "stopped "+o.String()
		}
		q.conclude(c, k, j, d)
		entry := memory.Queued{Namespace: key.Namespace, Job: key.ID, Owner: k.Owner, Late: d.Late, Why: q.waitsFor(key, d)}
		if k.Node != "" {
			entry.Node, entry.Why = q.name(k.Node), "runs"
		}
		if d.FairEndS != nil { // rounded: the report is written when it changes
			entry.FairEnd = time.Unix(int64(*d.FairEndS), 0).Round(time.Minute).UTC()
		}
		order[d.Rank-1] = q.asked(entry, j)
	}
	order = slices.DeleteFunc(order, func(e memory.Queued) bool { return e.Job == "" }) // gone meanwhile
	q.show(order)
}

// show sets the order in the report, and the figures of all its jobs.
func (q *queuer) show(order []memory.Queued) {
	var waiting, late, suspended int
	for _, e := range order {
		if e.Node != "" {
			continue
		}
		waiting++
		if e.Late && e.Order != memory.DoHold {
			late++
		}
		if alloc, _ := q.state.Jobs[cluster.JobKey{Namespace: e.Namespace, ID: e.Job}].Suspended(); alloc != "" {
			suspended++
		}
	}
	q.metrics.Queued.Set(float64(waiting))
	q.metrics.QueuedLate.Set(float64(late))
	q.metrics.Suspended.Set(float64(suspended))
	q.order = order[:min(len(order), maxQueued)]
}

// conclude acts on a decision.
func (q *queuer) conclude(c config.Config, k *queuedJob, j *cluster.Job, d queue.Decision) {
	if q.busy[j.Key] {
		return
	}
	if !j.Held {
		if a := q.state.Allocs[k.alloc]; d.Rule == queue.RuleYield && a != nil {
			q.suspend(c, k, a, d)
		}
		return
	}
	if d.Rule != queue.RuleStart {
		q.set(hclog.Debug, j.Key, reason{text: fmt.Sprintf("waits in the queue, number %d: %s", d.Rank, q.waitsFor(j.Key, d))})
		return
	}
	name, _, changed := single(j)
	if changed != "" {
		return // since the decision; the next one sees it
	}
	why := fmt.Sprintf("number %d of the queue", d.Rank) // nothing that changes by the minute: a dry run records it once
	if d.Late {
		why += ", and late"
	}
	if !c.DryRun {
		k.Node, k.released = d.Node, time.Now()
	}
	place := move.Place{Group: name, Node: d.Node}
	if s := q.journal.jobs[j.Key].Served; s != nil {
		place.Saved = s.Tasks
	}
	q.placer.releaseOne(c, policies.Queue, place, j, placement.Output{Node: d.Node, Rule: d.Rule, Why: why}, false)
}

// waitsFor says what a job waits for.
func (q *queuer) waitsFor(key cluster.JobKey, d queue.Decision) string {
	if n := len(q.rejected[key]); d.Rule == queue.RuleNever && n > 0 {
		return fmt.Sprintf("Nomad would place it on none of the %d nodes that were tried; they are tried again within %v", n, rejectionTTL)
	}
	why := q.readable(d.Why)
	alloc, node := q.state.Jobs[key].Suspended()
	if alloc == "" {
		return why
	}
	if d.Rule == queue.RuleNever {
		why = "waits for node " + q.name(node) + ", which has its checkpoint"
	}
	return q.progressOf(key) + why
}
