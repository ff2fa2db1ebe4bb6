// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/real/report"
)

// program stands in for the test programs: it does what the test's name says.
const program = `#!/bin/sh
case $1 in -test.list) echo TestGood; echo TestBad; echo TestSkipped; echo TestHangs; echo TestDies; exit;; esac
name=${2#^}; name=${name%$}
case $name in
TestGood)
	echo '{"figure":{"test":"TestGood","name":"n","what":"w","unit":"s","samples":[1],"median":1}}' >>"$EBBTIDE_TEST_GPU_REPORT"
	echo "=== RUN   $name/part"; echo "    x_test.go:1: no cuBLAS"; echo "--- PASS: $name (0.25s)"; echo "    --- SKIP: $name/part (0.00s)";;
TestBad) echo "    x_test.go:1: it is wrong"; echo "--- FAIL: $name (0.00s)"; exit 1;;
TestSkipped) echo "=== RUN   $name"; echo "    x_test.go:1: no root"; echo "--- SKIP: $name (0.00s)";;
TestHangs) sleep 600 & echo $! >"$EBBTIDE_TEST_GPU_REPORT.child"; echo waiting; wait;;
TestDies) echo "--- PASS: $name (0.00s)"; kill -9 $$;;
TestHooks) echo "--- PASS: $name (0.00s)";;
esac
`

func stand(t *testing.T) *runner {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"real.test", "preload.test"} {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(program), 0o755))
	}
	log, err := os.Create(filepath.Join(dir, "report.log"))
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, log.Close()) })
	return &runner{
		options: options{dir: dir, out: dir, fake: true, limit: time.Hour, each: 100 * time.Millisecond, match: regexp.MustCompile(".")},
		begun:   time.Now(), lines: filepath.Join(dir, "lines"), log: log,
	}
}

func TestTests(t *testing.T) {
	r := stand(t)
	var out strings.Builder
	must.NoError(t, r.tests(t.Context(), &out))
	r.report.Judge()
	must.NoError(t, r.write())

	data, err := os.ReadFile(filepath.Join(r.out, "report.json"))
	must.NoError(t, err)
	var got report.Report
	must.NoError(t, json.Unmarshal(data, &got))
	must.Eq(t, report.Failed, got.Verdict)
	must.Len(t, 1, got.Figures)
	of := make(map[string]report.Test)
	for _, one := range got.Tests {
		of[one.Name] = one
	}
	must.MapLen(t, 7, of)
	must.Eq(t, report.Test{Name: "TestGood", Verdict: report.Passed, Seconds: 0.25}, of["TestGood"])
	must.Eq(t, report.Test{Name: "TestGood/part", Verdict: report.Skipped, Reason: "no cuBLAS"}, of["TestGood/part"])
	must.Eq(t, report.Failed, of["TestBad"].Verdict)
	must.StrContains(t, of["TestBad"].Reason, "it is wrong")
	must.Eq(t, report.Test{Name: "TestSkipped", Verdict: report.Skipped, Reason: "no root"}, of["TestSkipped"])
	must.Eq(t, report.Failed, of["TestHangs"].Verdict)
	must.StrContains(t, of["TestHangs"].Reason, "it did not end within 100ms")
	must.StrContains(t, of["TestHangs"].Reason, "waiting")
	must.Eq(t, report.Failed, of["TestDies"].Verdict, must.Sprint("after it said that it passed"))
	must.Eq(t, report.Passed, of["TestHooks"].Verdict)
	child, err := os.ReadFile(r.lines + ".child")
	must.NoError(t, err)
	state, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(child)), "stat"))
	must.True(t, err != nil || bytes.Contains(state, []byte(") Z ")), must.Sprintf("what it has started is killed: %s", state))
	text, err := os.ReadFile(filepath.Join(r.out, "report.txt"))
	must.NoError(t, err)
	must.StrContains(t, string(text), "Tests: 2 passed, 3 failed, 2 skipped")
	must.StrContains(t, out.String(), "failed")
}

