// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"
)

// metaPrefix is that of the keys of a job's meta that are Ebbtide's.
const metaPrefix = "ebbtide_"

// atATime is how many jobs are read side by side.
const atATime = 16

// List lists a cluster. Of jobs only those are read whole that have a key of Ebbtide's in
// their own meta: Nomad lists no groups, and a request for each job would take minutes.
func List(ctx context.Context, client *api.Client) (Listing, error) {
	var l Listing
	var stubs []struct {
		ID, Namespace string
		Meta          map[string]string
	}
	for _, q := range []struct {
		path  string
		into  any
		index *uint64
	}{
		{"/v1/nodes?resources=true", &l.Nodes, &l.Indexes.Nodes},
		{"/v1/jobs?meta=true", &stubs, &l.Indexes.Jobs},
		{"/v1/allocations?resources=true&task_states=true", &l.Allocs, &l.Indexes.Allocs},
	} {
		meta, err := client.Raw().Query(q.path, q.into, (&api.QueryOptions{Namespace: api.AllNamespacesNamespace}).WithContext(ctx))
		if err != nil {
			return l, fmt.Errorf("listing the cluster: %w", err)
		}
		*q.index = meta.LastIndex
	}
	var keys []JobKey
	for _, s := range stubs {
		for k := range s.Meta {
			if strings.HasPrefix(k, metaPrefix) {
				keys = append(keys, JobKey{s.Namespace, s.ID})
				break
			}
		}
	}
	var err error
	l.Jobs, err = readJobs(ctx, client, keys)
	return l, err
}

// readJobs reads jobs side by side. One that is gone meanwhile is left out.
func readJobs(ctx context.Context, client *api.Client, keys []JobKey) ([]WireJob, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan JobKey)
	var mu sync.Mutex
	var jobs []WireJob
	var wait sync.WaitGroup
	for range min(atATime, len(keys)) {
		wait.Go(func() {
			for k := range work {
				var j WireJob
				_, err := client.Raw().Query("/v1/job/"+url.PathEscape(k.ID), &j, (&api.QueryOptions{Namespace: k.Namespace}).WithContext(ctx))
				if err != nil {
					if !strings.Contains(err.Error(), "404") {
						cancel(fmt.Errorf("reading job %s: %w", k.ID, err))
					}
					continue
				}
				mu.Lock()
				jobs = append(jobs, j)
				mu.Unlock()
			}
		})
	}
	for _, k := range keys {
		select {
		case work <- k:
		case <-ctx.Done():
		}
	}
	close(work)
	wait.Wait()
	return jobs, context.Cause(ctx)
}
