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

// snapshotCommand is `ebbtide snapshot`.
type snapshotCommand struct{ command }

func newSnapshot(io IO) cli.Command { return snapshotCommand{command{io, "snapshot"}} }

func (snapshotCommand) Synopsis() string { return "Print what a node's policy decided on last" }

func (snapshotCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide snapshot [-node NODE | -alloc ALLOCATION] [options]

  Prints the snapshot that a node's policy has decided on last, as JSON. Another
  policy's answer to it:

    ebbtide snapshot -node NODE | ebbtide decide --policy tradl

  The driver keeps it in one of the node's allocations, where tasks cannot write;
  it is fetched through Nomad's API. Of several the newest is printed. One that is
  older than ten minutes is printed too, with a warning on stderr.

  The exit status is 0 when a snapshot was printed, 1 when there is none, 2 when
  the arguments are at fault.

Options:

  -node NODE          The node: its name, its ID or the beginning of its ID.
                      Default: the only one that runs Ebbtide's driver.
  -alloc ALLOCATION   Take the snapshot from this allocation, whose ID begins so.
  -compact            Print JSON on one line instead of indented.

Where ACLs are on, the token needs node:read, and read-job and read-fs in the
namespaces of the node's jobs.
` + nomadHelp)
}

const (
	// fetchWithin bounds how long a node's allocations are asked.
	fetchWithin = time.Minute
	// mostAsked is how many allocations are asked, atATime of them side by side.
	mostAsked = 256
	atATime   = 8
	// oldSnapshot is the age from which on people are warned. The driver writes one at each
	// decision.
	oldSnapshot = 10 * time.Minute
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
		return c.refuse(errors.New("give -node or -alloc, not both"))
	}
	client, err := nomad.Client()
	if err != nil {
		return c.refuse(err)
	}
	defer client.Close()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, fetchWithin)
	defer cancel()
	data, err := fetchSnapshot(ctx, client, node, alloc)
	if err != nil {
		return c.failed(err)
	}
	if at := takenAt(data); at.IsZero() {
		fmt.Fprintln(c.io.Err, "ebbtide snapshot: warning: the snapshot does not say when it was taken")
	} else if age := time.Since(at); age > oldSnapshot {
		fmt.Fprintf(c.io.Err, "ebbtide snapshot: warning: the snapshot is %s old: the plugin may not run, or no task of Ebbtide's does\n", age.Round(time.Second))
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

// fetchSnapshot fetches the snapshot of a node, or the one in an allocation. With neither
// the node is the only one that runs Ebbtide.
func fetchSnapshot(ctx context.Context, client *api.Client, node, alloc string) ([]byte, error) {
	if alloc != "" {
		id, err := wholeAlloc(ctx, client, alloc)
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
		return nil, fmt.Errorf("no task of Ebbtide's runs on node %s, in the namespaces whose jobs the token may read", n.Name)
	}
	// It lies in the first of them.
	slices.SortFunc(asked, func(a, b *api.Allocation) int { return cmp.Compare(a.CreateIndex, b.CreateIndex) })
	data, err := newest(ctx, client, asked[:min(len(asked), mostAsked)])
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.Name, err)
	}
	return data, nil
}

// ebbtideNode finds the node that a name or the beginning of an ID means, and for "" the
// only one that runs Ebbtide's driver.
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
	}), "runs Ebbtide's driver"
	if name != "" {
		what = fmt.Sprintf("has the name %q or an ID that begins so", name)
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
	return nil, fmt.Errorf("more than one node %s: say which with -node; there are %d, %s", what, len(meant), strings.Join(names, ", "))
}

// isEbbtide says whether a node's driver of this name is Ebbtide's: under its own name, or
// in the place of Nomad's docker driver.
func isEbbtide(driver string, drivers map[string]*api.DriverInfo) bool {
	d := drivers[driver]
	return d != nil && (d.Attributes[cluster.Attributes+"version"] != "" || d.Attributes[cluster.AttributesDocker+"version"] != "")
}

// usesEbbtide says whether an allocation has a task of Ebbtide's.
func usesEbbtide(a *api.Allocation, drivers map[string]*api.DriverInfo) bool {
	if a.Job == nil {
		return false
	}
	group := a.Job.LookupTaskGroup(a.TaskGroup)
	return group != nil && slices.ContainsFunc(group.Tasks, func(t *api.Task) bool { return isEbbtide(t.Driver, drivers) })
}

// newest is the newest of the snapshots that allocations hold.
func newest(ctx context.Context, client *api.Client, allocs []*api.Allocation) ([]byte, error) {
	var mu sync.Mutex
	var found []byte
	var errs []error
	var wait sync.WaitGroup
	slots := make(chan struct{}, atATime)
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
	return nil, fmt.Errorf("none of %d allocations of Ebbtide's has a snapshot: nothing was decided yet, or the driver is older than this command", len(allocs))
}

// snapshotOf fetches the snapshot that lies in an allocation.
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

// takenAt is when a snapshot was taken; zero if it does not say so.
func takenAt(data []byte) time.Time {
	var snapshot struct {
		NowS float64 `json:"now_s"`
	}
	if err := json.Unmarshal(data, &snapshot); err != nil || snapshot.NowS <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(snapshot.NowS * 1000))
}
