// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package handoff

import (
	"debug/elf"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/shoenig/test/must"
)

func full() Handoff {
	return Handoff{Preload: "/opt/lib.so", Gate: "/run/gate", MemoryMiB: 81920, WaitMS: 3600000, Reports: "/run/reports", Tasks: "/run/tasks", Cards: []string{"GPU-1"}}
}

func TestHandoff(t *testing.T) {
	for _, s := range []Handoff{full(), {Notice: "there is no gate"}, {Preload: "/a", Gate: "/b"}} {
		text, err := s.Encode()
		must.NoError(t, err)
		back, err := Decode(text)
		must.NoError(t, err)
		must.Eq(t, s, back)
	}
	s, err := Decode(`{"preload": "/a", "gate": "/b", "of_a_later_version": {"x": [1]}}`)
	must.NoError(t, err)
	must.Eq(t, Handoff{Preload: "/a", Gate: "/b"}, s)
}

func TestHandoff_bad(t *testing.T) {
	for want, change := range map[string]func(*Handoff){
		`preload: must be an absolute path, without . and .. in it, got "lib.so"`: func(s *Handoff) { s.Preload = "lib.so" },
		`gate: must be an absolute path, without . and .. in it, got "/run/../x"`: func(s *Handoff) { s.Gate = "/run/../x" },
		`tasks: must be an absolute path`:                                         func(s *Handoff) { s.Tasks = "../tasks" },
		`reports: must be an absolute path`:                                       func(s *Handoff) { s.Reports = "reports" },
		"memory_mib: must be ≥ 0, got -1":                                         func(s *Handoff) { s.MemoryMiB = -1 },
		"wait_ms: must be ≥ 0, got -5":                                            func(s *Handoff) { s.WaitMS = -5 },
		`preload, gate: must be set together, got "" and "/run/gate"`:             func(s *Handoff) { s.Preload = "" },
		"notice: must say why":                                                    func(s *Handoff) { s.Preload, s.Gate = "", "" },
	} {
		s := full()
		change(&s)
		_, err := s.Encode()
		must.ErrorContains(t, err, want)
	}
	for text, want := range map[string]string{
		"":                            "reading EBBTIDE_GPU_HANDOFF",
		"{":                           "reading EBBTIDE_GPU_HANDOFF",
		`{"preload": 7}`:              "preload",
		`{"memory_mib": -1}`:          "memory_mib: must be ≥ 0, got -1",
		`{"notice": "a"}{"notice":1}`: "after top-level value",
		`{"wait_ms": 1.5}`:            "wait_ms",
	} {
		_, err := Decode(text)
		must.ErrorContains(t, err, want)
	}
}

func TestEnvironment(t *testing.T) {
	s := full()
	must.Eq(t, []Mount{{"/opt/lib.so", "/usr/lib/ebbtide/libebbtide-cuda.so"}, {"/run/gate", "/run/ebbtide"}}, s.Mounts())
	must.Eq(t, map[string]string{
		"LD_PRELOAD": "/usr/lib/ebbtide/libebbtide-cuda.so", "EBBTIDE_GATE": "/run/ebbtide/gate.sock", "EBBTIDE_GATE_WAIT_MS": "3600000",
	}, s.Environment(nil, false))
	must.Eq(t, map[string]string{
		"LD_PRELOAD": "/usr/lib/ebbtide/libebbtide-cuda.so:/x.so /y.so", "EBBTIDE_GATE": "/run/ebbtide/gate.sock",
	}, s.Environment(map[string]string{"LD_PRELOAD": " /x.so /y.so:", "EBBTIDE_GATE_WAIT_MS": "5"}, false))
	must.Eq(t, map[string]string{"EBBTIDE_GATE": "/run/ebbtide/gate.sock"}, s.Environment(map[string]string{"LD_PRELOAD": "/x.so", "EBBTIDE_GATE_WAIT_MS": "5"}, true))
	s = Handoff{Notice: "no"}
	must.SliceEmpty(t, s.Mounts())
	must.MapEmpty(t, s.Environment(map[string]string{"LD_PRELOAD": "/x.so"}, false))
}

func object(t *testing.T, kind elf.Type, machine elf.Machine) string {
	t.Helper()
	var h elf.Header64
	copy(h.Ident[:], "\x7fELF\x02\x01\x01")
	h.Type, h.Machine, h.Version, h.Ehsize = uint16(kind), uint16(machine), 1, 64
	path := filepath.Join(t.TempDir(), "lib.so")
	f, err := os.Create(path)
	must.NoError(t, err)
	must.NoError(t, binary.Write(f, binary.LittleEndian, h))
	must.NoError(t, f.Chmod(0o755))
	must.NoError(t, f.Close())
	return path
}

