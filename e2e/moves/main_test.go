// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

func TestRun_usage(t *testing.T) {
	for _, args := range [][]string{{"-moves", "0"}, {"extra"}, {"-move", "1"}} {
		var out, errs bytes.Buffer
		must.Eq(t, 2, run(t.Context(), args, &out, &errs))
		must.NotEq(t, "", errs.String())
	}
	var out, errs bytes.Buffer
	must.Eq(t, 0, run(t.Context(), []string{"-h"}, &out, &errs))
}

func TestSteps(t *testing.T) {
	path := filepath.Join(t.TempDir(), "steps.jsonl")
	carried := "{\"step\": 1, \"elapsed_s\": 0.5}\n{\"step\": 2, \"elapsed_s\": 0.6}\n"
	must.NoError(t, os.WriteFile(path, []byte(carried+"{\"step\": 3, \"elapsed_s\": 0.1}\n{\"st"), 0o644))
	last, err := lastStep(path)
	must.NoError(t, err)
	must.Eq(t, line{Step: 3, Elapsed: 0.1}, last)
	first, err := firstAfter(path, int64(len(carried)))
	must.NoError(t, err)
	must.Eq(t, line{Step: 3, Elapsed: 0.1}, first)
	_, err = firstAfter(path, int64(len(carried))+31)
	must.ErrorContains(t, err, "reading the first step on the target")
	must.NoError(t, os.WriteFile(path, []byte("{"), 0o644))
	_, err = lastStep(path)
	must.ErrorContains(t, err, "no step")
}

func TestTable(t *testing.T) {
	text := table([]moved{{Gap: 1, Restore: 0.5, Again: 3}, {Gap: 2, Restore: 0.25, Again: 5}, {Gap: 4, Restore: 1, Again: 4}}).Text()
	must.StrContains(t, text, "3 moves of a training job")
	must.StrContains(t, text, "1.00 s  2.00 s  4.00 s")
	must.StrContains(t, text, "0.50 s  1.75 s  3.00 s")
}
