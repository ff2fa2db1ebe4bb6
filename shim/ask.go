// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/move"
)

// Summary is how the tasks of a node do, as it has last said.
type Summary struct {
	status.Node
	At time.Time
}

// source is the task whose status file has told how those of a node do.
type source struct{ alloc, task string }

// oldest is how old a status file may be that says something of a node. The driver writes
// it at each interval.
const oldest = 10 * time.Minute

// firstStatus is how long after its start a task has a status at the latest: the driver
// writes it within seconds.
const firstStatus = time.Minute

// askWithin bounds how long one node is asked, and atATime how many are side by side.
const (
	askWithin = 10 * time.Second
	atATime   = 16
)

// summaries asks the nodes how their tasks do: one status file of each. A node of which
// nothing can be learnt is left out.
func (t *term) summaries(ctx context.Context) map[string]Summary {
	type answer struct {
		node string
		sum  Summary
		from source
		mute []string
		err  error
	}
	for id, since := range t.silent {
		if t.state.Allocs[id] == nil || time.Since(since) > oldest {
			delete(t.silent, id)
		}
	}
	answers := make(chan answer)
	asked := 0
	slots := make(chan struct{}, atATime)
	for id, n := range t.state.Nodes {
		last := t.sources[id]
		allocs := t.mayTell(id, last)
		if n.PoolCores == 0 || !n.Takes && len(allocs) == 0 {
			continue
		}
		asked++
		go func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, askWithin)
			defer cancel()
			sum, from, mute, err := t.summarise(ctx, allocs, last)
			answers <- answer{id, sum, from, mute, err}
		}()
	}
	nodes := make(map[string]Summary, asked)
	t.sources = make(map[string]source, asked)
	for range asked {
		a := <-answers
		for _, id := range a.mute {
			t.silent[id] = time.Now()
		}
		if a.err != nil {
			t.log.Debug("nothing is known of a node's tasks", "node", t.name(a.node), "error", a.err)
			continue
		}
		nodes[a.node], t.sources[a.node] = a.sum, a.from
	}
	return nodes
}

// mayTell are the allocations of a node of which one may tell of all, the likeliest first:
// the one that has told last, and those of jobs that speak to Ebbtide. One that had no status
// a while ago is left out.
func (t *term) mayTell(node string, last source) []*cluster.Alloc {
	var allocs []*cluster.Alloc
	for _, a := range t.state.On(node) {
		if _, mute := t.silent[a.ID]; a.Running && !mute {
			allocs = append(allocs, a)
		}
	}
	rank := func(a *cluster.Alloc) int {
		switch {
		case a.ID == last.alloc:
			return 0
		case t.state.Jobs[a.Job] != nil:
			return 1
		}
		return 2
	}
	slices.SortFunc(allocs, func(a, b *cluster.Alloc) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.ID, b.ID))
	})
	return allocs
}

// mustTell says whether an allocation is known to be Ebbtide's. One that has just started is
// counted as pending instead (loads).
func (t *term) mustTell(a *cluster.Alloc) bool {
	j := t.state.Jobs[a.Job]
	return j != nil && j.Groups[a.Group].Engine != ""
}

// summarise finds a status file of one of a node's allocations. A node whose allocations
// have none has no task of Ebbtide's; they are returned.
func (t *term) summarise(ctx context.Context, allocs []*cluster.Alloc, last source) (sum Summary, from source, mute []string, err error) {
	var errs []error
	for _, a := range allocs {
		tasks := []string{last.task}
		if a.ID != last.alloc {
			var err error
			tasks, err = move.API{Client: t.client}.StatusFiles(ctx, stub(a))
			if err == nil && len(tasks) == 0 && time.Since(a.Started) > firstStatus {
				if t.mustTell(a) {
					err = fmt.Errorf("allocation %s has no status", a.ID)
				} else {
					mute = append(mute, a.ID)
				}
			}
			if err != nil {
				errs = append(errs, err)
				continue
			}
		}
		for _, task := range tasks {
			st, err := t.nomad.Status(ctx, stub(a), task)
			if err == nil && st.Alloc == a.ID && time.Since(st.Updated) < oldest {
				return Summary{st.Node, st.Updated}, source{a.ID, task}, mute, nil
			}
			errs = append(errs, cmp.Or(err, fmt.Errorf("the status of allocation %s is old, or another one's", a.ID)))
		}
	}
	if len(errs) == 0 {
		return Summary{At: time.Now()}, source{}, mute, nil
	}
	return Summary{}, source{}, mute, fmt.Errorf("none of %d allocations has a status of Ebbtide's: %w", len(allocs), errors.Join(errs...))
}