func TestCheckLibrary(t *testing.T) {
	good := object(t, elf.ET_DYN, elf.EM_X86_64)
	must.NoError(t, checkLibrary(good, "amd64"))
	must.NoError(t, checkLibrary(good, "of the future"))
	must.EqError(t, checkLibrary(good, "arm64"), "the preload library "+good+" is for x86_64, this machine is aarch64")
	arm := object(t, elf.ET_DYN, elf.EM_AARCH64)
	must.EqError(t, checkLibrary(arm, "amd64"), "the preload library "+arm+" is for aarch64, this machine is x86_64")
	must.ErrorContains(t, checkLibrary(object(t, elf.ET_DYN, elf.EM_RISCV), "amd64"), "is for EM_RISCV, this machine")
	must.ErrorContains(t, checkLibrary(object(t, elf.ET_EXEC, elf.EM_X86_64), "amd64"), "is not a shared object")
	must.ErrorContains(t, checkLibrary(filepath.Dir(good), "amd64"), "is not a file")
	must.ErrorContains(t, checkLibrary("/nowhere/lib.so", "amd64"), "the preload library cannot be read: stat /nowhere/lib.so: no such file")
	must.NoError(t, os.WriteFile(arm, []byte("#!/bin/sh\n"), 0o755))
	must.ErrorContains(t, checkLibrary(arm, "amd64"), "is not a shared object: ")
	must.NoError(t, os.Chmod(good, 0o700))
	must.ErrorContains(t, checkLibrary(good, "amd64"), "is not readable by all users")
}

func TestCheck(t *testing.T) {
	machine, ok := elfMachines[runtime.GOARCH]
	if !ok {
		t.Skip("the library is not built for " + runtime.GOARCH)
	}
	lib, dir := object(t, elf.ET_DYN, machine), t.TempDir()
	must.ErrorContains(t, Check("/nowhere/lib.so", dir), "the preload library cannot be read")
	must.ErrorContains(t, Check(lib, dir), "the gate cannot be reached: stat "+dir+"/gate.sock")
	must.NoError(t, os.WriteFile(filepath.Join(dir, Socket), nil, 0o600))
	must.ErrorContains(t, Check(lib, dir), "gate.sock is not a socket")
	must.NoError(t, os.Remove(filepath.Join(dir, Socket)))
	l, err := net.Listen("unix", filepath.Join(dir, Socket))
	must.NoError(t, err)
	defer l.Close()
	must.NoError(t, Check(lib, dir))
}

// A task with several device blocks has a variable for each.
func TestTake(t *testing.T) {
	text := func(h Handoff) string {
		text, err := h.Encode()
		must.NoError(t, err)
		return text
	}
	seat := full()
	seat.Cards, seat.Seats, seat.MemoryMiB = []string{"GPU-2"}, []string{"GPU-2/0"}, 1000
	card := Handoff{Whole: true, Tasks: seat.Tasks, Cards: []string{"GPU-1"}, Seats: []string{"GPU-1"}, MemoryMiB: 2000}
	env := map[string]string{Variable + "_1": text(card), Variable + "_2": text(seat), "PATH": "/bin"}
	got, given, err := Take(env)
	must.NoError(t, err)
	must.True(t, given)
	want := seat
	want.Cards, want.Seats, want.MemoryMiB = []string{"GPU-2", "GPU-1"}, []string{"GPU-2/0", "GPU-1"}, 2000
	must.Eq(t, want, got)
	must.Eq(t, []string{"GPU-2"}, got.SharedCards(), must.Sprint("the gate does not limit the other"))
	must.Eq(t, map[string]string{"PATH": "/bin"}, env)
	twice, _, err := Take(map[string]string{Variable + "_1": text(seat), Variable + "_2": text(seat)})
	must.NoError(t, err)
	must.Eq(t, []string{"GPU-2"}, twice.Cards)

	_, given, err = Take(env)
	must.NoError(t, err)
	must.False(t, given)
	_, given, err = Take(map[string]string{Variable: text(seat), Variable + "_2": "{"})
	must.True(t, given)
	must.ErrorContains(t, err, "reading "+Variable)
}
