// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package real

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/gputest"
	"github.com/ebbtide/ebbtide/device/real/report"
)

var pciAddress = regexp.MustCompile(`^[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9]$`)

// python returns the interpreter that has PyTorch with CUDA, or skips the test.
func python(t *testing.T) string {
	t.Helper()
	if site.IsFake() {
		t.Skip("PyTorch needs a real card")
	}
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3")
	}
	out, err := exec.CommandContext(within(t, 2*time.Minute), path, "-c", "import torch; print(torch.cuda.is_available())").CombinedOutput()
	if err != nil || string(out) != "True\n" {
		t.Skip("python3 has no PyTorch with CUDA")
	}
	return path
}

// Two training jobs at a time, each within its limit: what they see, are refused and learn, and
// what the library costs them.
func TestPyTorch(t *testing.T) {
	path := python(t)
	const limit = 3 * gib
	script, err := filepath.Abs("testdata/train.py")
	must.NoError(t, err)
	ctx := within(t, 3*time.Minute)
	job := func(container string, g *gputest.Gate, args ...string) *gputest.Process {
		return start(t, ctx, gputest.Job{Container: container, Gate: g, Program: path, Args: append([]string{script}, args...),
			Env: []string{"CUBLAS_WORKSPACE_CONFIG=:4096:8", "EBBTIDE_GATE_WAIT_MS=100"}})
	}

	t.Run("limit", func(t *testing.T) {
		g := open(t, budget, limit)
		p := job("limit", g, "limit")
		l := next(t, ctx, p, "refused")
		must.Eq(t, limit, l.Int("total"))
		must.Eq(t, true, l["refused"], must.Sprint("torch.cuda.OutOfMemoryError"))
		must.Eq(t, true, l["again"], must.Sprint("after freeing it works again"))
		must.Between(t, limit/2, l.Int("got"), limit)
		record(t, report.Measured("got", "what PyTorch's tensors get of a limit of 3 GiB", "%", 100*l.Float("got")/limit))
		must.NoError(t, p.Wait())
	})

	var plain, ours []float64
	for round := range 3 {
		var losses [2]any
		var step [2]float64
		for k := range 2 {
			way := (round + k) % 2 // 1: with the library
			var g *gputest.Gate
			if way == 1 {
				g = open(t, budget, limit)
			}
			p := job("alone", g, "train")
			l := next(t, ctx, p, "losses")
			must.NoError(t, p.Wait())
			losses[way], step[way] = l["losses"], l.Float("step_ms")
			if way == 1 {
				must.Eq(t, limit, l.Int("total"))
			}
		}
		must.Eq(t, losses[0], losses[1], must.Sprint("the library changes nothing that is computed"))
		plain, ours = append(plain, step[0]), append(ours, step[1])
	}
	compare(t, "training step", "ms", plain, ours)

	g := open(t, budget, limit)
	both := []*gputest.Process{job("one", g, "train"), job("two", g, "train")}
	var losses []any
	for _, p := range both {
		l := next(t, ctx, p, "losses")
		must.Eq(t, limit, l.Int("total"))
		losses = append(losses, l["losses"])
		must.NoError(t, p.Wait())
	}
	must.Eq(t, losses[0], losses[1])
	must.NoError(t, context.Cause(ctx))
}
