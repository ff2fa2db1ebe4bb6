// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package preload

import (
	"bufio"
	"bytes"
	"debug/elf"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ebbtide/ebbtide/device/fake"
	"github.com/shoenig/test/must"
)

const (
	mib     = 1 << 20
	context = 8 * mib // the fake's
)

var dir string // of the build results

//go:embed src/calls.def
var calls string // there is no source next to this program in the bundle

// TestMain builds everything once, unless it is next to this program. EBBTIDE_CFLAGS builds it
// with other flags, EBBTIDE_PRELOAD_FIRST names a library to load before it, such as a sanitizer,
// EBBTIDE_WRAPPER a program that runs the workload, such as valgrind.
func TestMain(m *testing.M) {
	beside, err := fake.Beside()
	if err == nil && beside != "" {
		dir = filepath.Join(beside, "fake")
		os.Exit(m.Run())
	}
	tmp := ""
	if err == nil {
		tmp, err = os.MkdirTemp("", "ebbtide-preload")
	}
	if err == nil {
		var vars []string
		if flags := os.Getenv("EBBTIDE_CFLAGS"); flags != "" {
			vars = append(vars, "CFLAGS="+flags)
		}
		err = fake.Build(tmp, vars...)
	}
	switch {
	case errors.Is(err, fake.ErrNoCompiler):
		fmt.Println("skipped:", err)
		os.Exit(0)
	case err != nil:
		fmt.Println(err)
		os.Exit(1)
	}
	dir = tmp
	code := m.Run()
	os.RemoveAll(tmp)
	os.Exit(code)
}

type line map[string]any

func (l line) n(key string) int64 {
	f, _ := l[key].(float64)
	return int64(f)
}

type job struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan line
	errs  bytes.Buffer
}

// start runs the workload with the library and the gate at a path; "-": without the library.
func start(t *testing.T, gate string, env []string, args ...string) *job {
	t.Helper()
	j := &job{t: t, cmd: exec.Command(filepath.Join(dir, "workload"), args...), lines: make(chan line, 10000)}
	if slices.Contains(args, "linked") {
		j.cmd.Path = filepath.Join(dir, "workload-linked")
	}
	if w := strings.Fields(os.Getenv("EBBTIDE_WRAPPER")); len(w) > 0 {
		path, err := exec.LookPath(w[0])
		must.NoError(t, err)
		j.cmd.Args = append(append(slices.Clone(w), j.cmd.Path), args...)
		j.cmd.Path = path
	}
	j.cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "EBBTIDE_FAKE_GPU="+filepath.Join(t.TempDir(), "gpu"), "EBBTIDE_GATE_LOG=1", "EBBTIDE_GATE_CONTEXT="+strconv.Itoa(context))
	if gate != "-" {
		j.cmd.Env = append(j.cmd.Env, "LD_PRELOAD="+os.Getenv("EBBTIDE_PRELOAD_FIRST")+" "+filepath.Join(dir, "libebbtide-cuda.so"), "EBBTIDE_GATE="+gate)
	}
	j.cmd.Env = append(j.cmd.Env, env...)
	j.cmd.Stderr = &j.errs
	var err error
	j.stdin, err = j.cmd.StdinPipe()
	must.NoError(t, err)
	out, err := j.cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, j.cmd.Start())
	t.Cleanup(func() { _ = j.cmd.Process.Kill() })
	go func() {
		defer close(j.lines)
		s := bufio.NewScanner(out)
		for s.Scan() {
			l := line{}
			if json.Unmarshal(s.Bytes(), &l) == nil {
				j.lines <- l
			}
		}
	}()
	return j
}

func (j *job) next(key string) line {
	j.t.Helper()
	for {
		select {
		case l, ok := <-j.lines:
			if !ok {
				j.t.Fatalf("ended without %q: %s", key, j.errs.String())
			}
			if _, ok := l[key]; ok {
				return l
			}
		case <-time.After(20 * time.Second):
			j.t.Fatalf("no %q", key)
		}
	}
}

