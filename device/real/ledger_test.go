// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package real

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gputest"
	"github.com/ebbtide/ebbtide/device/real/report"
)

const reserve = 512 * mib

func physical() uint64 { return site.card.Memory - site.card.Reserved }

// The gate divides no more than CUDA has, less the reserve, and its ledger has all that processes
// have on the card.
func TestLedger(t *testing.T) {
	ctx := within(t, time.Minute)
	p := start(t, ctx, gputest.Job{Args: []string{"--mode", "sizes"}})
	l := next(t, ctx, p, "stage")
	must.NoError(t, p.Tell())
	must.NoError(t, p.Wait())
	cuda := uint64(l.Float("device_total"))
	const total = "the card's memory"
	record(t, report.Measured("memory", total, "MiB", inMiB(site.card.Memory)).For("NVML, total"))
	record(t, report.Measured("memory", total, "MiB", inMiB(site.card.Reserved)).For("NVML, kept by the driver"))
	record(t, report.Measured("memory", total, "MiB", inMiB(cuda)).For("CUDA, total"))
	record(t, report.Measured("more", "what the gate divides beyond CUDA's total; it must be less than reserve_mib, 512", "MiB", inMiB(physical())-inMiB(cuda)))
	must.Less(t, cuda+reserve, physical())

	before := usage(t, ctx)
	g := open(t, physical(), 2*gib, func(o *gate.Options) { o.Measure = site.Measure })
	all := make(map[string]*gputest.Process)
	for _, kind := range []string{"sync", "async", "vmm", "array"} {
		all[kind] = start(t, ctx, gputest.Job{Container: kind, Gate: g, Env: []string{"EBBTIDE_GATE_WAIT_MS=10"}, Args: []string{
			"--mode", "fill", "--alloc", kind, "--bytes", strconv.Itoa(64 * mib), "--least", strconv.Itoa(2 * mib), "--hold-ms", "-1",
		}})
		next(t, ctx, all[kind], "code")
	}
	// What this one launches is loaded then, without a call.
	all["launches"] = start(t, ctx, gputest.Job{Container: "launches", Gate: g, Args: []string{"--steps", "1", "--bytes", strconv.Itoa(256 * mib), "--count", "1", "--hold-ms", "-1"}})
	next(t, ctx, all["launches"], "round")
	card := onCard(t, ctx, before, slices.Collect(maps.Values(all))...)
	must.GreaterEq(t, uint64(4*gib), card, must.Sprint("the jobs hold memory"))
	var accounted uint64
	eventually(t, ctx, "the ledger has what the card has", func() error {
		accounted = 0
		for kind := range all {
			accounted += held(t, g, kind)
		}
		if accounted < card {
			return fmt.Errorf("the ledger has %d bytes, and the card %d", accounted, card)
		}
		return nil
	})
	cards := g.Cards()
	must.Len(t, 1, cards)
	must.Eq(t, physical(), cards[0].Physical)
	must.LessEq(t, physical(), accounted)
	must.LessEq(t, physical(), cards[0].Held.CardUsage())
	record(t, report.Measured("ledger", "what the gate's ledger has of four jobs that fill 2 GiB each and one that computes", "MiB", inMiB(accounted)))
	record(t, report.Measured("card", "what NVML says that these have", "MiB", inMiB(card)))
	for _, p := range all {
		p.Release()
		must.NoError(t, p.Wait())
	}
}

// What cuGetProcAddress returns for a hooked name is the library's.
func TestAddresses(t *testing.T) {
	ctx := within(t, time.Minute)
	look := func(g *gputest.Gate) (all []gputest.Line) {
		p := start(t, ctx, gputest.Job{Container: "addresses", Gate: g, Args: []string{"--mode", "addresses"}})
		for {
			l, err := p.Next(ctx, "")
			must.NoError(t, err)
			if _, ok := l["names"]; ok {
				break
			}
			all = append(all, l)
		}
		must.NoError(t, p.Wait())
		return all
	}
	count := func(all []gputest.Line, is func(gputest.Line) bool) (n int, text []string) {
		for _, l := range all {
			if is(l) {
				n++
				text = append(text, fmt.Sprint(map[string]any(l)))
			}
		}
		return n, text
	}
	ours := func(l gputest.Line) bool { return l["file"] == "libebbtide-cuda.so" }
	strange := func(l gputest.Line) bool { return l.Int("same") == 0 }
	plain, with := look(nil), look(open(t, budget, gib))
	must.Positive(t, len(plain))
	n, _ := count(plain, ours)
	must.Zero(t, n, must.Sprint("without the library"))
	odd, text := count(plain, strange)
	const what = "addresses that cuGetProcAddress returns for names that are hooked, over all versions and kinds of streams"
	record(t, report.Measured("addresses", what, "", float64(len(plain))).For("the driver's"))
	record(t, report.Measured("addresses", what, "", float64(odd)).For("of these, unknown to dlsym"))
	n, _ = count(with, ours)
	record(t, report.Measured("addresses", what, "", float64(n)).For("the library's, with it"))
	_, missed := count(with, func(l gputest.Line) bool { return !ours(l) })
	must.SliceEmpty(t, missed, must.Sprint("these are not counted; unknown to dlsym: ", strings.Join(text, "\n")))
	must.Positive(t, n)
}

