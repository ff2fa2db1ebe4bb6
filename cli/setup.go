// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/hashicorp/cli"
	"github.com/mattn/go-isatty"

	"github.com/ebbtide/ebbtide/cli/setup"
	"github.com/ebbtide/ebbtide/driver/config"
)

type setupCommand struct {
	command
	root     string // of the file system; "/" except in tests
	terminal func(io.Reader) bool
}

func newSetup(io IO) cli.Command {
	return setupCommand{command{io, "setup"}, "/", isTerminal}
}

func isTerminal(in io.Reader) bool {
	f, ok := in.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

func (setupCommand) Synopsis() string {
	return "Write the configuration that Ebbtide needs for a Nomad agent"
}

func (setupCommand) Help() string {
	var options strings.Builder
	for _, o := range config.Options() {
		if o.Name != "engine" {
			fmt.Fprintf(&options, "\n  %-22s %s", o.Name, o.Default)
		}
	}
	return strings.TrimSpace(`
Usage: ebbtide setup [options]

  Writes ` + setup.FileName + ` into the configuration directory of this machine's Nomad
  agent: the plugin directory, the driver's block, the GPU plugin's block if there
  are NVIDIA cards, and recommended agent settings. It shows the changes and asks
  before writing.

  Settings in other files take precedence and are omitted. It changes only its own
  file, and not if that was edited. It restarts nothing.

  The exit status is 0 if the file is up to date, 1 if it was not written, 2 for
  invalid arguments or configuration files.

Options:

  -config DIR       The agent's configuration directory. Default: ` + setup.DefaultDir + `.
  -plugins DIR      Where the plugins are installed. Default: ` + setup.DefaultPlugins + `.
  -engine NAME      Engine of the driver: ` + strings.Join(config.Engines(), ", ") + `. Default: docker if Docker runs,
                    else exec.
  -set NAME=VALUE   Another option of the driver; repeatable.
  -gpu NAME         The GPU plugin: ` + strings.Join(setup.GPUs(), ", ") + `. Default: auto, if there are cards.
  -yes              Write without asking.
  -print            Print the file instead of writing it.

Driver options for -set, with their defaults (see docs/reference.md):
` + options.String())
}

func (c setupCommand) Run(args []string) int {
	o := setup.Options{Dir: setup.DefaultDir, Plugins: setup.DefaultPlugins, GPU: setup.GPUAuto}
	var yes, show bool
	flags := c.flags()
	flags.StringVar(&o.Dir, "config", o.Dir, "")
	flags.StringVar(&o.Plugins, "plugins", o.Plugins, "")
	flags.StringVar(&o.Engine, "engine", "", "")
	flags.Func("set", "", func(v string) error {
		o.Set = append(o.Set, v)
		return nil
	})
	flags.StringVar(&o.GPU, "gpu", o.GPU, "")
	flags.BoolVar(&yes, "yes", false, "")
	flags.BoolVar(&show, "print", false, "")
	if status, ok := c.parse(flags, args, c.Help()); !ok {
		return status
	}
	switch {
	case flags.NArg() > 0:
		return c.refuse(fmt.Errorf("unexpected argument %q: the directory is named with -config", flags.Arg(0)))
	case yes && show:
		return c.refuse(errors.New("-yes and -print cannot be used together"))
	}
	state, err := setup.Inspect(c.root, o)
	if err != nil {
		return c.refuse(lines(err)...)
	}
	if show {
		state.Old = nil // print the file, also if setup did not write the current one
	}
	proposal, err := setup.Propose(state, o)
	if err != nil {
		return c.refuse(lines(err)...)
	}
	for _, note := range proposal.Notes {
		fmt.Fprintln(c.io.Err, "note:", note)
	}
	remains, err := setup.Unresolved(state, proposal)
	if err != nil {
		return c.failed(err)
	}
	for _, f := range remains {
		fmt.Fprintf(c.io.Err, "%s: %s: %s\n  → %s\n", f.Status, f.Name, f.Seen, f.Do)
		if f.Add != "" {
			fmt.Fprintln(c.io.Err, "      "+strings.ReplaceAll(f.Add, "\n", "\n      "))
		}
	}
	if show {
		if _, err := c.io.Out.Write(proposal.New); err != nil {
			return c.failed(fmt.Errorf("write: %w", err))
		}
		return exitOK
	}
	if proposal.UpToDate() {
		fmt.Fprintf(c.io.Out, "%s is up to date\n", proposal.Path)
		return exitOK
	}
	fmt.Fprint(c.io.Out, proposal.Diff())
	if !yes {
		if !c.terminal(c.io.In) {
			return c.refuse(errors.New("cannot ask for confirmation: stdin is not a terminal; use -yes to write the file, or -print"))
		}
		fmt.Fprintf(c.io.Err, "Write %s? [y/N] ", proposal.Path)
		answer, err := bufio.NewReader(c.io.In).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return c.failed(fmt.Errorf("reading the answer: %w", err))
		}
		if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
			return c.failed(errors.New("nothing was written"))
		}
	}
	if err := setup.Write(proposal); err != nil {
		if errors.Is(err, fs.ErrPermission) {
			err = fmt.Errorf("%w: run ebbtide setup as root", err)
		}
		return c.failed(err)
	}
	fmt.Fprintf(c.io.Err, "Wrote %s. Next:\n"+
		"  systemctl restart nomad    # tasks keep running\n"+
		"  ebbtide doctor -config %s\n", proposal.Path, o.Dir)
	return exitOK
}

// lines splits joined errors, recursively.
func lines(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []error
		for _, err := range joined.Unwrap() {
			out = append(out, lines(err)...)
		}
		return out
	}
	return []error{err}
}
