// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/cli"
	"github.com/mattn/go-isatty"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/store"
	"github.com/ebbtide/ebbtide/top"
	"github.com/ebbtide/ebbtide/top/gather"
	"github.com/ebbtide/ebbtide/top/ui"
)

type topCommand struct{ command }

func newTop(io IO) cli.Command { return topCommand{command{io, "top"}} }

func (topCommand) Synopsis() string { return "Show nodes, tasks, GPUs and moves live" }

func (topCommand) Help() string {
	return strings.TrimSpace(`
Usage: ebbtide top [options]

  Shows nodes, tasks, shared GPUs, moves and the queue in the terminal, and of a task
  its curve, its events and the reason for its limit. It only reads Nomad's API.
  Press ? for keys and columns.

  If standard output is not a terminal, it prints once, as with -once.

Options:

  -node NODE             Show only this node, by name, ID or ID prefix.
  -namespace NAME        Show only jobs of this namespace. Default: *, all that the
                         token can read.
  -job PATTERN           Show only jobs whose ID matches, such as 'train-*'.
  -sort COLUMN           Order of the tasks: ` + strings.Join(top.Sorts(), ", ") + `.
                         Default: job.
  -interval DURATION     Refresh interval, 1s to 1h. Default: 2s.
  -once                  Print tables once and exit.
  -json                  Print everything once as JSON and exit.
  -shim-namespace NAME   Namespace of the shim's variables, which hold moves and queue.
                         Default: where a shim led last.
  -shim-path PATH        Path of the shim's variables. Default: ebbtide/shim.

At most 100 files are read per second, those of visible tasks first; with more tasks
it takes some seconds until all are shown.

With ACLs the token needs node:read, read-job and read-fs in the namespaces of the
jobs, and read on the shim's variables for moves and the queue.
` + nomadHelp)
}

// filesPerSecond bounds the files read from allocations.
const filesPerSecond = 100

type topOptions struct {
	gather.Options
	sort         string
	interval     time.Duration
	once, asJSON bool
}

func (c topCommand) Run(args []string) int {
	var o topOptions
	flags := c.flags()
	nomad := nomadFlags(flags)
	flags.StringVar(&o.Node, "node", "", "")
	flags.StringVar(&o.Namespace, "namespace", "*", "")
	flags.StringVar(&o.Job, "job", "", "")
	flags.StringVar(&o.sort, "sort", top.Sorts()[0], "")
	flags.DurationVar(&o.interval, "interval", 2*time.Second, "")
	flags.BoolVar(&o.once, "once", false, "")
	flags.BoolVar(&o.asJSON, "json", false, "")
	flags.StringVar(&o.Shim.Namespace, "shim-namespace", "", "")
	flags.StringVar(&o.Shim.Path, "shim-path", config.Default().Leader.Path, "")
	if status, ok := c.parse(flags, args, c.Help()); !ok {
		return status
	}
	var errs []error
	if flags.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	if !slices.Contains(top.Sorts(), o.sort) {
		errs = append(errs, fmt.Errorf("-sort: must be one of %s, got %q", strings.Join(top.Sorts(), ", "), o.sort))
	}
	if o.interval < time.Second || o.interval > time.Hour {
		errs = append(errs, fmt.Errorf("-interval: must be from 1s to 1h, got %v", o.interval))
	}
	client, err := nomad.Client()
	if err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return c.refuse(errs...)
	}
	defer client.Close()
	o.Client, o.Shim = client, store.Store{Client: client, Namespace: o.Shim.Namespace, Path: o.Shim.Path}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	g := gather.New(o.Options)
	if !o.once && !o.asJSON && c.terminal() {
		err = ui.Run(ctx, g, ui.Options{
			Address: client.Address(), Query: top.Query{Sort: o.sort}, Interval: o.interval, PerSecond: filesPerSecond, ASCII: !utf8Locale(),
		}, c.io.In, c.io.Out)
	} else {
		err = c.once(ctx, g, o)
	}
	if err != nil {
		return c.failed(err)
	}
	return exitOK
}

// terminal reports whether a live view is possible: a dumb terminal cannot move its cursor.
func (c topCommand) terminal() bool {
	in, ok := c.io.In.(*os.File)
	out, outOK := c.io.Out.(*os.File)
	return ok && outOK && isatty.IsTerminal(in.Fd()) && isatty.IsTerminal(out.Fd()) && !slices.Contains([]string{"", "dumb"}, os.Getenv("TERM"))
}

// utf8Locale reports whether the environment has a UTF-8 locale.
func utf8Locale() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value := strings.ToUpper(os.Getenv(name)); value != "" {
			return strings.Contains(value, "UTF-8") || strings.Contains(value, "UTF8")
		}
	}
	return false
}

func (c topCommand) once(ctx context.Context, g *gather.Gatherer, o topOptions) error {
	v, err := g.All(ctx, filesPerSecond)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if o.asJSON {
		err = writeJSON(&out, v)
	} else {
		printView(&out, v, top.Query{Sort: o.sort}, top.Layout{Width: c.width(), ASCII: !utf8Locale()})
	}
	if err != nil {
		return fmt.Errorf("writing the view: %w", err)
	}
	if _, err := out.WriteTo(c.io.Out); err != nil && !errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("writing the view: %w", err)
	}
	return nil
}

func (c topCommand) width() int {
	if f, ok := c.io.Out.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
			return int(size.Col)
		}
	}
	if columns, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && columns > 0 {
		return min(columns, 1000)
	}
	return 80
}

func printView(out io.Writer, v *top.View, q top.Query, l top.Layout) {
	fmt.Fprintln(out, v.Summary(l))
	if empty := v.Empty(); empty != "" {
		fmt.Fprintln(out, "\n"+strings.Join(l.Wrap(empty), "\n"))
	}
	for tab := range top.Tabs() {
		t := v.Table(top.Tab(tab), q, l)
		if len(t.Lines) == 0 {
			continue
		}
		fmt.Fprintln(out, "\n"+t.Head)
		for _, line := range t.Lines {
			fmt.Fprintln(out, line.Text)
		}
	}
	notes := append(v.Problems(), v.Notes...)
	if v.Error != "" {
		notes = append(notes, v.Error)
	}
	for _, note := range notes {
		fmt.Fprintln(out, "\n"+strings.Join(l.Wrap(note), "\n"))
	}
}
