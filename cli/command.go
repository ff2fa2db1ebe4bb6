// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"

	"github.com/ebbtide/ebbtide/shim/store"
)

type command struct {
	io   IO
	name string
}

func (c command) flags() *flag.FlagSet {
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard) // parse prints errors, without the usage
	return flags
}

// parse parses the arguments. Unless ok, the command ends with status.
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

func (c command) refuse(errs ...error) int {
	for _, err := range errs {
		fmt.Fprintf(c.io.Err, "ebbtide %s: %v\n", c.name, err)
	}
	return exitUsage
}

func (c command) failed(err error) int {
	fmt.Fprintf(c.io.Err, "ebbtide %s: %v\n", c.name, err)
	return exitError
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

type usage struct{ error }

// withStore parses the arguments, runs do on the shim's variables, and returns the exit status.
func (c command) withStore(args []string, help string, options func(*flag.FlagSet), do func(context.Context, store.Store) error) int {
	return c.withStoreAnd(nil, args, help, options, func(ctx context.Context, vars store.Store, _ []string) error { return do(ctx, vars) })
}

// withStoreAnd is withStore for a command with operands, which are named.
func (c command) withStoreAnd(names, args []string, help string, options func(*flag.FlagSet), do func(ctx context.Context, vars store.Store, operands []string) error) int {
	flags := c.flags()
	nomad, vars := nomadFlags(flags), storeFlags(flags)
	options(flags)
	if status, ok := c.parse(flags, args, help); !ok {
		return status
	}
	switch n := flags.NArg(); {
	case n < len(names):
		return c.refuse(fmt.Errorf("missing argument %s; see ebbtide %s -h", names[n], c.name))
	case n > len(names):
		return c.refuse(fmt.Errorf("unexpected argument %q", flags.Arg(len(names))))
	}
	var err error
	if vars.Client, err = nomad.Client(); err != nil {
		return c.refuse(err)
	}
	defer vars.Client.Close()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	located, err := vars.Locate(ctx)
	if err == nil {
		err = do(ctx, located, flags.Args())
	}
	switch {
	case errors.As(err, new(usage)):
		return c.refuse(err)
	case err != nil:
		return c.failed(err)
	}
	return exitOK
}
