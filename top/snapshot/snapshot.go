// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package snapshot fetches the snapshot of a node's last decision. The driver stores it in one of
// the node's allocations, where tasks cannot write; Nomad's API serves it.
package snapshot

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/errgroup"

	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/move"
)

const (
	// MaxSize bounds a snapshot, in bytes. A thousand tasks take 0.1 MB.
	MaxSize = 64 << 20
	// MostAsked is the maximum number of a node's allocations searched, atATime of them
	// concurrently.
	MostAsked = 256
	atATime   = 8
)

// OfAlloc fetches the snapshot in an allocation.
func OfAlloc(ctx context.Context, client *api.Client, id string) ([]byte, error) {
	a, err := move.API{Client: client}.Allocation(ctx, id)
	if err != nil {
		return nil, err
	}
	return newest(ctx, client, []*api.Allocation{a})
}

// OfNode fetches the snapshot of a node, given its name, its ID or an ID prefix. "" selects the
// only node that runs Ebbtide.
func OfNode(ctx context.Context, client *api.Client, node string) ([]byte, error) {
	n, err := ebbtideNode(ctx, client, node)
	if err != nil {
		return nil, err
	}
	all, _, err := client.Nodes().Allocations(n.ID, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("listing the allocations of node %s: %w", n.Name, err)
	}
	asked := slices.DeleteFunc(all, func(a *api.Allocation) bool {
		return a.ClientStatus != api.AllocClientStatusRunning || !usesEbbtide(a, n.Drivers)
	})
	if len(asked) == 0 {
		return nil, fmt.Errorf("no Ebbtide task runs on node %s in any namespace whose jobs the token can read", n.Name)
	}
	// It is in the first of them.
	slices.SortFunc(asked, func(a, b *api.Allocation) int { return cmp.Compare(a.CreateIndex, b.CreateIndex) })
	data, err := newest(ctx, client, asked[:min(len(asked), MostAsked)])
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.Name, err)
	}
	return data, nil
}

// ebbtideNode returns the node with a name or ID prefix; for "" the only one that runs Ebbtide's
// driver.
func ebbtideNode(ctx context.Context, client *api.Client, name string) (*api.NodeListStub, error) {
	all, _, err := client.Nodes().List((&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("listing the nodes: %w", err)
	}
	meant, what := slices.DeleteFunc(all, func(n *api.NodeListStub) bool {
		if name == "" {
			return !slices.ContainsFunc([]string{"ebbtide", "docker"}, func(driver string) bool { return isEbbtide(driver, n.Drivers) })
		}
		return n.Name != name && !strings.HasPrefix(n.ID, name)
	}), "has Ebbtide's driver"
	if name != "" {
		what = fmt.Sprintf("has the name or ID prefix %q", name)
	}
	switch len(meant) {
	case 0:
		return nil, fmt.Errorf("no node %s", what)
	case 1:
		return meant[0], nil
	}
	var names []string
	for _, n := range meant[:min(len(meant), 10)] {
		names = append(names, fmt.Sprintf("%s (%.8s)", n.Name, n.ID))
	}
	return nil, fmt.Errorf("%d nodes match, choose one with -node: %s", len(meant), strings.Join(names, ", "))
}

// isEbbtide reports whether a node's driver is Ebbtide's, which may replace Nomad's docker driver.
func isEbbtide(driver string, drivers map[string]*api.DriverInfo) bool {
	d := drivers[driver]
	return d != nil && cluster.DriverAttribute(d.Attributes, "version") != ""
}

func usesEbbtide(a *api.Allocation, drivers map[string]*api.DriverInfo) bool {
	if a.Job == nil {
		return false
	}
	group := a.Job.LookupTaskGroup(a.TaskGroup)
	return group != nil && slices.ContainsFunc(group.Tasks, func(t *api.Task) bool { return isEbbtide(t.Driver, drivers) })
}

// newest returns the newest of the allocations' snapshots.
func newest(ctx context.Context, client *api.Client, allocs []*api.Allocation) ([]byte, error) {
	var mu sync.Mutex
	var found []byte
	var errs []error
	var reading errgroup.Group // errors are evaluated together
	reading.SetLimit(atATime)
	for _, a := range allocs {
		reading.Go(func() error {
			data, err := snapshotOf(ctx, client, a)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, fs.ErrNotExist):
			case err != nil:
				errs = append(errs, err)
			case found == nil || TakenAt(data).After(TakenAt(found)):
				found = data
			}
			return nil
		})
	}
	_ = reading.Wait()
	switch {
	case found != nil:
		return found, nil
	case len(errs) > 0:
		return nil, errors.Join(errs[:min(len(errs), 3)]...)
	}
	return nil, fmt.Errorf("none of %d allocations has a snapshot: there was no decision yet, or the driver is older than this command", len(allocs))
}

// snapshotOf fetches the snapshot stored in an allocation.
func snapshotOf(ctx context.Context, client *api.Client, a *api.Allocation) ([]byte, error) {
	data, err := move.API{Client: client}.PrivateFile(ctx, a, private.SnapshotName, MaxSize)
	if err != nil {
		return nil, err
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(data, &object); err != nil || object == nil {
		return nil, fmt.Errorf("the snapshot in allocation %s is not a JSON object: %w", a.ID, cmp.Or(err, errors.New("it is null")))
	}
	return data, nil
}

// TakenAt returns the time of a snapshot; zero if unknown.
func TakenAt(data []byte) time.Time {
	var snapshot struct {
		NowS float64 `json:"now_s"`
	}
	if err := json.Unmarshal(data, &snapshot); err != nil || snapshot.NowS <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(snapshot.NowS * 1000))
}
