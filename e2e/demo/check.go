// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// check reports why the demo cannot run.
func check() error {
	if os.Geteuid() != 0 {
		return errors.New("not root: a Nomad client needs root to run tasks. Try: sudo make demo")
	}
	return checkCgroups("/sys/fs/cgroup", func(path string) bool { return unix.Access(path, unix.W_OK) == nil })
}

// checkCgroups looks for a writable CPU controller, v2 or v1.
func checkCgroups(root string, writable func(string) bool) error {
	for _, controllers := range []string{"cgroup.controllers", "unified/cgroup.controllers"} {
		data, err := os.ReadFile(filepath.Join(root, controllers))
		if err != nil {
			continue
		}
		for _, c := range strings.Fields(string(data)) {
			if c != "cpu" {
				continue
			}
			if !writable(filepath.Join(root, filepath.Dir(controllers), "cgroup.procs")) {
				return fmt.Errorf("the cgroups under %s cannot be written to: in a container, run it privileged and with its own cgroup namespace", root)
			}
			return nil
		}
	}
	v1 := filepath.Join(root, "cpu", "cgroup.procs")
	if _, err := os.Stat(v1); err != nil {
		return fmt.Errorf("no CPU controller found under %s, neither cgroup v2 nor v1: CPU cannot be divided here", root)
	}
	if !writable(v1) {
		return fmt.Errorf("the cgroups under %s cannot be written to: in a container, run it privileged", filepath.Dir(v1))
	}
	return nil
}

// pool returns the number of shared cores.
func pool() int { return min(cores, runtime.NumCPU()) }

// useBuilt makes the harness use bin/ unless it is incomplete or older than the source.
func useBuilt(root string) (used bool) {
	if os.Getenv("EBBTIDE_BIN") != "" {
		return false
	}
	bin := filepath.Join(root, "bin")
	oldest := int64(-1)
	for _, name := range []string{"ebbtide-driver", "trainer"} {
		st, err := os.Stat(filepath.Join(bin, name))
		if err != nil {
			return false
		}
		if t := st.ModTime().UnixNano(); oldest < 0 || t < oldest {
			oldest = t
		}
	}
	newer := false
	for _, dir := range []string{"driver", "cmd", "internal", "version", "e2e/trainer"} {
		_ = filepath.WalkDir(filepath.Join(root, dir), func(path string, e os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			if info, err := e.Info(); err == nil && info.ModTime().UnixNano() > oldest {
				newer = true
				return filepath.SkipAll
			}
			return nil
		})
	}
	if newer {
		return false
	}
	return os.Setenv("EBBTIDE_BIN", bin) == nil
}
