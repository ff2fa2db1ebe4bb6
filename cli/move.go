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
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/store"
)

type moveCommand struct{ command }

func newMove(io IO) cli.Command { return moveCommand{command{io, "move"}} }

func (moveCommand) Synopsis() string {
	return "Move an allocation to another node, with its checkpoint"
}

func (moveCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide move [options] ALLOCATION NODE

  Moves an allocation to another node: its tasks save a checkpoint, are frozen, and
  resume from the checkpoint on the target. ALLOCATION and NODE are IDs or prefixes
  of IDs.

  The job is registered twice: bound to the target, and unbound once it runs there.
  Progress is printed to stderr, the result as JSON to stdout. If a step fails, the
  tasks keep running on their node, or the move is rolled back.

  The move claims the job with a record in a Nomad variable, so that no other move of
  it can start. If this process is killed, a shim or ebbtide moves -recover finishes
  the move.

  A move that would not be safe is refused, with all reasons: a group whose count is
  not 1, a task without a checkpoint block, a disk that is not migrated, a constraint
  to a node, a shutdown_delay, a disconnect block, a batch job with several groups, a
  deployment that has not ended, a target on which Nomad would not place the
  allocation, a node whose disk is so full that Nomad deletes ended allocations at once.

  The exit status is 0 if the allocation was moved (with -dry-run: could be), 1 if
  not, 2 for invalid arguments.

Options:

  -dry-run          Check whether it could be moved; change nothing.
` + storeHelp + `
With ACLs the token needs list-jobs, read-job, plan-job, register-job,
alloc-lifecycle, read-fs and tag-job-version in the job's namespace, node:read,
agent:read for the limits of the nodes' garbage collection,
list on the variable PATH/leader unless -namespace is given, and read, write and
destroy on the variables PATH/claims/*.
` + nomadHelp)
}

func (c moveCommand) Run(args []string) int {
	var req move.Request
	flags := c.flags()
	nomad := nomadFlags(flags)
	flags.BoolVar(&req.DryRun, "dry-run", false, "")
	vars := storeFlags(flags)
	if status, ok := c.parse(flags, args, c.Help()); !ok {
		return status
	}
	if flags.NArg() != 2 {
		return c.refuse(fmt.Errorf("must have two arguments, ALLOCATION and NODE, got %d; see ebbtide move -h", flags.NArg()))
	}
	client, err := nomad.Client()
	if err != nil {
		return c.refuse(err)
	}
	defer client.Close()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if req.Alloc, err = resolveAlloc(ctx, client, flags.Arg(0)); err != nil {
		return c.failed(err)
	}
	if req.Node, err = resolveNode(ctx, client, flags.Arg(1)); err != nil {
		return c.failed(err)
	}
	vars.Client = client
	located, err := vars.Locate(ctx)
	if err != nil {
		return c.failed(err)
	}
	opts := move.DefaultOptions()
	opts.Claims, opts.Owner = store.Claims{Store: located}, "ebbtide move on "+process()
	opts.Report = func(phase move.Phase, text string) { fmt.Fprintf(c.io.Err, "%-6s  %s\n", phase, text) }
	result, err := move.Move(ctx, move.API{Client: client, Agent: nomad.Agent}, req, opts)
	if err != nil {
		return c.failed(err)
	}
	if err := writeJSON(c.io.Out, result); err != nil {
		return c.failed(fmt.Errorf("writing the result: %w", err))
	}
	return exitOK
}

// storeFlags adds the flags that locate the shim's variables.
func storeFlags(flags *flag.FlagSet) *store.Store {
	vars := new(store.Store)
	flags.StringVar(&vars.Namespace, "namespace", "", "")
	flags.StringVar(&vars.Path, "path", config.Default().Leader.Path, "")
	return vars
}

// process names this process for display.
func process() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s, process %d", host, os.Getpid())
}

// resolveAlloc resolves an ID prefix.
func resolveAlloc(ctx context.Context, client *api.Client, prefix string) (string, error) {
	stubs, _, err := client.Allocations().List((&api.QueryOptions{Prefix: prefix, Namespace: api.AllNamespacesNamespace}).WithContext(ctx))
	if err != nil {
		return "", fmt.Errorf("looking for allocation %q: %w", prefix, err)
	}
	var ids []string
	for _, s := range stubs {
		ids = append(ids, s.ID)
	}
	return resolvePrefix("allocation", prefix, ids)
}

// resolveNode resolves an ID prefix.
func resolveNode(ctx context.Context, client *api.Client, prefix string) (string, error) {
	stubs, _, err := client.Nodes().List((&api.QueryOptions{Prefix: prefix}).WithContext(ctx))
	if err != nil {
		return "", fmt.Errorf("looking for node %q: %w", prefix, err)
	}
	var ids []string
	for _, s := range stubs {
		ids = append(ids, s.ID)
	}
	return resolvePrefix("node", prefix, ids)
}

func resolvePrefix(what, prefix string, ids []string) (string, error) {
	switch len(ids) {
	case 0:
		return "", fmt.Errorf("no %s has the ID prefix %q", what, prefix)
	case 1:
		return ids[0], nil
	}
	return "", fmt.Errorf("%d %ss have the ID prefix %q: %s", len(ids), what, prefix, strings.Join(ids[:min(len(ids), 5)], ", "))
}
