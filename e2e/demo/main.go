// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Command demo runs ten training jobs of mixed models and lengths on a real Nomad, then the same
// jobs and seeds under policy "none", and prints the results and the jobs that lost. It needs root
// and cgroups, but not Docker; use `make demo`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/policy/policies"
	"github.com/ebbtide/ebbtide/e2e/demo/view"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

func main() {
	os.Exit(run(harness.Interruptible(), os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout *os.File, stderr io.Writer) int {
	opts, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	d := &demo{options: opts, screen: newScreen(stdout)}
	if opts.from != "" {
		err = d.again()
	} else {
		err = d.play(ctx)
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		fmt.Fprintln(stderr, "demo: interrupted")
		return 130
	}
	if err != nil {
		fmt.Fprintf(stderr, "\ndemo: %v\n", err)
		return 1
	}
	return 0
}

// options are the command line's and the environment's.
type options struct {
	out      string // directory of the results
	from     string // a demo.json to show
	policy   string // compared with none
	prefer   string // fsp_prefer; "" for its default
	mode     string
	interval string
	seed     uint64
	seeds    int
	port     int
	scale    float64
	keep     bool
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{keep: os.Getenv("KEEP") != "" && os.Getenv("KEEP") != "0"}
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.out, "out", "out", "`directory` for demo.png and demo.json")
	fs.StringVar(&o.from, "from", "", "demo.json `file` of an earlier run: only show its summary and draw its picture")
	fs.StringVar(&o.policy, "policy", policies.Names()[0], "`name` of the policy to compare with none: "+strings.Join(compared(), ", "))
	fs.StringVar(&o.prefer, "prefer", "", "the plugin's `option` fsp_prefer: balanced, completion or quality")
	fs.StringVar(&o.mode, "mode", "weight", "how limits are enforced: weight or quota")
	fs.StringVar(&o.interval, "interval", "2s", "initial `interval` of the policy")
	fs.Uint64Var(&o.seed, "seed", 1, "`seed` of the jobs, or the first of -seeds")
	fs.IntVar(&o.seeds, "seeds", 1, "`number` of seeds, about six minutes each; several give distributions")
	fs.IntVar(&o.port, "port", 0, "`port` of the Nomad UI on 127.0.0.1; 0 for a free one")
	fs.Float64Var(&o.scale, "scale", 1, "`factor` for the jobs' lengths and the times between them")
	fs.BoolVar(&o.keep, "keep", o.keep, "leave Nomad running at the end (also KEEP=1)")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	var err error
	switch {
	case fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case !slices.Contains(compared(), o.policy):
		err = fmt.Errorf("-policy: must be one of %s, got %q", strings.Join(compared(), ", "), o.policy)
	case !slices.Contains([]string{"", "balanced", "completion", "quality"}, o.prefer):
		err = fmt.Errorf("-prefer: must be one of balanced, completion, quality, got %q", o.prefer)
	case o.mode != "weight" && o.mode != "quota":
		err = fmt.Errorf("-mode: must be weight or quota, got %q", o.mode)
	case badInterval(o.interval):
		err = fmt.Errorf("-interval: must be a duration from 1s to 1h, got %q", o.interval)
	case o.seeds < 1:
		err = fmt.Errorf("-seeds: must be ≥ 1, got %d", o.seeds)
	case !(o.scale >= 0.01 && o.scale <= 100):
		err = fmt.Errorf("-scale: must be from 0.01 to 100, got %v", o.scale)
	case o.port < 0 || o.port > 65535:
		err = fmt.Errorf("-port: must be from 0 to 65535, got %d", o.port)
	}
	if err != nil {
		fmt.Fprintf(stderr, "demo: %v\n", err)
		return o, err
	}
	o.out, err = filepath.Abs(o.out)
	return o, err
}

func compared() []string {
	return slices.DeleteFunc(policies.Names(), func(name string) bool { return name == none })
}

func badInterval(text string) bool {
	d, err := time.ParseDuration(text)
	return err != nil || d < time.Second || d > time.Hour
}

// newScreen detects the terminal, and honours NO_COLOR (no-color.org) and TERM=dumb.
func newScreen(f *os.File) *view.Screen {
	tty := isatty.IsTerminal(f.Fd()) && os.Getenv("TERM") != "dumb"
	return view.NewScreen(f, tty, tty && os.Getenv("NO_COLOR") == "", func() int {
		size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
		if err != nil || size.Col == 0 {
			return 100
		}
		return int(size.Col)
	})
}
