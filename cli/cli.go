// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package cli holds the subcommands of the ebbtide command, one file each.
package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/hashicorp/cli"

	"github.com/ebbtide/ebbtide/internal/version"
)

const (
	exitOK    = 0
	exitError = 1 // the operation failed
	exitUsage = 2 // invalid arguments or input; nothing was done
)

// IO is a command's streams. Out carries only the result, so that it can be piped; messages go
// to Err.
type IO struct {
	In       io.Reader
	Out, Err io.Writer
}

// commands lists the subcommands.
func commands() map[string]func(IO) cli.Command {
	return map[string]func(IO) cli.Command{
		"decide":   newDecide,
		"doctor":   newDoctor,
		"growth":   newGrowth,
		"move":     newMove,
		"moves":    newMoves,
		"progress": newProgress,
		"queue":    newQueue,

		"queue drain":   newQueueDrain,
		"queue hold":    newQueueHold,
		"queue release": newQueueRelease,
		"queue resume":  newQueueResume,
		"queue stop":    newQueueStop,
		"queue top":     newQueueTop,

		"setup": newSetup,
		"shim":  newShim,

		"shim pause":  newShimPause,
		"shim resume": newShimResume,
		"shim status": newShimStatus,
		"sim":         newSim,
		"snapshot":    newSnapshot,
		"top":         newTop,
		"ui":          newUI,
		"validate":    newValidate,
		"version":     newVersion,
	}
}

// Run executes the subcommand in args, which exclude the program's name, and returns the exit
// status.
func Run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	std := IO{In: stdin, Out: stdout, Err: stderr}
	table := make(map[string]cli.CommandFactory)
	for name, construct := range commands() {
		table[name] = func() (cli.Command, error) { return construct(std), nil }
	}

	// For an unknown command the library would print only the help.
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") && table[args[0]] == nil {
		fmt.Fprintf(stderr, "ebbtide: unknown command %q, must be one of: %s\n",
			args[0], strings.Join(names(table), ", "))
		return exitUsage
	}

	app := &cli.CLI{
		Name:        "ebbtide",
		Version:     version.String(),
		Args:        args,
		Commands:    table,
		HelpFunc:    cli.BasicHelpFunc("ebbtide"),
		HelpWriter:  stdout,
		ErrorWriter: stderr,
	}
	status, err := app.Run()
	if err != nil {
		fmt.Fprintf(stderr, "ebbtide: %v\n", err)
		return exitError
	}
	if app.Subcommand() == "" && status == 127 {
		return exitUsage // no command: the library has printed the help
	}
	return status
}

func names[V any](table map[string]V) []string {
	out := make([]string, 0, len(table))
	for name := range table {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}