// card returns how many bytes of the job's card are in use, as NVML tells others.
func (j *job) card(t *testing.T) int64 {
	t.Helper()
	c := exec.Command(filepath.Join(dir, "workload"), "--mode", "card")
	c.Env = slices.DeleteFunc(slices.Clone(j.cmd.Env), func(v string) bool { return strings.HasPrefix(v, "LD_PRELOAD=") })
	out, err := c.Output()
	must.NoError(t, err)
	l := line{}
	must.NoError(t, json.Unmarshal(out[bytes.LastIndex(out[:len(out)-1], []byte("\n"))+1:], &l))
	return l.n("card_used")
}

func (j *job) end() {
	j.t.Helper()
	j.next("done")
	for range j.lines {
	}
	must.NoError(j.t, j.cmd.Wait(), must.Sprint(j.errs.String()))
}

// However a program finds the driver, it gets the library, and each kind of memory is counted and
// returned.
func TestResolve(t *testing.T) {
	for _, how := range []string{"linked", "dlsym", "next", "procaddress"} {
		for _, kind := range []string{"sync", "async", "vmm", "managed"} {
			t.Run(how+"/"+kind, func(t *testing.T) {
				g := startGate(t, 512*mib)
				j := start(t, g.path, []string{"EBBTIDE_GATE_CREDIT=1"}, "--resolve", how, "--alloc", kind, "--steps", "4", "--bytes", strconv.Itoa(16*mib))
				for i := range 4 {
					l := j.next("step")
					must.Eq(t, 512*mib, l.n("memory"))
					must.Eq(t, 512*mib-context-int64(i+1)*16*mib, l.n("free"))
				}
				j.next("done")
				g.fine()
				must.Eq(t, context+4*16*mib, int(g.most))
				must.Eq(t, kind == "managed", g.count(pinned) > 0)
			})
		}
	}
}

// Each hook calls the variant of its own name: that one's error code comes through.
func TestVariants(t *testing.T) {
	for _, how := range []string{"linked", "dlsym", "next", "procaddress"} {
		want := start(t, "-", nil, "--mode", "variants", "--resolve", how).next("cuMemAlloc_v2")
		g := startGate(t, 512*mib)
		j := start(t, g.path, nil, "--mode", "variants", "--resolve", how)
		must.Eq(t, want, j.next("cuMemAlloc_v2"))
		j.end()
		g.fine()
	}
}

func TestTransparent(t *testing.T) {
	for name, env := range map[string][]string{
		"no gate named":   {"EBBTIDE_GATE="},
		"no gate there":   {"EBBTIDE_GATE=/nonexistent/gate.sock"},
		"a path too long": {"EBBTIDE_GATE=/" + strings.Repeat("x", 200)},
	} {
		t.Run(name, func(t *testing.T) {
			j := start(t, "", env, "--mode", "fill", "--bytes", strconv.Itoa(mib))
			l := j.next("code")
			must.Eq(t, 2, l.n("code"))
			must.Eq(t, 1<<30-context, l.n("got"))
			must.Eq(t, 1<<30, l.n("memory"))
			j.end()
		})
	}
}

// At the limit: error 2 and no other, figures that agree, and the limit met to the byte.
func TestLimit(t *testing.T) {
	for _, kind := range []string{"sync", "async", "vmm"} {
		t.Run(kind, func(t *testing.T) {
			const limit = 300 * mib
			g := startGate(t, limit)
			j := start(t, g.path, []string{"EBBTIDE_GATE_WAIT_MS=10"}, "--mode", "fill", "--alloc", kind, "--bytes", strconv.Itoa(2*mib))
			l := j.next("code")
			must.Eq(t, 2, l.n("code"))
			must.Eq(t, limit-context, l.n("got"))
			must.Eq(t, limit, l.n("memory"))
			must.Zero(t, l.n("free"))
			j.end()
			g.fine()
		})
	}
}

