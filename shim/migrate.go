// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"cmp"
	"slices"
	"strings"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/migration"
	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/store"
)

// requesting returns the allocations with undecided move requests.
func (s *snapshot) requesting() (requesting []*cluster.Alloc) {
	if !s.config.Migration.Enabled {
		return nil
	}
	for a := range s.Allocs() {
		if a.MoveRequested.IsZero() {
			continue
		}
		if _, ok := s.group(a, policies.SpeConMigrate); ok && s.jobs[a.Job].Marked.IsZero() {
			requesting = append(requesting, a)
		}
	}
	return requesting
}

// migrate runs SpeCon's Algorithm 2 for the tasks that request a move, having converged, oldest
// request first.
func (s *snapshot) migrate(asking []*cluster.Alloc) (p plan) {
	slices.SortFunc(asking, func(a, b *cluster.Alloc) int {
		return cmp.Or(a.MoveRequested.Compare(b.MoveRequested), strings.Compare(a.ID, b.ID))
	})
	var all []reading
	for _, a := range asking {
		if _, ok := s.summaries[a.Node]; !ok {
			p.explainSkip(a, s.noSummary(a.Node))
		} else if closed := s.blocked(a, ""); closed != "" {
			p.explainSkip(a, closed)
		} else if len(all) < candidates {
			all = append(all, reading{alloc: a, task: a.Task})
		} else {
			p.explainStay(s, a, othersFirst)
		}
	}
	s.read(all)
	for _, r := range all {
		s.migrateOne(&p, r)
	}
	return p
}

func (s *snapshot) migrateOne(p *plan, r reading) {
	a := r.alloc
	switch {
	case r.err != nil:
		p.explainSkip(a, "cannot read its status: "+r.err.Error())
		return
	case !r.status.SpeCon.RequestMove:
		p.explainSkip(a, "its move request was withdrawn: "+r.status.SpeCon.Why)
		return
	}
	in := migration.Input{Task: a.Job.ID, From: a.Node, Params: migration.Params{Weights: s.config.Migration.Weights}}
	group, _ := s.group(a, policies.SpeConMigrate)
	j := s.Job(a.Job)
	for node := range s.Nodes() {
		n, ok := s.summaries[node.ID]
		if !ok || node.ID != a.Node && (s.isRejected(a.Job, node.ID) || !s.feasible(node, j, group, a.Allocated)) {
			continue
		}
		in.Nodes = append(in.Nodes, migration.Node{
			ID: node.ID, Use: max(0, known(n.Use)),
			Counts: migration.Counts{PC: n.SpeCon["PC"] + n.SpeCon[""], WC: n.SpeCon["WC"], CC: n.SpeCon["CC"]},
		})
	}
	if err := in.Validate(); err != nil {
		p.fail("SpeCon's migration", err)
		return
	}
	out := migration.Decide(in)
	switch unknown := s.unknown(); {
	case out.Move:
		p.move(s, a, out.To, store.Entry{Policy: policies.SpeConMigrate, Rule: out.Rule, Why: out.Why, Scores: text(out.Scores)}, r)
	case unknown != "":
		p.explainSkip(a, "it would stay, but there is no summary of node "+s.name(unknown))
	default:
		p.marked = append(p.marked, a.Job)
		p.explainSkip(a, "it has converged, but stays: "+s.readable(out.Why))
	}
}

// unknown returns a schedulable node without a summary, "" if there is none. An ignored node is not
// waited for.
func (s *snapshot) unknown() string {
	for n := range s.Nodes() {
		if _, ok := s.summaries[n.ID]; !ok && n.Schedulable && n.PoolCores > 0 && s.ignored[n.ID] == "" {
			return n.ID
		}
	}
	return ""
}
