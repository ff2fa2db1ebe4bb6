// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/hashicorp/cli"
	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/shim"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/rights"
)

// shimCommand is `ebbtide shim`.
type shimCommand struct{ command }

func newShim(io IO) cli.Command { return shimCommand{command{io, "shim"}} }

func (shimCommand) Synopsis() string { return "Run the daemon that moves converged jobs between nodes" }

func (shimCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide shim [options]

  Follows a Nomad cluster and moves training jobs that have converged to where they
  are least in the way of those that learn on, with their checkpoint; only jobs with
  ebbtide_migrate = "true" in their meta. Several may run: one acts, the others take
  over when it is gone. Jobs that wait for it (ebbtide_hold) it places.

  SIGHUP reads the file again; one with errors is told and not taken. SIGTERM and
  SIGINT end it: moves that are under way are undone first, which takes moments; a
  second one ends it at once, and the next shim finishes its moves.

  The exit status is 0 when it was told to end, 1 when it could not run, 2 when the
  arguments or the configuration are at fault.

Options:

  -config FILE    Configuration in HCL; see docs/shim.md. Without it the defaults
                  count.
  -check          Check the configuration and end.
  -dry-run        Decide and tell, and change nothing, whatever the file says.

What is given here counts before the file, and the file before the environment.
` + nomadHelp)
}

func (c shimCommand) Run(args []string) int {
	var path string
	var check, dry bool
	flags := c.flags()
	nomad := nomadFlags(flags)
	flags.StringVar(&path, "config", "", "")
	flags.BoolVar(&check, "check", false, "")
	flags.BoolVar(&dry, "dry-run", false, "")
	if status, ok := c.parse(flags, args, c.Help()); !ok {
		return status
	}
	if flags.NArg() > 0 {
		return c.refuse(fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	load := func() (config.Config, error) {
		var data []byte
		if path != "" {
			var err error
			if data, err = os.ReadFile(path); err != nil {
				return config.Config{}, fmt.Errorf("reading the configuration: %w", err)
			}
		}
		cfg, err := config.Parse(data, path)
		cfg.DryRun = cfg.DryRun || dry
		cfg.Nomad = nomad.Over(cfg.Nomad)
		return cfg, err
	}
	cfg, err := load()
	if err != nil {
		return c.refuse(err)
	}
	client, err := cfg.Nomad.Client()
	if err != nil {
		return c.refuse(err)
	}
	if check {
		fmt.Fprintln(c.io.Out, "the configuration is valid")
		return exitOK
	}
	log := hclog.New(&hclog.LoggerOptions{Name: "shim", Level: hclog.LevelFromString(cfg.LogLevel), Output: c.io.Err})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, stop)() // a second signal is not waited for
	daemon := shim.New(cfg, client, process(), log)

	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	defer signal.Stop(again)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-again:
			}
			next, err := load()
			if err != nil {
				log.Error("the configuration has errors and is not taken", "error", err)
				continue
			}
			log.SetLevel(hclog.LevelFromString(next.LogLevel))
			daemon.Reload(next)
			log.Info("the configuration was read again")
		}
	}()
	lacks, err := rights.Ask(ctx, client, cfg.Leader.Namespace, cfg.Leader.Path)
	if err != nil && ctx.Err() == nil {
		return c.failed(err)
	}
	for _, right := range lacks.Partly {
		log.Warn("a right is missing: jobs there are not moved", "right", right)
	}
	for _, right := range lacks.Fatal {
		fmt.Fprintf(c.io.Err, "ebbtide shim: missing right: %s\n", right)
	}
	if len(lacks.Fatal) > 0 {
		return exitError
	}
	if err := daemon.Run(ctx); err != nil && ctx.Err() == nil {
		return c.failed(err)
	}
	return exitOK
}
