// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/errgroup"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/cluster"
)

// Summary is the latest state of a node's tasks, as reported by its driver.
type Summary struct {
	status.Node
	At time.Time // by the node's clock; zero if none of its tasks has a status
}

// source is the task whose status file was last used for its node.
type source struct {
	alloc, task string
	updated     time.Time // by the node's clock
	changed     time.Time // when this process saw it change; zero if never
}

// fresh reports whether the driver still writes the status. It must have changed lately; at the first
// sight the node's clock has to do.
func (s *source) fresh(last source) bool {
	switch {
	case !s.same(last) && time.Since(s.updated).Abs() > statusMaxAge:
		return false
	case s.same(last) && s.updated.Equal(last.updated):
		s.changed = last.changed
	default:
		s.changed = time.Now()
	}
	return time.Since(s.changed) < statusMaxAge
}

func (s *source) same(as source) bool { return s.alloc == as.alloc && s.task == as.task }

// statusMaxAge is the age from which a status file is ignored. The driver rewrites it every few
// seconds.
const statusMaxAge = 10 * time.Minute

// statusGrace bounds the time from a task's start to its first status.
const statusGrace = time.Minute

const (
	queryTimeout = 10 * time.Second
	maxParallel  = 16
)

// statusFiles are the status files of allocations.
type statusFiles interface {
	StatusFiles(ctx context.Context, a *api.Allocation) ([]string, error)
	statuses
}

type statuses interface {
	Status(ctx context.Context, a *api.Allocation, task string) (status.Status, error)
}

// surveyor reads the nodes' summaries.
type surveyor struct {
	nomad    statusFiles
	log      hclog.Logger
	sources  map[string]source    // last used status file by node
	noStatus map[string]time.Time // allocations without a status, and when that was found
	ignored  map[string]string    // nodes with impossible figures, and why
}

// query is a request for one node's summary, and its result.
type query struct {
	node      string
	pool      float64
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

// survey returns the summaries of all nodes that have one, and why nodes are ignored.
func (s *surveyor) survey(ctx context.Context, state *snapshot) (nodes map[string]Summary, ignored map[string]string) {
	all := s.queries(state)
	s.run(ctx, all)
	return s.collect(all), s.ignored
}

func (s *surveyor) queries(state *snapshot) (all []query) {
	for n := range state.Nodes() {
		if n.PoolCores == 0 {
			continue
		}
		last := s.sources[n.ID]
		if allocs := s.reporters(state, n.ID, last); n.Schedulable || len(allocs) > 0 {
			all = append(all, query{node: n.ID, pool: n.PoolCores, reporters: allocs, last: last})
		}
	}
	return all
}

// reporters returns a node's candidate allocations, the most likely first: the last source, then
// jobs known to the shim. Those recently found without a status are skipped.
func (s *surveyor) reporters(state *snapshot, node string, last source) []reporter {
	var allocs []reporter
	rank := make(map[string]int)
	for a := range state.On(node) {
		if _, noStatus := s.noStatus[a.ID]; !a.Running || noStatus {
			continue
		}
		j := state.Job(a.Job)
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
	slices.SortStableFunc(allocs, func(a, b reporter) int { return cmp.Compare(rank[a.ID], rank[b.ID]) })
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
	before := s.ignored
	s.ignored = make(map[string]string)
	for _, q := range all {
		for _, id := range q.noStatus {
			s.noStatus[id] = time.Now()
		}
		if q.from != (source{}) {
			s.sources[q.node] = q.from
		}
		if q.err != nil {
			s.log.Debug("cannot read a node's summary", "node", q.node, "error", q.err)
			continue
		}
		if err := checkNode(q.pool, q.sum.Node); err != nil {
			s.ignored[q.node] = strings.ReplaceAll(err.Error(), "\n", "; ")
			if before[q.node] != s.ignored[q.node] {
				s.log.Warn("ignoring a node: its driver reports impossible figures", "node", q.node, "error", s.ignored[q.node])
			}
			continue
		}
		nodes[q.node] = q.sum
	}
	return nodes
}

// summarise returns the summary from the first fresh status file. If no allocation has one, the
// node runs no Ebbtide task, and those allocations are returned in noStatus. from is returned with an
// error, too, for a file that will be fresh if it has changed by then.
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
			if err != nil || st.Alloc != a.ID {
				errs = append(errs, cmp.Or(err, fmt.Errorf("the status of allocation %s belongs to another allocation", a.ID)))
				continue
			}
			is := source{alloc: a.ID, task: task, updated: st.Updated}
			if is.fresh(last) {
				return Summary{st.Node, st.Updated}, is, noStatus, nil
			}
			if !is.same(last) && st.Updated.After(from.updated) {
				from = is
			}
			errs = append(errs, fmt.Errorf("the status of allocation %s is older than %v", a.ID, statusMaxAge))
		}
	}
	if len(errs) == 0 {
		return Summary{}, source{}, noStatus, nil
	}
	return Summary{}, from, noStatus, fmt.Errorf("none of %d allocations has a valid status: %w", len(allocs), errors.Join(errs...))
}

// reading is a task whose status is read, and the result.
type reading struct {
	alloc  *cluster.Alloc
	task   string
	status status.Status
	err    error
}

func readStatuses(ctx context.Context, nomad statuses, all []reading) {
	forEachParallel(ctx, all, func(ctx context.Context, r *reading) {
		r.status, r.err = nomad.Status(ctx, apiAlloc(r.alloc), r.task)
	})
}

func tasksOf(a *cluster.Alloc, group cluster.Group) (all []reading) {
	for _, task := range group.Tasks {
		all = append(all, reading{alloc: a, task: task})
	}
	return all
}

// tasksByAlloc splits readings, which are sorted by allocation.
func tasksByAlloc(all []reading) iter.Seq[[]reading] {
	return func(yield func([]reading) bool) {
		for begin, end := 0, 0; begin < len(all); begin = end {
			for end = begin; end < len(all) && all[end].alloc == all[begin].alloc; end++ {
			}
			if !yield(all[begin:end]) {
				return
			}
		}
	}
}
