// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/cli"
	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/move"
)

type snapshotCommand struct{ command }

func newSnapshot(io IO) cli.Command { return snapshotCommand{command{io, "snapshot"}} }

func (snapshotCommand) Synopsis() string {
	return "Print the last snapshot that a node's policy decided on"
}

func (snapshotCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide snapshot [-node NODE | -alloc ALLOCATION] [options]

  Prints the snapshot of a node's last decision as JSON. To see what another policy
  would decide:

    ebbtide snapshot -node NODE | ebbtide decide --policy tradl

  The driver stores it in one of the node's allocations, where tasks cannot write.
  The newest one is fetched through Nomad's API. If it is older than ten minutes, a
  warning is printed to stderr.

  The exit status is 0 if a snapshot was printed, 1 if there is none, 2 for invalid
  arguments.

Options:

  -node NODE          Name, ID or ID prefix of the node. Default: the only one with
                      Ebbtide's driver.
  -alloc ALLOCATION   ID or ID prefix of the allocation that has the snapshot.
  -compact            Print JSON on one line instead of indented.

With ACLs the token needs node:read, and read-job and read-fs in the
namespaces of the node's jobs.
` + nomadHelp)
}

const (
	fetchTimeout = time.Minute
	maxAllocs    = 256
	maxParallel  = 8
	// maxSnapshotAge is the age that causes a warning. The driver writes a snapshot with each
	// decision.
	maxSnapshotAge = 10 * time.Minute
)

func (c snapshotCommand) Run(args []string) int {
	var node, alloc string
	var compact bool
	flags := c.flags()
	nomad := nomadFlags(flags)
	flags.StringVar(&node, "node", "", "")
	flags.StringVar(&alloc, "alloc", "", "")
	flags.BoolVar(&compact, "compact", false, "")
	if status, ok := c.parse(flags, args, c.Help()); !ok {
		return status
	}
	switch {
	case flags.NArg() > 0:
		return c.refuse(fmt.Errorf("unexpected argument %q: the node is named with -node", flags.Arg(0)))
	case node != "" && alloc != "":
		return c.refuse(errors.New("-node and -alloc cannot be used together"))
	}
	client, err := nomad.Client()
	if err != nil {
		return c.refuse(err)
	}
	defer client.Close()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	data, err := fetchSnapshot(ctx, client, node, alloc)
	if err != nil {
		return c.failed(err)
	}
	if at := takenAt(data); at.IsZero() {
		fmt.Fprintln(c.io.Err, "ebbtide snapshot: warning: the snapshot has no time")
	} else if age := time.Since(at); age > maxSnapshotAge {
		fmt.Fprintf(c.io.Err, "ebbtide snapshot: warning: the snapshot is %s old: the driver plugin may not be running, or there are no tasks\n", age.Round(time.Second))
	}
	var out bytes.Buffer
	if compact {
		err = json.Compact(&out, data)
	} else {
		err = json.Indent(&out, data, "", "  ")
	}
	if err == nil {
		out.WriteByte('\n')
		_, err = c.io.Out.Write(out.Bytes())
	}
	if err != nil {
		return c.failed(fmt.Errorf("writing the snapshot: %w", err))
	}
	return exitOK
}

// fetchSnapshot fetches a node's snapshot, or an allocation's. With neither, the only node with
// Ebbtide is used.
func fetchSnapshot(ctx context.Context, client *api.Client, node, alloc string) ([]byte, error) {
	if alloc != "" {
		id, err := resolveAlloc(ctx, client, alloc)
		if err != nil {
			return nil, err
		}
		a, err := move.API{Client: client}.Allocation(ctx, id)
		if err != nil {
			return nil, err
		}
		return newest(ctx, client, []*api.Allocation{a})
	}
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
		return nil, fmt.Errorf("no task runs under Ebbtide on node %s, in the namespaces whose jobs the token can read", n.Name)
	}
	// The driver writes it into the oldest allocation.
	slices.SortFunc(asked, func(a, b *api.Allocation) int { return cmp.Compare(a.CreateIndex, b.CreateIndex) })
	data, err := newest(ctx, client, asked[:min(len(asked), maxAllocs)])
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.Name, err)
	}
	return data, nil
}

// ebbtideNode finds a node by name or ID prefix, or for "" the only one with Ebbtide's driver.
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

// isEbbtide reports whether the node's driver of that name is Ebbtide's: its own, or replacing
// Nomad's docker driver.
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

func newest(ctx context.Context, client *api.Client, allocs []*api.Allocation) ([]byte, error) {
	var mu sync.Mutex
	var found []byte
	var errs []error
	var wait sync.WaitGroup
	slots := make(chan struct{}, maxParallel)
	for _, a := range allocs {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			data, err := snapshotOf(ctx, client, a)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, fs.ErrNotExist):
			case err != nil:
				errs = append(errs, err)
			case found == nil || takenAt(data).After(takenAt(found)):
				found = data
			}
		})
	}
	wait.Wait()
	switch {
	case found != nil:
		return found, nil
	case len(errs) > 0:
		return nil, errors.Join(errs[:min(len(errs), 3)]...)
	}
	return nil, fmt.Errorf("none of %d allocations has a snapshot: there was no decision yet, or the driver is older than this command", len(allocs))
}

func snapshotOf(ctx context.Context, client *api.Client, a *api.Allocation) ([]byte, error) {
	data, err := move.API{Client: client}.PrivateFile(ctx, a, private.SnapshotName, maxSnapshot)
	if err != nil {
		return nil, err
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(data, &object); err != nil || object == nil {
		return nil, fmt.Errorf("the snapshot in allocation %s is not a JSON object: %w", a.ID, cmp.Or(err, errors.New("it is null")))
	}
	return data, nil
}

// takenAt returns a snapshot's time, zero if it has none.
func takenAt(data []byte) time.Time {
	var snapshot struct {
		NowS float64 `json:"now_s"`
	}
	if err := json.Unmarshal(data, &snapshot); err != nil || snapshot.NowS <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(snapshot.NowS * 1000))
}
