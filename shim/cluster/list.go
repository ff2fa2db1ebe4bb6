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
	"golang.org/x/sync/errgroup"
)

// metaPrefix is that of the keys of a job's meta that are Ebbtide's.
const metaPrefix = "ebbtide_"

// atATime is how many jobs are read side by side.
const atATime = 16

// pageSize is how many objects are listed at a time: some megabytes. A page is turned
// into what counts of it before the next one is asked for, so that neither Nomad nor the
// shim ever holds a list of all.
//
// Jobs come in one piece. Nomad 1.11 goes through them in another order than that of its
// own tokens where one namespace begins with another's name and a "-", and a page may begin
// where an earlier one has; and without their groups they are small.
const (
	pageSize = 2000
	whole    = 0
)

// List lists a cluster. Of jobs only those are read whole that have a key of Ebbtide's in
// their own meta: Nomad lists no groups, and a request for each job would take minutes.
//
// Each page is a look at a moment of its own, and the indexes are those of the first ones:
// what has changed since comes as events, which are followed already. An object of a later
// page may be newer than some of them, and says so by its own index; if it is gone already,
// an event may bring it back until the one that tells of its end, right after.
func List(ctx context.Context, client *api.Client) (l Listing, err error) {
	l.Indexes.Nodes, err = list(ctx, client, "/v1/nodes?resources=true", pageSize, func(w WireNode) { l.Nodes = append(l.Nodes, w.node()) })
	if err != nil {
		return l, err
	}
	if l.Jobs, l.Indexes.Jobs, err = ListJobs(ctx, client, false); err != nil {
		return l, err
	}
	l.Indexes.Allocs, err = list(ctx, client, "/v1/allocations?resources=true&task_states=true", pageSize, func(w WireAlloc) {
		l.Runs = append(l.Runs, w.runs()...)
		if !w.over() {
			l.Allocs = append(l.Allocs, w.alloc())
		}
	})
	return l, err
}

// ListJobs lists the jobs that have a key of Ebbtide's in their own meta, or all, and returns
// the index of the list.
func ListJobs(ctx context.Context, client *api.Client, all bool) (jobs []*Job, index uint64, err error) {
	var keys []JobKey
	index, err = list(ctx, client, "/v1/jobs?meta=true", whole, func(w struct {
		ID, Namespace string
		Meta          map[string]string
	}) {
		ours := false
		for k := range w.Meta {
			ours = ours || strings.HasPrefix(k, metaPrefix)
		}
		if all || ours {
			keys = append(keys, JobKey{w.Namespace, w.ID})
		}
	})
	if err == nil {
		jobs, err = readJobs(ctx, client, keys)
	}
	return jobs, index, err
}

// list takes all objects of a list, and returns the index of its first page.
func list[T any](ctx context.Context, client *api.Client, path string, size int32, take func(T)) (index uint64, err error) {
	for token := ""; ; {
		var page []T
		q := &api.QueryOptions{Namespace: api.AllNamespacesNamespace, PerPage: size, NextToken: token}
		meta, err := client.Raw().Query(path, &page, q.WithContext(ctx))
		if err != nil {
			return 0, fmt.Errorf("listing the cluster: %w", err)
		}
		if token == "" {
			index = meta.LastIndex
		}
		for _, object := range page {
			take(object)
		}
		if token = meta.NextToken; token == "" {
			return index, nil
		}
	}
}

// readJobs reads jobs side by side. One that is gone meanwhile is left out.
func readJobs(ctx context.Context, client *api.Client, keys []JobKey) (jobs []*Job, err error) {
	reading, ctx := errgroup.WithContext(ctx)
	reading.SetLimit(atATime)
	var mu sync.Mutex
	for _, k := range keys {
		reading.Go(func() error {
			var j WireJob
			_, err := client.Raw().Query("/v1/job/"+url.PathEscape(k.ID), &j, (&api.QueryOptions{Namespace: k.Namespace}).WithContext(ctx))
			switch {
			case err != nil && strings.Contains(err.Error(), "404"):
				return nil
			case err != nil:
				return fmt.Errorf("reading job %s: %w", k.ID, err)
			}
			mu.Lock()
			defer mu.Unlock()
			jobs = append(jobs, j.job())
			return nil
		})
	}
	return jobs, reading.Wait()
}
