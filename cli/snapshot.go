// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/cli"
	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/top/snapshot"
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
	if at := snapshot.TakenAt(data); at.IsZero() {
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

// fetchSnapshot fetches the snapshot of a node, or the one in an allocation.
func fetchSnapshot(ctx context.Context, client *api.Client, node, alloc string) ([]byte, error) {
	if alloc == "" {
		return snapshot.OfNode(ctx, client, node)
	}
	id, err := resolveAlloc(ctx, client, alloc)
	if err != nil {
		return nil, err
	}
	return snapshot.OfAlloc(ctx, client, id)
}
