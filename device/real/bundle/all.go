// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/device/real/report"
	"github.com/ebbtide/ebbtide/device/tested"
	"github.com/ebbtide/ebbtide/internal/version"
)

const (
	least  = 30 * time.Second // in which any test can run
	ending = 10 * time.Second // until a test that runs too long has reported where, and is killed
)

type test struct {
	program, name string
	env           []string
	skip          string // why it cannot be run
}

type runner struct {
	options
	report report.Report
	begun  time.Time
	lines  string // the file to which tests append
	log    *os.File
}

// all runs the tests and writes the report after each, so that a crash loses nothing. It
// returns an error only if there is no report.
func all(ctx context.Context, o options, out io.Writer) (status int, err error) {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return broken, fmt.Errorf("making the folder of the report: %w", err)
	}
	tmp, err := os.MkdirTemp("", "ebbtide-tests")
	if err != nil {
		return broken, fmt.Errorf("making a folder for findings: %w", err)
	}
	defer os.RemoveAll(tmp)
	log, err := os.Create(filepath.Join(o.out, "report.log"))
	if err != nil {
		return broken, fmt.Errorf("making the report's log: %w", err)
	}
	defer log.Close()
	r := &runner{options: o, begun: time.Now(), lines: filepath.Join(tmp, "lines"), log: log}
	r.report = report.Report{Format: report.Format, Begun: r.begun, Ebbtide: version.String(), Fake: o.fake, Verdict: report.Skipped, Reason: "the run has not finished", Tests: []report.Test{}, Figures: []report.Figure{}}
	if r.report.Machine, err = machine(o.dir); err != nil {
		return broken, err
	}
	if err := r.write(); err != nil {
		return broken, err
	}
	if why := r.probe(ctx); why != "" {
		r.report.Verdict, r.report.Reason = report.Skipped, why
	} else {
		if err := r.tests(ctx, out); err != nil {
			return broken, err
		}
		r.report.Judge()
	}
	if r.report.Verdict == report.Passed && !o.fake && o.match.String() == "." {
		if err := tested.Record(o.state, r.report.Card.Name, r.report.Card.Driver); err != nil {
			fmt.Fprintln(out, err)
		}
	}
	if err := r.write(); err != nil {
		return broken, err
	}
	if err := r.report.Text(out); err != nil {
		return broken, err
	}
	fmt.Fprintf(out, "\nThis report is in %s: report.json, report.txt, and all that tests have said, report.log.\n", o.out)
	return map[report.Verdict]int{report.Passed: passed, report.Failed: failed, report.Skipped: nothing}[r.report.Verdict], nil
}

// probe prepares the card as each test does, for the report. It returns why no test can run, if
// so.
func (r *runner) probe(ctx context.Context) (why string) {
	if m := r.report.Machine; m.Glibc != "" && older(m.Glibc, m.GlibcNeeded) {
		return fmt.Sprintf("this machine's glibc is %s, and %s is needed: build the bundle on a machine with an older one", m.Glibc, m.GlibcNeeded)
	}
	output, _, err := r.start(ctx, test{program: "real.test", name: "nothing"}, min(time.Minute, r.limit/2))
	lines, unread := report.Read(r.lines)
	if err = errors.Join(err, unread); err != nil {
		return fmt.Sprintf("the card cannot be used: %v\n%s", err, tail(output))
	}
	for _, l := range lines {
		if l.None != "" {
			return l.None
		}
		r.report.Card = cmp.Or(l.Card, r.report.Card)
	}
	if r.report.Card == nil {
		return "the card cannot be used: " + tail(output)
	}
	return ""
}

// tests runs all tests. Those for which no time is left are skipped.
func (r *runner) tests(ctx context.Context, out io.Writer) error {
	all, err := r.list(ctx)
	if err != nil {
		return err
	}
	for _, t := range all {
		left := r.limit - time.Since(r.begun) - ending
		var results []report.Test
		switch {
		case ctx.Err() != nil:
			results = []report.Test{{Name: t.name, Verdict: report.Skipped, Reason: "the tests were interrupted"}}
		case t.skip != "":
			results = []report.Test{{Name: t.name, Verdict: report.Skipped, Reason: t.skip}}
		case left < least/2:
			results = []report.Test{{Name: t.name, Verdict: report.Skipped, Reason: fmt.Sprintf("the time for all tests, %v, is over", r.limit)}}
		default:
			limit := min(r.each, left)
			begun := time.Now()
			output, ended, err := r.start(ctx, t, limit)
			if ctx.Err() != nil {
				err = errors.Join(errors.New("the tests were interrupted"), err)
			} else if !ended {
				err = errors.Join(fmt.Errorf("it did not end within %v", limit), err)
			}
			results = verdicts(t.name, output, err, time.Since(begun))
		}
		for _, one := range results {
			fmt.Fprintf(out, "%-7s %6.1f s  %s\n", one.Verdict, one.Seconds, one.Name)
		}
		r.report.Tests = append(r.report.Tests, results...)
		lines, err := report.Read(r.lines)
		if err != nil {
			return err
		}
		r.report.Figures = r.report.Figures[:0]
		for _, l := range lines {
			if l.Figure != nil {
				r.report.Figures = append(r.report.Figures, *l.Figure)
			}
		}
		if err := r.write(); err != nil {
			return err
		}
	}
	fmt.Fprintln(out)
	return nil
}

