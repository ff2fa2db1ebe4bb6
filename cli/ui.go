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
	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/top/page"
)

// uiCommand is `ebbtide ui`.
type uiCommand struct{ command }

func newUI(io IO) cli.Command { return uiCommand{command{io, "ui"}} }

func (uiCommand) Synopsis() string { return "Serve a live web page of tasks, nodes and moves" }

func (uiCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide ui [options]

  Serves a web page that shows what "ebbtide top" shows: nodes, tasks, shared GPUs and
  moves, with curves, past moves and refusals, the time saved, and what each policy
  would do now. It only reads Nomad's API.

  On a loopback address, the default, every user of this machine sees what this
  command's token may read. Other addresses require TLS and Nomad's ACLs: each viewer
  enters a Nomad token, and sees what that token may read.

Options:

  -listen ADDRESS        Address of the page, host:port. Default: 127.0.0.1:4680.
  -tls-cert FILE         The page's certificate, PEM. Required unless ADDRESS is a
                         loopback address.
  -tls-key FILE          The certificate's key, PEM.
  -shim-namespace NAME   Namespace of the shim's variables, which hold the moves.
                         Default: where a shim led last.
  -shim-path PATH        Path of the shim's variables. Default: ebbtide/shim.

With ACLs the token needs node:read, read-job and read-fs in the namespaces of the
jobs, and read on the shim's variables for moves.
` + nomadHelp)
}

func (c uiCommand) Run(args []string) int {
	o := page.Options{Log: hclog.New(&hclog.LoggerOptions{Name: "ui", Level: hclog.Info, Output: c.io.Err})}
	flags := c.flags()
	nomad := nomadFlags(flags)
	flags.StringVar(&o.Address, "listen", "127.0.0.1:4680", "")
	flags.StringVar(&o.CertFile, "tls-cert", "", "")
	flags.StringVar(&o.KeyFile, "tls-key", "", "")
	flags.StringVar(&o.ShimNamespace, "shim-namespace", "", "")
	flags.StringVar(&o.ShimPath, "shim-path", config.Default().Leader.Path, "")
	if status, ok := c.parse(flags, args, c.Help()); !ok {
		return status
	}
	if flags.NArg() > 0 {
		return c.refuse(fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	o.Nomad = *nomad
	err := o.UI.Validate("-listen", "-tls-cert", "-tls-key")
	if err != nil {
		return c.refuse(err)
	}
	client, err := nomad.Client()
	if err != nil {
		return c.refuse(err)
	}
	client.Close() // checked only: each viewer gets its own
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := page.Serve(ctx, o, func(url string) { fmt.Fprintf(c.io.Out, "Ebbtide's page is at %s\n", url) }); err != nil {
		return c.failed(err)
	}
	return exitOK
}
