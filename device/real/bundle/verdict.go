// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/device/real/report"
)

var (
	turnLine = regexp.MustCompile(`^=== (?:RUN|CONT|NAME) +(\S+)`)
	saidLine = regexp.MustCompile(`^ +[^ ]+\.go:\d+: (.*)`)
	noneLine = regexp.MustCompile(`^skipped: (.*)`)
	endLine  = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP): (\S+) \(([0-9.]+)s\)`)
)

// verdicts reads how a test ended, and which of its parts were skipped, from its output
// (-test.v). A test has failed if it has not reported a pass, or if its process has failed.
func verdicts(name, output string, failure error, took time.Duration) []report.Test {
	all := []report.Test{{Name: name, Verdict: report.Failed, Seconds: took.Seconds()}}
	whole := &all[0]
	said := make(map[string]string) // last, by each
	turn := name
	var parts []report.Test
	for line := range strings.Lines(output) {
		if m := turnLine.FindStringSubmatch(line); m != nil {
			turn = m[1]
		} else if m := saidLine.FindStringSubmatch(line); m != nil {
			said[turn] = m[1]
		} else if m := noneLine.FindStringSubmatch(line); m != nil {
			whole.Verdict, whole.Reason = report.Skipped, m[1]
		}
		m := endLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		t := report.Test{Name: m[2], Verdict: map[string]report.Verdict{"PASS": report.Passed, "FAIL": report.Failed, "SKIP": report.Skipped}[m[1]]}
		t.Seconds, _ = strconv.ParseFloat(m[3], 64)
		if t.Verdict == report.Skipped {
			t.Reason = said[t.Name]
		}
		switch {
		case t.Name == name:
			*whole = t
		case t.Verdict == report.Skipped:
			parts = append(parts, t)
		}
	}
	if failure != nil {
		whole.Verdict = report.Failed
	}
	if whole.Verdict == report.Failed {
		whole.Reason = tail(output)
		if failure != nil {
			whole.Reason = strings.TrimSpace(failure.Error() + "\n" + whole.Reason)
		}
	}
	return append(all, parts...)
}

// tail returns the end of a test's output, without uninformative lines.
func tail(output string) string {
	const most = 40
	var lines []string
	for line := range strings.Lines(output) {
		if line = strings.TrimRight(line, "\n"); line != "" && !strings.HasPrefix(line, "=== ") {
			lines = append(lines, line)
		}
	}
	if n := len(lines); n > most {
		lines = append([]string{"…"}, lines[n-most:]...)
	}
	return strings.Join(lines, "\n")
}
