// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package checkpoint

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/checkpoint/driver"
	"github.com/ebbtide/ebbtide/device/checkpoint/headroom"
	"github.com/ebbtide/ebbtide/device/checkpoint/libcuda"
	"github.com/ebbtide/ebbtide/device/fake"
	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/parking"
	"github.com/ebbtide/ebbtide/device/nvml"
)

// The fake card, in bytes. Each process's contexts take 8 MiB of it.
const (
	mib    = 1 << 20
	memory = 256 * mib
)

var dir string // of the build results

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == driver.Argument {
		os.Exit(libcuda.Helper(os.Args[2]))
	}
	os.Exit(func() int {
		tmp, err := os.MkdirTemp("", "ebbtide-checkpoint")
		if err == nil {
			defer os.RemoveAll(tmp)
			err = fake.Build(tmp)
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
		dir = tmp
		// NVML, once loaded, stays with one card.
		for k, v := range map[string]string{"GPU": gpu(), "MEMORY": strconv.Itoa(memory)} {
			_ = os.Setenv("EBBTIDE_FAKE_"+k, v)
		}
		_ = os.Setenv("LD_LIBRARY_PATH", dir)
		return m.Run()
	}())
}

func gpu() string { return filepath.Join(dir, "gpu") }

type host struct {
	*Evictor
	t      *testing.T
	client *driver.Client
	usage  func(string) (nvml.Usage, error)
	card   string
}

func newHost(t *testing.T, change ...func(*Options)) *host {
	t.Helper()
	lib := nvml.New(filepath.Join(dir, "libnvidia-ml.so.1"))
	t.Cleanup(func() { must.NoError(t, lib.Close()) })
	cards, err := lib.Cards()
	must.NoError(t, err)
	must.Len(t, 1, cards)
	var mu sync.Mutex // NVML is not safe for concurrent use
	h := &host{t: t, card: cards[0].UUID, usage: func(uuid string) (nvml.Usage, error) {
		mu.Lock()
		defer mu.Unlock()
		return lib.Usage(uuid)
	}}
	h.client = driver.New(driver.Options{
		Version: cards[0].Driver, Library: filepath.Join(dir, "libcuda.so.1"),
		Log: func(s string) { fmt.Println("helper:", s) },
	})
	t.Cleanup(h.client.Close)
	must.NoError(t, h.client.Check(t.Context())) // now, since a job's time runs once it has started
	held, free := Meter(Measure(h.usage))
	o := Options{
		Driver: h.client, Cards: []ledger.CardID{ledger.CardID(h.card)},
		Held: held, Free: free, Room: headroom.Checker{}.Check, Lock: time.Second, Poll: 5 * time.Millisecond,
	}
	for _, f := range change {
		f(&o)
	}
	h.Evictor = New(o)
	return h
}

// fails sets a fault of the card, until the test ends or it is reset.
func (h *host) fails(what string) {
	h.t.Helper()
	must.NoError(h.t, os.WriteFile(gpu()+".fail", []byte(what), 0o644))
	h.t.Cleanup(func() { _ = os.Remove(gpu() + ".fail") })
}

func (h *host) used() uint64 {
	h.t.Helper()
	u, err := h.usage(h.card)
	must.NoError(h.t, err)
	return u.Used / mib
}

func (h *host) state(j *job) driver.State {
	h.t.Helper()
	s, err := h.client.State(h.t.Context(), j.PID)
	must.NoError(h.t, err)
	return s
}

type job struct {
	ledger.ProcessID
	t     *testing.T
	cmd   *exec.Cmd
	lines chan map[string]any
	once  sync.Once
	err   error
}

func (h *host) start(args ...string) *job {
	t := h.t
	t.Helper()
	j := &job{t: t, cmd: exec.Command(filepath.Join(dir, "workload"), args...), lines: make(chan map[string]any, 1000)}
	out, err := j.cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, j.cmd.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(j.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			var line map[string]any
			if json.Unmarshal(s.Bytes(), &line) == nil {
				j.lines <- line
			}
		}
	}()
	t.Cleanup(func() { _ = j.cmd.Process.Kill(); <-read; _ = j.wait() })
	j.PID = j.cmd.Process.Pid
	j.Start, err = identify.Finder{}.Start(j.PID)
	must.NoError(t, err)
	return j
}

// trains starts a job that holds 12 MiB after its fourth step, and runs for 1.5 s of its own
// time, up to 68 MiB.
func (h *host) trains(args ...string) *job {
	h.t.Helper()
	j := h.start(append([]string{"--steps", "60", "--bytes", strconv.Itoa(mib), "--pause-ms", "25"}, args...)...)
	for range 4 {
		must.MapContainsKey(h.t, j.line(), "step")
	}
	return j
}

