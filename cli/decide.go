// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/hashicorp/cli"

	device "github.com/ebbtide/ebbtide/device/policies"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/policies"
	shim "github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/top/snapshot"
)

// allPolicies returns the policies of a node, the cluster and a GPU.
func allPolicies() []policy.Query { return slices.Concat(policies.Queries(), shim.All(), device.All()) }

type decideCommand struct{ command }

func newDecide(io IO) cli.Command { return decideCommand{command{io, "decide"}} }

func (decideCommand) Synopsis() string { return "Show what a policy would decide, and why" }

func (decideCommand) Help() string {
	var table strings.Builder
	for _, p := range allPolicies() {
		fmt.Fprintf(&table, "  %-20s %s\n", p.Name, p.Synopsis)
	}
	return strings.TrimSpace(`
Usage: ebbtide decide --policy NAME [--compact] < snapshot.json
       ebbtide decide --list
       ebbtide decide --example NAME [--compact]

  Runs a policy on a JSON snapshot of its inputs and prints its decisions, each with
  its rule and reason. It changes nothing and needs no Nomad. Limits are fractions of
  the node's elastic pool, times are in seconds, memory is in MiB.

  All errors in the snapshot are reported, with the paths of their fields. The exit
  status is then 2, and stdout is empty.

Options:

  --policy NAME     Policy to run.
  --list            Print the names of the policies.
  --example NAME    Print a valid snapshot for a policy.
  --compact         Print JSON on one line instead of indented.

Policies:

` + table.String())
}

func (c decideCommand) Run(args []string) int {
	var (
		name, example string
		list, compact bool
	)
	flags := c.flags()
	flags.StringVar(&name, "policy", "", "")
	flags.StringVar(&example, "example", "", "")
	flags.BoolVar(&list, "list", false, "")
	flags.BoolVar(&compact, "compact", false, "")
	if status, ok := c.parse(flags, args, c.Help()); !ok {
		return status
	}
	if flags.NArg() > 0 {
		return c.refuse(fmt.Errorf("unexpected argument %q: the snapshot is read from stdin", flags.Arg(0)))
	}
	var modes []string
	flags.Visit(func(f *flag.Flag) {
		if f.Name != "compact" {
			modes = append(modes, "--"+f.Name)
		}
	})
	if len(modes) != 1 {
		given := "none of them"
		if len(modes) > 1 {
			given = strings.Join(modes, " and ")
		}
		return c.refuse(fmt.Errorf("give one of --policy NAME, --list, --example NAME; got %s", given))
	}

	switch modes[0] {
	case "--list":
		var names bytes.Buffer
		for _, p := range allPolicies() {
			fmt.Fprintln(&names, p.Name)
		}
		return c.print(names.Bytes())
	case "--example":
		p, err := policy.Find(allPolicies(), example)
		if err != nil {
			return c.refuse(fmt.Errorf("--example: %w", err))
		}
		return c.printJSON(p.Example, compact)
	default:
		p, err := policy.Find(allPolicies(), name)
		if err != nil {
			return c.refuse(fmt.Errorf("--policy: %w", err))
		}
		return c.run(p, compact)
	}
}

// run decides on the snapshot on stdin.
func (c decideCommand) run(q policy.Query, compact bool) int {
	input, err := io.ReadAll(io.LimitReader(c.io.In, snapshot.MaxSize+1))
	if err != nil {
		return c.failed(fmt.Errorf("reading the snapshot: %w", err))
	}
	if len(input) > snapshot.MaxSize {
		return c.refuse(fmt.Errorf("snapshot: must be at most %d MiB", snapshot.MaxSize>>20))
	}
	decisions, err := q.Decide(input)
	if err != nil {
		// One error per line, beginning with its path.
		fmt.Fprintln(c.io.Err, err)
		return exitUsage
	}
	return c.printJSON(decisions, compact)
}

// printJSON prints v without escaping HTML.
func (c decideCommand) printJSON(v any, compact bool) int {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if !compact {
		enc.SetIndent("", "  ")
	}
	if err := enc.Encode(v); err != nil {
		return c.failed(fmt.Errorf("encoding the result: %w", err))
	}
	return c.print(out.Bytes())
}

func (c decideCommand) print(out []byte) int {
	if _, err := c.io.Out.Write(out); err != nil {
		return c.failed(fmt.Errorf("writing the result: %w", err))
	}
	return exitOK
}
