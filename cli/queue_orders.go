// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/cli"
	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/internal/optin"
	"github.com/ebbtide/ebbtide/shim/store"
)

// orderHelp is in the help of all orders for a job.
const orderHelp = `
  JOB is NAMESPACE/ID, or the ID of a job of NOMAD_NAMESPACE, by default "default". The
  leading shim obeys within 10 seconds. A later order for a job replaces the one before it.

`

const orderRights = `
With ACLs the token needs read-job in the job's namespace, list on the variable
PATH/leader unless -namespace is given, and read and write on PATH/orders.
`

// orderJob runs a command that changes the order for a job of the queue. change returns what to print.
func (c command) orderJob(args []string, help string, options func(*flag.FlagSet), change func(orders map[string]store.Order, job string) (string, error)) int {
	return c.withStoreAnd([]string{"JOB"}, args, help, options, func(ctx context.Context, vars store.Store, operands []string) error {
		job, err := queuedJob(ctx, vars, operands[0])
		if err != nil {
			return err
		}
		var text string
		var drained *store.Act
		if err := vars.UpdateOrders(ctx, func(o *store.Orders) (err error) {
			drained = o.Drained
			text, err = change(o.Jobs, job)
			return err
		}); err != nil {
			return err
		}
		fmt.Fprintln(c.io.Out, text)
		if drained != nil {
			fmt.Fprintf(c.io.Err, "the queue is drained %s; until ebbtide queue resume the order has no effect\n", drained)
		}
		return nil
	})
}

// queuedJob resolves the argument JOB to NAMESPACE/ID.
func queuedJob(ctx context.Context, vars store.Store, arg string) (string, error) {
	namespace, id, ok := strings.Cut(arg, "/")
	if !ok {
		namespace, id = "", arg // the client's
	}
	job, _, err := vars.Client.Jobs().Info(id, (&api.QueryOptions{Namespace: namespace}).WithContext(ctx))
	why := ""
	switch {
	case isNotFound(err):
		why = "there is no such job"
	case err != nil:
		return "", fmt.Errorf("looking for job %q: %w", arg, err)
	case job.Meta[optin.Queue] != "true":
		why = "its meta does not have " + optin.Queue + ` = "true"`
	case *job.Stop || *job.Status == "dead":
		why = "it has ended"
	default:
		return *job.Namespace + "/" + *job.ID, nil
	}
	return "", fmt.Errorf("job %q is not in the queue: %s%s", arg, why, inQueue(ctx, vars))
}

func isNotFound(err error) bool {
	var response api.UnexpectedResponseError
	return errors.As(err, &response) && response.StatusCode() == http.StatusNotFound
}

