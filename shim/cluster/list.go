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

// metaPrefix is the prefix of Ebbtide's meta keys.
const metaPrefix = "ebbtide_"

const maxParallel = 16

// pageSize bounds a page to some MB. Each page is reduced before the next is requested, so neither
// Nomad nor the shim holds the whole list.
//
// Jobs are listed unpaged: Nomad iterates in an order that differs from its page tokens if one
// namespace is a prefix of another plus "-", so pages may overlap. Without groups jobs are small.
const (
	pageSize = 2000
	unpaged  = 0
)

// List lists a cluster, with the jobs of ListJobs.
//
// The indexes are those of the first pages; the stream, which must already be open, reports later
// changes as events. An object of a later page may be newer than some events, which its index
// shows; if it has already been removed, an event may restore it until the event of its removal.
func List(ctx context.Context, client *api.Client) (l Listing, err error) {
	l.Indexes.Nodes, err = list(ctx, client, "/v1/nodes?resources=true", pageSize, func(w WireNode) { l.Nodes = append(l.Nodes, w.node()) })
	if err != nil {
		return l, err
	}
	if l.Jobs, l.Indexes.Jobs, err = ListJobs(ctx, client); err != nil {
		return l, err
	}
	l.Indexes.Allocs, err = list(ctx, client, "/v1/allocations?resources=true&task_states=true", pageSize, func(w WireAlloc) {
		l.Runs = append(l.Runs, w.runs()...)
		if !w.terminal() {
			l.Allocs = append(l.Allocs, w.alloc())
		}
	})
	return l, err
}

// boundJobs selects jobs bound for a move, which may have no meta key.
const boundJobs = `any TaskGroups as g { any g.Constraints as c { c.RTarget contains "` + Mark + `" } }`

// ListJobs lists the jobs with a meta key of Ebbtide's and those bound for a move, and returns the
// list's index. It reads only these: the list has no groups, and a request for each job would take
// minutes.
func ListJobs(ctx context.Context, client *api.Client) (jobs []*Job, index uint64, err error) {
	keys := make(map[JobKey]bool)
	index, err = list(ctx, client, "/v1/jobs?meta=true", unpaged, func(w struct {
		ID, Namespace string
		Meta          map[string]string
	}) {
		for k := range w.Meta {
			if strings.HasPrefix(k, metaPrefix) {
				keys[JobKey{w.Namespace, w.ID}] = true
			}
		}
	})
	if err == nil {
		_, err = list(ctx, client, "/v1/jobs?filter="+url.QueryEscape(boundJobs), unpaged, func(k JobKey) { keys[k] = true })
	}
	if err == nil {
		jobs, err = readJobs(ctx, client, keys)
	}
	return jobs, index, err
}

// list passes all objects to take and returns the first page's index.
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

// readJobs reads jobs concurrently and skips those that no longer exist.
func readJobs(ctx context.Context, client *api.Client, keys map[JobKey]bool) (jobs []*Job, err error) {
	reading, ctx := errgroup.WithContext(ctx)
	reading.SetLimit(maxParallel)
	var mu sync.Mutex
	for k := range keys {
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
