// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package real

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/fake"
	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gputest"
	"github.com/ebbtide/ebbtide/device/nvml"
	"github.com/ebbtide/ebbtide/device/real/report"
)

const (
	mib = 1 << 20
	gib = 1 << 30
	// budget is how much of the card the tests use, least what must be free.
	budget = 8 * gib
	least  = 9 * gib
)

var site struct {
	*gputest.Harness
	library *nvml.Library
	card    nvml.Card
	before  nvml.Usage // of the card
	// frameworks are those for which python3 was checked, and whether it has them, with CUDA.
	frameworks map[string]bool
}

// TestMain prepares the card: with EBBTIDE_TEST_GPU=real this machine's first NVIDIA card, else a
// fake one. Results go to the file that report.Variable names.
func TestMain(m *testing.M) {
	gputest.Helper(os.Args)
	flag.Parse()
	if flag.Lookup("test.list").Value.String() != "" {
		os.Exit(m.Run()) // no test runs
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	site.frameworks = make(map[string]bool)
	tmp, err := os.MkdirTemp("", "ebbtide-real")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(tmp)
	skip, err := prepare(tmp)
	switch {
	case err != nil:
		fmt.Println(err)
		return 1
	case skip != "":
		fmt.Println("skipped:", skip)
		if err := tell(report.Line{None: skip}); err != nil {
			fmt.Println(err)
			return 1
		}
		return 0
	}
	return m.Run()
}

// found returns the folder with the library, the workload and, for a fake card, its driver: this
// program's, or tmp, into which they are built.
func found(tmp string, real bool) (dir string, err error) {
	dir, err = fake.Beside()
	switch {
	case err != nil:
		return "", err
	case dir != "" && real:
		return dir, nil
	case dir != "":
		return filepath.Join(dir, "fake"), nil
	}
	dir = filepath.Join(tmp, "built")
	return dir, gputest.Build(dir)
}

// prepare makes the site, or returns why the tests cannot run here.
func prepare(tmp string) (skip string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	kind := os.Getenv("EBBTIDE_TEST_GPU")
	real := kind == "real"
	switch {
	case real:
		site.library = nvml.New("")
		if _, err := site.library.Cards(); errors.Is(err, nvml.ErrNone) {
			return "there is no NVIDIA card on this machine: " + err.Error(), nil
		}
	case kind != "" && kind != "fake":
		return "", fmt.Errorf("EBBTIDE_TEST_GPU: must be real, fake or empty, got %q", kind)
	}
	built, err := found(tmp, real)
	if errors.Is(err, fake.ErrNoCompiler) {
		return err.Error(), nil
	} else if err != nil {
		return "", err
	}
	scratch := filepath.Join(tmp, "scratch")
	if err := os.Mkdir(scratch, 0o755); err != nil {
		return "", err
	}
	if !real {
		site.Harness = gputest.Fake(built, scratch, gputest.Card{Memory: 16 * gib, Reserved: 300 * mib, Context: 400 * mib, Lazy: 32 * mib, Kernel: 10 * time.Microsecond})
		if err := os.Setenv("EBBTIDE_FAKE_GPU", filepath.Join(scratch, "card")); err != nil {
			return "", err
		}
		if _, err := site.Usage(ctx); err != nil { // makes the card, before NVML is loaded here
			return "", err
		}
		site.library = nvml.New(filepath.Join(built, "libnvidia-ml.so.1"))
	}
	cards, err := site.library.Cards()
	if err != nil {
		return "", err
	}
	if len(cards) == 0 {
		return "the driver knows of no card", nil
	}
	site.card = cards[0]
	site.before, err = site.library.Usage(site.card.UUID)
	switch {
	case err != nil:
		return "", err
	case site.card.MIG:
		return "the first card is divided by MIG", nil
	case site.before.Free < least:
		return fmt.Sprintf("%d MiB of the first card are free, and %d are needed", site.before.Free/mib, least/mib), nil
	}
	if site.Harness == nil {
		context, err := contextOf(ctx, gputest.Real(built, scratch, 512*mib))
		if err != nil {
			return "", err
		}
		site.Harness = gputest.Real(built, scratch, context)
	}
	u, err := site.Usage(ctx)
	if err != nil {
		return "", err
	}
	return "", tell(report.Line{Card: &report.Card{
		Name: site.card.Name, UUID: site.card.UUID, Driver: site.card.Driver, CUDA: fmt.Sprintf("%d.%d", u.CUDA/1000, u.CUDA%1000/10),
		MemoryMiB: inMiB(site.card.Memory), ReservedMiB: inMiB(site.card.Reserved), FreeMiB: inMiB(site.before.Free), ContextMiB: inMiB(site.Context()),
	}})
}

// contextOf measures what a context takes, in bytes: what a process with one has beyond what it
// allocated.
func contextOf(ctx context.Context, r *gputest.Harness) (uint64, error) {
	const asked = 64 * mib
	before, err := r.Usage(ctx)
	if err != nil {
		return 0, err
	}
	p, err := r.Start(ctx, gputest.Job{Args: []string{"--steps", "1", "--bytes", strconv.Itoa(asked), "--hold-ms", "-1"}})
	if err != nil {
		return 0, err
	}
	if _, err := p.Next(ctx, "step"); err != nil {
		return 0, fmt.Errorf("measuring a context: %w", err)
	}
	after, err := r.Usage(ctx)
	if err := errors.Join(err, p.Wait()); err != nil {
		return 0, fmt.Errorf("measuring a context: %w", err)
	}
	held := after.Processes[p.PID]
	if held == 0 { // NVML does not know it by its pid here
		held = after.Used - min(before.Used, after.Used)
	}
	if held <= asked {
		return 0, fmt.Errorf("measuring a context: a process with one and %d bytes has %d", asked, held)
	}
	return held - asked, nil
}

func tell(l report.Line) error {
	path := os.Getenv(report.Variable)
	if path == "" {
		return nil
	}
	return report.Append(path, l)
}

func record(t *testing.T, f report.Figure) {
	t.Helper()
	f.Test, _, _ = strings.Cut(t.Name(), "/")
	t.Log(f)
	must.NoError(t, tell(report.Line{Figure: &f}))
}

func inMiB(bytes uint64) float64 { return float64(bytes) / mib }

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// open opens a gate over that many bytes of the card, in which each container has a limit.
func open(t *testing.T, bytes, limit uint64, change ...func(*gate.Options)) *gputest.Gate {
	t.Helper()
	g, err := site.Open(site.card.UUID, bytes, func(o *gate.Options) {
		o.Shares = gputest.Shares{Otherwise: gate.Share{Bytes: limit}}
		for _, f := range change {
			f(o)
		}
	})
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, g.Close()) })
	return g
}