// cublas returns the path of a cuBLAS, the toolkit's or python3's, or why there is none.
func cublas(t *testing.T, ctx context.Context) (path, why string) {
	t.Helper()
	if site.IsFake() {
		return "", "cuBLAS needs a real card"
	}
	patterns := []string{"/usr/local/cuda*/lib64/libcublas.so.*", "/usr/lib/*/libcublas.so.*", "/usr/lib64/libcublas.so.*"}
	if out, err := exec.CommandContext(ctx, "python3", "-c", "import nvidia; print(list(nvidia.__path__)[0], end='')").Output(); err == nil {
		patterns = append(patterns, filepath.Join(string(out), "cu*/lib/libcublas.so.*"))
	}
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		must.NoError(t, err)
		if len(found) > 0 {
			return found[len(found)-1], ""
		}
	}
	return "", "there is no libcublas.so here"
}

func TestSizes(t *testing.T) {
	ctx := within(t, time.Minute)
	run := func(args ...string) map[string]float64 {
		before := usage(t, ctx)
		p := start(t, ctx, gputest.Job{Args: append([]string{"--mode", "sizes"}, args...)})
		has := make(map[string]float64)
		for {
			l, err := p.Next(ctx, "")
			must.NoError(t, err)
			if name, ok := l["stage"].(string); ok {
				has[name] = inMiB(onCard(t, ctx, before, p))
				must.NoError(t, p.Tell())
			} else if _, ok := l["done"]; ok {
				must.NoError(t, p.Wait())
				return has
			}
		}
	}
	var contexts []float64
	for range 3 {
		contexts = append(contexts, run()["context"])
	}
	record(t, report.Measured("context", "what a process with a context and a small module has on the card, according to NVML", "MiB", contexts...))
	must.Positive(t, slices.Min(contexts))

	t.Run("cuBLAS", func(t *testing.T) {
		const handle, product = "what a handle of cuBLAS takes", "what its first product takes on top, of matrices of 1024 × 1024"
		library, why := cublas(t, ctx)
		if library == "" {
			record(t, report.Missing("handle", handle, "MiB", why))
			record(t, report.Missing("product", product, "MiB", why))
			t.Skip(why)
		}
		has := run("--library", library)
		record(t, report.Measured("handle", handle, "MiB", has["handle"]-has["memory"]).For(filepath.Base(library)))
		record(t, report.Measured("product", product, "MiB", has["product"]-has["handle"]).For(filepath.Base(library)))
		must.GreaterEq(t, has["memory"], has["handle"])
	})
}

// Each kind of allocation takes at least what was requested, less the context's spare memory, and
// returns it, less what the driver keeps.
func TestRounding(t *testing.T) {
	const spare, kept = 4 * mib, 64 * mib
	for _, kind := range []string{"sync", "async", "vmm", "array"} {
		t.Run(kind, func(t *testing.T) {
			ctx := within(t, time.Minute)
			p := start(t, ctx, gputest.Job{Args: []string{"--mode", "rounding", "--alloc", kind}})
			for range 5 {
				l := next(t, ctx, p, "size")
				of := fmt.Sprintf("%s, %d", kind, l.Int("size"))
				if l.Int("asked") != l.Int("size") {
					of += fmt.Sprintf(" as %d", l.Int("asked"))
				}
				record(t, report.Measured("first", "what the first allocation of this size takes, by cuMemGetInfo", "bytes", l.Float("first")).For(of))
				record(t, report.Measured("each", "what each of 32 takes", "bytes", l.Float("all")/l.Float("count")).For(of))
				record(t, report.Measured("left", "what of that does not come free with them", "bytes", l.Float("left")).For(of))
				must.GreaterEq(t, l.Int("asked")*l.Int("count")-spare, l.Int("all"))
				must.LessEq(t, kept, l.Int("left"))
			}
			next(t, ctx, p, "done")
			must.NoError(t, p.Wait())
		})
	}
}

func eventually(t *testing.T, ctx context.Context, what string, is func() error) {
	t.Helper()
	for {
		err := is()
		if err == nil {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		}
	}
}