func (j *job) line() map[string]any {
	j.t.Helper()
	select {
	case l := <-j.lines:
		return l
	case <-time.After(20 * time.Second):
		j.t.Fatal("the job prints nothing")
		return nil
	}
}

func (j *job) still() {
	j.t.Helper()
	for drained := false; !drained; { // earlier output
		select {
		case <-j.lines:
		case <-time.After(60 * time.Millisecond):
			drained = true
		}
	}
	select {
	case l := <-j.lines:
		j.t.Fatalf("the job continues: %v", l)
	case <-time.After(100 * time.Millisecond):
	}
}

func (j *job) wait() error {
	j.once.Do(func() { j.err = j.cmd.Wait() })
	return j.err
}

// ends waits for the job's end, where it checks its memory.
func (j *job) ends() {
	j.t.Helper()
	var last map[string]any
	for timeout := time.After(20 * time.Second); ; {
		select {
		case l, ok := <-j.lines:
			if ok {
				last = l
				continue
			}
		case <-timeout:
			j.t.Fatal("the job does not end")
		}
		break
	}
	must.NoError(j.t, j.wait())
	must.Eq(j.t, map[string]any{"done": true}, last)
}

// A job's memory is freed for others, and restored intact.
func TestFake_parkAndRestore(t *testing.T) {
	for _, how := range []string{"sync", "async", "vmm"} {
		t.Run(how, func(t *testing.T) {
			h := newHost(t)
			j := h.trains("--alloc", how, "--bytes", strconv.Itoa(2*mib))
			freed, err := h.Park(t.Context(), []ledger.ProcessID{j.ProcessID})
			must.NoError(t, err)
			must.Eq(t, driver.Checkpointed, h.state(j))
			must.Eq(t, 0, h.used())
			must.GreaterEq(t, 12*mib, freed[ledger.CardID(h.card)])

			// Another process can have the whole card; meanwhile nothing is restored.
			other := h.start("--mode", "fill", "--bytes", strconv.Itoa(8*mib), "--hold-ms", "60000")
			must.Eq(t, memory-8*mib, int(other.line()["got"].(float64)))
			err = h.Restore(t.Context(), []ledger.ProcessID{j.ProcessID})
			must.ErrorContains(t, err, "0 bytes free")
			must.False(t, errors.Is(err, parking.ErrLost))
			must.Eq(t, driver.Checkpointed, h.state(j))
			j.still()

			must.NoError(t, other.cmd.Process.Kill())
			_ = other.wait()
			must.NoError(t, h.Restore(t.Context(), []ledger.ProcessID{j.ProcessID}))
			j.ends()
			must.Eq(t, 0, h.used())
		})
	}
}

// Two processes of a container, and one without CUDA, repeatedly.
func TestFake_twice(t *testing.T) {
	h := newHost(t)
	a, b := h.trains(), h.trains("--seed", "7")
	sleep := exec.Command("sleep", "60")
	must.NoError(t, sleep.Start())
	t.Cleanup(func() { _ = sleep.Process.Kill(); _ = sleep.Wait() })
	start, err := identify.Finder{}.Start(sleep.Process.Pid)
	must.NoError(t, err)
	all := []ledger.ProcessID{a.ProcessID, b.ProcessID, {PID: sleep.Process.Pid, Start: start}, {PID: a.PID, Start: 1}}
	for range 5 {
		freed, err := h.Park(t.Context(), all)
		must.NoError(t, err)
		must.GreaterEq(t, 2*12*mib, freed[ledger.CardID(h.card)])
		must.Eq(t, 0, h.used())
		a.still()
		b.still()
		must.NoError(t, h.Restore(t.Context(), all))
	}
	must.NoError(t, h.Restore(t.Context(), all)) // nothing to restore
	a.ends()
	b.ends()
}

func TestFake_fails(t *testing.T) {
	full := errors.New("no memory")
	for name, tc := range map[string]struct {
		fail   string
		args   []string
		change func(*Options)
		want   error
	}{
		"the lock times out":       {fail: "lock", change: func(o *Options) { o.Lock = 100 * time.Millisecond }, want: ErrBusy},
		"the checkpoint fails":     {fail: "checkpoint", want: driver.Result(999)},
		"managed memory":           {args: []string{"--alloc", "managed"}, want: ErrNotEvictable},
		"the host is full":         {change: func(o *Options) { o.Room = func(map[int]uint64) error { return full } }, want: full},
		"the host is full, really": {change: more(1 << 44), want: headroom.ErrHostMemory},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, func(o *Options) {
				if tc.change != nil {
					tc.change(o)
				}
			})
			a, b := h.trains(), h.trains(tc.args...)
			if tc.fail != "" {
				h.fails(tc.fail)
			}
			_, err := h.Park(t.Context(), []ledger.ProcessID{a.ProcessID, b.ProcessID})
			must.ErrorIs(t, err, tc.want)
			must.False(t, errors.Is(err, parking.ErrLost))
			must.Eq(t, driver.Running, h.state(a))
			must.Eq(t, driver.Running, h.state(b))
			a.ends()
			b.ends()
		})
	}
}

