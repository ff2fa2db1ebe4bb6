// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ebbtide/ebbtide/e2e/bench/result"
)

type report struct {
	table result.Table
	wrong []string
}

func (c *chaos) report(left []string) (*report, error) {
	r := &report{wrong: left}
	all := testimony{}
	ended, copies := 0, 0
	for _, id := range c.all() {
		f, err := os.Open(filepath.Join(c.witness, id))
		if err != nil {
			return nil, err
		}
		s, err := evaluate(f)
		_ = f.Close()
		if err != nil {
			return nil, fmt.Errorf("the witness of %s: %w", id, err)
		}
		all.Copies, all.Steps, all.Twice = all.Copies+s.Copies, all.Steps+s.Steps, all.Twice+s.Twice
		if s.Ended {
			ended++
		}
		if strings.HasPrefix(id, "queue-") {
			copies += s.Copies
		}
		for _, w := range s.Wrong {
			r.wrong = append(r.wrong, id+", "+w)
		}
	}
	r.table = result.Table{
		Title:  fmt.Sprintf("Chaos, seed %d, %v minutes, %d jobs and %d of the queue on four clients", c.seed, c.minutes, c.jobs, c.options.queued),
		Header: []string{"", ""},
	}
	row := func(name string, n int) { r.table.Rows = append(r.table.Rows, []string{name, fmt.Sprint(n)}) }
	row("copies started", all.Copies)
	row("of jobs of the queue", copies)
	row("steps", all.Steps)
	row("of them, done before", all.Twice)
	row("jobs that have completed", ended)
	for _, name := range slices.Sorted(maps.Keys(c.moves)) {
		row("ebbtide move: "+name, c.moves[name])
	}
	for _, name := range slices.Sorted(maps.Keys(c.orders)) {
		row("ebbtide queue "+name, c.orders[name])
	}
	for _, name := range slices.Sorted(maps.Keys(c.broken)) {
		row(name, c.broken[name])
	}
	row("wrong", len(r.wrong))
	return r, nil
}

func (r *report) text() string {
	text := r.table.Text()
	if len(r.wrong) > 0 {
		text += "\n" + strings.Join(r.wrong, "\n") + "\n"
	}
	return text
}
