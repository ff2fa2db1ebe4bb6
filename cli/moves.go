// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/cli"

	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
)

// movesCommand is `ebbtide moves`.
type movesCommand struct{ command }

func newMoves(io IO) cli.Command { return movesCommand{command{io, "moves"}} }

func (movesCommand) Synopsis() string { return "List what the shim has moved, and why" }

func (movesCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide moves [options]

  Lists what the shim has done, the latest last: 200 moves are kept, in Nomad
  variables.

Options:

  -json             Print JSON, with the scores of the nodes.
  -namespace NAME   Namespace of the variables, leader.namespace of the shim's
                    configuration. Default: default.
  -path PATH        Their path, leader.path there. Default: ebbtide/shim.
` + nomadHelp)
}

func (c movesCommand) Run(args []string) int {
	defaults := config.Default().Leader
	var asJSON bool
	store := memory.Store{}
	flags := c.flags()
	flags.BoolVar(&asJSON, "json", false, "")
	nomad := nomadFlags(flags)
	flags.StringVar(&store.Namespace, "namespace", defaults.Namespace, "")
	flags.StringVar(&store.Path, "path", defaults.Path, "")
	if status, ok := c.parse(flags, args, c.Help()); !ok {
		return status
	}
	if flags.NArg() > 0 {
		return c.refuse(fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	var err error
	if store.Client, err = nomad.Client(); err != nil {
		return c.refuse(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	entries, err := store.Notes(ctx)
	if err == nil {
		err = c.print(entries, asJSON)
	}
	if err != nil {
		return c.failed(err)
	}
	return exitOK
}

func (c movesCommand) print(entries []memory.Entry, asJSON bool) error {
	if asJSON {
		if entries == nil {
			entries = []memory.Entry{}
		}
		enc := json.NewEncoder(c.io.Out)
		enc.SetIndent("", "  ")
		return enc.Encode(entries)
	}
	w := tabwriter.NewWriter(c.io.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TIME\tJOB\tFROM\tTO\tPOLICY\tRESULT\tWHY")
	for _, e := range entries {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Time.UTC().Format(time.DateTime), e.Namespace+"/"+e.Job,
			cmp.Or(e.From, "-"), cmp.Or(e.To, "-"), e.Policy, outcome(e), e.Why)
	}
	return w.Flush()
}

// outcome says in short what became of a move.
func outcome(e memory.Entry) string {
	switch {
	case e.DryRun:
		return "dry run"
	case e.Error != "":
		return "not moved: " + e.Error
	case e.From == "" && e.To == "":
		return "released" // a job that has waited, to where Nomad places it
	case e.From == "":
		return "placed"
	case e.DownS != "":
		return "moved, " + e.DownS + " s"
	}
	return "moved"
}
