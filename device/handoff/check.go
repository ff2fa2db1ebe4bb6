// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package handoff

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

var elfMachines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "ppc64le": elf.EM_PPC64}

var archNames = map[elf.Machine]string{elf.EM_X86_64: "x86_64", elf.EM_AARCH64: "aarch64", elf.EM_PPC64: "ppc64le", elf.EM_386: "i386", elf.EM_ARM: "arm"}

// Check returns why containers cannot use a preload library and the gate in a directory, or nil.
// A library that fails to load would otherwise just print a line in each container.
func Check(preload, gate string) error {
	if err := checkLibrary(preload, runtime.GOARCH); err != nil {
		return err
	}
	socket := filepath.Join(gate, Socket)
	switch st, err := os.Stat(socket); {
	case err != nil:
		return fmt.Errorf("the gate cannot be reached: %w", err)
	case st.Mode()&os.ModeSocket == 0:
		return fmt.Errorf("the gate %s is not a socket", socket)
	}
	return nil
}

func checkLibrary(path, arch string) error {
	st, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("the preload library cannot be read: %w", err)
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("the preload library %s is not a file", path)
	}
	// Containers run as any user.
	if st.Mode().Perm()&0o004 == 0 {
		return fmt.Errorf("the preload library %s is not readable by all users (chmod 0755)", path)
	}
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("the preload library %s is not a shared object: %w", path, err)
	}
	defer f.Close()
	want, known := elfMachines[arch]
	switch {
	case f.Type != elf.ET_DYN:
		return fmt.Errorf("the preload library %s is not a shared object", path)
	case known && f.Machine != want:
		return fmt.Errorf("the preload library %s is for %s, this machine is %s", path, archName(f.Machine), archName(want))
	}
	return nil
}

func archName(m elf.Machine) string {
	if n, ok := archNames[m]; ok {
		return n
	}
	return m.String()
}
