// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/placement"
	"github.com/ebbtide/ebbtide/shim/store"
)

// plan is what a policy decides: what the executor shall do, in order, and the reasons of jobs for
// which it shall do nothing.
type plan struct {
	policy    string // that does not run on every pass
	proposals []proposal
	notes     []note
	forgotten map[cluster.JobKey]reason // reasons that hold no more
	placed    []string                  // allocations whose placement has been decided
	marked    []cluster.JobKey          // converged jobs that stay
	startOver []cluster.JobKey          // jobs that wait without the checkpoint of their suspension
	errs      []planError
}

// planError is an error of a policy, which then decides nothing.
type planError struct {
	policy string
	err    error
}

// proposal is a move, a suspension or a release. The executor may refuse it.
type proposal struct {
	do    action
	entry store.Entry // Policy, Rule, Why and Scores
	alloc *cluster.Alloc
	to    string    // a move's node
	known []reading // statuses that a move's policy has read

	served store.Served // the job's, before its suspension

	job     *cluster.Job // to be released
	place   move.Place   // for it; without a node Nomad chooses
	overdue bool         // Nomad chooses if its plan cannot be read
}

type action int

const (
	moveTask action = iota
	suspendTask
	releaseJob
)

// note is a reason for a job.
type note struct {
	key   cluster.JobKey
	level hclog.Level
	reason
	weak  bool // does not replace the error of an attempt, which tells more
	first bool // only if the job has no reason
}

func (p *plan) add(more plan) {
	p.proposals, p.notes, p.errs = append(p.proposals, more.proposals...), append(p.notes, more.notes...), append(p.errs, more.errs...)
	p.placed, p.marked, p.startOver = append(p.placed, more.placed...), append(p.marked, more.marked...), append(p.startOver, more.startOver...)
}

func (p *plan) fail(policy string, err error) { p.errs = append(p.errs, planError{policy, err}) }

func (p *plan) note(n note) { p.notes = append(p.notes, n) }

// explain gives the reason for a decision about a job.
func (p *plan) explain(j *cluster.Job, what string) {
	p.note(note{key: j.Key, level: hclog.Info, reason: reason{text: what, index: j.Index}})
}

// explainSkip says why an allocation is not moved now.
func (p *plan) explainSkip(a *cluster.Alloc, why string) {
	p.note(note{key: a.Job, level: hclog.Info, reason: skipped(a, why), weak: true})
}

// explainStay says why no move of an allocation is useful.
func (p *plan) explainStay(s *snapshot, a *cluster.Alloc, why string) {
	if !s.busy[a.Job] {
		p.note(note{key: a.Job, level: hclog.Debug, reason: reason{text: "not moved: " + why, alloc: a.ID}})
	}
}

// move proposes a move.
func (p *plan) move(s *snapshot, a *cluster.Alloc, to string, e store.Entry, known ...reading) {
	if s.busy[a.Job] {
		return
	}
	s.busy[a.Job] = true
	s.inbound[to]++
	p.proposals = append(p.proposals, proposal{do: moveTask, entry: e, alloc: a, to: to, known: known})
}

// release proposes to release a held job.
func (p *plan) release(s *snapshot, policy string, place move.Place, j *cluster.Job, out placement.Output, overdue bool) {
	if s.busy[j.Key] {
		return
	}
	s.busy[j.Key] = true
	if place.Node != "" {
		s.inbound[place.Node]++
	}
	place.Namespace, place.Job = j.Key.Namespace, j.Key.ID
	e := store.Entry{Policy: policy, Rule: out.Rule, Why: out.Why, Scores: text(out.Scores)}
	p.proposals = append(p.proposals, proposal{do: releaseJob, entry: e, job: j, place: place, overdue: overdue})
}