// A pool grows in pieces. One that would exceed the limit is not taken.
func TestPoolPieces(t *testing.T) {
	const limit = 301 * mib // the last MiB is half of a piece
	g := startGate(t, limit)
	j := start(t, g.path, []string{"EBBTIDE_GATE_WAIT_MS=10"}, "--mode", "fill", "--alloc", "async", "--bytes", strconv.Itoa(16*mib), "--least", "4096", "--hold-ms", "-1")
	in := j.stdin
	l := j.next("code")
	must.Eq(t, 2, l.n("code"))
	must.Eq(t, limit-mib-context, l.n("got"))
	must.Eq(t, limit-mib, j.card(t))
	must.NoError(t, in.Close())
	j.end()
	g.fine()
}

func TestFiguresAgree(t *testing.T) {
	g := startGate(t, 300*mib)
	j := start(t, g.path, nil, "--mode", "nvml", "--bytes", strconv.Itoa(32*mib))
	l := j.next("nvml_used")
	must.Eq(t, 300*mib, l.n("memory"))
	must.Eq(t, 300*mib, l.n("device_total"))
	must.Eq(t, 300*mib, l.n("nvml_total"))
	must.Eq(t, l.n("free"), l.n("nvml_free"))
	must.Eq(t, 300*mib-l.n("free"), l.n("nvml_used"))
	must.Eq(t, context+32*mib, l.n("nvml_used"))
	must.Eq(t, 1, l.n("processes"))
	must.Eq(t, context+32*mib, l.n("own"))
	j.end()
	g.fine()
}

func TestThreads(t *testing.T) {
	g := startGate(t, 900*mib)
	j := start(t, g.path, []string{"EBBTIDE_GATE_CREDIT=1048576"}, "--threads", "16", "--steps", "20", "--bytes", strconv.Itoa(mib))
	j.end()
	g.fine()
}

// Handles, addresses and pools that the driver gives to another thread at once: each is given up
// before the driver's call, and no pool is asked about while it is destroyed.
func TestChurn(t *testing.T) {
	for _, kind := range []string{"sync", "async", "vmm", "pool"} {
		t.Run(kind, func(t *testing.T) {
			g := startGate(t, 512*mib)
			j := start(t, g.path, []string{"EBBTIDE_GATE_CREDIT=1"}, "--mode", "churn", "--alloc", kind, "--threads", "4", "--count", "2000", "--bytes", strconv.Itoa(2*mib))
			must.Eq(t, 512*mib-context, j.next("free").n("free"))
			j.end()
			g.fine()
		})
	}
}

// With the driver's real library, which loads without a card, programs get the hooks: every address that
// cuGetProcAddress returns for a hooked name is the preload library's.
func TestDriver(t *testing.T) {
	real := os.Getenv("EBBTIDE_LIBCUDA")
	if real == "" {
		t.Skip("EBBTIDE_LIBCUDA does not name NVIDIA's libcuda.so.1, which make test downloads")
	}
	look := func(gate string) (all []line) {
		j := start(t, gate, []string{"LD_LIBRARY_PATH=" + filepath.Dir(real)}, "--mode", "addresses")
		for l := range j.lines {
			if _, is := l["proc"]; is {
				all = append(all, l)
			}
		}
		must.NoError(t, j.cmd.Wait(), must.Sprint(j.errs.String()))
		return all
	}
	plain, with := look("-"), look("/nowhere")
	must.Greater(t, 150, len(plain), must.Sprint("addresses"))
	for _, l := range plain {
		must.Eq[any](t, "libcuda.so.1", l["file"])
	}
	must.SliceNotEmpty(t, with)
	for _, l := range with {
		must.Eq[any](t, "libebbtide-cuda.so", l["file"], must.Sprint(l))
	}
}

func TestNoContext(t *testing.T) {
	g := startGate(t, 300*mib)
	j := start(t, g.path, nil, "--mode", "thread")
	must.Eq(t, 201, j.next("code").n("code"))
	j.end()
	g.fine()
}

// A forked child has its own connection; its parent's connection and memory stay the parent's.
func TestFork(t *testing.T) {
	g := startGate(t, 300*mib)
	j := start(t, g.path, []string{"EBBTIDE_FAKE_FORK=1"}, "--mode", "fork", "--steps", "3")
	must.Zero(t, j.next("child").n("child"))
	j.end()
	must.Eq(t, 2, g.hellos)
	g.fine()
}

