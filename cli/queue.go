// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/cli"

	"github.com/ebbtide/ebbtide/shim/queue"
	"github.com/ebbtide/ebbtide/shim/store"
)

type queueCommand struct{ command }

func newQueue(io IO) cli.Command { return queueCommand{command{io, "queue"}} }

func (queueCommand) Synopsis() string { return "List the jobs of the queue, and what each waits for" }

func (queueCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide queue [options]

  Lists the jobs that have ebbtide_queue in their meta, as the leading shim reports them, at
  most 200: those that wait, in the order in which they get their places, then those that
  run. START and END are when a job is expected to get its place and to end, if no other
  job comes. FAIR END is when it would end with its fair share of the cluster; "late" means
  that it would have ended. Times are UTC. PRIORITY is that among the jobs of its owner, or
  an operator's order: hold, stop or top.

  With -owners, lists the jobs' owners instead, at most 50: WEIGHT is as configured, USE
  the part of the cluster that an owner's running jobs have, SHARE its fair share now.
  Late jobs have had theirs. Of a job's resources the one counts of which it takes the
  largest part; so parts may sum to more than 100 %.

Options:

  -owners           List owners.
  -json             Print JSON.
` + storeHelp + nomadHelp)
}

func (c queueCommand) Run(args []string) int {
	owners, asJSON := false, false
	options := func(flags *flag.FlagSet) {
		flags.BoolVar(&owners, "owners", false, "")
		flags.BoolVar(&asJSON, "json", false, "")
	}
	return c.withStore(args, c.Help(), options, func(ctx context.Context, vars store.Store) error {
		r, err := vars.LoadReport(ctx)
		if err != nil {
			return err
		}
		if r == nil {
			return errors.New("no shim has led yet; jobs of the queue wait until one does")
		}
		switch { // a shim before this version has no queue or owners
		case asJSON && owners:
			return writeJSON(c.io.Out, append([]queue.OwnerShare{}, r.Owners...))
		case asJSON:
			return writeJSON(c.io.Out, append([]store.Queued{}, r.Queue...))
		}
		if r.QueueOff != "" {
			fmt.Fprintln(c.io.Err, r.QueueOff)
		}
		if owners {
			return c.printOwners(r.Owners)
		}
		return c.print(r.Queue)
	})
}

func (c queueCommand) print(jobs []store.Queued) error {
	w := tabwriter.NewWriter(c.io.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NO\tJOB\tOWNER\tPRIORITY\tNODE\tSTART\tEND\tFAIR END\tWHY")
	for _, j := range jobs {
		no, start, fair := strconv.Itoa(j.Number), when(j.Start), when(j.FairEnd)
		if j.Node != "" {
			no, start = "-", "-"
		}
		if j.Late {
			fair = "late"
		}
		fmt.Fprintf(w, "%s\t%s/%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			no, j.Namespace, j.Job, j.Owner, cmp.Or(j.Order, strconv.Itoa(j.Priority)), cmp.Or(j.Node, "-"), start, when(j.End), fair, j.Why)
	}
	return w.Flush()
}

func (c queueCommand) printOwners(owners []queue.OwnerShare) error {
	w := tabwriter.NewWriter(c.io.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "OWNER\tWEIGHT\tUSE\tSHARE\tRUNNING\tWAITING")
	for _, o := range owners {
		fmt.Fprintf(w, "%s\t%v\t%.1f%%\t%.1f%%\t%d\t%d\n", o.Name, o.Weight, 100*o.Use, 100*o.Share, o.Running, o.Waiting)
	}
	return w.Flush()
}

func when(t time.Time) string {
	if t.IsZero() {
		return "unknown"
	}
	return t.UTC().Format("01-02 15:04")
}
