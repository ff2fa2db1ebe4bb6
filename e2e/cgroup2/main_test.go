// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"testing"

	"github.com/shoenig/test/must"
)

// verdict must detect failures.
func TestVerdict(t *testing.T) {
	names := []string{"TestKernelA", "TestKernelB"}
	good := "init: Linux 6.1\n=== RUN   TestKernelA\n--- PASS: TestKernelA (0.1s)\n--- PASS: TestKernelB (0.1s)\r\nPASS\n\n" + marker + " 0\r\n"
	_, err := verdict(good, names)
	must.NoError(t, err)

	cases := []struct{ name, console, says string }{
		{"nothing", "", "did not come to its end"},
		{"a panic before the end", "--- PASS: TestKernelA (0.1s)\n--- PASS: TestKernelB (0.1s)\nKernel panic\n", "did not come to its end"},
		{"the status", "--- PASS: TestKernelA (0.1s)\n--- PASS: TestKernelB (0.1s)\n" + marker + " 1\n", "status 1"},
		{"one failed", "--- PASS: TestKernelA (0.1s)\n--- FAIL: TestKernelB (0.1s)\n" + marker + " 0\n", "TestKernelB did not pass"},
		{"one skipped", "--- PASS: TestKernelA (0.1s)\n--- SKIP: TestKernelB (0.1s)\n" + marker + " 0\n", "TestKernelB did not pass"},
		{"only a subtest passed", "--- PASS: TestKernelA (0.1s)\n    --- PASS: TestKernelB (0.1s)\n" + marker + " 0\n", "TestKernelB did not pass"},
		{"nothing was run", "PASS\n" + marker + " 0\n", "TestKernelA did not pass"},
	}
	for _, tc := range cases {
		_, err := verdict(tc.console, names)
		must.ErrorContains(t, err, tc.says, must.Sprint(tc.name))
	}
	_, err = verdict(good, nil)
	must.Error(t, err)

	// The next boot repeats what failed, and the error shows it, wherever it was in the console.
	failed, err := verdict("=== RUN   TestKernelA\n    a_test.go:1: why\n--- FAIL: TestKernelA (0.1s)\n=== RUN   TestKernelB\n    b_test.go:2: fine\n--- PASS: TestKernelB (0.1s)\n"+marker+" 1\n", names)
	must.Eq(t, []string{"TestKernelA"}, failed)
	must.ErrorContains(t, err, "a_test.go:1: why")
	must.StrNotContains(t, err.Error(), "b_test.go")
	failed, _ = verdict("--- PASS: TestKernelA (0.1s)\n", names)
	must.Eq(t, names, failed)

	// What no test explains, the console's end may.
	failed, err = verdict("init: a problem\n--- PASS: TestKernelA (0.1s)\n--- PASS: TestKernelB (0.1s)\n"+marker+" 1\n", names)
	must.Eq(t, names, failed)
	must.ErrorContains(t, err, "init: a problem")
}

func TestWriteCPIO(t *testing.T) {
	var b bytes.Buffer
	must.NoError(t, writeCPIO(&b, []entry{{"dev", modeDir, nil}, {"init", modeExec, []byte("hello")}}))
	must.Eq(t, 0, b.Len()%4)
	must.Eq(t, 3, bytes.Count(b.Bytes(), []byte("070701")))
	must.True(t, bytes.Contains(b.Bytes(), []byte("TRAILER!!!\x00")))
	must.True(t, bytes.Contains(b.Bytes(), []byte("hello\x00\x00\x00070701")))
}