// During a capture nothing waits; the graph's memory is requested at its launch.
func TestCapture(t *testing.T) {
	g := startGate(t, 300*mib)
	j := start(t, g.path, []string{"EBBTIDE_GATE_WAIT_MS=20000", "EBBTIDE_GATE_CREDIT=1"}, "--mode", "capture", "--bytes", strconv.Itoa(64*mib))
	l := j.next("took")
	must.Eq(t, 2, l.n("code"))
	must.Less(t, 5, l["took"].(float64))
	must.Eq(t, 300*mib-context-64*mib, j.next("launched").n("free"))
	j.end()
	g.fine()
}

// A capture whose stream is destroyed is over: what is allocated then waits again.
func TestCapture_dropped(t *testing.T) {
	g := startGate(t, 300*mib)
	j := start(t, g.path, []string{"EBBTIDE_GATE_WAIT_MS=500"}, "--mode", "dropped")
	l := j.next("took")
	must.Eq(t, 2, l.n("code"))
	must.GreaterEq(t, 0.4, l["took"].(float64))
	j.end()
	g.fine()
}

// Threads capture at the same time, each in its own default stream: what a thread allocates there
// belongs to its graph. The limit has room for one graph at a time.
func TestCapture_threads(t *testing.T) {
	g := startGate(t, context+128*mib)
	j := start(t, g.path, []string{"EBBTIDE_GATE_CREDIT=1"}, "--mode", "capture", "--own-stream", "--threads", "2", "--bytes", strconv.Itoa(64*mib))
	for range 2 {
		must.Zero(t, j.next("launched").n("free"))
	}
	j.end()
	g.fine()
}

func TestPinned(t *testing.T) {
	for mode, reason := range map[string]uint64{"ipc": 2, "dmabuf": 4, "multicast": 6} {
		g := startGate(t, 300*mib)
		j := start(t, g.path, nil, "--mode", mode)
		j.end()
		g.fine()
		must.Len(t, 1, g.heard, must.Sprint(mode))
		must.Eq(t, reason, g.heard[0].Arg)
	}
}

// The driver has a newer version of a function than the library: a program could bypass the gate,
// so the process is pinned, once.
func TestNewerDriver(t *testing.T) {
	for _, name := range []string{"cuMemAlloc", "cuMemAllocAsync_ptsz", "cuCtxCreate"} {
		g := startGate(t, 300*mib)
		j := start(t, g.path, []string{"EBBTIDE_FAKE_NEWER=" + name}, "--threads", "4", "--steps", "3")
		j.end()
		g.fine()
		must.Len(t, 1, g.heard)
		must.Eq(t, 5, g.heard[0].Arg)
	}
}

func TestNewerDriver_reconnect(t *testing.T) {
	g := startGate(t, 300*mib)
	j := start(t, g.path, []string{"EBBTIDE_FAKE_NEWER=cuMemAlloc"}, "--steps", "1", "--hold-ms", "-1")
	j.next("step")
	g.stop()
	must.NoError(t, os.RemoveAll(g.path))
	g.listen()
	eventually(t, "it has connected again", func() bool { return g.count(hello) == 2 && g.count(pinned) > 1 })
	must.NoError(t, j.stdin.Close())
	j.end()
	g.fine()
	must.Eq(t, 2, g.count(pinned))
}

// The gate dies and returns: the job continues within its credit, and reports what it holds.
func TestGateReturns(t *testing.T) {
	g := startGate(t, 512*mib)
	j := start(t, g.path, []string{"EBBTIDE_GATE_CREDIT=" + strconv.Itoa(32*mib)}, "--steps", "30", "--pause-ms", "50", "--bytes", strconv.Itoa(4*mib))
	for range 5 {
		j.next("step")
	}
	g.stop()
	j.next("step") // within the credit
	must.NoError(t, os.RemoveAll(g.path))
	g.listen()
	j.end()
	g.fine()
	must.Eq(t, 2, g.hellos)
	must.Len(t, 1, g.heard)
	must.Eq(t, uint16(holds), g.heard[0].Type)
	must.Between(t, context+5*4*mib, g.heard[0].Bytes, context+7*4*mib+2*32*mib)
}

