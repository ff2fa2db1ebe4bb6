// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package preload

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// A program with another C library than glibc runs without the library's effect; but musl's
// loader ends it for a symbol that is missing.
func TestMusl_symbols(t *testing.T) {
	f, err := elf.Open(filepath.Join(dir, "libebbtide-cuda.so"))
	must.NoError(t, err)
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	must.NoError(t, err)
	common := []string{"__errno_location", "__cxa_finalize", "__tls_get_addr"}
	seen := 0
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF || elf.ST_BIND(s.Info) != elf.STB_GLOBAL {
			continue
		}
		seen++
		if strings.HasPrefix(s.Name, "__") && !slices.Contains(common, s.Name) && os.Getenv("EBBTIDE_CFLAGS") == "" {
			t.Errorf("%s is of glibc alone", s.Name)
		}
	}
	must.Positive(t, seen)
}

func TestMusl(t *testing.T) {
	gcc, err := exec.LookPath("musl-gcc")
	if err != nil {
		t.Skip("musl-gcc is not installed (Debian: musl-tools)")
	}
	tmp := t.TempDir()
	program := filepath.Join(tmp, "program")
	must.NoError(t, os.WriteFile(program+".c", []byte(`
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void)
{
	int (*f)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "getppid"), status = 1;
	void *none = dlopen("libcuda.so.1", RTLD_NOW);
	pid_t parent = getpid(), child = fork();
	if (child == 0)
		_exit(none || f() != parent ? 2 : 0);
	return waitpid(child, &status, 0) == child ? status : 3;
}
`), 0o644))
	out, err := exec.Command(gcc, "-o", program, program+".c").CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	for _, gate := range []string{"", filepath.Join(tmp, "gate.sock")} {
		cmd := exec.Command(program)
		cmd.Env = append(os.Environ(), "LD_PRELOAD="+filepath.Join(dir, "libebbtide-cuda.so"), "EBBTIDE_GATE="+gate)
		out, err := cmd.CombinedOutput()
		must.NoError(t, err, must.Sprint(string(out)))
		must.Eq(t, "", string(out))
	}
}
