// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package real

import (
	"cmp"
	"context"
	"fmt"
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

// Allocators of PyTorch, as PYTORCH_CUDA_ALLOC_CONF: by cuMemAlloc, virtual memory and pools.
const (
	native     = ""
	expandable = "expandable_segments:True"
	pools      = "backend:cudaMallocAsync"
)

// script starts testdata/train.py, or skips the test where python3 lacks the framework.
func script(t *testing.T, framework, allocator string) func(ctx context.Context, container string, g *gputest.Gate, args ...string) *gputest.Process {
	t.Helper()
	if site.IsFake() {
		t.Skip(framework, " needs a real card")
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3")
	}
	if _, ok := site.frameworks[framework]; !ok { // it takes seconds
		check := map[string]string{"torch": "torch.cuda.is_available()", "jax": "jax.default_backend() == 'gpu'"}[framework]
		out, err := exec.CommandContext(within(t, 2*time.Minute), python, "-c", fmt.Sprintf("import %s; print(%s)", framework, check)).Output()
		site.frameworks[framework] = err == nil && string(out) == "True\n"
	}
	if !site.frameworks[framework] {
		t.Skipf("python3 has no %s with CUDA", framework)
	}
	train, err := filepath.Abs("testdata/train.py")
	must.NoError(t, err)
	return func(ctx context.Context, container string, g *gputest.Gate, args ...string) *gputest.Process {
		// What is computed must not depend on the run.
		env := []string{"CUBLAS_WORKSPACE_CONFIG=:4096:8", "XLA_FLAGS=--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0", "EBBTIDE_GATE_WAIT_MS=100"}
		if allocator != native {
			env = append(env, "PYTORCH_CUDA_ALLOC_CONF="+allocator)
		}
		if g == nil { // JAX takes three quarters of what it sees, else
			env = append(env, "XLA_PYTHON_CLIENT_PREALLOCATE=false")
		}
		return start(t, ctx, gputest.Job{Container: container, Gate: g, Program: python, Args: append([]string{train}, args...), Env: env})
	}
}

// Two training jobs at a time, each within its limit: what they see, are refused and learn, and
// what the library costs them.
func TestPyTorch(t *testing.T) {
	run := script(t, "torch", native)
	const limit = 3 * gib
	ctx := within(t, 3*time.Minute)
	job := func(container string, g *gputest.Gate, args ...string) *gputest.Process {
		return run(ctx, container, g, args...)
	}

	for _, allocator := range []string{native, expandable, pools} {
		t.Run("limit "+allocator, func(t *testing.T) {
			g := open(t, budget, limit)
			p := script(t, "torch", allocator)(ctx, "limit", g, "limit")
			l := next(t, ctx, p, "refused")
			must.Eq(t, limit, l.Int("total"))
			must.Eq(t, true, l["refused"], must.Sprint("torch.cuda.OutOfMemoryError"))
			must.Eq(t, true, l["again"], must.Sprint("after freeing it works again"))
			must.Between(t, limit/2, l.Int("got"), limit)
			record(t, report.Measured("got", "what PyTorch's tensors get of a limit of 3 GiB", "%", 100*l.Float("got")/limit).For("allocator "+cmp.Or(allocator, "native")))
			must.NoError(t, p.Wait())
		})
	}

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
			p := job("alone", g, "train", "300")
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
	both := []*gputest.Process{job("one", g, "train", "300"), job("two", g, "train", "300")}
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

// A training that is parked while it runs learns what it learns alone, whatever allocates its memory,
// also if its steps are a CUDA graph, which has addresses in it.
func TestParkTraining(t *testing.T) {
	const limit = 3 * gib
	alone := make(map[string]gputest.Line)
	for _, c := range []struct{ name, framework, what, allocator string }{
		{"PyTorch", "torch", "train", native},
		{"PyTorch, expandable", "torch", "train", expandable},
		{"PyTorch, pools", "torch", "train", pools},
		{"PyTorch, graph", "torch", "graph", native},
		{"JAX", "jax", "jax", native},
		{"PyTorch, compiled", "torch", "compiled", native},
	} {
		t.Run(c.name, func(t *testing.T) {
			run := script(t, c.framework, c.allocator)
			ctx := within(t, 2*time.Minute)
			e := parker(t, ctx, limit)
			want, ok := alone[c.what]
			if !ok {
				p := run(ctx, "alone", nil, c.what, "4000")
				want = next(t, ctx, p, "losses")
				must.NoError(t, p.Wait())
				alone[c.what] = want
			}

			g, before := open(t, budget, limit), usage(t, ctx)
			p := run(ctx, "parked", g, c.what, "4000")
			next(t, ctx, p, "quarter")
			proc := identified(t, p)
			full := onCard(t, ctx, before, p)
			must.NoError(t, g.Stop(ctx, "parked"))
			begun := time.Now()
			_, err := e.Park(ctx, proc)
			must.NoError(t, err)
			parked := time.Since(begun).Seconds()
			must.Less(t, full/10, onCard(t, ctx, before, p), must.Sprint("what is left on the card"))
			begun = time.Now()
			must.NoError(t, e.Restore(ctx, proc))
			back := time.Since(begun).Seconds()
			g.Go()
			got := next(t, ctx, p, "losses")
			must.NoError(t, p.Wait())
			must.Eq(t, want["losses"], got["losses"])
			record(t, report.Measured("size", "what a training has on the card", "MiB", inMiB(full)).For(c.name))
			record(t, report.Measured("park", "the time to park it", "s", parked).For(c.name))
			record(t, report.Measured("return", "the time until it is back", "s", back).For(c.name))
			record(t, report.Measured("total", "what it sees as the card's memory, of its limit of 3 GiB", "%", 100*got.Float("total")/limit).For(c.name))
		})
	}
}
