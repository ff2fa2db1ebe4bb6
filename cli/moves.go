// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/cli"
	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/store"
)

type movesCommand struct{ command }

func newMoves(io IO) cli.Command { return movesCommand{command{io, "moves"}} }

func (movesCommand) Synopsis() string { return "List moves and placements, and why they were made" }

func (movesCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide moves [options]

  Lists the shim's last 200 moves and placements, oldest first, then the moves in
  progress of all processes, jobs that are bound to a node without a record, and
  records that this version cannot read, whose jobs are left alone.

Options:

  -json             Print JSON, with the scores of the nodes.
  -recover          Finish moves abandoned by their processes, which takes half a
                    minute to detect, and unbind jobs that are bound without a
                    record. A shim does this by itself.
` + storeHelp + nomadHelp)
}

func (c movesCommand) Run(args []string) int {
	var asJSON, finish bool
	options := func(flags *flag.FlagSet) {
		flags.BoolVar(&asJSON, "json", false, "")
		flags.BoolVar(&finish, "recover", false, "")
	}
	return c.withStore(args, c.Help(), options, func(ctx context.Context, vars store.Store) error {
		if finish {
			if err := c.recover(ctx, vars); err != nil {
				return err
			}
		}
		entries, err := vars.Entries(ctx)
		if err != nil {
			return err
		}
		records, unreadable, err := store.Claims{Store: vars}.List(ctx)
		if err != nil {
			return err
		}
		names := make(map[string]string)
		if len(records) > 0 {
			nodes, _, _ := vars.Client.Nodes().List((&api.QueryOptions{}).WithContext(ctx))
			for _, n := range nodes {
				names[n.ID] = n.Name
			}
		}
		entries = append(entries, inProgress(records, names)...)
		jobs, _, err := cluster.ListJobs(ctx, vars.Client)
		if err != nil {
			fmt.Fprintf(c.io.Err, "ebbtide moves: cannot list jobs bound without a record: %v\n", err)
		}
		entries = append(entries, orphans(jobs, records, unreadable)...)
		for _, u := range unreadable {
			entries = append(entries, store.Entry{Namespace: u.Namespace, Job: u.Job, Phase: phaseUnreadable, Why: u.String()})
		}
		return c.print(entries, asJSON)
	})
}

func (c movesCommand) print(entries []store.Entry, asJSON bool) error {
	if asJSON {
		if entries == nil {
			entries = []store.Entry{}
		}
		return writeJSON(c.io.Out, entries)
	}
	w := tabwriter.NewWriter(c.io.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TIME\tJOB\tFROM\tTO\tPOLICY\tRESULT\tWHY")
	for _, e := range entries {
		at := "-"
		if !e.Time.IsZero() {
			at = e.Time.UTC().Format(time.DateTime)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", at, strings.TrimPrefix(e.Namespace+"/"+e.Job, "/"),
			cmp.Or(e.From, "-"), cmp.Or(e.To, "-"), cmp.Or(e.Policy, "-"), outcome(e), e.Why)
	}
	return w.Flush()
}

// inProgress lists moves in progress, with node IDs where names are unknown.
func inProgress(records []move.Record, names map[string]string) []store.Entry {
	var entries []store.Entry
	for _, r := range records {
		entries = append(entries, store.Entry{
			Namespace: r.Namespace, Job: r.Job, Alloc: r.Alloc, From: cmp.Or(names[r.Source], r.Source), To: cmp.Or(names[r.Target], r.Target), Phase: string(r.Phase), Owner: r.Owner,
			Why: strings.TrimPrefix(r.Why+"; ", "; ") + "move " + r.ID + " of " + r.Owner,
		})
	}
	return entries
}

// Phases listed for a job bound without a record, and for a record that cannot be read.
const (
	phaseBound      = "bound"
	phaseUnreadable = "unreadable"
)

// orphans lists the jobs bound without a record.
func orphans(jobs []*cluster.Job, records []move.Record, unreadable []move.Unreadable) []store.Entry {
	var entries []store.Entry
	for _, j := range jobs {
		recorded := slices.ContainsFunc(records, func(r move.Record) bool { return r.Namespace == j.Key.Namespace && r.Job == j.Key.ID }) ||
			slices.ContainsFunc(unreadable, func(u move.Unreadable) bool { return u.Namespace == j.Key.Namespace && u.Job == j.Key.ID })
		why := "bound to a node without a record; run ebbtide moves -recover to unbind it"
		if j.Awaits() {
			why = "bound to the node of its checkpoint, for which it may wait; ebbtide moves -recover unbinds it once it runs"
		}
		if j.Bound() != "" && !recorded {
			entries = append(entries, store.Entry{
				Namespace: j.Key.Namespace, Job: j.Key.ID, Phase: phaseBound,
				Why: why,
			})
		}
	}
	return entries
}

// recover finishes abandoned moves.
func (c movesCommand) recover(ctx context.Context, vars store.Store) error {
	nomad, claims := move.API{Client: vars.Client}, store.Claims{Store: vars}
	opts := move.DefaultOptions()
	opts.Claims, opts.Owner = claims, "ebbtide moves on "+process()
	opts.Report = func(phase move.Phase, text string) { fmt.Fprintf(c.io.Err, "%-6s  %s\n", phase, text) }
	var watch move.Watch
	for begun := time.Now(); ; {
		records, _, err := claims.List(ctx)
		if err != nil {
			return err
		}
		for _, r := range watch.Abandoned(records) {
			fmt.Fprintf(c.io.Err, "finishing move %s of job %s, abandoned by %s in phase %s\n", r.ID, r.Job, r.Owner, r.Phase)
			if _, err := move.Recover(ctx, nomad, r, opts); err != nil {
				fmt.Fprintf(c.io.Err, "ebbtide moves: %v\n", err)
			}
		}
		if len(records) == 0 || time.Since(begun) > move.ClaimTTL+5*time.Second {
			break
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return c.unbind(ctx, nomad, opts)
}

// unbind unbinds the jobs bound without a record.
func (c movesCommand) unbind(ctx context.Context, nomad move.API, opts move.Options) error {
	jobs, _, err := cluster.ListJobs(ctx, nomad.Client)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		group := j.Bound()
		if group == "" {
			continue
		}
		if j.Awaits() {
			stubs, err := nomad.Allocations(ctx, j.Key.Namespace, j.Key.ID)
			if err == nil && !slices.ContainsFunc(stubs, func(s *api.AllocationListStub) bool {
				return s.ClientStatus == api.AllocClientStatusRunning || s.ClientStatus == api.AllocClientStatusPending
			}) {
				fmt.Fprintf(c.io.Err, "job %s: waits for the node of its checkpoint\n", j.Key.ID)
				continue
			}
		}
		said, err := move.Unbind(ctx, nomad, j.Key.Namespace, j.Key.ID, group, opts)
		switch {
		case errors.Is(err, move.ErrClaimed):
			continue
		case err != nil:
			said = err.Error()
		}
		fmt.Fprintf(c.io.Err, "job %s: %s\n", j.Key.ID, said)
	}
	return nil
}

func outcome(e store.Entry) string {
	switch {
	case e.Phase == phaseBound || e.Phase == phaseUnreadable:
		return e.Phase
	case e.Owner != "":
		return "in progress: " + e.Phase
	case e.DryRun:
		return "dry run"
	case e.Error != "" && e.From == "":
		return "not placed: " + e.Error
	case e.Error != "" && e.To == "":
		return "not suspended: " + e.Error
	case e.Error != "":
		return "not moved: " + e.Error
	case e.From == "" && e.To == "":
		return "released" // a held job, placed by Nomad
	case e.From == "":
		return "placed"
	case e.To == "":
		return "suspended"
	case e.DownS != "":
		return "moved, " + e.DownS + " s"
	}
	return "moved"
}
