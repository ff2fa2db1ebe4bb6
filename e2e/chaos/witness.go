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

// The witness of a job is a file outside of Nomad's reach to which each copy of it appends a
// line for all that it does, so that the order of the lines is that in which it happened:
//
//	START ALLOCATION STEP   it begins, after the step that it has found saved; 0: none
//	STEP  ALLOCATION STEP   it has done a step
//	SAVED ALLOCATION STEP   it has saved that step
//	END   ALLOCATION STEP   it has completed

// seen is what a witness tells of a job.
type seen struct {
	Copies int // that have begun
	Steps  int // that were done
	Twice  int // of them: steps that had been done before
	Ended  bool
	// Wrong is what must never be.
	Wrong []string
}

// testify reads a witness. What must never be: two copies at a time, steps that a saved one
// comes before done anew at the end, and a completed job that runs again.
func testify(r io.Reader) (s seen, err error) {
	wrong := func(line int, format string, args ...any) {
		s.Wrong = append(s.Wrong, fmt.Sprintf("line %d: ", line)+fmt.Sprintf(format, args...))
	}
	current := ""                // the copy that began last
	last, saved, lost := 0, 0, 0 // steps; and the line where what was saved got lost
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
			// What a copy saves that has begun too early does not count: it goes home.
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
		wrong(lost, "step %d was saved, and the job goes on without it", saved)
	}
	return s, lines.Err()
}
