// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gather

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/ryanuber/go-glob"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/store"
	"github.com/ebbtide/ebbtide/top"
)

// Ended returns the ended tasks whose events compare them with their twins, from the newest page of
// allocations that Nomad still has. all is false if there are older ones. It may be called
// concurrently with other methods.
func (g *Gatherer) Ended(ctx context.Context) (ended []top.Ended, all bool, err error) {
	stubs, meta, err := listPage(ctx, &api.QueryOptions{
		Namespace: g.options.Namespace, PerPage: pageSize, Reverse: true,
		Filter: `ClientStatus == "` + api.AllocClientStatusComplete + `" or ClientStatus == "` + api.AllocClientStatusFailed + `"`,
		Params: map[string]string{"task_states": "true", "resources": "false"},
	}, g.options.Client.Allocations().List)
	if err != nil {
		return nil, false, fmt.Errorf("listing the allocations that have ended: %w", denied(err, "read-job"))
	}
	ended = []top.Ended{}
	for _, a := range stubs {
		if g.options.Job != "" && !glob.Glob(g.options.Job, a.JobID) {
			continue
		}
		for name, state := range a.TaskStates {
			if state == nil {
				continue
			}
			for _, e := range state.Events {
				text := cmp.Or(e.DisplayMessage, e.Message, e.DriverMessage)
				if said, ok := status.ParseEnded(text); ok && e.Type == api.TaskDriverMessage {
					ended = append(ended, top.Ended{
						Namespace: a.Namespace, Job: a.JobID, Task: name, Alloc: a.ID, Node: a.NodeName, Time: time.Unix(0, e.Time).UTC(),
						TookS: status.Number(said.Took.Seconds()), FairS: status.Number(said.Fair.Seconds()), Why: said.Why,
					})
				}
			}
		}
	}
	return ended, meta.NextToken == "", nil
}

// Shim reads the state of the shims and their entries, by path; those in before are not read again.
// It may be called concurrently with other methods.
func (g *Gatherer) Shim(ctx context.Context, before map[string]store.Entry) (o store.Overview, done map[string]store.Entry, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	shim, err := g.options.Shim.Locate(ctx)
	if err == nil {
		o, err = shim.Overview(ctx)
	}
	if err == nil {
		done, err = shim.EntriesSince(ctx, before)
	}
	return o, done, deniedVariables(err, shim)
}