// The gate dies and returns while a job waits for memory: the job does not report what it has not
// got, and keeps waiting.
func TestGateReturnsToWaiting(t *testing.T) {
	g := startGate(t, 100*mib)
	j := start(t, g.path, []string{"EBBTIDE_GATE_CREDIT=1", "EBBTIDE_GATE_WAIT_MS=60000"}, "--steps", "1", "--bytes", strconv.Itoa(120*mib))
	waits := func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.waiting == 1
	}
	eventually(t, "it waits", waits)
	g.stop()
	must.NoError(t, os.RemoveAll(g.path))
	g.listen()
	eventually(t, "it is back, and waits again", func() bool { return g.count(hello) == 2 && waits() })
	g.mu.Lock()
	heard := g.heard
	g.limit = 200 * mib
	g.mu.Unlock()
	must.Len(t, 1, heard)
	must.Eq(t, uint64(context), heard[0].Bytes)
	j.end()
	g.fine()
}

// A job reports its holdings to a gate that starts later.
func TestGateComesLate(t *testing.T) {
	g := startGate(t, 512*mib)
	g.stop()
	os.RemoveAll(g.path)
	j := start(t, g.path, nil, "--steps", "40", "--pause-ms", "50", "--bytes", strconv.Itoa(4*mib))
	j.next("step")
	g.listen()
	j.end()
	g.fine()
	must.Eq(t, uint16(holds), g.heard[0].Type)
	must.Greater(t, uint64(context), g.heard[0].Bytes)
}

// Beyond the credit, without a gate, a request waits for its deadline and is denied.
func TestGateUnreachable(t *testing.T) {
	g := startGate(t, 512*mib)
	j := start(t, g.path, []string{"EBBTIDE_GATE_CREDIT=1", "EBBTIDE_GATE_WAIT_MS=300"}, "--steps", "40", "--pause-ms", "20", "--bytes", strconv.Itoa(4*mib))
	j.next("step")
	g.stop()
	must.Eq(t, 2, j.next("error").n("error"))
	for range j.lines {
	}
	var exit *exec.ExitError
	must.True(t, errors.As(j.cmd.Wait(), &exit))
	must.Eq(t, 2, exit.ExitCode())
}

// A pause during launches is answered when the submitted work is done, and nothing is submitted
// until it ends.
func TestPause(t *testing.T) {
	g := startGate(t, 900*mib)
	const kernel = 20 * time.Millisecond
	j := start(t, g.path, []string{"EBBTIDE_FAKE_KERNEL_US=" + strconv.Itoa(int(kernel.Microseconds()))},
		"--threads", "3", "--steps", "12", "--pause-ms", "10", "--bytes", strconv.Itoa(mib))
	for range 9 {
		j.next("step")
	}
	for range 3 {
		before, stood := g.count(paused), g.count(active)
		g.all(message{Type: pause})
		eventually(t, "paused", func() bool { return g.count(paused) > before })
		for len(j.lines) > 0 { // what was printed before
			<-j.lines
		}
		time.Sleep(50 * time.Millisecond)
		for len(j.lines) > 0 { // the line of a step whose launches were done
			<-j.lines
		}
		time.Sleep(200 * time.Millisecond)
		must.Zero(t, len(j.lines), must.Sprint("a step during the pause"))
		must.Greater(t, stood, g.count(active), must.Sprint("it reports that it has work to submit"))
		g.all(message{Type: resume})
		if before < 2 {
			j.next("step")
		}
	}
	j.end()
	g.fine()
}

