// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"fmt"
	"os/signal"
	"strings"
	"syscall"

	"github.com/hashicorp/cli"

	"github.com/ebbtide/ebbtide/cli/doctor"
)

type doctorCommand struct{ command }

func newDoctor(io IO) cli.Command { return doctorCommand{command{io, "doctor"}} }

func (doctorCommand) Synopsis() string {
	return "Check a Nomad agent that runs Ebbtide, and say what to do"
}

func (doctorCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide doctor [-config PATH]... [-address URL] [-json]

  Checks a Nomad agent's configuration files, its API, or both, and says how to
  fix each finding. Run it as root on the client: it also inspects the plugin
  directory, Docker, the cgroups and the agent's process.

  Prints a line per check: ok, warn (degraded or surprising), fail (does not work,
  or kills tasks), skip (cannot be checked from here). Nothing is changed. Tokens
  and the values of options other than Ebbtide's own are never printed.

  The exit status is 0 if no check fails, 1 if one does, 2 for invalid arguments.

Options:

  -config PATH    A configuration file of the agent (HCL or JSON), or a directory
                  of them; repeatable, in the order of the agent's own -config
                  flags. Default: ask the agent for its configuration.
  -address URL    The agent's API. Default: NOMAD_ADDR, else from the files, else
                  http://127.0.0.1:4646. NOMAD_TOKEN, NOMAD_CACERT and so on apply
                  as for the nomad command. With ACLs the token needs agent:read
                  and node:read.
  -json           Print JSON.
`)
}

func (c doctorCommand) Run(args []string) int {
	var o doctor.Options
	var asJSON bool
	flags := c.flags()
	flags.Func("config", "", func(path string) error {
		o.Paths = append(o.Paths, path)
		return nil
	})
	flags.StringVar(&o.Address, "address", "", "")
	flags.BoolVar(&asJSON, "json", false, "")
	if status, ok := c.parse(flags, args, c.Help()); !ok {
		return status
	}
	if flags.NArg() > 0 {
		return c.refuse(fmt.Errorf("unexpected argument %q: configuration files are named with -config", flags.Arg(0)))
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	snapshot, err := doctor.Gather(ctx, o)
	if err != nil {
		return c.refuse(err)
	}
	findings := doctor.Examine(snapshot)
	write := doctor.Write
	if asJSON {
		write = doctor.WriteJSON
	}
	if err := write(c.io.Out, findings); err != nil {
		return c.failed(fmt.Errorf("write: %w", err))
	}
	if doctor.Failed(findings) {
		return exitError
	}
	return exitOK
}