func more(than uint64) func(*Options) {
	return func(o *Options) {
		held := o.Held
		o.Held = func(card ledger.CardID) (map[int]uint64, error) {
			all, err := held(card)
			for pid := range all {
				all[pid] += than
			}
			return all, err
		}
	}
}

func TestFake_lost(t *testing.T) {
	h := newHost(t)
	a, b := h.trains(), h.trains()
	both := []ledger.ProcessID{a.ProcessID, b.ProcessID}
	_, err := h.Park(t.Context(), both)
	must.NoError(t, err)
	h.Evictor.opts.Driver = failing{h}
	err = h.Restore(t.Context(), both)
	must.ErrorIs(t, err, parking.ErrLost)
	must.ErrorIs(t, err, driver.OutOfMemory)
	b.ends()
	must.Error(t, a.wait())
	must.Eq(t, 0, h.used())
}

type failing struct{ *host }

func (f failing) State(ctx context.Context, pid int) (driver.State, error) {
	return f.client.State(ctx, pid)
}
func (f failing) Lock(ctx context.Context, pid int, timeout time.Duration) error {
	return f.client.Lock(ctx, pid, timeout)
}
func (f failing) Checkpoint(ctx context.Context, pid int) error { return f.client.Checkpoint(ctx, pid) }
func (f failing) Unlock(ctx context.Context, pid int) error     { return f.client.Unlock(ctx, pid) }
func (f failing) Restore(ctx context.Context, pid int) error {
	if err := os.WriteFile(gpu()+".fail", []byte("restore"), 0o644); err != nil {
		return err
	}
	err := f.client.Restore(ctx, pid)
	f.Evictor.opts.Driver = f.client
	return errors.Join(err, os.Remove(gpu()+".fail"))
}

// The helper is killed while it waits for a lock, and between park and restore.
func TestFake_helperKilled(t *testing.T) {
	h := newHost(t, func(o *Options) { o.Lock = 20 * time.Second })
	j := h.trains()
	all := []ledger.ProcessID{j.ProcessID}
	h.fails("lock")
	parked := make(chan error)
	go func() { _, err := h.Park(t.Context(), all); parked <- err }()
	for h.state(j) != driver.Locked {
		time.Sleep(time.Millisecond)
	}
	kill(t)
	err := <-parked
	must.ErrorIs(t, err, driver.ErrHelper)
	must.False(t, errors.Is(err, parking.ErrLost))
	must.Eq(t, driver.Running, h.state(j))

	must.NoError(t, os.Remove(gpu()+".fail"))
	_, err = h.Park(t.Context(), all)
	must.NoError(t, err)
	kill(t)
	h.client.Close()
	h = newHost(t)
	must.NoError(t, h.Restore(t.Context(), all))
	j.ends()
}

func kill(t *testing.T) {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	must.NoError(t, err)
	killed := 0
	for _, task := range tasks {
		text, _ := os.ReadFile(task) // of a thread that has ended
		for _, field := range bytes.Fields(text) {
			pid, err := strconv.Atoi(string(field))
			must.NoError(t, err)
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if !bytes.Contains(line, []byte(driver.Argument)) {
				continue
			}
			must.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			killed++
		}
	}
	must.Positive(t, killed)
}

func TestFake_killedWhileParked(t *testing.T) {
	h := newHost(t)
	a, b := h.trains(), h.trains()
	both := []ledger.ProcessID{a.ProcessID, b.ProcessID}
	_, err := h.Park(t.Context(), both)
	must.NoError(t, err)
	must.NoError(t, a.cmd.Process.Kill())
	for alive(a.ProcessID) { // nothing has reaped it
		time.Sleep(time.Millisecond)
	}
	must.NoError(t, h.Restore(t.Context(), both))
	b.ends()
	must.Eq(t, 0, h.used())
	must.MapEmpty(t, h.parked.held)
}

func TestFake_ended(t *testing.T) {
	h := newHost(t)
	j := h.trains()
	j.ends()
	freed, err := h.Park(t.Context(), []ledger.ProcessID{j.ProcessID})
	must.NoError(t, err)
	must.MapEmpty(t, freed)
	must.NoError(t, h.Restore(t.Context(), []ledger.ProcessID{j.ProcessID}))
}