// A context is not destroyed while a pause waits for its work.
func TestPause_contexts(t *testing.T) {
	g := startGate(t, 900*mib)
	j := start(t, g.path, []string{"EBBTIDE_FAKE_KERNEL_US=200"}, "--mode", "contexts", "--threads", "4", "--count", "500", "--pause-ms", "1")
	eventually(t, "connected", func() bool { return g.count(request) > 0 })
	for range 40 {
		before := g.count(paused)
		g.all(message{Type: pause})
		eventually(t, "paused", func() bool { return g.count(paused) > before || len(j.lines) > 0 })
		g.all(message{Type: resume})
		time.Sleep(time.Millisecond)
	}
	j.end()
	g.fine()
}

func TestPauseEndsWithGate(t *testing.T) {
	g := startGate(t, 900*mib)
	j := start(t, g.path, nil, "--steps", "20", "--pause-ms", "10", "--bytes", "65536")
	j.next("step")
	g.all(message{Type: pause})
	eventually(t, "paused", func() bool { return g.count(paused) > 0 })
	g.stop()
	j.end()
}

// What a context takes beyond its reservation is requested when it is known; the rest is
// returned.
func TestContext(t *testing.T) {
	for _, takes := range []int{1 * mib, 40 * mib, 200 * mib} {
		g := startGate(t, 300*mib)
		j := start(t, g.path, []string{"EBBTIDE_GATE_CONTEXT=", "EBBTIDE_GATE_CREDIT=1", "EBBTIDE_FAKE_CONTEXT=" + strconv.Itoa(takes)}, "--steps", "1", "--bytes", strconv.Itoa(mib))
		must.Eq(t, 300*mib-int64(takes)-mib, j.next("step").n("free"))
		j.end()
		g.fine()
	}
}

func TestWait(t *testing.T) {
	g := startGate(t, 200*mib)
	one := start(t, g.path, nil, "--steps", "1", "--bytes", strconv.Itoa(120*mib), "--hold-ms", "1000")
	one.next("step")
	two := start(t, g.path, []string{"EBBTIDE_GATE_CREDIT=1"}, "--threads", "2", "--steps", "1", "--bytes", strconv.Itoa(80*mib), "--hold-ms", "10")
	eventually(t, "one waits", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.waiting > 0
	})
	one.end()
	two.end()
	g.fine()
}

func TestKilled(t *testing.T) {
	g := startGate(t, 300*mib)
	j := start(t, g.path, nil, "--steps", "2", "--hold-ms", "60000")
	j.next("step")
	j.next("step") // and nothing is being asked for
	must.NoError(t, j.cmd.Process.Signal(syscall.SIGKILL))
	_ = j.cmd.Wait()
	g.fine()
}

func TestShrink(t *testing.T) {
	g := startGate(t, 512*mib)
	j := start(t, g.path, nil, "--steps", "1", "--hold-ms", "1500", "--bytes", "65536")
	j.next("step")
	g.mu.Lock()
	g.limit = 16 * mib
	g.mu.Unlock()
	g.all(message{Type: limitIs, Device: 7, Bytes: 16 * mib})
	eventually(t, "the credit is back", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.sum() == context+65536
	})
	j.end()
}

// The library's extra cost per allocation, over 10⁵.
func TestMany(t *testing.T) {
	args := []string{"--mode", "many", "--count", "100000", "--bytes", "4096"}
	plain := start(t, "-", nil, args...).next("ns")["ns"].(float64)
	g := startGate(t, 900*mib)
	j := start(t, g.path, nil, args...)
	ours := j.next("ns")["ns"].(float64)
	j.end()
	g.fine()
	t.Logf("%.0f ns without the library, %.0f ns with it: %.2f times; %d requests", plain, ours, ours/plain, g.seen[request])
	must.Less(t, 10, g.seen[request], must.Sprint("the credit is not used"))
	// The fake's allocation is far cheaper than a card's: only a lock or a system call in the way
	// is noticed.
	must.Less(t, 10*plain+2000, ours)
}