func TestTests_over(t *testing.T) {
	r := stand(t)
	r.begun = time.Now().Add(-r.limit)
	must.NoError(t, r.tests(t.Context(), &strings.Builder{}))
	must.Len(t, 6, r.report.Tests)
	for _, one := range r.report.Tests {
		must.Eq(t, report.Test{Name: one.Name, Verdict: report.Skipped, Reason: "the time for all tests, 1h0m0s, is over"}, one)
	}

	r = stand(t)
	r.match = regexp.MustCompile("Hangs|Good")
	r.each = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { // once it hangs
		for ctx.Err() == nil {
			if _, err := os.Stat(r.lines + ".child"); err == nil {
				cancel()
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	must.NoError(t, r.tests(ctx, &strings.Builder{}))
	must.Eq(t, "TestGood", r.report.Tests[0].Name)
	last := r.report.Tests[len(r.report.Tests)-1]
	must.Eq(t, report.Failed, last.Verdict)
	must.StrContains(t, last.Reason, "interrupted")
}

func TestProbe(t *testing.T) {
	for says, want := range map[string]string{
		`echo '{"card":{"name":"H100"}}' >>"$EBBTIDE_TEST_GPU_REPORT"`:                 "",
		`echo '{"none":"there is no card"}' >>"$EBBTIDE_TEST_GPU_REPORT"`:              "there is no card",
		`echo the driver is broken; exit 1`:                                            "the driver is broken",
		`echo '{"card":{}}' >>"$EBBTIDE_TEST_GPU_REPORT"; echo it has crashed; exit 1`: "it has crashed",
		`echo nothing`: "the card cannot be used: nothing",
	} {
		r := stand(t)
		must.NoError(t, os.WriteFile(filepath.Join(r.dir, "real.test"), []byte("#!/bin/sh\n"+says), 0o755))
		why := r.probe(t.Context())
		if want == "" {
			must.Eq(t, "", why)
			must.Eq(t, "H100", r.report.Card.Name)
		} else {
			must.StrContains(t, why, want)
		}
	}
	r := stand(t)
	r.report.Machine = report.Machine{Glibc: "2.9", GlibcNeeded: "2.34"}
	must.StrContains(t, r.probe(t.Context()), "this machine's glibc is 2.9, and 2.34 is needed")
}

func TestTests_missing(t *testing.T) {
	r := stand(t)
	r.match = regexp.MustCompile("Hooks")
	must.NoError(t, os.Remove(filepath.Join(r.dir, "preload.test")))
	must.NoError(t, r.tests(t.Context(), &strings.Builder{}))
	must.Len(t, 1, r.report.Tests)
	must.Eq(t, report.Failed, r.report.Tests[0].Verdict)
	must.StrContains(t, r.report.Tests[0].Reason, "no such file")

	must.NoError(t, os.Remove(filepath.Join(r.dir, "real.test")))
	must.ErrorContains(t, r.tests(t.Context(), &strings.Builder{}), "listing the tests")
	must.StrContains(t, r.probe(t.Context()), "no such file")
}

func TestVerdicts(t *testing.T) {
	got := verdicts("TestA", "--- PASS: TestA (1.50s)\n", nil, 2*time.Second)
	must.Eq(t, []report.Test{{Name: "TestA", Verdict: report.Passed, Seconds: 1.5}}, got)
	got = verdicts("TestA", "skipped: 5 MiB are free\n", nil, 2*time.Second)
	must.Eq(t, []report.Test{{Name: "TestA", Verdict: report.Skipped, Reason: "5 MiB are free", Seconds: 2}}, got)
	got = verdicts("TestA", "skipped: 5 MiB are free\n", errors.New("it has crashed"), 2*time.Second)
	must.Eq(t, report.Failed, got[0].Verdict)
	got = verdicts("TestA", "--- PASS: TestAB (1.50s)\n", nil, 2*time.Second)
	must.Eq(t, []report.Test{{Name: "TestA", Verdict: report.Failed, Seconds: 2, Reason: "--- PASS: TestAB (1.50s)"}}, got)
	got = verdicts("TestA", strings.Repeat("line\n", 100), errors.New("it is dead"), 0)
	must.Eq(t, 42, strings.Count(got[0].Reason, "\n")+1)
	must.StrHasPrefix(t, "it is dead\n…\nline", got[0].Reason)
}

func TestOlder(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"2.9", "2.34", true}, {"2.34", "2.9", false}, {"2.34", "2.34", false}, {"", "2.2.5", true}, {"2.3", "2.3.2", true}, {"3.0", "2.34", false},
	} {
		must.Eq(t, c.want, older(c.a, c.b), must.Sprint(c))
	}
}

func TestRun_usage(t *testing.T) {
	for _, args := range [][]string{{"extra"}, {"-limit", "1s"}, {"-each", "0"}, {"-run", "("}, {"-what"}} {
		var out, errs strings.Builder
		must.Eq(t, broken, run(t.Context(), args, &out, &errs), must.Sprint(args))
		must.NotEq(t, "", errs.String())
	}
	var out, errs strings.Builder
	must.Eq(t, passed, run(t.Context(), []string{"-h"}, &out, &errs))
	must.StrContains(t, errs.String(), "-fake")
}
