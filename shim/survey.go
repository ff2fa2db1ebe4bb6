// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/move"
)

// Summary is the latest state of a node's tasks, as reported by its driver.
type Summary struct {
	status.Node
	At time.Time
}

// source is the task whose status file was last used for its node.
type source struct{ alloc, task string }

// statusMaxAge is the age from which a status file is ignored. The driver rewrites it at each
// interval.
const statusMaxAge = 10 * time.Minute

// statusGrace bounds the time from a task's start to its first status.
const statusGrace = time.Minute

const (
	queryTimeout = 10 * time.Second
	maxParallel  = 16
)

// surveyor reads the nodes' summaries.
type surveyor struct {
	nomad    move.API
	log      hclog.Logger
	sources  map[string]source    // last used status file by node
	noStatus map[string]time.Time // allocations without a status, and when that was found
}

// query is a request for one node's summary, and its result.
type query struct {
	node      string
	reporters []reporter
	last      source

	sum      Summary
	from     source
	noStatus []string // allocations that need no status and have none
	err      error
}

// reporter is an allocation whose status may describe its node. required means that it runs
// under Ebbtide, so that a missing status is an error.
type reporter struct {
	*cluster.Alloc // read-only
	required       bool
}

func (s *surveyor) queries(state *cluster.State, ids []string) (all []query) {
	for _, id := range ids {
		n := state.Nodes[id]
		if n == nil {
			continue
		}
		last := s.sources[id]
		allocs := s.reporters(state, id, last)
		if n.PoolCores == 0 || !n.Schedulable && len(allocs) == 0 {
			continue
		}
		all = append(all, query{node: id, reporters: allocs, last: last})
	}
	return all
}

// reporters returns a node's candidate allocations, the most likely first: the last source, then
// jobs known to the shim. Those recently found without a status are skipped.
func (s *surveyor) reporters(state *cluster.State, node string, last source) []reporter {
	var allocs []reporter
	rank := make(map[string]int)
	for _, a := range state.On(node) {
		if _, noStatus := s.noStatus[a.ID]; !a.Running || noStatus {
			continue
		}
		j := state.Jobs[a.Job]
		allocs = append(allocs, reporter{a, j != nil && j.Groups[a.Group].Engine != ""})
		switch {
		case a.ID == last.alloc:
			rank[a.ID] = 0
		case j != nil:
			rank[a.ID] = 1
		default:
			rank[a.ID] = 2
		}
	}
	slices.SortFunc(allocs, func(a, b reporter) int {
		return cmp.Or(cmp.Compare(rank[a.ID], rank[b.ID]), cmp.Compare(a.ID, b.ID))
	})
	return allocs
}

func (s *surveyor) run(ctx context.Context, all []query) {
	forEachParallel(ctx, all, func(ctx context.Context, q *query) {
		q.sum, q.from, q.noStatus, q.err = s.summarise(ctx, q.reporters, q.last)
	})
}

// forEachParallel calls do for each element, maxParallel at a time, each with its own timeout.
func forEachParallel[T any](ctx context.Context, all []T, do func(context.Context, *T)) {
	var group errgroup.Group
	group.SetLimit(maxParallel)
	for i := range all {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, queryTimeout)
			defer cancel()
			do(ctx, &all[i])
			return nil
		})
	}
	_ = group.Wait() // each element keeps its own error
}

// collect returns the summaries. Nodes without one are omitted.
func (s *surveyor) collect(all []query) map[string]Summary {
	maps.DeleteFunc(s.noStatus, func(_ string, since time.Time) bool { return time.Since(since) > statusMaxAge })
	nodes := make(map[string]Summary, len(all))
	s.sources = make(map[string]source, len(all))
	for _, q := range all {
		for _, id := range q.noStatus {
			s.noStatus[id] = time.Now()
		}
		if q.err != nil {
			s.log.Debug("cannot read a node's summary", "node", q.node, "error", q.err)
			continue
		}
		nodes[q.node], s.sources[q.node] = q.sum, q.from
	}
	return nodes
}

// summarise returns the summary from the first valid status file. If no allocation has one, the
// node runs no Ebbtide task, and those allocations are returned in noStatus.
func (s *surveyor) summarise(ctx context.Context, allocs []reporter, last source) (sum Summary, from source, noStatus []string, err error) {
	var errs []error
	for _, a := range allocs {
		tasks := []string{last.task}
		if a.ID != last.alloc {
			var err error
			tasks, err = s.nomad.StatusFiles(ctx, apiAlloc(a.Alloc))
			if err == nil && len(tasks) == 0 && time.Since(a.Started) > statusGrace {
				if a.required {
					err = fmt.Errorf("allocation %s has no status", a.ID)
				} else {
					noStatus = append(noStatus, a.ID)
				}
			}
			if err != nil {
				errs = append(errs, err)
				continue
			}
		}
		for _, task := range tasks {
			st, err := s.nomad.Status(ctx, apiAlloc(a.Alloc), task)
			if err == nil && st.Alloc == a.ID && time.Since(st.Updated) < statusMaxAge {
				return Summary{st.Node, st.Updated}, source{a.ID, task}, noStatus, nil
			}
			errs = append(errs, cmp.Or(err, fmt.Errorf("the status of allocation %s is older than %v, or belongs to another allocation", a.ID, statusMaxAge)))
		}
	}
	if len(errs) == 0 {
		return Summary{At: time.Now()}, source{}, noStatus, nil
	}
	return Summary{}, source{}, noStatus, fmt.Errorf("none of %d allocations has a valid status: %w", len(allocs), errors.Join(errs...))
}

// reading is a task whose status is read, and the result.
type reading struct {
	alloc  *cluster.Alloc
	task   string
	status status.Status
	err    error
}

func (t *term) read(all []reading) {
	forEachParallel(t.leading, all, func(ctx context.Context, r *reading) {
		r.status, r.err = t.nomad.Status(ctx, apiAlloc(r.alloc), r.task)
	})
}