// The library must load where programs are old: CentOS 7 has glibc 2.17.
func TestOldSymbols(t *testing.T) {
	out := tool(t, "objdump", "-T", filepath.Join(dir, "libebbtide-cuda.so"))
	for _, m := range regexp.MustCompile(`GLIBC_(\d+)\.(\d+)`).FindAllStringSubmatch(out, -1) {
		minor, _ := strconv.Atoi(m[2])
		must.True(t, m[1] == "2" && minor <= 17, must.Sprint(m[0]))
	}
	for _, m := range regexp.MustCompile(`NEEDED\s+(\S+)`).FindAllStringSubmatch(tool(t, "objdump", "-p", filepath.Join(dir, "libebbtide-cuda.so")), -1) {
		must.SliceContains(t, []string{"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}, m[1])
	}
}

func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skip(name, "is needed")
	}
	out, err := exec.Command(name, args...).Output()
	must.NoError(t, err)
	return string(out)
}

func names(t *testing.T, path string) []string {
	t.Helper()
	f, err := elf.Open(path)
	must.NoError(t, err)
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	must.NoError(t, err)
	var all []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && s.Section != elf.SHN_ABS {
			all = append(all, s.Name)
		}
	}
	must.SliceNotEmpty(t, all, must.Sprint(path))
	return all
}

// harmless are names that look like allocations or submissions, and why they are not.
var harmless = map[string]string{
	"cuMemAllocHost":                         "host memory",
	"cuMemAllocHost_v2":                      "host memory",
	"cuMemHostAlloc":                         "host memory",
	"cuMemGetAllocationGranularity":          "a question",
	"cuMemGetAllocationPropertiesFromHandle": "a question",
	"cuGraphMemAllocNodeGetParams":           "a question",
	"cuLaunchHostFunc":                       "runs on the host",
	"cuLaunchHostFunc_ptsz":                  "runs on the host",
	"cuLaunchHostFunc_v2":                    "runs on the host",
	"cuMemPoolExportPointer":                 "of a pool whose export pins",
	"cuMemPoolImportPointer":                 "memory of another process; the import of the pool pins",
	"cuMemcpy3DPeerAsync":                    "hooked",
	"cuGreenCtxCreate":                       "within the primary context",
	"cuMemGetMemPool":                        "a question",
	"cuImportExternalSemaphore":              "no memory",
	"cuGraphAddMemcpyNode":                   "work when it is launched",
	"cuGraphAddMemsetNode":                   "work when it is launched",
}

var suspicious = regexp.MustCompile(`^cu(Mem(Alloc|Create|Host|Pool(Create|Import|Export)|Import|Export|cpy|set|Prefetch|BatchDecompress|Discard)|Array(3D)?Create|MipmappedArrayCreate|Ctx(Create|Destroy)|DevicePrimaryCtx(Retain|Release|Reset)|GreenCtxCreate|Ipc(Get|Open)|ImportExternal|MemGetHandle|Graphics\w+Register|EGLStream\w+Connect|Launch|Graph(Launch|AddMemAlloc|AddNode|Instantiate)|Stream(BeginCapture|EndCapture)|MemGetInfo|DeviceTotalMem|Multicast(Create|AddDevice|Bind)|GetProcAddress)`)

var reviewed = regexp.MustCompile(`^cu(MemHost(GetDevicePointer|GetFlags|Register|Unregister)|MemcpyGet|Graph(Memcpy|Memset|Exec))`)

// libcuda580 has the functions of a real driver, as nm -D lists them.
//
//go:embed testdata/libcuda-580.159.04.txt
var libcuda580 string

