// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// A job's witness is a file that Nomad does not manage, to which each copy appends a line per
// action, in order:
//
//	START ALLOCATION STEP   it starts from the saved step, 0 for none
//	STEP  ALLOCATION STEP   it has done a step
//	SAVED ALLOCATION STEP   it has saved that step
//	END   ALLOCATION STEP   it has completed

// testimony summarises a witness.
type testimony struct {
	Copies int // number of starts
	Steps  int
	Twice  int // repeated steps
	Ended  bool
	Wrong  []string
}

// evaluate evaluates a witness. Violations are two concurrent copies, a checkpoint that is lost,
// and a run after completion.
func evaluate(r io.Reader) (s testimony, err error) {
	wrong := func(line int, format string, args ...any) {
		s.Wrong = append(s.Wrong, fmt.Sprintf("line %d: ", line)+fmt.Sprintf(format, args...))
	}
	current := ""                // the last copy started
	last, saved, lost := 0, 0, 0 // steps; lost is the line at which a checkpoint was ignored
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 {
			return s, fmt.Errorf("line %d is not of three words: %q", n, lines.Text())
		}
		what, alloc := fields[0], fields[1]
		step, err := strconv.Atoi(fields[2])
		if err != nil {
			return s, fmt.Errorf("line %d: %w", n, err)
		}
		if what != "START" && alloc != current {
			wrong(n, "two copies run: %.8s does %s %d although %.8s has begun", alloc, what, step, current)
			continue
		}
		switch what {
		case "START":
			s.Copies++
			current = alloc
			if s.Ended {
				wrong(n, "it has completed, and runs again")
			}
			if step < saved && lost == 0 {
				lost = n
			}
			if step >= saved {
				lost = 0 // a copy has found it
			}
			s.Twice += max(0, last-step)
			last = step
		case "STEP":
			s.Steps++
			last = max(last, step)
		case "SAVED":
			// A copy that started without the checkpoint is ignored: the move is rolled back.
			if lost == 0 {
				saved = max(saved, step)
			}
		case "END":
			s.Ended = true
		default:
			return s, fmt.Errorf("line %d: %q is nothing that a copy does", n, what)
		}
	}
	if lost > 0 {
		wrong(lost, "step %d was saved, but the job continues without it", saved)
	}
	return s, lines.Err()
}
