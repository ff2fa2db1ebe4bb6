// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// userHZ is the unit of CPU times in /proc, in ticks per second.
const userHZ = 100

// reading is the CPU used until a moment.
type reading struct {
	at      time.Time
	groups  []float64 // CPU-seconds by group of processes
	machine float64   // CPU-seconds
}

// readCPU reads groups of existing processes.
func readCPU(groups [][]int) (reading, error) {
	r := reading{at: time.Now(), groups: make([]float64, len(groups))}
	for i, pids := range groups {
		for _, pid := range pids {
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err != nil {
				return r, err
			}
			cpu, err := processCPU(string(data))
			if err != nil {
				return r, fmt.Errorf("process %d: %w", pid, err)
			}
			r.groups[i] += cpu
		}
	}
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return r, err
	}
	r.machine, err = machineCPU(string(data))
	return r, err
}

func (r reading) cores(since reading) []float64 {
	cores := make([]float64, len(r.groups))
	for i := range cores {
		cores[i] = (r.groups[i] - since.groups[i]) / r.at.Sub(since.at).Seconds()
	}
	return cores
}

func (r reading) busy(since reading) float64 {
	return (r.machine - since.machine) / r.at.Sub(since.at).Seconds()
}

// processCPU parses utime and stime of /proc/<pid>/stat, in seconds, without children.
func processCPU(stat string) (float64, error) {
	// The name (field 2) is in parentheses and may contain any character; utime is field 14.
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("its stat is short: %q", stat)
	}
	return ticks(fields[11], fields[12])
}

// machineCPU parses the busy CPU-seconds of /proc/stat. Time stolen by a hypervisor counts as
// busy, as it was unavailable.
func machineCPU(stat string) (float64, error) {
	first, _, _ := strings.Cut(stat, "\n")
	f := strings.Fields(first) // cpu user nice system idle iowait irq softirq steal …
	if len(f) < 9 || f[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q", first)
	}
	return ticks(f[1], f[2], f[3], f[6], f[7], f[8])
}

// ticks sums ticks, in seconds.
func ticks(fields ...string) (float64, error) {
	var sum uint64
	for _, f := range fields {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return float64(sum) / userHZ, nil
}

// rss returns a process's resident memory, in MiB.
func rss(pid int) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(data))
	if len(f) < 2 {
		return 0, errors.New("statm is short")
	}
	pages, err := strconv.ParseFloat(f[1], 64)
	return pages * float64(os.Getpagesize()) / (1 << 20), err
}

type machine struct {
	Cores  int    `json:"cores"`
	CPU    string `json:"cpu"`
	Kernel string `json:"kernel"`
}

func (m machine) String() string {
	return fmt.Sprintf("%d cores (%s), Linux %s", m.Cores, m.CPU, m.Kernel)
}

func thisMachine() machine {
	m := machine{Cores: runtime.NumCPU(), CPU: "unknown", Kernel: "unknown"}
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for _, line := range strings.Split(string(data), "\n") {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	return m
}
