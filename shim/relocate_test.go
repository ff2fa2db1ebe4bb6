// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/relocate"
)

// says is a Nomad that serves status files only.
type says struct {
	move.Nomad
	statuses map[string]status.Status
}

func (s says) Status(_ context.Context, a *api.Allocation, task string) (status.Status, error) {
	st, ok := s.statuses[a.ID]
	if !ok || task != "train" {
		return status.Status{}, errors.New("no such file")
	}
	return st, nil
}

func (s says) Allocation(context.Context, string) (*api.Allocation, error) {
	return nil, errors.New("no leader")
}

// A node's work is what its tasks reported plus later starts; movable tasks of known size on
// the busiest nodes are candidates.
func TestRelocatable(t *testing.T) {
	s, a := small()
	a.Started = time.Now().Add(-time.Minute)
	more := *a
	more.ID, more.Allocated = "late", cluster.Resources{}
	s.state.Allocs[more.ID] = &more
	must.True(t, s.snap().anyMovable())
	said := status.Status{Fair: status.Fair{RemainingCPUS: 400, CapCores: 2, Finish: time.Now().Add(300 * time.Second)}, Updated: time.Now()}
	s.nomad = says{statuses: map[string]status.Status{"alloc": said}}
	sums := map[string]Summary{
		"a": {Node: status.Node{Counts: map[string]int{"NL": 2, "": 1}, RemainingCPUS: 700, Sized: 2}, At: time.Now()},
		"b": {Node: status.Node{RemainingCPUS: status.Unknown()}, At: time.Now()},
	}
	s.inbound = map[string]int{"b": 1}
	snap := s.snap()
	snap.summaries = sums
	in := relocate.Input{Params: relocate.DefaultParams()}
	for node := range snap.Nodes() {
		backlog, ok := snap.backlog(node)
		must.True(t, ok)
		in.Nodes = append(in.Nodes, backlog)
	}
	must.Eq(t, []relocate.Node{
		{ID: "a", PoolCores: 4, LeftCPUS: 700, Known: 2, Unknown: 1}, {ID: "b", PoolCores: 4, Unknown: 1},
	}, in.Nodes)

	all, to := snap.relocatable(&plan{}, in.Nodes)
	must.Len(t, 2, all)
	snap.read(all)
	task, why := estimate(all[:1], sums["a"].At)
	must.Eq(t, "", why)
	task.To = to[task.ID]
	in.Tasks = []relocate.Task{task}
	must.NoError(t, in.Validate())
	must.Eq(t, []string{"b"}, task.To)
	must.InDelta(t, 300, *task.InS, 1)
	_, why = estimate(all[1:], sums["a"].At)
	must.Eq(t, "cannot read its status: no such file", why)
	must.Eq(t, "alloc", relocate.Decide(in).Task)

	in.Nodes[1].Unknown = 10
	all, _ = snap.relocatable(&plan{}, in.Nodes)
	must.SliceEmpty(t, all, must.Sprint("no node has less than half as much to do"))
	s.state.Jobs[a.Job].Stopped = true
	must.False(t, s.snap().anyMovable())
}