// TestHooks finds functions that allocate or submit and are not hooked: of the fake, of a real
// driver, and of another or a toolkit's stub that EBBTIDE_LIBCUDA names.
func TestHooks(t *testing.T) {
	ours := names(t, filepath.Join(dir, "libebbtide-cuda.so"))
	must.SliceContains(t, ours, "dlsym")
	must.SliceContains(t, ours, "dlvsym")
	for _, n := range ours {
		must.True(t, n == "dlsym" || n == "dlvsym" || strings.HasPrefix(n, "cu") || strings.HasPrefix(n, "nvml"), must.Sprint(n, " should not be exported"))
	}
	drivers := map[string][]string{"the fake driver": names(t, filepath.Join(dir, "libcuda.so.1")), "driver 580.159.04": strings.Fields(libcuda580)}
	if real := os.Getenv("EBBTIDE_LIBCUDA"); real != "" {
		drivers[real] = names(t, real)
	}
	for driver, has := range drivers {
		for _, m := range regexp.MustCompile(`(?m)^CALL\(\w+, (\w+)`).FindAllStringSubmatch(calls, -1) {
			must.SliceContains(t, has, m[1], must.Sprint(driver, " does not have what the library calls"))
		}
		for _, n := range has {
			if suspicious.MatchString(n) && !reviewed.MatchString(n) && harmless[n] == "" && !slices.Contains(ours, n) {
				t.Errorf("%s of %s is not hooked: hook it in src/hooks.def or src/submit.def, or say in this test why not", n, driver)
			}
		}
	}
}

// PyTorch flushes its cache after a failure: its allocator's first attempt does not wait, the
// second does, and others' do.
func TestFlush(t *testing.T) {
	src, lib := filepath.Join(t.TempDir(), "through.c"), filepath.Join(t.TempDir(), "libc10_cuda.so")
	must.NoError(t, os.WriteFile(src, []byte(`
typedef int (*alloc)(unsigned long long *, unsigned long);
int through(alloc f, unsigned long long *p, unsigned long n) { int r = f(p, n); return r; }
`), 0o644))
	out, err := exec.Command("gcc", "-O0", "-shared", "-fPIC", "-o", lib, src).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	g := startGate(t, 300*mib)
	j := start(t, g.path, []string{"EBBTIDE_GATE_WAIT_MS=3000"}, "--mode", "flush", "--library", lib)
	for _, waits := range []bool{false, true, true} {
		l := j.next("took")
		must.Eq(t, 2, l.n("code"))
		must.Eq(t, waits, l["took"].(float64) > 1.5, must.Sprint(l))
	}
	j.end()
	g.fine()
}

// A program without CUDA does not notice the library: RTLD_NEXT from another library means after
// that library.
func TestOtherPrograms(t *testing.T) {
	src := filepath.Join(t.TempDir(), "lib.c")
	must.NoError(t, os.WriteFile(src, []byte(`
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
static int calls;
int getppid(void) { int (*next)(void) = dlsym(RTLD_NEXT, "getppid"); calls++; return next == getppid ? -1 : next(); }
int main(void) {
	void *v = dlvsym(RTLD_DEFAULT, "getpid", "GLIBC_2.2.5"), *none = dlsym(RTLD_DEFAULT, "cuNothing");
	return !(dlerror() && getppid() > 0 && calls == 1 && v && !none);
}
`), 0o644))
	bin := filepath.Join(t.TempDir(), "prog")
	out, err := exec.Command("gcc", "-w", "-rdynamic", "-o", bin, src, "-ldl").CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	c := exec.Command(bin)
	c.Env = append(os.Environ(), "LD_PRELOAD="+filepath.Join(dir, "libebbtide-cuda.so"), "EBBTIDE_GATE=/nonexistent")
	c.Stderr = io.Discard
	must.NoError(t, c.Run())
}

// The library under AddressSanitizer, in what many threads do at once. ThreadSanitizer does not
// start with a library that takes the place of dlsym.
func TestSanitizer(t *testing.T) {
	if os.Getenv("EBBTIDE_CFLAGS") != "" {
		t.Skip("it is sanitized already")
	}
	library := strings.TrimSpace(tool(t, "gcc", "-print-file-name=libasan.so"))
	if !filepath.IsAbs(library) {
		t.Skip("gcc has no AddressSanitizer")
	}
	self, err := os.Executable()
	must.NoError(t, err)
	cmd := exec.Command(self, "-test.run", "^(TestChurn|TestThreads|TestCapture_threads|TestPause|TestContext|TestGateReturns)$")
	cmd.Env = append(os.Environ(), "EBBTIDE_CFLAGS=-O1 -g -fsanitize=address", "EBBTIDE_PRELOAD_FIRST="+library, "ASAN_OPTIONS=detect_leaks=0")
	out, err := cmd.CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
}
