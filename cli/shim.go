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

type shimCommand struct{ command }

func newShim(io IO) cli.Command { return shimCommand{command{io, "shim"}} }

func (shimCommand) Synopsis() string { return "Run the daemon that places and moves training jobs" }

func (shimCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide shim [options]

  Watches a Nomad cluster and moves training jobs, with their checkpoints, to nodes
  where they finish sooner or leave CPU to jobs that still learn. It moves only jobs
  with ebbtide_migrate in their meta, and places jobs held by ebbtide_hold. Of several
  shims one leads, and the others stand by.

  SIGHUP reloads the configuration; an invalid one is logged and ignored. SIGTERM and
  SIGINT revert moves in progress, then stop the shim; a second signal stops it at
  once, and the next shim finishes its moves.

  The exit status is 0 after a signal, 1 on failure, 2 for invalid arguments or
  configuration.

Options:

  -config FILE    Configuration in HCL; see docs/shim.md. Default: none, all
                  options have defaults.
  -check          Check the configuration and exit.
  -dry-run        Decide and log, but change nothing.

Options precede the file, and the file precedes the environment.
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
	defer context.AfterFunc(ctx, stop)() // a second signal kills the process
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
				log.Error("ignoring the invalid configuration", "error", err)
				continue
			}
			log.SetLevel(hclog.LevelFromString(next.LogLevel))
			daemon.Reload(next)
			log.Info("reloaded the configuration")
		}
	}()
	lacks, err := rights.Ask(ctx, client, cfg.Leader.Namespace, cfg.Leader.Path)
	if err != nil && ctx.Err() == nil {
		return c.failed(err)
	}
	for _, right := range lacks.Partly {
		log.Warn("missing right: it restricts moves", "right", right)
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
