// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
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
	jobs     map[cluster.JobKey]*queuedJob // waiting, running, or ended before their twins
	sorted   []*queuedJob                  // the same, by key
	at       time.Time                     // until when the twins have run
	standing standing                      // after the last pass
}

// standing is the queue for the report: its first jobs, waiting ones first, its first owners, and the
// numbers of jobs that wait, and that wait late or suspended.
type standing struct {
	first                    []store.Queued     // not nil
	owners                   []queue.OwnerShare // not nil
	waiting, late, suspended int
}

// queuedJob is what the shim remembers of a job.
type queuedJob struct {
	queue.Job
	key      cluster.JobKey
	pass     time.Time      // of the last pass in which it waited or ran
	is       *cluster.Job   // then
	alloc    *cluster.Alloc // running; nil if it waits
	released time.Time      // to Node; its allocation is not there yet
	heard    time.Time      // when alloc's status was read, or could not be
	left     float64        // what it needed then, in seconds; NaN if unknown
	reports  bool           // it had reported progress
	asked    string         // the allocation whose suspension was proposed; "" once it is over
}

// placedWithin bounds the time until a released job has its allocation: then it waits in Nomad's
// queue, and has no place.
const placedWithin = time.Minute

// maxStatuses bounds the statuses read in a pass, the oldest first, and maxHeard the age of what they
// said.
const (
	maxStatuses = 500
	maxHeard    = 15 * time.Minute
)

