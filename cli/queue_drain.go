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
	"time"

	"github.com/hashicorp/cli"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/store"
)

type queueDrainCommand struct{ command }

func newQueueDrain(io IO) cli.Command { return queueDrainCommand{command{io, "queue drain"}} }

func (queueDrainCommand) Synopsis() string {
	return "Release all jobs of the queue to Nomad's scheduler"
}

func (queueDrainCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide queue drain [options]

  Releases all jobs of the queue to Nomad's scheduler, also those on hold and those that
  come later, until ebbtide queue resume: before an uninstall, or in an emergency. The
  leading shim does it. If none leads, as far as the token may see that, this command
  releases the jobs that wait now.

  With -fallback it does nothing if a shim has led within that time. Otherwise it releases
  the jobs that wait now, but those on hold, and the queue goes on with the next shim. Run
  it regularly, as jobspecs/fallback.hcl does, so that no job waits for a shim forever.

Options:

  -fallback TIME    Only if no shim has led for so long, such as 1h; at least 10m.
  -reason TEXT      Reason, shown by ebbtide queue.
` + storeHelp + nomadHelp)
}

func (c queueDrainCommand) Run(args []string) int {
	a := act()
	fallback := time.Duration(0)
	options := func(flags *flag.FlagSet) {
		flags.StringVar(&a.Why, "reason", "", "")
		flags.DurationVar(&fallback, "fallback", 0, "")
	}
	return c.withStore(args, c.Help(), options, func(ctx context.Context, vars store.Store) error {
		const least = 2 * store.Heartbeat
		if fallback != 0 && fallback < least {
			return fmt.Errorf("-fallback: must be ≥ %v, got %v", least, fallback)
		}
		if err := checkWhy(a.Why); err != nil {
			return err
		}
		if fallback != 0 {
			return c.fallBack(ctx, vars, fallback)
		}
		if err := vars.UpdateOrders(ctx, func(o *store.Orders) error { o.Drained = &a; return nil }); err != nil {
			return err
		}
		fmt.Fprintln(c.io.Out, "the queue is drained", a)
		if l, err := vars.Leader(ctx); err == nil && l != nil && l.Leads {
			fmt.Fprintf(c.io.Out, "The leading shim, %s, releases its jobs within 10 seconds.\n", l.Holder)
			return nil
		}
		r, _ := vars.LoadReport(ctx) // only the order needs it
		return c.release(ctx, vars, r, func(cluster.JobKey) bool { return true })
	})
}

// fallBack releases the jobs that wait if no shim has led for a time.
func (c queueDrainCommand) fallBack(ctx context.Context, vars store.Store, after time.Duration) error {
	r, err := vars.LoadReport(ctx)
	if err != nil {
		return err
	}
	if r == nil {
		return errors.New("it is unknown when a shim has led: there is no report")
	}
	if since := time.Since(r.At); since < after {
		fmt.Fprintf(c.io.Out, "a shim has led %v ago\n", since.Round(time.Second))
		return nil
	}
	orders, err := vars.LoadOrders(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.io.Out, "no shim has led since %s\n", r.At.UTC().Format(time.RFC3339))
	return c.release(ctx, vars, r, func(key cluster.JobKey) bool {
		o := orders.Of(key)
		return o.Do != store.DoHold && o.Do != store.DoStop
	})
}

// release releases the selected jobs of the queue that wait, in the order of the last report, if any.
func (c queueDrainCommand) release(ctx context.Context, vars store.Store, r *store.Report, selects func(cluster.JobKey) bool) error {
	jobs, _, err := cluster.ListJobs(ctx, vars.Client)
	if err != nil {
		return err
	}
	jobs = slices.DeleteFunc(jobs, func(j *cluster.Job) bool {
		return !j.Queued || !j.Held || j.Stopped || j.Template || j.Child || !selects(j.Key)
	})
	rank := make(map[cluster.JobKey]int)
	if r != nil {
		for i, q := range r.Queue {
			rank[cluster.JobKey{Namespace: q.Namespace, ID: q.Job}] = i - len(r.Queue)
		}
	}
	slices.SortFunc(jobs, func(a, b *cluster.Job) int {
		return cmp.Or(cmp.Compare(rank[a.Key], rank[b.Key]), a.Submitted.Compare(b.Submitted), a.Key.Compare(b.Key))
	})
	nomad, claims := move.API{Client: vars.Client}, store.Claims{Store: vars}
	var errs []error
	for _, j := range jobs {
		switch r, err := claims.Read(ctx, j.Key.Namespace, j.Key.ID); {
		case err != nil:
			errs = append(errs, err)
			continue
		case r.Index != 0:
			errs = append(errs, fmt.Errorf("%s is being suspended or released by %s; see ebbtide moves -recover", j.Key, r.Owner))
			continue
		}
		_, err := move.Release(ctx, nomad, move.Place{Namespace: j.Key.Namespace, Job: j.Key.ID}, move.DefaultOptions())
		switch {
		case errors.Is(err, move.ErrNotHeld):
		case err != nil:
			errs = append(errs, fmt.Errorf("releasing %s: %w", j.Key, err))
		default:
			fmt.Fprintf(c.io.Out, "%s is released\n", j.Key)
		}
	}
	return errors.Join(errs...)
}
