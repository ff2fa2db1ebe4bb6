// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package fake

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/shoenig/test/must"

	device "github.com/ebbtide/ebbtide/device/nvml"
)

var dir string // of the build results

func TestMain(m *testing.M) {
	tmp, err := os.MkdirTemp("", "ebbtide-fake")
	if err == nil {
		err = Build(tmp)
	}
	switch {
	case errors.Is(err, ErrNoCompiler):
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

// cards makes the cards that this process's NVML reports, and returns their file: the library, once
// loaded, stays with it.
func cards(t *testing.T) string {
	t.Helper()
	gpu := filepath.Join(dir, "gpu")
	must.NoError(t, os.RemoveAll(gpu+".xid"))
	t.Setenv("EBBTIDE_FAKE_GPU", gpu)
	t.Setenv("EBBTIDE_FAKE_GPUS", "2")
	t.Setenv("EBBTIDE_FAKE_KERNEL_US", "10000")
	t.Setenv("LD_LIBRARY_PATH", dir)
	return gpu
}

// go-nvml loads the fake and sees the card and its processes.
func TestNVML(t *testing.T) {
	gpu := cards(t)
	lib := nvml.New(nvml.WithLibraryPath(filepath.Join(dir, "libnvidia-ml.so.1")))
	ok := func(r nvml.Return) {
		t.Helper()
		must.Eq(t, nvml.SUCCESS, r, must.Sprint(lib.ErrorString(r)))
	}
	ok(lib.Init())
	defer lib.Shutdown()
	n, r := lib.DeviceGetCount()
	ok(r)
	must.Eq(t, 2, n)
	dev, r := lib.DeviceGetHandleByIndex(0)
	ok(r)
	uuid, r := dev.GetUUID()
	ok(r)
	must.Eq(t, "GPU-ebb71de0-fa4e-4000-8000-000000000001", uuid)
	_, r = lib.DeviceGetHandleByUUID(uuid)
	ok(r)
	name, r := dev.GetName()
	ok(r)
	must.Eq(t, "Ebbtide Fake GPU", name)
	pci, r := dev.GetPciInfo()
	ok(r)
	must.Eq(t, 1, pci.Bus)
	driver, r := lib.SystemGetDriverVersion()
	ok(r)
	must.Eq(t, "580.95.05", driver)
	mode, r := dev.GetComputeMode()
	ok(r)
	must.Eq(t, nvml.COMPUTEMODE_DEFAULT, mode)
	_, _, r = dev.GetMigMode()
	must.Eq(t, nvml.ERROR_NOT_SUPPORTED, r)
	_, r = dev.GetTemperature(nvml.TEMPERATURE_GPU)
	ok(r)
	_, r = dev.GetPowerUsage()
	ok(r)
	_, r = dev.GetUtilizationRates()
	ok(r)
	m, r := dev.GetMemoryInfo()
	ok(r)
	must.Eq(t, nvml.Memory{Total: 1 << 30, Free: 1 << 30}, m)
	_, r = dev.GetMemoryInfo_v2()
	ok(r)

	job := exec.Command(filepath.Join(dir, "workload"), "--steps", "1", "--hold-ms", "60000")
	out, err := job.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, job.Start())
	must.True(t, bufio.NewScanner(out).Scan())
	all, r := dev.GetComputeRunningProcesses()
	ok(r)
	must.Eq(t, []nvml.ProcessInfo{{Pid: uint32(job.Process.Pid), UsedGpuMemory: 24 << 20, GpuInstanceId: 1<<32 - 1, ComputeInstanceId: 1<<32 - 1}}, all)
	must.NoError(t, job.Process.Kill())
	_ = job.Wait()
	m, r = dev.GetMemoryInfo()
	ok(r)
	must.Eq(t, 0, m.Used)

	set, r := lib.EventSetCreate()
	ok(r)
	ok(dev.RegisterEvents(nvml.EventTypeXidCriticalError, set))
	_, r = set.Wait(20)
	must.Eq(t, nvml.ERROR_TIMEOUT, r)
	must.NoError(t, os.WriteFile(gpu+".xid", []byte("79"), 0o644))
	e, r := set.Wait(1000)
	ok(r)
	must.Eq(t, 79, e.EventData)
	ok(set.Free())

	// The plugin gets the event whatever was read before.
	must.NoError(t, os.Remove(gpu+".xid"))
	plugin := device.New(filepath.Join(dir, "libnvidia-ml.so.1"))
	for _, want := range []string{"", "Xid error 79"} {
		all, err := plugin.Cards()
		must.NoError(t, err)
		must.StrHasPrefix(t, want, all[0].Unhealthy)
		must.NoError(t, os.WriteFile(gpu+".xid", []byte("79"), 0o644))
	}
	must.NoError(t, plugin.Close())
}

// One process computes all the time, one half of it, one has computed before.
func TestBusy(t *testing.T) {
	gpu := cards(t)
	const uuid = "GPU-ebb71de0-fa4e-4000-8000-000000000001"
	var pids []int
	for _, args := range [][]string{
		{"--count", "1000000", "--windows", "5"},
		{"--count", "1000000", "--windows", "5", "--pause-ms", "50"},
		{"--hold-ms", "60000"},
	} {
		job := exec.Command(filepath.Join(dir, "workload"), append([]string{"--steps", "1"}, args...)...)
		out, err := job.StdoutPipe()
		must.NoError(t, err)
		must.NoError(t, job.Start())
		t.Cleanup(func() {
			_ = job.Process.Kill()
			_ = job.Wait()
		})
		must.True(t, bufio.NewScanner(out).Scan())
		go func() { _, _ = io.Copy(io.Discard, out) }()
		pids = append(pids, job.Process.Pid)
	}
	busy := func(l *device.Library) map[int]*float64 {
		u, err := l.Usage(uuid)
		must.NoError(t, err)
		of := make(map[int]*float64)
		for _, p := range u.Processes {
			of[p.PID] = p.BusyS
		}
		must.MapContainsKeys(t, of, pids)
		return of
	}

	l := device.New(filepath.Join(dir, "libnvidia-ml.so.1"))
	defer l.Close()
	for _, s := range busy(l) {
		must.Zero(t, *s)
	}
	for range 2 {
		time.Sleep(1200 * time.Millisecond)
		busy(l)
	}
	of := busy(l)
	all, half := *of[pids[0]], *of[pids[1]]
	t.Logf("%.2f s and %.2f s", all, half)
	must.Between(t, 0.2*all, half, 0.8*all)
	must.Positive(t, all)
	must.Zero(t, *of[pids[2]])

	must.NoError(t, os.WriteFile(gpu+".fail", []byte("util"), 0o644))
	t.Cleanup(func() { _ = os.Remove(gpu + ".fail") })
	without := device.New(filepath.Join(dir, "libnvidia-ml.so.1"))
	defer without.Close()
	for _, s := range busy(without) {
		must.Nil(t, s)
	}
}

func TestCheckpoint(t *testing.T) {
	helper := filepath.Join(dir, "helper.c")
	must.NoError(t, os.WriteFile(helper, []byte(`
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int cuCheckpointProcessLock(int, void *); int cuCheckpointProcessCheckpoint(int, void *); int cuCheckpointProcessRestore(int, void *);
int cuCheckpointProcessUnlock(int, void *); int cuCheckpointProcessGetState(int, int *);
int main(int argc, char **argv) {
	unsigned args[16] = { 300 }; int pid = atoi(argv[1]), state = -1;
	for (int i = 2; i < argc; i++) {
		char *c = argv[i];
		int r = *c == 'l' ? cuCheckpointProcessLock(pid, args) : *c == 'c' ? cuCheckpointProcessCheckpoint(pid, NULL) :
			*c == 'r' ? cuCheckpointProcessRestore(pid, NULL) : cuCheckpointProcessUnlock(pid, NULL);
		cuCheckpointProcessGetState(pid, &state);
		printf("%c%d/%d ", *c, r, state);
	}
	return 0;
}
`), 0o644))
	bin := filepath.Join(dir, "helper")
	out, err := exec.Command("gcc", "-w", "-o", bin, helper, filepath.Join(dir, "libcuda.so.1")).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))

	for name, tc := range map[string]struct {
		job, steps []string
		fail       string
		want       string
		ok         bool
	}{
		"there and back": {steps: []string{"l", "c", "r", "u"}, want: "l0/1 c0/2 r0/1 u0/0 ", ok: true},
		"wrong order":    {steps: []string{"c", "r", "u", "l", "u"}, want: "c401/0 r401/0 u401/0 l0/1 u0/0 ", ok: true},
		"lock times out": {fail: "lock", steps: []string{"l"}, want: "l600/0 ", ok: true},
		"managed memory": {job: []string{"--alloc", "managed"}, steps: []string{"l", "c", "u"}, want: "l0/1 c801/1 u0/0 ", ok: true},
		"a full card":    {fail: "restore", steps: []string{"l", "c", "r"}, want: "l0/1 c0/2 r2/3 "},
	} {
		t.Run(name, func(t *testing.T) {
			gpu := filepath.Join(t.TempDir(), "gpu")
			env := append(os.Environ(), "EBBTIDE_FAKE_GPU="+gpu, "LD_LIBRARY_PATH="+dir)
			job := exec.Command(filepath.Join(dir, "workload"), append([]string{"--steps", "20", "--pause-ms", "50"}, tc.job...)...)
			job.Env = env
			pipe, err := job.StdoutPipe()
			must.NoError(t, err)
			must.NoError(t, job.Start())
			lines := bufio.NewScanner(pipe)
			must.True(t, lines.Scan())
			if tc.fail != "" {
				must.NoError(t, os.WriteFile(gpu+".fail", []byte(tc.fail), 0o644))
			}
			c := exec.Command(bin, append([]string{fmt.Sprint(job.Process.Pid)}, tc.steps...)...)
			c.Env = env
			got, err := c.CombinedOutput()
			must.NoError(t, err)
			must.Eq(t, tc.want, string(got))
			for lines.Scan() {
			}
			timer := time.AfterFunc(10*time.Second, func() { _ = job.Process.Kill() })
			defer timer.Stop()
			err = job.Wait()
			must.Eq(t, tc.ok, err == nil, must.Sprint(err))
		})
	}
}

