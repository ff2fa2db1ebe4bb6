// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Command report generates docs/evaluation.md, docs/gains.svg and the table of gains in README.md
// from the result files in docs/results. Run it in the root of the repository:
//
//	go run ./e2e/report                  # generate the documents
//	go run ./e2e/report -simulate DIR    # simulate first, with DIR's curves and traces; takes minutes
//
// Real runs are those of e2e/bench (train.json and so on) and e2e/demo (demo.json). The page shows
// "Not run" if a file is missing.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

const (
	results = "docs/results"
	// quota is mode quota's runs, measured separately.
	quota      = "quota/train"
	evaluation = "docs/evaluation.md"
	// pictureFile shows each job's time under auto relative to plain Nomad.
	pictureFile = "docs/gains.svg"
	readme      = "README.md"
)

func main() { os.Exit(run(os.Args[1:], ".", os.Stderr)) }

func run(args []string, root string, errs io.Writer) int {
	flags := flag.NewFlagSet("report", flag.ContinueOnError)
	flags.SetOutput(errs)
	data := flags.String("simulate", "", "simulate first, with the curves and traces of this `directory`")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(errs, "report: unexpected argument %q\n", flags.Arg(0))
		return 2
	}
	if err := report(context.Background(), root, *data, errs); err != nil {
		fmt.Fprintf(errs, "report: %v\n", err)
		return 1
	}
	return 0
}

func report(ctx context.Context, root, data string, log io.Writer) error {
	if data != "" {
		if err := simulate(ctx, root, data, log); err != nil {
			return err
		}
	}
	files, err := render(root)
	if err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(root, name), text, 0o644); err != nil {
			return fmt.Errorf("writing the report: %w", err)
		}
	}
	return nil
}