func start(t *testing.T, ctx context.Context, j gputest.Job) *gputest.Process {
	t.Helper()
	p, err := site.Start(ctx, j)
	must.NoError(t, err)
	t.Cleanup(func() {
		_ = p.Kill()
		_ = p.Wait()
	})
	return p
}

func next(t *testing.T, ctx context.Context, p *gputest.Process, key string) gputest.Line {
	t.Helper()
	l, err := p.Next(ctx, key)
	must.NoError(t, err)
	return l
}

func held(t *testing.T, g *gputest.Gate, container string) uint64 {
	t.Helper()
	s, ok := g.Of(container)
	must.True(t, ok, must.Sprint("the gate does not know ", container))
	must.Len(t, 1, s.Usage)
	return s.Usage[0].Held.LimitUsage()
}

// onCard returns what processes have according to NVML, in bytes: by pid or, where NVML does not know the
// pids, by the growth of the card's usage.
func onCard(t *testing.T, ctx context.Context, before gputest.Usage, processes ...*gputest.Process) uint64 {
	t.Helper()
	u, err := site.Usage(ctx)
	must.NoError(t, err)
	var sum uint64
	for _, p := range processes {
		sum += u.Processes[p.PID]
	}
	if sum == 0 {
		sum = u.Used - min(before.Used, u.Used)
	}
	return sum
}

func usage(t *testing.T, ctx context.Context) gputest.Usage {
	t.Helper()
	u, err := site.Usage(ctx)
	must.NoError(t, err)
	return u
}
