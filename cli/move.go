// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/hashicorp/cli"
	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/shim/move"
)

// moveCommand is `ebbtide move`.
type moveCommand struct{ command }

func newMove(io IO) cli.Command { return moveCommand{command{io, "move"}} }

func (moveCommand) Synopsis() string {
	return "Move an allocation to another node, with its checkpoint"
}

func (moveCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide move [options] ALLOCATION NODE

  Takes an allocation to another node: its task is asked to save its state, stands
  still, and goes on on the target where it was. ALLOCATION and NODE are IDs or the
  beginnings of IDs.

  The job is registered twice: bound to the target, and, once it runs there, free
  again. What is done is told on stderr, a line each; the result is JSON on stdout.
  When something fails the task runs on where it is, or goes back to there.

  While it goes on the move is written down in a Nomad variable, so that no other
  move of the job begins. A move whose process was killed is finished by a shim, or
  by ebbtide moves -recover.

  It is refused, with all reasons, where it would not be safe: a group whose count
  is not 1, a task without a checkpoint block, a disk that stays behind, a job that
  binds the task to a node, a shutdown_delay, a batch job with several groups, a
  target on which Nomad would not place it.

  The exit status is 0 when the allocation has moved (with -dry-run: could be), 1
  when it has not, 2 when the arguments are at fault.

Options:

  -dry-run          Say whether it could be moved. Nothing is changed.
` + storeHelp + `
Where ACLs are on, the token needs list-jobs, read-job, plan-job, register-job,
alloc-lifecycle, read-fs and tag-job-version in the job's namespace, node:read,
and read, write and destroy of the variables PATH/claims/*.
` + nomadHelp)
}

func (c moveCommand) Run(args []string) int {
	var req move.Request
	flags := c.flags()
	nomad := nomadFlags(flags)
	flags.BoolVar(&req.DryRun, "dry-run", false, "")
	store := storeFlags(flags)
	if status, ok := c.parse(flags, args, c.Help()); !ok {
		return status
	}
	if flags.NArg() != 2 {
		return c.refuse(fmt.Errorf("give an allocation and a node, got %d arguments; see ebbtide move -h", flags.NArg()))
	}
	client, err := nomad.Client()
	if err != nil {
		return c.refuse(err)
	}
	defer client.Close()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if req.Alloc, err = wholeAlloc(ctx, client, flags.Arg(0)); err != nil {
		return c.failed(err)
	}
	if req.Node, err = wholeNode(ctx, client, flags.Arg(1)); err != nil {
		return c.failed(err)
	}
	store.Client = client
	opts := move.DefaultOptions()
	opts.Claims, opts.Owner = memory.Claims{Store: *store}, "ebbtide move on "+process()
	opts.Report = func(phase move.Phase, text string) { fmt.Fprintf(c.io.Err, "%-6s  %s\n", phase, text) }
	result, err := move.Move(ctx, move.API{Client: client}, req, opts)
	if err != nil {
		return c.failed(err)
	}
	if err := writeJSON(c.io.Out, result); err != nil {
		return c.failed(fmt.Errorf("writing the result: %w", err))
	}
	return exitOK
}

// storeFlags are the flags that say where the shim remembers.
func storeFlags(flags *flag.FlagSet) *memory.Store {
	defaults := config.Default().Leader
	store := new(memory.Store)
	flags.StringVar(&store.Namespace, "namespace", defaults.Namespace, "")
	flags.StringVar(&store.Path, "path", defaults.Path, "")
	return store
}

// process names this process for people.
func process() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s, process %d", host, os.Getpid())
}

// wholeAlloc finds the allocation whose ID begins with what people wrote.
func wholeAlloc(ctx context.Context, client *api.Client, prefix string) (string, error) {
	stubs, _, err := client.Allocations().List((&api.QueryOptions{Prefix: prefix, Namespace: api.AllNamespacesNamespace}).WithContext(ctx))
	if err != nil {
		return "", fmt.Errorf("looking for allocation %q: %w", prefix, err)
	}
	var ids []string
	for _, s := range stubs {
		ids = append(ids, s.ID)
	}
	return whole("allocation", prefix, ids)
}

// wholeNode finds the node whose ID begins with what people wrote.
func wholeNode(ctx context.Context, client *api.Client, prefix string) (string, error) {
	stubs, _, err := client.Nodes().List((&api.QueryOptions{Prefix: prefix}).WithContext(ctx))
	if err != nil {
		return "", fmt.Errorf("looking for node %q: %w", prefix, err)
	}
	var ids []string
	for _, s := range stubs {
		ids = append(ids, s.ID)
	}
	return whole("node", prefix, ids)
}

// whole is the one ID that was meant.
func whole(what, prefix string, ids []string) (string, error) {
	switch len(ids) {
	case 0:
		return "", fmt.Errorf("there is no %s whose ID begins with %q", what, prefix)
	case 1:
		return ids[0], nil
	}
	return "", fmt.Errorf("%d %ss have IDs that begin with %q: %s", len(ids), what, prefix, strings.Join(ids[:min(len(ids), 5)], ", "))
}