// inQueue lists jobs of the queue for an error, as far as the token may read the report.
func inQueue(ctx context.Context, vars store.Store) string {
	const most = 10
	r, err := vars.LoadReport(ctx)
	if err != nil || r == nil {
		return ""
	}
	var names []string
	for _, q := range r.Queue[:min(len(r.Queue), most)] {
		names = append(names, q.Namespace+"/"+q.Job)
	}
	switch more := len(r.Queue) - len(names); {
	case len(names) == 0:
		return "; no job is"
	case more > 0:
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return "; in it are " + strings.Join(names, ", ")
}

// act is the operator's, now.
func act() store.Act { return store.Act{By: operator(), Since: time.Now().UTC()} }

// maxWhy bounds a reason: it is in the shim's report, whose size is bounded.
const maxWhy = 100

func checkWhy(why string) error {
	if len(why) > maxWhy {
		return usage{fmt.Errorf("-reason: must have at most %d bytes, got %d", maxWhy, len(why))}
	}
	return nil
}

type queueHoldCommand struct {
	command
	do, synopsis, running string
}

func newQueueHold(io IO) cli.Command {
	return queueHoldCommand{
		command{io, "queue hold"}, store.DoHold, "Keep a job of the queue from starting",
		"A running job is not\n  touched.",
	}
}

func newQueueStop(io IO) cli.Command {
	return queueHoldCommand{
		command{io, "queue stop"}, store.DoStop, "Suspend a job of the queue, and keep it from starting",
		"A running job is\n  suspended, if it has a checkpoint block; then it goes on from what it has saved.",
	}
}

func (c queueHoldCommand) Synopsis() string { return c.synopsis }

func (c queueHoldCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide ` + c.name + ` [options] JOB

  Keeps a waiting job from starting until ebbtide queue release. ` + c.running + `
` + orderHelp + `Options:

  -reason TEXT      Reason, shown by ebbtide queue.
` + storeHelp + orderRights + nomadHelp)
}

func (c queueHoldCommand) Run(args []string) int {
	o := store.Order{Do: c.do, Act: act()}
	options := func(flags *flag.FlagSet) { flags.StringVar(&o.Why, "reason", "", "") }
	return c.orderJob(args, c.Help(), options, func(orders map[string]store.Order, job string) (string, error) {
		orders[job] = o
		return fmt.Sprintf("%s is on hold %s", job, o), checkWhy(o.Why)
	})
}

type queueTopCommand struct{ command }

func newQueueTop(io IO) cli.Command { return queueTopCommand{command{io, "queue top"}} }

func (queueTopCommand) Synopsis() string { return "Put a job of the queue before all others" }

func (queueTopCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide queue top [options] JOB

  Puts a job before all others, also those that were put there earlier. If it finds no
  place, a node is kept free for it. A job on hold must be released first.
` + orderHelp + `Options:
` + storeHelp + orderRights + nomadHelp)
}

func (c queueTopCommand) Run(args []string) int {
	o := store.Order{Do: store.DoTop, Act: act()}
	return c.orderJob(args, c.Help(), func(*flag.FlagSet) {}, func(orders map[string]store.Order, job string) (string, error) {
		if was := orders[job]; was.Do == store.DoHold || was.Do == store.DoStop {
			return "", fmt.Errorf("job %s is on hold %s; see ebbtide queue release", job, was)
		}
		orders[job] = o
		return fmt.Sprintf("%s is at the top %s", job, o), nil
	})
}

type queueReleaseCommand struct{ command }

func newQueueRelease(io IO) cli.Command { return queueReleaseCommand{command{io, "queue release"}} }

func (queueReleaseCommand) Synopsis() string {
	return "End the order for a job of the queue, or take it out of the queue"
}

func (queueReleaseCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide queue release [options] JOB

  Ends the order for a job by ebbtide queue hold or ebbtide queue top. With -now the job
  leaves the queue: Nomad's scheduler places it, or keeps it waiting, as any other job.
` + orderHelp + `Options:

  -now              Take the job out of the queue.
` + storeHelp + orderRights + nomadHelp)
}

func (c queueReleaseCommand) Run(args []string) int {
	now := false
	options := func(flags *flag.FlagSet) { flags.BoolVar(&now, "now", false, "") }
	return c.orderJob(args, c.Help(), options, func(orders map[string]store.Order, job string) (string, error) {
		if now {
			o := store.Order{Do: store.DoLeave, Act: act()}
			orders[job] = o
			return fmt.Sprintf("%s is out of the queue %s", job, o), nil
		}
		delete(orders, job)
		return job + " has no order", nil
	})
}

type queueResumeCommand struct{ command }

func newQueueResume(io IO) cli.Command { return queueResumeCommand{command{io, "queue resume"}} }

func (queueResumeCommand) Synopsis() string { return "End ebbtide queue drain" }

func (queueResumeCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide queue resume [options]

  Ends ebbtide queue drain: jobs wait in the queue again, but those that have been
  released.

Options:
` + storeHelp + nomadHelp)
}

func (c queueResumeCommand) Run(args []string) int {
	return c.withStore(args, c.Help(), func(*flag.FlagSet) {}, func(ctx context.Context, vars store.Store) error {
		return vars.UpdateOrders(ctx, func(o *store.Orders) error { o.Drained = nil; return nil })
	})
}
