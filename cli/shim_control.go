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

	"github.com/ebbtide/ebbtide/shim/memory"
)

// storeHelp explains the flags of storeFlags.
const storeHelp = `  -namespace NAME   Namespace of the shim's variables, leader.namespace of its
                    configuration. Default: default.
  -path PATH        Their path, leader.path there. Default: ebbtide/shim.
`

// shimStatusCommand is `ebbtide shim status`.
type shimStatusCommand struct{ command }

func newShimStatus(io IO) cli.Command { return shimStatusCommand{command{io, "shim status"}} }

func (shimStatusCommand) Synopsis() string { return "Tell what the shim does, and why not more" }

func (shimStatusCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide shim status [options]

  Tells which shim leads, whether moves may begin, which are under way, which jobs
  wait for a node, and what was said last of each job: why it is not moved. The shim
  writes this down in a Nomad variable.

  The exit status is 1 when no shim leads. Nomad tells that to management tokens only;
  others see which one has led last.

Options:

  -json             Print JSON.
` + storeHelp + nomadHelp)
}

func (c shimStatusCommand) Run(args []string) int {
	asJSON := false
	options := func(flags *flag.FlagSet) { flags.BoolVar(&asJSON, "json", false, "") }
	return c.withStore(args, c.Help(), options, func(ctx context.Context, store memory.Store) error {
		s, err := store.Overview(ctx)
		if err != nil {
			return err
		}
		if asJSON {
			err = writeJSON(c.io.Out, s)
		} else {
			err = c.print(s, time.Now())
		}
		if err == nil && (s.Leader == nil || !s.Leader.Leads) {
			err = errors.New("no shim leads, or it is not a management token")
		}
		return err
	})
}

func (c shimStatusCommand) print(s memory.Overview, now time.Time) error {
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
	case s.Pause.Holds(now):
		row("Moves", "%s", s.Pause)
	case s.Report != nil && s.Report.Closed != "":
		row("Moves", "none may begin: %s", s.Report.Closed)
	case s.Report != nil && s.Report.DryRun:
		row("Moves", "are only told: it is a dry run")
	}
	if r := s.Report; r != nil {
		row("Budget", "%d of %d moves under way, %d of %d begun within a minute", r.InFlight, r.InFlightMax, r.Begun, r.BegunMax)
		row("Loop", "longest step %.0f ms", 1000*r.LongestStepS)
		if len(r.Waiting) > 0 {
			row("Waiting", "%s", strings.Join(r.Waiting, ", "))
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
	if r := s.Report; r != nil && len(r.Said) > 0 {
		fmt.Fprintln(w, "\nJOB\tSAID LAST")
		for _, said := range r.Said {
			fmt.Fprintf(w, "%s/%s\t%s\n", said.Namespace, said.Job, said.What)
		}
		if r.Unsaid > 0 {
			fmt.Fprintf(w, "\tand of %d more: see the log\n", r.Unsaid)
		}
	}
	return w.Flush()
}

// shimPauseCommand is `ebbtide shim pause`.
type shimPauseCommand struct{ command }

func newShimPause(io IO) cli.Command { return shimPauseCommand{command{io, "shim pause"}} }

func (shimPauseCommand) Synopsis() string { return "Have all shims begin no moves" }

func (shimPauseCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide shim pause [options]

  Has all shims, also those that lead later, begin no moves, within 10 seconds. Moves
  that are under way come to their end, and jobs that wait for a node run where Nomad
  places them.

Options:

  -for DURATION     Resume after that long, such as 2h. Default: when told to.
  -reason TEXT      Why, for people.
` + storeHelp + nomadHelp)
}

func (c shimPauseCommand) Run(args []string) int {
	p := memory.Pause{By: operator(), Since: time.Now()}
	var long time.Duration
	options := func(flags *flag.FlagSet) {
		flags.DurationVar(&long, "for", 0, "")
		flags.StringVar(&p.Why, "reason", "", "")
	}
	return c.withStore(args, c.Help(), options, func(ctx context.Context, store memory.Store) error {
		if long < 0 {
			return usage{fmt.Errorf("-for: must be a duration like 2h, got %v", long)}
		}
		if long > 0 {
			p.Until = p.Since.Add(long)
		}
		if err := store.Pause(ctx, p); err != nil {
			return err
		}
		fmt.Fprintln(c.io.Out, &p)
		return nil
	})
}

// shimResumeCommand is `ebbtide shim resume`.
type shimResumeCommand struct{ command }

func newShimResume(io IO) cli.Command { return shimResumeCommand{command{io, "shim resume"}} }

func (shimResumeCommand) Synopsis() string { return "End a pause of the shims" }

func (shimResumeCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide shim resume [options]

  Ends what ebbtide shim pause has begun, within 10 seconds.

Options:
` + storeHelp + nomadHelp)
}

func (c shimResumeCommand) Run(args []string) int {
	return c.withStore(args, c.Help(), func(*flag.FlagSet) {}, func(ctx context.Context, store memory.Store) error {
		return store.Resume(ctx)
	})
}

// operator names who runs the command.
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
