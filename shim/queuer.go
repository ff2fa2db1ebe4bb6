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
	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/placement"
	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/queue"
	"github.com/ebbtide/ebbtide/shim/store"
)

// queuer releases the held jobs of the queue in the order of fair finish, and suspends running ones
// for them.
type queuer struct {
	jobs  map[cluster.JobKey]*queuedJob // waiting, running, or ended before their twins
	at    time.Time                     // until when the twins have run
	order []store.Queued                // of the last pass, for the report
}

// queuedJob is what the shim remembers of a job.
type queuedJob struct {
	queue.Job
	alloc    string    // running
	released time.Time // to Node; its allocation is not there yet
}

// placedWithin bounds the time until a released job has its allocation: then it waits in Nomad's
// queue, and has no place.
const placedWithin = time.Minute

// maxStatuses bounds the statuses read in a pass.
const maxStatuses = 500

// take returns the held jobs that take part in the queue, and removes them from the others.
func (q *queuer) take(s *snapshot, held *[]*cluster.Job) (waiting []*cluster.Job) {
	if !s.config.Queue.Enabled {
		clear(q.jobs)
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

// pass decides which waiting jobs start, and which running ones are suspended for them.
func (q *queuer) pass(s *snapshot, waiting []*cluster.Job) (p plan) {
	now := time.Now()
	q.order = []store.Queued{}
	if !s.config.Queue.Enabled {
		return p
	}
	waiting = slices.DeleteFunc(waiting, func(j *cluster.Job) bool {
		_, _, why := single(j)
		if s.runs(j.Key) {
			if alloc, _ := j.Suspended(); s.Alloc(alloc) != nil {
				return true // its end has not been seen yet
			}
			why = alreadyRuns
		}
		why = cmp.Or(why, s.leaves(j.Key))
		if why != "" {
			p.release(s, policies.Queue, move.Place{}, j, placement.Output{Rule: placement.RuleNone, Why: why}, true)
		}
		return why != ""
	})
	reads := q.update(s, &p, waiting, now)
	if len(q.jobs) == 0 {
		q.at = time.Time{} // no twin runs until the next job comes
		return p
	}
	in, keys := q.input(s, now)
	if len(waiting)+len(s.orders.Jobs) == 0 {
		reads = nil // no decision needs them
	}
	s.read(reads)
	hear(in, keys, reads)
	if !q.at.IsZero() {
		in.Advance(now.Sub(q.at).Seconds())
	}
	q.at = now
	if err := in.Validate(); err != nil {
		p.fail("the queue's", err)
		return p
	}
	q.conclude(s, &p, in, keys, queue.Decide(in))
	return p
}

// input is the policy's, with the keys of its jobs.
func (q *queuer) input(s *snapshot, now time.Time) (in queue.Input, keys []cluster.JobKey) {
	in = queue.Input{NowS: seconds(now), Params: queue.DefaultParams()}
	in.Params.CostS, in.Params.ProbeS = s.config.Queue.Cost.Seconds(), s.config.Queue.Probe.Seconds()
	for _, owner := range slices.Sorted(maps.Keys(s.config.Queue.Weights)) {
		in.Owners = append(in.Owners, queue.Owner{Name: owner, Weight: s.config.Queue.Weights[owner]})
	}
	for _, key := range slices.SortedFunc(maps.Keys(q.jobs), cluster.JobKey.Compare) {
		keys, in.Jobs = append(keys, key), append(in.Jobs, q.jobs[key].Job)
	}
	asked, requests := askedBy(in.Jobs)
	for n := range s.Nodes() {
		if n.Schedulable {
			in.Nodes = append(in.Nodes, queue.Node{ID: n.ID, Capacity: q.capacity(s, n, asked, requests)})
		}
	}
	restrict(s, in, keys)
	s.obey(in, keys)
	return in, keys
}

// hear adds what the tasks' statuses say.
func hear(in queue.Input, keys []cluster.JobKey, reads []reading) {
	ready := make(map[int]bool)
	for _, r := range reads {
		i, ok := slices.BinarySearchFunc(keys, r.alloc.Job, cluster.JobKey.Compare)
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
}

// update brings the remembered jobs up to date, and returns the statuses that tell what running ones
// still need.
func (q *queuer) update(s *snapshot, p *plan, waiting []*cluster.Job, now time.Time) (reads []reading) {
	maps.DeleteFunc(q.jobs, func(key cluster.JobKey, _ *queuedJob) bool { return s.leaves(key) != "" })
	for _, j := range waiting {
		q.wait(s, p, j, now)
	}
	for j := range s.Jobs() {
		if !j.Queued || j.Held || s.leaves(j.Key) != "" {
			continue
		}
		for a := range s.Of(j.Key) {
			if a.Stopping {
				continue
			}
			q.run(s, j, a, now)
			if a.Running && len(reads) < maxStatuses {
				reads = append(reads, tasksOf(a, j.Groups[a.Group])...)
			}
		}
	}
	maps.DeleteFunc(q.jobs, func(key cluster.JobKey, k *queuedJob) bool { return q.over(s, key, k, now) })
	return reads
}

// known returns what is remembered of a job; at first, what an earlier leader has saved.
func (q *queuer) known(s *snapshot, j *cluster.Job) *queuedJob {
	k := q.jobs[j.Key]
	if k == nil {
		k = &queuedJob{Job: queue.Job{ID: j.Key.String(), Owner: j.Owner, SubmittedS: seconds(j.Submitted)}}
		// The shim's own registrations change the time, of jobs that do not wait.
		if t := s.twins[j.Key]; !j.Held || t.SubmittedS == k.SubmittedS {
			k.FairS = t.FairS
		}
		q.jobs[j.Key] = k
	}
	return k
}

// twins is what the twins of the jobs have had that have not ended.
func (q *queuer) twins() map[cluster.JobKey]store.Twin {
	all := make(map[cluster.JobKey]store.Twin, len(q.jobs))
	for key, k := range q.jobs {
		if !k.Ended {
			all[key] = store.Twin{SubmittedS: k.SubmittedS, FairS: k.FairS}
		}
	}
	return all
}

// wait brings a waiting job up to date.
func (q *queuer) wait(s *snapshot, p *plan, j *cluster.Job, now time.Time) {
	k := q.known(s, j)
	if !k.released.IsZero() && now.Sub(k.released) < placedWithin && !s.isRejected(j.Key, k.Node) {
		return // this state may be older than the release
	}
	name, group, _ := single(j)
	was := queue.Job{FairS: k.FairS, RemainingS: expected(s, j, name, 0)}
	if alloc, _ := j.Suspended(); alloc != "" {
		was = suspendedAs(s, j, name, k)
	} else {
		if s.jobs[j.Key].Served != nil {
			p.startOver = append(p.startOver, j.Key)
		}
		if k.Ended || k.alloc != "" { // it was submitted again
			was.FairS = 0
		}
	}
	k.Job = queue.Job{
		ID: j.Key.String(), Owner: j.Owner, Needs: needs(group.Requested, group.Devices), SubmittedS: seconds(j.Submitted),
		FairS: was.FairS, ServedS: was.ServedS, RemainingS: was.RemainingS,
	}
	k.alloc, k.released = "", time.Time{}
}

// run brings a job with an allocation up to date.
func (q *queuer) run(s *snapshot, j *cluster.Job, a *cluster.Alloc, now time.Time) {
	k := q.known(s, j)
	k.alloc, k.released, k.Ended = a.ID, time.Time{}, false
	k.Node, k.Needs = a.Node, needs(a.Allocated, devicesOf(a, j))
	if !a.Started.IsZero() {
		k.SinceS, k.ServedS = seconds(a.Started), max(now.Sub(a.Started).Seconds(), 0)+servedBefore(s.jobs[j.Key])
	}
	k.CostS = s.jobs[j.Key].CostS
	k.Suspendable = s.busy[j.Key] || s.suspendable(a, j)
	k.RemainingS = expected(s, j, a.Group, k.ServedS)
}

// over reports whether a job is to be forgotten. One that has ended before its twin is not.
func (q *queuer) over(s *snapshot, key cluster.JobKey, k *queuedJob, now time.Time) bool {
	j := s.Job(key)
	switch {
	case j == nil:
	case k.alloc != "" && s.Alloc(k.alloc) != nil:
		return false
	case j.Queued && j.Held && !j.Stopped && !s.unreadable[key]:
		return false
	case !j.Stopped && !k.released.IsZero() && now.Sub(k.released) < placedWithin:
		return false
	}
	k.Ended, k.Node, k.alloc, k.RemainingS = true, "", "", nil
	return k.FairS >= k.ServedS
}

// expected is what a job still needs by its author's guess or, without one, by its last run, in
// seconds; nil if there is neither, or it was wrong.
func expected(s *snapshot, j *cluster.Job, group string, served float64) *float64 {
	took := j.Duration
	if took == 0 {
		for _, run := range s.Runs(j.Key, group) {
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
	cores    = "cores"
)

func needs(r cluster.Resources, devices map[string]int64) queue.Resources {
	out := make(queue.Resources, 4+len(devices))
	for name, x := range map[string]int64{cpuMHz: r.MHz, memoryMB: r.MemoryMB, diskMB: r.DiskMB, cores: r.Cores} {
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

// askedBy returns the resources that a job asks for, and the requests for devices among them.
func askedBy(jobs []queue.Job) (asked map[string]bool, requests []string) {
	asked = make(map[string]bool)
	for _, j := range jobs {
		for name := range j.Needs {
			asked[name] = true
		}
	}
	for name := range asked {
		if !slices.Contains([]string{cpuMHz, memoryMB, diskMB, cores}, name) {
			requests = append(requests, name)
		}
	}
	slices.Sort(requests)
	return asked, requests
}

// capacity is what jobs of the queue may use of a node, of what they ask for: what is free, and what
// they have.
func (q *queuer) capacity(s *snapshot, n *cluster.Node, asked map[string]bool, requests []string) queue.Resources {
	free := n.Free()
	devices := make(map[string]int64)
	for _, request := range requests {
		devices[request] = cluster.Count(n.Devices, request)
	}
	for a := range s.On(n.ID) {
		if k := q.jobs[a.Job]; k != nil && k.alloc == a.ID {
			free = free.Plus(a.Allocated)
			continue
		}
		for _, request := range requests {
			devices[request] -= cluster.Count(a.Devices, request)
		}
	}
	out := needs(free, devices)
	maps.DeleteFunc(out, func(name string, _ float64) bool { return !asked[name] })
	return out
}

// restrict sets the nodes on which waiting jobs may run, as far as the shim knows; nil for all.
func restrict(s *snapshot, in queue.Input, keys []cluster.JobKey) {
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
		j := s.Job(key)
		if in.Jobs[i].Node != "" || in.Jobs[i].Ended || j == nil {
			continue
		}
		_, group, _ := single(j)
		if _, id := j.Suspended(); id != "" && !group.Shared && s.Node(id) != nil { // its checkpoint is there
			in.Jobs[i].Feasible = []string{}
			if known[id] && s.feasible(s.Node(id), j, group, cluster.Resources{}) && !s.isRejected(key, id) {
				in.Jobs[i].Feasible = []string{id}
			}
			continue
		}
		kind := fmt.Sprint(j.Pool, j.Datacenters, group.Drivers, group.Engine)
		feasible, ok := alike[kind]
		if !ok {
			feasible = []string{}
			for n := range s.Nodes() {
				if known[n.ID] && s.feasible(n, j, group, cluster.Resources{}) {
					feasible = append(feasible, n.ID)
				}
			}
			alike[kind] = feasible
		}
		if len(s.rejected[key]) > 0 {
			feasible = slices.DeleteFunc(slices.Clone(feasible), func(id string) bool { return s.isRejected(key, id) })
		}
		if len(feasible) < len(in.Nodes) {
			in.Jobs[i].Feasible = feasible
		}
	}
}

// conclude proposes what the policy decides, explains the jobs that wait, and keeps the order: those
// that wait, then those that run.
func (q *queuer) conclude(s *snapshot, p *plan, in queue.Input, keys []cluster.JobKey, out queue.Output) {
	byRank := make([]int, len(out.Jobs)) // indexes of keys
	of := make([]queue.Decision, len(keys))
	decisions := out.Jobs
	for i, key := range keys {
		q.jobs[key].FairS = in.Jobs[i].FairS
		if !in.Jobs[i].Ended {
			of[i], decisions = decisions[0], decisions[1:]
			byRank[of[i].Rank-1] = i
		}
	}
	waiting, running := []store.Queued{}, []store.Queued{}
	for _, i := range byRank {
		k, j, d := q.jobs[keys[i]], s.Job(keys[i]), of[i]
		if j == nil {
			continue
		}
		if o := s.orders.Of(j.Key); o.Do == store.DoStop && in.Jobs[i].Suspendable && k.Node != "" {
			d.Rule, d.Why = queue.RuleYield, "stopped "+o.String()
		}
		e := store.Queued{
			Namespace: j.Key.Namespace, Job: j.Key.ID, Owner: k.Owner, Late: d.Late,
			Start: minute(d.StartS), End: minute(d.EndS), FairEnd: minute(d.FairEndS),
		}
		if k.Node != "" {
			e.Node, e.Why = s.name(k.Node), "runs"
			running = append(running, s.asked(e, j))
		} else {
			alloc, _ := j.Suspended()
			e.Suspended, e.Number, e.Why = alloc != "", len(waiting)+1, s.waitsFor(j, d)
			waiting = append(waiting, s.asked(e, j))
		}
		s.order(p, k, j, d, e)
	}
	q.order = append(waiting, running...)
}

// minute is a time in a report, which is written when it changes; zero if unknown.
func minute(s *float64) time.Time {
	if s == nil {
		return time.Time{}
	}
	return time.Unix(int64(*s), 0).Round(time.Minute).UTC()
}

// order turns a decision, which e reports, into a proposal or a reason.
func (s *snapshot) order(p *plan, k *queuedJob, j *cluster.Job, d queue.Decision, e store.Queued) {
	if s.busy[j.Key] {
		return
	}
	if !j.Held {
		if a := s.Alloc(k.alloc); d.Rule == queue.RuleYield && a != nil {
			s.busy[j.Key] = true
			if on := e.Start; !on.IsZero() && !s.config.DryRun { // a dry run records it once
				d.Why += on.Format("; expected to go on at 15:04 UTC")
			}
			p.proposals = append(p.proposals, proposal{
				do: suspendTask, alloc: a, entry: store.Entry{Policy: policies.Queue, Rule: d.Rule, Why: d.Why},
				served: store.Served{S: k.ServedS, FairS: k.FairS, RemainingS: k.RemainingS},
			})
		}
		return
	}
	if k.Node != "" {
		return // it has been released, but this state is older
	}
	if d.Rule != queue.RuleStart {
		p.note(note{key: j.Key, level: hclog.Debug, reason: reason{text: fmt.Sprintf("waits in the queue, number %d: %s", e.Number, e.Why), index: j.Index}})
		return
	}
	name, _, _ := single(j)
	why := fmt.Sprintf("number %d of the queue", e.Number) // nothing that changes by the minute: a dry run records it once
	if d.Late {
		why += ", and late"
	}
	if !s.config.DryRun {
		k.Node, k.released = d.Node, time.Now()
	}
	place := move.Place{Group: name, Node: d.Node}
	if served := s.jobs[j.Key].Served; served != nil {
		place.Saved = served.Tasks
	}
	p.release(s, policies.Queue, place, j, placement.Output{Node: d.Node, Rule: d.Rule, Why: why}, false)
}

// waitsFor says what a job waits for.
func (s *snapshot) waitsFor(j *cluster.Job, d queue.Decision) string {
	if n := len(s.rejected[j.Key]); d.Rule == queue.RuleNever && n > 0 {
		return fmt.Sprintf("Nomad would place it on none of the %d nodes that were tried; they are tried again within %v", n, rejectionTTL)
	}
	why := s.readable(d.Why)
	alloc, node := j.Suspended()
	if alloc == "" {
		return why
	}
	if d.Rule == queue.RuleNever {
		why = "waits for node " + s.name(node) + ", which has its checkpoint"
	}
	return progressOf(s.jobs[j.Key]) + why
}

// suspendable reports whether an allocation of the queue may be suspended now.
func (s *snapshot) suspendable(a *cluster.Alloc, j *cluster.Job) bool {
	g := j.Groups[a.Group]
	return j.Type == api.JobTypeBatch && g.Movable && g.Count == 1 && len(g.Tasks) == 1 && !j.Template && !j.Child && a.Running &&
		!s.unreadable[j.Key] && s.closed == "" && s.blocked(a, "") == ""
}

// servedBefore is how long a job had run when it was last suspended, in seconds.
func servedBefore(j store.Job) float64 {
	if j.Served != nil {
		return j.Served.S
	}
	return 0
}

// suspendedAs is the service of a suspended job.
func suspendedAs(s *snapshot, j *cluster.Job, group string, k *queuedJob) queue.Job {
	is := queue.Job{FairS: k.FairS}
	if served := s.jobs[j.Key].Served; served != nil {
		is.FairS, is.ServedS, is.RemainingS = max(k.FairS, served.FairS), served.S, served.RemainingS
	}
	if is.RemainingS == nil {
		is.RemainingS = expected(s, j, group, is.ServedS)
	}
	return is
}

// progressOf says where a job has been suspended.
func progressOf(j store.Job) string {
	if j.Served != nil {
		for _, t := range j.Served.Tasks {
			if t.Saved.Known() {
				return fmt.Sprintf("suspended at step %.0f: ", float64(t.Saved))
			}
		}
	}
	return "suspended: "
}
