// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// command is what all subcommands have in common.
type command struct {
	io   IO
	name string
}

// flags returns an empty set of flags.
func (c command) flags() *flag.FlagSet {
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are printed by parse, without the usage
	return flags
}

// parse parses the arguments. Unless ok, the command is over, with that status.
func (c command) parse(flags *flag.FlagSet, args []string, help string) (status int, ok bool) {
	err := flags.Parse(args)
	switch {
	case err == nil:
		return exitOK, true
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(c.io.Out, help)
		return exitOK, false
	}
	var allowed []string
	flags.VisitAll(func(f *flag.Flag) { allowed = append(allowed, "-"+f.Name) })
	return c.refuse(fmt.Errorf("%w; allowed are %s", err, strings.Join(allowed, ", "))), false
}

// refuse says what is wrong with the arguments or the input.
func (c command) refuse(errs ...error) int {
	for _, err := range errs {
		fmt.Fprintf(c.io.Err, "ebbtide %s: %v\n", c.name, err)
	}
	return exitUsage
}

// failed says what could not be done.
func (c command) failed(err error) int {
	fmt.Fprintf(c.io.Err, "ebbtide %s: %v\n", c.name, err)
	return exitError
}
