// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package report is the report of the tests on a card: a test's findings (Append), the whole
// (Report, report.json), and its text (Report.Text, report.txt).
package report

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"
)

// Variable names the file to which tests append their findings.
const Variable = "EBBTIDE_TEST_GPU_REPORT"

// Format is the version of the report's format.
const Format = 1

// Verdict is how a test, or all of them, ended.
type Verdict string

const (
	Passed  Verdict = "passed"
	Failed  Verdict = "failed"
	Skipped Verdict = "skipped" // of the whole: there is no usable card
)

// Report is the result of a run.
type Report struct {
	Format  int       `json:"format"`
	Begun   time.Time `json:"begun"`
	Seconds float64   `json:"seconds"`
	Ebbtide string    `json:"ebbtide"` // version and commit
	// Fake: the card is fake, and no figure is a real one's.
	Fake    bool     `json:"fake"`
	Machine Machine  `json:"machine"`
	Card    *Card    `json:"card,omitempty"`
	Verdict Verdict  `json:"verdict"`
	Reason  string   `json:"reason,omitempty"` // of a verdict other than passed
	Tests   []Test   `json:"tests"`
	Figures []Figure `json:"figures"`
}

// Machine is where the tests ran.
type Machine struct {
	Kernel       string `json:"kernel"`
	Architecture string `json:"architecture"`
	Processors   int    `json:"processors"`
	MemoryMiB    uint64 `json:"memory_mib"`
	Glibc        string `json:"glibc"`        // "" if unknown
	GlibcNeeded  string `json:"glibc_needed"` // by the tests' programs
	Root         bool   `json:"root"`
}

// Card is the tested card.
type Card struct {
	Name        string  `json:"name"`
	UUID        string  `json:"uuid"`
	Driver      string  `json:"driver"`
	CUDA        string  `json:"cuda"` // newest known to the driver
	MemoryMiB   float64 `json:"memory_mib"`
	ReservedMiB float64 `json:"reserved_mib"`
	FreeMiB     float64 `json:"free_mib"`    // before the tests
	ContextMiB  float64 `json:"context_mib"` // of a context
}

// Test is how a test, or a skipped part of one, ended.
type Test struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Reason  string  `json:"reason,omitempty"`
	Seconds float64 `json:"seconds"`
}

// Figure is a measurement, or why there is none.
type Figure struct {
	Test string `json:"test"`
	Name string `json:"name"`
	Of   string `json:"of,omitempty"` // which of several of the name
	What string `json:"what"`         // human-readable
	Unit string `json:"unit"`
	// Samples are the values, in order; Median is in their middle. Without any, Missing is the
	// reason.
	Samples []float64 `json:"samples,omitempty"`
	Median  *float64  `json:"median,omitempty"`
	Missing string    `json:"missing,omitempty"`
}

// Measured returns a figure with its values.
func Measured(name, what, unit string, samples ...float64) Figure {
	f := Figure{Name: name, What: what, Unit: unit}
	if len(samples) == 0 {
		f.Missing = "nothing was measured"
		return f
	}
	f.Samples = slices.Clone(samples)
	sorted := slices.Sorted(slices.Values(samples))
	n := len(sorted)
	median := (sorted[(n-1)/2] + sorted[n/2]) / 2
	f.Median = &median
	return f
}

// Missing returns a figure that could not be measured.
func Missing(name, what, unit, why string) Figure {
	return Figure{Name: name, What: what, Unit: unit, Missing: why}
}

// For returns the figure with Of set.
func (f Figure) For(of string) Figure {
	f.Of = of
	return f
}

// Line is a test's finding.
type Line struct {
	Card   *Card   `json:"card,omitempty"`
	Figure *Figure `json:"figure,omitempty"`
	// None is why no test can run here.
	None string `json:"none,omitempty"`
}

// Append adds a line to a file, also concurrently.
func Append(path string, l Line) error {
	data, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("writing a finding: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("writing a finding: %w", err)
	}
	_, err = f.Write(append(data, '\n'))
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("writing a finding: %w", err)
	}
	return nil
}

// Read reads the lines of a file, if it exists, without those that a killed test left incomplete.
func Read(path string) ([]Line, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the findings: %w", err)
	}
	defer f.Close()
	var all []Line
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		var l Line
		if json.Unmarshal(s.Bytes(), &l) == nil {
			all = append(all, l)
		}
	}
	if err := s.Err(); err != nil {
		return all, fmt.Errorf("reading the findings: %w", err)
	}
	return all, nil
}

// Judge derives the verdict from the tests'.
func (r *Report) Judge() {
	count := r.count()
	switch {
	case count[Failed] > 0:
		r.Verdict, r.Reason = Failed, fmt.Sprintf("%d of %d tests failed", count[Failed], len(r.Tests))
	case count[Passed] == 0:
		r.Verdict, r.Reason = Skipped, "no test ran"
	default:
		r.Verdict, r.Reason = Passed, ""
	}
}

func (r *Report) count() map[Verdict]int {
	n := make(map[Verdict]int)
	for _, t := range r.Tests {
		n[t.Verdict]++
	}
	return n
}