func output(t *testing.T, gpu string, args ...string) string {
	t.Helper()
	out, err := workload(gpu, args...).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	return string(out)
}

func workload(gpu string, args ...string) *exec.Cmd {
	c := exec.Command(filepath.Join(dir, "workload"), args...)
	c.Env = append(os.Environ(), "EBBTIDE_FAKE_GPU="+gpu, "LD_LIBRARY_PATH="+dir, "EBBTIDE_FAKE_KERNEL_US=1000", "EBBTIDE_FAKE_SERIAL=1")
	return c
}

// A process that asks NVML sees itself, and what it held is free when it has ended.
func TestOwnProcess(t *testing.T) {
	gpu := filepath.Join(t.TempDir(), "gpu")
	own := output(t, gpu, "--mode", "nvml", "--bytes", "16777216")
	must.StrContains(t, own, `"nvml_used": 25165824, "processes": 1, "own": 25165824}`)
	must.StrContains(t, output(t, gpu, "--mode", "card"), `{"card_total": 1073741824, "card_used": 0, `)
	killed := workload(gpu, "--steps", "1", "--hold-ms", "-1")
	in, err := killed.StdinPipe()
	must.NoError(t, err)
	out, err := killed.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, killed.Start())
	must.True(t, bufio.NewScanner(out).Scan())
	must.StrContains(t, output(t, gpu, "--mode", "card"), fmt.Sprintf(`{"pid": %d, "used": 25165824}`, killed.Process.Pid))
	must.NoError(t, killed.Process.Kill())
	_ = killed.Wait()
	_ = in.Close()
	must.StrContains(t, output(t, gpu, "--mode", "card"), `"card_used": 0, `)
}

