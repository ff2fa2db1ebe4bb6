// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/migration"
	"github.com/ebbtide/ebbtide/shim/policies"
)

// migrator moves tasks that request it, having converged (SpeCon, Algorithm 2).
type migrator struct{ *term }

// requesting returns the allocations with undecided move requests.
func (m *migrator) requesting(c config.Config) (requesting []*cluster.Alloc) {
	if !c.Migration.Enabled {
		return nil
	}
	for _, a := range m.state.Allocs {
		if a.MoveRequested.IsZero() {
			continue
		}
		if _, ok := m.group(a, policies.SpeConMigrate); ok && m.journal.of(c, a.Job).Marked.IsZero() {
			requesting = append(requesting, a)
		}
	}
	return requesting
}

// migrate runs SpeCon's Algorithm 2 for the tasks that request a move, oldest request first.
func (m *migrator) migrate(c config.Config, asking []*cluster.Alloc, nodes map[string]Summary) {
	slices.SortFunc(asking, func(a, b *cluster.Alloc) int {
		return cmp.Or(a.MoveRequested.Compare(b.MoveRequested), strings.Compare(a.ID, b.ID))
	})
	var all []reading
	for _, a := range asking {
		if _, ok := nodes[a.Node]; !ok {
			m.explainSkip(a, m.noSummary(a.Node))
		} else if closed := m.blocked(a, ""); closed != "" {
			m.explainSkip(a, closed)
		} else if len(all) < candidates {
			all = append(all, reading{alloc: a, task: a.Task})
		} else {
			m.explainStay(a, othersFirst)
		}
	}
	if len(all) == 0 {
		return
	}
	m.fetch(func() func() {
		m.read(all)
		return func() {
			for _, r := range all {
				m.enqueue(func() { m.migrateOne(c, r, nodes) })
			}
		}
	})
}

func (m *migrator) migrateOne(c config.Config, r reading, nodes map[string]Summary) {
	a := m.state.Allocs[r.alloc.ID]
	if a == nil {
		return
	}
	group, ok := m.group(a, policies.SpeConMigrate)
	switch {
	case !ok:
		return
	case r.err != nil:
		m.explainSkip(a, "cannot read its status: "+r.err.Error())
		return
	case !r.status.SpeCon.RequestMove:
		m.explainSkip(a, "its move request was withdrawn: "+r.status.SpeCon.Why)
		return
	}
	in := migration.Input{Task: a.Job.ID, From: a.Node, Params: migration.Params{Weights: c.Migration.Weights}}
	j := m.state.Jobs[a.Job]
	for id, n := range nodes {
		if id != a.Node && (m.isRejected(a.Job, id) || !m.feasible(m.state.Nodes[id], j, group, a.Allocated)) {
			continue
		}
		in.Nodes = append(in.Nodes, migration.Node{
			ID: id, Use: max(0, known(n.Use)),
			Counts: migration.Counts{PC: n.SpeCon["PC"] + n.SpeCon[""], WC: n.SpeCon["WC"], CC: n.SpeCon["CC"]},
		})
	}
	slices.SortFunc(in.Nodes, func(a, b migration.Node) int { return strings.Compare(a.ID, b.ID) })
	if err := in.Validate(); err != nil {
		m.log.Error("skipping the decision: invalid input", "error", err)
		return
	}
	out := migration.Decide(in)
	if !out.Move {
		if unknown := m.unknown(nodes); unknown != "" {
			m.explainSkip(a, "it would stay, but there is no summary of node "+m.name(unknown))
			return // retried on the next pass
		}
		m.journal.mark(c, a.Job, false)
		m.explainSkip(a, "it has converged, but stays: "+m.readable(out.Why))
		return
	}
	m.startMove(c, a, out.To, memory.Entry{Policy: policies.SpeConMigrate, Rule: out.Rule, Why: out.Why, Scores: text(out.Scores)}, r)
}

// unknown returns a schedulable node without a summary, "" if there is none. An ignored node is not
// waited for.
func (m *migrator) unknown(nodes map[string]Summary) string {
	for _, id := range slices.Sorted(maps.Keys(m.state.Nodes)) {
		n := m.state.Nodes[id]
		if _, ok := nodes[id]; !ok && n.Schedulable && n.PoolCores > 0 && m.surveyor.ignored[id] == "" {
			return id
		}
	}
	return ""
}
