// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package headroom

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func tree(t *testing.T, files map[string]string) Checker {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		at := filepath.Join(dir, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		must.NoError(t, os.WriteFile(at, []byte(text), 0o644))
	}
	return Checker{Proc: filepath.Join(dir, "proc"), Cgroup: filepath.Join(dir, "cgroup")}
}

func meminfo(total, free int) string {
	return fmt.Sprintf("MemTotal: %d kB\nMemFree: 1 kB\nMemAvailable: %d kB\nBuffers: 7 kB\n", total<<10, free<<10)
}

func bytes(n int) string { return strconv.Itoa(n<<20) + "\n" }

func TestCheck(t *testing.T) {
	// A task of version 2 with a limit of 1000 MiB, 600 used, 200 of it files.
	v2 := func() map[string]string {
		return map[string]string{
			"proc/meminfo":                               meminfo(100_000, 50_000),
			"proc/7/cgroup":                              "0::/nomad.slice/a.task\n",
			"proc/8/cgroup":                              "0::/nomad.slice/a.task/below\n",
			"cgroup/cgroup.controllers":                  "memory\n",
			"cgroup/memory.stat":                         "inactive_file 0\n",
			"cgroup/nomad.slice/memory.max":              "max\n",
			"cgroup/nomad.slice/memory.high":             "max\n",
			"cgroup/nomad.slice/a.task/memory.max":       bytes(1000),
			"cgroup/nomad.slice/a.task/memory.high":      "max\n",
			"cgroup/nomad.slice/a.task/memory.current":   bytes(600),
			"cgroup/nomad.slice/a.task/memory.stat":      "anon 1\nfile 2\ninactive_file " + bytes(200),
			"cgroup/nomad.slice/a.task/below/memory.max": "max\n",
		}
	}
	v1 := func() map[string]string {
		return map[string]string{
			"proc/meminfo":                                 meminfo(100_000, 50_000),
			"proc/7/cgroup":                                "5:cpu,cpuacct:/docker/a\n4:memory:/docker/a\n0::/elsewhere\n",
			"cgroup/memory/memory.limit_in_bytes":          "9223372036854771712\n",
			"cgroup/memory/docker/memory.limit_in_bytes":   "9223372036854771712\n",
			"cgroup/memory/docker/a/memory.limit_in_bytes": bytes(1000),
			"cgroup/memory/docker/a/memory.usage_in_bytes": bytes(600),
			"cgroup/memory/docker/a/memory.stat":           "inactive_file 5\ntotal_inactive_file " + bytes(200),
		}
	}
	for name, tc := range map[string]struct {
		files  map[string]string
		change map[string]string
		need   map[int]int // MiB
		want   string      // in the error; "": none
		other  bool        // not ErrHostMemory
	}{
		"v2 fits":                    {files: v2(), need: map[int]int{7: 536}},
		"v2 does not":                {files: v2(), need: map[int]int{7: 537}, want: "leaves 600 MiB, and 537 MiB have to be parked, with 64 MiB to spare: give the task a memory_max that is at least 1 MiB higher"},
		"v2, of two processes":       {files: v2(), need: map[int]int{7: 400, 8: 137}, want: "a.task leaves 600 MiB, and 537 MiB"},
		"v2, of one below":           {files: v2(), change: map[string]string{"cgroup/nomad.slice/a.task/below/memory.max": bytes(100), "cgroup/nomad.slice/a.task/below/memory.current": bytes(50), "cgroup/nomad.slice/a.task/below/memory.stat": "inactive_file 0"}, need: map[int]int{7: 400, 8: 10}, want: "below leaves 50 MiB, and 10 MiB"},
		"v2, of one above":           {files: v2(), change: map[string]string{"cgroup/nomad.slice/memory.max": bytes(2000), "cgroup/nomad.slice/memory.current": bytes(1900), "cgroup/nomad.slice/memory.stat": "inactive_file 0"}, need: map[int]int{7: 50}, want: "nomad.slice leaves 100 MiB"},
		"v2, a limit that slows":     {files: v2(), change: map[string]string{"cgroup/nomad.slice/a.task/memory.high": bytes(700)}, need: map[int]int{7: 300}, want: "leaves 300 MiB"},
		"v2 over its limit":          {files: v2(), change: map[string]string{"cgroup/nomad.slice/a.task/memory.current": bytes(1300)}, need: map[int]int{7: 10}, want: "leaves 0 MiB, and 10 MiB have to be parked, with 64 MiB to spare: give the task a memory_max that is at least 74 MiB higher"},
		"v1 fits":                    {files: v1(), need: map[int]int{7: 536}},
		"v1 does not":                {files: v1(), need: map[int]int{7: 537}, want: "docker/a leaves 600 MiB"},
		"no limits":                  {files: v2(), change: map[string]string{"cgroup/nomad.slice/a.task/memory.max": "max\n"}, need: map[int]int{7: 40_000}},
		"the host does not":          {files: v2(), change: map[string]string{"cgroup/nomad.slice/a.task/memory.max": "max\n"}, need: map[int]int{7: 45_001}, want: "the host has 50000 MiB free, and 45001 MiB have to be parked, with 5000 MiB to spare"},
		"a small host does not":      {files: v1(), change: map[string]string{"proc/meminfo": meminfo(2000, 1000)}, need: map[int]int{7: 489}, want: "1000 MiB free, and 489 MiB have to be parked, with 512 MiB to spare"},
		"a process has ended":        {files: v2(), need: map[int]int{7: 500, 9: 500}},
		"all have ended":             {files: v2(), change: map[string]string{"proc/meminfo": ""}, need: map[int]int{9: 1 << 20}},
		"a limit that is no number":  {files: v2(), change: map[string]string{"cgroup/nomad.slice/a.task/memory.max": "much\n"}, need: map[int]int{7: 1}, want: `memory.max: strconv.ParseUint: parsing "much"`, other: true},
		"a use that is not told":     {files: v1(), change: map[string]string{"cgroup/memory/docker/a/memory.stat": "rss 1\n"}, need: map[int]int{7: 1}, want: "memory.stat: there is no total_inactive_file", other: true},
		"a host without the figure":  {files: v1(), change: map[string]string{"proc/meminfo": "MemTotal: 5 kB\n"}, need: map[int]int{7: 1}, want: "there is no MemAvailable:", other: true},
		"no cgroup of memory at all": {files: v1(), change: map[string]string{"proc/7/cgroup": "5:cpu:/docker/a\n"}, need: map[int]int{7: 40_000}},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range tc.change {
				tc.files[k] = v
			}
			need := make(map[int]uint64)
			for pid, n := range tc.need {
				need[pid] = uint64(n) << 20
			}
			err := tree(t, tc.files).Check(need)
			if tc.want == "" {
				must.NoError(t, err)
				return
			}
			must.ErrorContains(t, err, tc.want)
			must.Eq(t, !tc.other, errors.Is(err, ErrHostMemory))
		})
	}
}

func TestCheck_kernel(t *testing.T) {
	const root = "/sys/fs/cgroup/memory"
	if _, err := os.Stat(root + "/memory.limit_in_bytes"); err != nil || os.Getuid() != 0 {
		t.Skip("needs root, and the memory controller of cgroup v1")
	}
	dir, err := os.MkdirTemp(root, "ebbtide-headroom-")
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, os.Remove(dir)) })
	must.NoError(t, os.WriteFile(dir+"/memory.limit_in_bytes", []byte(bytes(200)), 0o644))

	job := exec.Command("sleep", "60")
	must.NoError(t, job.Start())
	t.Cleanup(func() { _ = job.Process.Kill(); _ = job.Wait() })
	pid := job.Process.Pid
	must.NoError(t, os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(pid)), 0o644))

	must.NoError(t, Checker{}.Check(map[int]uint64{pid: 100 << 20}))
	err = Checker{}.Check(map[int]uint64{pid: 150 << 20})
	must.ErrorIs(t, err, ErrHostMemory)
	must.StrContains(t, err.Error(), strings.TrimPrefix(dir, root))
}