func TestModes(t *testing.T) {
	gpu := filepath.Join(t.TempDir(), "gpu")
	for _, alloc := range []string{"sync", "async", "vmm", "managed"} {
		out := output(t, gpu, "--steps", "2", "--count", "3", "--windows", "4", "--alloc", alloc)
		must.StrContains(t, out, `"round": 3,`)
		must.StrContains(t, out, `"done": true`)
	}
	must.StrContains(t, output(t, gpu, "--mode", "many", "--count", "100", "--bytes", "512"), `"count": 100, "ns": `)
	begun := time.Now()
	must.StrContains(t, output(t, gpu, "--mode", "loop", "--count", "20", "--work", "10"), `"count": 20, "ns": `)
	must.GreaterEq(t, 20*time.Millisecond, time.Since(begun), must.Sprint("each step waits for its kernel"))
	// All of the card but the context, in ever smaller pieces.
	for _, alloc := range []string{"sync", "array"} {
		must.StrContains(t, output(t, gpu, "--mode", "fill", "--alloc", alloc, "--bytes", "100000000", "--least", "512"), `{"got": 106`)
	}
}

func TestSerial(t *testing.T) {
	gpu := filepath.Join(t.TempDir(), "gpu")
	begun := time.Now()
	var both [2]*exec.Cmd
	for i := range both {
		both[i] = workload(gpu, "--mode", "loop", "--count", "100", "--work", "1")
		must.NoError(t, both[i].Start())
	}
	for _, c := range both {
		must.NoError(t, c.Wait())
	}
	must.GreaterEq(t, 200*time.Millisecond, time.Since(begun))
}
