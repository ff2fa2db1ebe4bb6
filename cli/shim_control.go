// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/user"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/cli"

	"github.com/ebbtide/ebbtide/shim/store"
)

// storeHelp documents the flags of storeFlags.
const storeHelp = `  -namespace NAME   Namespace of the shim's variables (leader.namespace in its
                    configuration). Default: where a shim led last.
  -path PATH        Path of the shim's variables (leader.path). Default:
                    ebbtide/shim.
`

type shimStatusCommand struct{ command }

func newShimStatus(io IO) cli.Command { return shimStatusCommand{command{io, "shim status"}} }

func (shimStatusCommand) Synopsis() string {
	return "Show the state of the shim, and why it does not move jobs"
}

func (shimStatusCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide shim status [options]

  Shows which shim leads, whether moves may start, the moves in progress, the jobs
  held for placement, and per job the last reason for not moving it, as the shim
  reports them in a Nomad variable.

  The exit status is 1 if no shim leads. Nomad shows that to management tokens only;
  others see the last leader.

Options:

  -json             Print JSON.
` + storeHelp + nomadHelp)
}

func (c shimStatusCommand) Run(args []string) int {
	asJSON := false
	options := func(flags *flag.FlagSet) { flags.BoolVar(&asJSON, "json", false, "") }
	return c.withStore(args, c.Help(), options, func(ctx context.Context, vars store.Store) error {
		s, err := vars.Overview(ctx)
		if err != nil {
			return err
		}
		if asJSON {
			err = writeJSON(c.io.Out, s)
		} else {
			err = c.print(s, time.Now())
		}
		if err == nil && (s.Leader == nil || !s.Leader.Leads) {
			err = errors.New("no shim leads, or the token is not a management token")
		}
		return err
	})
}

func (c shimStatusCommand) print(s store.Overview, now time.Time) error {
	w := tabwriter.NewWriter(c.io.Out, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	if l := s.Leader; l != nil {
		name := "Leader"
		if !l.Leads {
			name = "Led last"
		}
		row(name, "%s, since %s", l.Holder, l.Since.UTC().Format(time.RFC3339))
	}
	if r := s.Report; r != nil {
		row("Version", "%s", r.Version)
		row("Cluster", "%d nodes", r.Nodes)
	}
	switch {
	case s.Pause.Active(now):
		row("Moves", "%s", s.Pause)
	case s.Report != nil && s.Report.Closed != "":
		row("Moves", "none may start: %s", s.Report.Closed)
	case s.Report != nil && s.Report.DryRun:
		row("Moves", "none are made: this is a dry run")
	}
	if r := s.Report; r != nil {
		row("Budget", "%d of %d moves in progress, %d of %d started within a minute", r.InFlight, r.InFlightMax, r.Started, r.StartedMax)
		row("Loop", "longest step %.0f ms", 1000*r.LongestStepS)
		if len(r.Held) > 0 {
			row("Held", "%s", strings.Join(r.Held, ", "))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(s.Moves) > 0 {
		fmt.Fprintln(w, "\nMOVE\tJOB\tPHASE\tOWNER")
		for _, r := range s.Moves {
			fmt.Fprintf(w, "%s\t%s/%s\t%s\t%s\n", r.ID, r.Namespace, r.Job, r.Phase, r.Owner)
		}
	}
	for _, u := range s.Unreadable {
		fmt.Fprintf(w, "\nThe record of a move cannot be read, and its job is left alone: %s\n", u)
	}
	if r := s.Report; r != nil && len(r.Reasons) > 0 {
		fmt.Fprintln(w, "\nJOB\tLAST REASON")
		for _, said := range r.Reasons {
			fmt.Fprintf(w, "%s/%s\t%s\n", said.Namespace, said.Job, said.Text)
		}
		if r.Omitted > 0 {
			fmt.Fprintf(w, "\t%d more jobs: see the log with log_level = \"debug\"\n", r.Omitted)
		}
	}
	return w.Flush()
}

type shimPauseCommand struct{ command }

func newShimPause(io IO) cli.Command { return shimPauseCommand{command{io, "shim pause"}} }

func (shimPauseCommand) Synopsis() string { return "Keep all shims from starting moves" }

func (shimPauseCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide shim pause [options]

  Keeps all shims, including later leaders, from starting moves, within 10 seconds.
  Moves in progress complete, and held jobs are still placed.

Options:

  -for DURATION     Resume after that time, such as 2h. Default: never.
  -reason TEXT      Reason, shown by ebbtide shim status.
` + storeHelp + nomadHelp)
}

func (c shimPauseCommand) Run(args []string) int {
	p := store.Pause{By: operator(), Since: time.Now()}
	var long time.Duration
	options := func(flags *flag.FlagSet) {
		flags.DurationVar(&long, "for", 0, "")
		flags.StringVar(&p.Why, "reason", "", "")
	}
	return c.withStore(args, c.Help(), options, func(ctx context.Context, vars store.Store) error {
		if long < 0 {
			return usage{fmt.Errorf("-for: must be a duration like 2h, got %v", long)}
		}
		if long > 0 {
			p.Until = p.Since.Add(long)
		}
		if err := vars.Pause(ctx, p); err != nil {
			return err
		}
		fmt.Fprintln(c.io.Out, &p)
		return nil
	})
}

type shimResumeCommand struct{ command }

func newShimResume(io IO) cli.Command { return shimResumeCommand{command{io, "shim resume"}} }

func (shimResumeCommand) Synopsis() string { return "End a pause of the shims" }

func (shimResumeCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide shim resume [options]

  Ends a pause set by ebbtide shim pause, within 10 seconds.

Options:
` + storeHelp + nomadHelp)
}

func (c shimResumeCommand) Run(args []string) int {
	return c.withStore(args, c.Help(), func(*flag.FlagSet) {}, func(ctx context.Context, vars store.Store) error {
		return vars.Resume(ctx)
	})
}

// operator names the user who runs the command.
func operator() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}