// take returns the held jobs that take part in the queue, and removes them from the others.
func (q *queuer) take(s *snapshot, held *[]*cluster.Job) (waiting []*cluster.Job) {
	if !s.config.Queue.Enabled {
		clear(q.jobs)
		q.sorted = nil
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
	q.standing = standing{first: []store.Queued{}, owners: []queue.OwnerShare{}}
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
	q.update(s, &p, waiting, now)
	if len(q.jobs) == 0 {
		q.at = time.Time{} // no twin runs until the next job comes
		return p
	}
	if len(waiting)+len(s.orders.Jobs) > 0 { // otherwise no decision needs it
		q.hear(s, now)
	}
	for _, k := range q.sorted {
		if k.alloc != nil {
			k.apply(now)
		}
	}
	in := q.input(s, now)
	if err := in.Validate(); err != nil {
		p.fail("the queue's", err)
		return p
	}
	past := 0.0
	if !q.at.IsZero() {
		past = now.Sub(q.at).Seconds()
	}
	q.at = now
	q.conclude(s, &p, in, queue.DecideAfter(past, in))
	return p
}

// input is the policy's, with the jobs of q.sorted.
func (q *queuer) input(s *snapshot, now time.Time) queue.Input {
	in := queue.Input{NowS: seconds(now), Params: queue.DefaultParams()}
	in.Params.CostS, in.Params.ProbeS = s.config.Queue.Cost.Seconds(), s.config.Queue.Probe.Seconds()
	for _, owner := range slices.Sorted(maps.Keys(s.config.Queue.Weights)) {
		in.Owners = append(in.Owners, queue.Owner{Name: owner, Weight: s.config.Queue.Weights[owner]})
	}
	in.Jobs = make([]queue.Job, len(q.sorted))
	for i, k := range q.sorted {
		in.Jobs[i] = k.Job
	}
	in.Nodes = q.nodes(s, in.Jobs)
	q.restrict(s, in)
	q.obey(s, in)
	return in
}

// hear reads what running jobs still need from their tasks' statuses.
func (q *queuer) hear(s *snapshot, now time.Time) {
	running := slices.DeleteFunc(slices.Clone(q.sorted), func(k *queuedJob) bool { return k.alloc == nil || !k.alloc.Running })
	if len(running) > maxStatuses {
		slices.SortStableFunc(running, func(a, b *queuedJob) int { return a.heard.Compare(b.heard) })
		running = running[:maxStatuses]
	}
	var reads []reading
	for _, k := range running {
		reads = append(reads, tasksOf(k.alloc, k.is.Groups[k.alloc.Group])...)
		k.heard, k.left, k.reports = now, math.NaN(), false
	}
	s.read(reads)
	for _, r := range reads {
		k := q.jobs[r.alloc.Job]
		if r.err != nil || r.status.Alloc != r.alloc.ID {
			continue
		}
		k.left, k.reports = float64(r.status.Fair.RemainingS), r.status.Reports > 0
	}
}

// apply uses what a running job's status has said.
func (k *queuedJob) apply(now time.Time) {
	ago := now.Sub(k.heard)
	if !math.IsNaN(k.left) && ago < maxHeard {
		left := max(k.left-ago.Seconds(), 0)
		k.RemainingS = &left
	}
	// Before its first report, a signal might kill a trainer without a handler yet.
	k.Suspendable = k.Suspendable && k.reports && ago < maxHeard
}

// update brings the remembered jobs up to date.
func (q *queuer) update(s *snapshot, p *plan, waiting []*cluster.Job, now time.Time) {
	for _, j := range waiting {
		q.wait(s, p, j, now)
	}
	var others []*cluster.Job
	for j := range s.Jobs() {
		if j.Queued && !j.Held && s.leaves(j.Key) == "" {
			others = append(others, j)
		}
	}
	for j, a := range s.Each(others) {
		if !a.Stopping {
			q.run(s, j, a, now)
		}
	}
	q.sorted = slices.DeleteFunc(q.sorted, func(k *queuedJob) bool {
		over := !k.pass.Equal(now) && (s.leaves(k.key) != "" || q.over(s, k, now))
		if over {
			delete(q.jobs, k.key)
		}
		return over
	})
	slices.SortFunc(q.sorted, func(a, b *queuedJob) int { return a.key.Compare(b.key) })
}

// known returns what is remembered of a job; at first, what an earlier leader has saved.
func (q *queuer) known(s *snapshot, j *cluster.Job, now time.Time) *queuedJob {
	k := q.jobs[j.Key]
	if k == nil {
		k = &queuedJob{Job: queue.Job{ID: j.Key.String(), Owner: j.Owner, SubmittedS: seconds(j.Submitted)}, key: j.Key, left: math.NaN()}
		// The shim's own registrations change the time, of jobs that do not wait.
		if t := s.twins[j.Key]; !j.Held || t.SubmittedS == k.SubmittedS {
			k.FairS = t.FairS
		}
		q.jobs[j.Key], q.sorted = k, append(q.sorted, k)
	}
	k.pass = now
	return k
}

// twin is what a job's has had.
type twin struct {
	key cluster.JobKey
	store.Twin
}

// twins are those of the jobs that have not ended; not nil.
func (q *queuer) twins() []twin {
	all := make([]twin, 0, len(q.sorted))
	for _, k := range q.sorted {
		if !k.Ended {
			all = append(all, twin{k.key, store.Twin{SubmittedS: k.SubmittedS, FairS: k.FairS}})
		}
	}
	return all
}

// wait brings a waiting job up to date.
func (q *queuer) wait(s *snapshot, p *plan, j *cluster.Job, now time.Time) {
	k := q.known(s, j, now)
	name, group, _ := single(j)
	if k.is != j || k.alloc != nil {
		k.Needs = needs(group.Requested, group.Devices)
	}
	k.is = j
	if !k.released.IsZero() && now.Sub(k.released) < placedWithin && !s.isRejected(j.Key, k.Node) {
		return // this state may be older than the release
	}
	was := queue.Job{FairS: k.FairS, RemainingS: expected(s, j, name, 0)}
	if alloc, _ := j.Suspended(); alloc != "" {
		was = suspendedAs(s, j, name, k)
	} else {
		if s.jobs[j.Key].Served != nil {
			p.startOver = append(p.startOver, j.Key)
		}
		if k.Ended || k.alloc != nil { // it was submitted again
			was.FairS = 0
		}
	}
	k.Job = queue.Job{
		ID: j.Key.String(), Owner: j.Owner, Needs: k.Needs, SubmittedS: seconds(j.Submitted),
		FairS: was.FairS, ServedS: was.ServedS, RemainingS: was.RemainingS, Suspendable: yields(j, group), Local: !group.Shared,
	}
	k.alloc, k.released = nil, time.Time{}
}

// run brings a job with an allocation up to date.
func (q *queuer) run(s *snapshot, j *cluster.Job, a *cluster.Alloc, now time.Time) {
	k := q.known(s, j, now)
	if k.alloc == nil || k.alloc.ID != a.ID {
		k.heard, k.left, k.reports = time.Time{}, math.NaN(), false
	}
	if k.alloc != a || k.is != j {
		k.Needs = needs(a.Allocated, devicesOf(a, j))
	}
	k.is, k.alloc, k.Node, k.released, k.Ended = j, a, a.Node, time.Time{}, false
	is := s.jobs[j.Key]
	if since := a.Started; !since.IsZero() {
		if since.Before(a.Created) || since.After(now) { // the node's clock is wrong
			since = a.Created
		}
		k.SinceS, k.ServedS = seconds(since), max(now.Sub(since).Seconds(), 0)+servedBefore(is)
	}
	if !s.busy[j.Key] {
		k.asked = ""
	}
	k.CostS, k.Leaving = is.CostS, k.asked == a.ID
	k.Suspendable = s.busy[j.Key] || s.suspendable(a, j)
	k.RemainingS = expected(s, j, a.Group, k.ServedS)
}

// over reports whether a job that neither waits nor runs is to be forgotten. One that has ended before
// its twin is not.
func (q *queuer) over(s *snapshot, k *queuedJob, now time.Time) bool {
	k.is = s.Job(k.key)
	switch {
	case k.is == nil:
	case k.alloc != nil && s.Alloc(k.alloc.ID) != nil:
		k.Suspendable, k.Leaving = false, true // it is being stopped, or was suspended
		return false
	case k.is.Queued && k.is.Held && !k.is.Stopped && !s.unreadable[k.key]:
		return false
	case !k.is.Stopped && !k.released.IsZero() && now.Sub(k.released) < placedWithin:
		return false
	}
	k.Ended, k.Node, k.alloc, k.RemainingS = true, "", nil, nil
	return k.FairS >= k.ServedS
}

// expected is what a job still needs by what it said before its suspension, its author's guess or, if
// there is neither, its last run, in seconds; nil if there is none, or it was wrong.
func expected(s *snapshot, j *cluster.Job, group string, served float64) *float64 {
	if was := s.jobs[j.Key].Served; was != nil && was.RemainingS != nil && served >= was.S {
		if left := *was.RemainingS - (served - was.S); left >= 0 {
			return &left
		}
	}
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
	set := func(name string, x int64) {
		if x > 0 {
			out[name] = float64(x)
		}
	}
	set(cpuMHz, r.MHz)
	set(memoryMB, r.MemoryMB)
	set(diskMB, r.DiskMB)
	set(cores, r.Cores)
	for request, n := range devices {
		set(request, n)
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

// nodes are what jobs of the queue may use of each node, of what they ask for: what is free, and what
// they have.
func (q *queuer) nodes(s *snapshot, jobs []queue.Job) (out []queue.Node) {
	asked, requests := askedBy(jobs)
	has := make(map[string]cluster.Resources) // by node
	for _, k := range q.sorted {
		if k.alloc != nil {
			has[k.alloc.Node] = has[k.alloc.Node].Plus(k.alloc.Allocated)
		}
	}
	out = make([]queue.Node, 0, s.NumNodes())
	for n := range s.Nodes() {
		if !n.Schedulable {
			continue
		}
		devices := make(map[string]int64)
		for _, request := range requests {
			devices[request] = cluster.Count(n.Devices, request)
		}
		if len(requests) > 0 {
			for a := range s.On(n.ID) {
				if k := q.jobs[a.Job]; k != nil && k.alloc != nil && k.alloc.ID == a.ID {
					continue
				}
				for _, request := range requests {
					devices[request] -= cluster.Count(a.Devices, request)
				}
			}
		}
		capacity := needs(n.Free().Plus(has[n.ID]), devices)
		maps.DeleteFunc(capacity, func(name string, _ float64) bool { return !asked[name] })
		out = append(out, queue.Node{ID: n.ID, Capacity: capacity})
	}
	return out
}

// restrict sets the nodes on which waiting jobs may run, as far as the shim knows; nil for all.
func (q *queuer) restrict(s *snapshot, in queue.Input) {
	known := make(map[string]bool, len(in.Nodes))
	for _, n := range in.Nodes {
		known[n.ID] = true
	}
	alike := make(map[string][]string) // feasible nodes, by what they depend on
	for i, k := range q.sorted {
		in.Jobs[i].Feasible = nil
		if in.Jobs[i].Node != "" && !known[in.Jobs[i].Node] {
			in.Jobs[i].Node, in.Jobs[i].Feasible = "", []string{} // the node is no more the queue's
			continue
		}
		j := k.is
		if in.Jobs[i].Node != "" || in.Jobs[i].Ended || j == nil {
			continue
		}
		_, group, _ := single(j)
		if _, id := j.Suspended(); id != "" && in.Jobs[i].Local && s.Node(id) != nil { // its checkpoint is there
			in.Jobs[i].Feasible = []string{}
			if known[id] && s.feasible(s.Node(id), j, group, cluster.Resources{}) && !s.isRejected(k.key, id) {
				in.Jobs[i].Feasible = []string{id}
			}
			continue
		}
		kind := strings.Join(slices.Concat(j.Datacenters, []string{"", j.Pool, group.Engine}, group.Drivers), "\x00")
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
		if len(s.rejected[k.key]) > 0 {
			feasible = slices.DeleteFunc(slices.Clone(feasible), func(id string) bool { return s.isRejected(k.key, id) })
		}
		if len(feasible) < len(in.Nodes) {
			in.Jobs[i].Feasible = feasible
		}
	}
}

// conclude proposes what the policy decides, explains the jobs that wait, and keeps the standing: those
// that wait, then those that run, in order.
func (q *queuer) conclude(s *snapshot, p *plan, in queue.Input, out queue.Output) {
	byRank := make([]int, len(out.Jobs)) // indexes of q.sorted
	of := make([]queue.Decision, len(q.sorted))
	decisions := out.Jobs
	for i, k := range q.sorted {
		k.FairS = in.Jobs[i].FairS
		if !in.Jobs[i].Ended {
			of[i], decisions = decisions[0], decisions[1:]
			byRank[of[i].Rank-1] = i
		}
	}
	running := []store.Queued{}
	is := &q.standing
	is.owners = q.owners(in, out.Owners)
	for _, i := range byRank {
		k, d := q.sorted[i], of[i]
		if k.is == nil {
			continue
		}
		if o := s.orders.Of(k.key); o.Do == store.DoStop && in.Jobs[i].Suspendable && k.Node != "" {
			d.Rule, d.Why = queue.RuleYield, "stopped "+o.String()
		}
		e := store.Queued{
			Namespace: k.key.Namespace, Job: k.key.ID, Owner: k.Owner, Late: d.Late,
			Start: minute(d.StartS), End: minute(d.EndS), FairEnd: minute(d.FairEndS),
		}
		if k.Node != "" {
			if len(running) < maxQueued {
				e.Node, e.Why = s.name(k.Node), "runs"
				running = append(running, s.asked(e, k.is))
			}
		} else {
			alloc, _ := k.is.Suspended()
			is.waiting++
			e.Suspended, e.Number, e.Why = alloc != "", is.waiting, s.waitsFor(k.is, d)
			if e = s.asked(e, k.is); is.waiting <= maxQueued {
				is.first = append(is.first, e)
			}
			if e.Suspended {
				is.suspended++
			}
			if e.Late && e.Order != store.DoHold {
				is.late++
			}
		}
		s.order(p, k, d, e)
	}
	is.first = append(is.first, running...)
	is.first = is.first[:min(len(is.first), maxQueued)]
}

// owners are the report's, which is written when it changes: the first, to a thousandth of the cluster.
func (q *queuer) owners(in queue.Input, all []queue.OwnerShare) []queue.OwnerShare {
	first := slices.Clone(all[:min(len(all), maxOwners)])
	for i := range first {
		o := &first[i]
		o.Use, o.Share = math.Round(1000*o.Use)/1000, math.Round(1000*o.Share)/1000
	}
	for i, k := range q.sorted {
		if k.Node == "" || in.Jobs[i].Node != "" {
			continue
		}
		// It runs on a node that is no more the queue's, so for the policy it has no place.
		if at := slices.IndexFunc(first, func(o queue.OwnerShare) bool { return o.Name == k.Owner }); at >= 0 {
			first[at].Running++
			first[at].Waiting--
		}
	}
	return first
}

// minute is a time in a report, which is written when it changes; zero if unknown.
func minute(s *float64) time.Time {
	if s == nil {
		return time.Time{}
	}
	return time.Unix(int64(*s), 0).Round(time.Minute).UTC()
}

// order turns a decision, which e reports, into a proposal or a reason.
func (s *snapshot) order(p *plan, k *queuedJob, d queue.Decision, e store.Queued) {
	j := k.is
	if s.busy[j.Key] {
		return
	}
	if !j.Held {
		if a := k.alloc; d.Rule == queue.RuleYield && a != nil {
			s.busy[j.Key], k.asked = true, a.ID
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
		place := "behind those listed"
		if e.Number <= maxQueued {
			place = fmt.Sprint("number ", e.Number)
		}
		p.note(note{key: j.Key, level: hclog.Debug, reason: reason{text: "waits in the queue, " + place + ": " + e.Why, index: j.Index}})
		return
	}
	name, _, _ := single(j)
	why := fmt.Sprintf("number %d of the queue", e.Number) // nothing that changes by the minute: a dry run records it once
	if d.Late {
		why += ", and late"
	}
	if !s.config.DryRun {
		k.Node, k.released, k.Suspendable = d.Node, time.Now(), false // it cannot yield what it does not have yet
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
	why := d.Why
	if d.Rule == queue.RuleReserve { // no other names a node
		why = s.readable(why)
	}
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
	return yields(j, j.Groups[a.Group]) && a.Running && !s.unreadable[j.Key] && s.closed == "" && s.blocked(a, "") == ""
}

// yields reports whether a job can be suspended at all.
func yields(j *cluster.Job, g cluster.Group) bool {
	return j.Type == api.JobTypeBatch && g.Movable && g.Count == 1 && len(g.Tasks) == 1 && !j.Template && !j.Child
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
		is.FairS, is.ServedS = max(k.FairS, served.FairS), served.S
	}
	is.RemainingS = expected(s, j, group, is.ServedS)
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
