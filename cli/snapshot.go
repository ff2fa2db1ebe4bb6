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
	if at := snapshot.TakenAt(data); at.IsZero() {
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

// fetchSnapshot fetches the snapshot of a node, or the one in an allocation.
func fetchSnapshot(ctx context.Context, client *api.Client, node, alloc string) ([]byte, error) {
	if alloc == "" {
		return snapshot.OfNode(ctx, client, node)
	}
	id, err := wholeAlloc(ctx, client, alloc)
	if err != nil {
		return nil, err
	}
	return snapshot.OfAlloc(ctx, client, id)
}