// telling are the tests that decide whether a card can be shared and parked, first to last. A card
// may be had for minutes only.
var telling = []string{"TestFingerprint", "TestPlugin", "TestHooks", "TestResolve", "TestLedger", "TestPause", "TestPark", "TestRestore", "TestParkTraining", "TestPyTorch", "TestTwenty"}

func rank(name string) int {
	if i := slices.Index(telling, name); i >= 0 {
		return i
	}
	return len(telling)
}

func (r *runner) list(ctx context.Context) (all []test, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	names, err := exec.CommandContext(ctx, filepath.Join(r.dir, "real.test"), "-test.list", ".").Output()
	if err != nil {
		return nil, fmt.Errorf("listing the tests: %w", err)
	}
	for name := range strings.FieldsSeq(string(names)) {
		all = append(all, test{program: "real.test", name: name})
	}
	hooks := test{program: "preload.test", name: "TestHooks"}
	if library := libcuda(ctx); r.fake {

	} else if library != "" {
		hooks.env = []string{"EBBTIDE_LIBCUDA=" + library}
	} else {
		hooks.skip = "ldconfig lists no libcuda.so.1 to check"
	}
	all = append(all, hooks)
	slices.SortStableFunc(all, func(a, b test) int { return cmp.Compare(rank(a.name), rank(b.name)) })
	var chosen []test
	for _, t := range all {
		if r.match.MatchString(t.name) {
			chosen = append(chosen, t)
		}
	}
	return chosen, nil
}

// start runs a test in its own process, and returns its output. After the limit it and all its
// children are killed, and ended is false.
func (r *runner) start(ctx context.Context, t test, limit time.Duration) (output string, ended bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit+ending/2)
	defer cancel()
	program := filepath.Join(r.dir, t.program)
	cmd := exec.CommandContext(ctx, program, "-test.run", "^"+t.name+"$", "-test.v", "-test.timeout", limit.String())
	cmd.Dir = r.dir
	kind := "real"
	if r.fake {
		kind = "fake"
	}
	cmd.Env = append(os.Environ(), append(t.env, "EBBTIDE_TEST_GPU="+kind, report.Variable+"="+r.lines)...)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = ending / 4
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	said := &words{log: r.log}
	cmd.Stdout, cmd.Stderr = said, said
	fmt.Fprintf(r.log, "# %s of %s\n", t.name, t.program)
	if err := cmd.Start(); err != nil {
		return "", true, fmt.Errorf("running %s of %s: %w", t.name, program, err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err = <-done:
	case <-time.After(limit + ending):
		err = errors.New("it cannot be killed: it is in a call of the driver") // it is left there
	}
	ended = ctx.Err() == nil
	// Jobs of a test that ended early continue in its group.
	_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	if err != nil {
		err = fmt.Errorf("running %s of %s: %w", t.name, program, err)
	}
	return said.String(), ended, err
}

// words is a test's output, which is also logged.
type words struct {
	log  io.Writer
	mu   sync.Mutex
	said bytes.Buffer
}

// Write implements io.Writer.
func (w *words) Write(data []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said.Write(data)
	return w.log.Write(data)
}

func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.said.String()
}

func (r *runner) write() error {
	r.report.Seconds = time.Since(r.begun).Seconds()
	data, err := json.MarshalIndent(r.report, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	var text bytes.Buffer
	if err := r.report.Text(&text); err != nil {
		return err
	}
	for name, data := range map[string][]byte{"report.json": append(data, '\n'), "report.txt": text.Bytes()} {
		path := filepath.Join(r.out, name)
		err := os.WriteFile(path+".new", data, 0o644)
		if err == nil {
			err = os.Rename(path+".new", path)
		}
		if err != nil {
			return fmt.Errorf("writing the report: %w", err)
		}
	}
	return nil
}
