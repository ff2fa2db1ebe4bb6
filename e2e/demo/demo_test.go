// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/demo/result"
)

func TestParse(t *testing.T) {
	t.Setenv("KEEP", "")
	var errs bytes.Buffer
	o, err := parse(nil, &errs)
	must.NoError(t, err)
	must.Eq(t, 1, o.seeds)
	must.Eq(t, "weight", o.mode)
	must.False(t, o.keep)
	must.True(t, filepath.IsAbs(o.out))

	t.Setenv("KEEP", "1")
	o, err = parse([]string{"-seeds", "3"}, &errs)
	must.NoError(t, err)
	must.True(t, o.keep)
	must.Eq(t, "", errs.String())
	t.Setenv("KEEP", "0")
	o, err = parse(nil, &errs)
	must.NoError(t, err)
	must.False(t, o.keep)

	_, err = parse([]string{"-h"}, &errs)
	must.True(t, errors.Is(err, flag.ErrHelp))
	for bad, want := range map[string]string{
		"extra":        `unexpected argument "extra"`,
		"-mode=hard":   `-mode: must be weight or quota, got "hard"`,
		"-policy=none": `-policy: must be one of auto, fsp, flowcon, tradl, dqoes, got "none"`,
		"-prefer=none": `-prefer: must be one of balanced, completion, quality, got "none"`,
		"-seeds=0":     "-seeds: must be ≥ 1, got 0",
		"-port=70000":  "-port: must be from 0 to 65535, got 70000",
		"-scale=NaN":   "-scale: must be from 0.01 to 100, got NaN",
		"-interval=x":  `-interval: must be a duration from 1s to 1h, got "x"`,
	} {
		errs.Reset()
		_, err := parse([]string{bad}, &errs)
		must.Error(t, err)
		must.StrContains(t, errs.String(), want)
	}
}

func TestCheckCgroups(t *testing.T) {
	yes, no := func(string) bool { return true }, func(string) bool { return false }
	put := func(t *testing.T, files map[string]string) string {
		root := t.TempDir()
		for name, text := range files {
			must.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
			must.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o644))
		}
		return root
	}
	v2 := put(t, map[string]string{"cgroup.controllers": "cpuset cpu io memory\n"})
	must.NoError(t, checkCgroups(v2, yes))
	must.ErrorContains(t, checkCgroups(v2, no), "cannot be written to")
	v1 := put(t, map[string]string{"cpu/cgroup.procs": "", "unified/cgroup.controllers": "\n"})
	must.NoError(t, checkCgroups(v1, yes))
	must.ErrorContains(t, checkCgroups(v1, no), "cannot be written to")
	without := put(t, map[string]string{"cgroup.controllers": "memory pids\n"})
	must.ErrorContains(t, checkCgroups(without, yes), "no CPU controller found")
	must.ErrorContains(t, checkCgroups(t.TempDir(), yes), "no CPU controller found")
}

func TestUseBuilt(t *testing.T) {
	root := t.TempDir()
	t.Setenv("EBBTIDE_BIN", "")
	must.False(t, useBuilt(root))

	now := time.Now()
	put := func(name string, age time.Duration) {
		path := filepath.Join(root, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.NoError(t, os.WriteFile(path, nil, 0o755))
		must.NoError(t, os.Chtimes(path, now, now.Add(-age)))
	}
	put("bin/ebbtide-driver", time.Minute)
	put("bin/trainer", time.Minute)
	put("driver/a.go", time.Second)
	must.False(t, useBuilt(root))
	put("driver/a.go", time.Hour)
	put("driver/a_test.go", time.Second)
	must.True(t, useBuilt(root))
	must.Eq(t, filepath.Join(root, "bin"), os.Getenv("EBBTIDE_BIN"))

	t.Setenv("EBBTIDE_BIN", "elsewhere")
	must.False(t, useBuilt(root))
	must.Eq(t, "elsewhere", os.Getenv("EBBTIDE_BIN"))
}

func TestJobs(t *testing.T) {
	all, half := options{scale: 1}.jobs(1), options{scale: 0.5}.jobs(1)
	must.Len(t, jobCount, all)
	for i, j := range all {
		must.InDelta(t, j.At.Seconds()/2, half[i].At.Seconds(), 1e-6)
		must.InDelta(t, j.Pool/2, half[i].Pool, 1e-9)
	}
}

func TestExpected(t *testing.T) {
	run := func(policy string, jobs int, end float64) (r result.Run) {
		r.Policy = policy
		for i := range jobs {
			r.Jobs = append(r.Jobs, result.Job{Name: fmt.Sprint("job", i), Started: 0.1, Finished: end})
		}
		return r
	}
	put := func(e result.Experiment) string {
		file := filepath.Join(t.TempDir(), "demo.json")
		data, err := json.Marshal(e)
		must.NoError(t, err)
		must.NoError(t, os.WriteFile(file, data, 0o644))
		return file
	}
	pair := func(jobs int, with float64) result.Pair {
		return result.Pair{None: run(none, jobs, 100), With: run("auto", jobs, with)}
	}
	e := result.Experiment{Cores: 2, Pairs: []result.Pair{pair(jobCount, 80), pair(jobCount, 90), pair(jobCount, 70)}}
	must.Eq(t, ": 3 seeds changed the mean time to end by -30.0 % to -10.0 %", expected(put(e)))
	e.Pairs = []result.Pair{pair(jobCount, 80), pair(jobCount-1, 90)} // another mix's
	must.Eq(t, "", expected(put(e)))
	must.Eq(t, "", expected(filepath.Join(t.TempDir(), "none.json")))
}

func TestRelevant(t *testing.T) {
	log := strings.Join([]string{
		"==> Nomad agent configuration:",
		"[INFO]  client: node registration complete",
		"[WARN]  client.fingerprint_mgr.consul: no server found",
		"[ERROR] client.driver_mgr.docker: no daemon: driver=docker",
		"[ERROR] agent: error starting agent",
		"[DEBUG] client.driver_mgr.ebbtide-driver: hello",
		"==> Error starting agent: it does not like it",
	}, "\n")
	must.Eq(t, "\nfrom the agent's log:\n  [ERROR] agent: error starting agent\n  [DEBUG] client.driver_mgr.ebbtide-driver: hello\n"+
		"  ==> Error starting agent: it does not like it", relevant(log, 10))
	must.StrNotContains(t, relevant(log, 1), "hello")
	must.Eq(t, "", relevant("[INFO] all is well", 10))
}

func TestUse(t *testing.T) {
	var f follower
	at := time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)
	see := func(after time.Duration, cpu float64) {
		f.see(status.Status{Updated: at.Add(after), CPUSeconds: status.Number(cpu)})
	}
	must.True(t, f.use() != f.use())
	see(time.Second, 1)
	must.True(t, f.use() != f.use())
	see(2*time.Second, 2)
	must.InDelta(t, 1/float64(pool()), f.use(), 1e-9)
	see(2*time.Second, 2) // the same reading
	must.InDelta(t, 1/float64(pool()), f.use(), 1e-9)
	see(3*time.Second, 4)
	must.InDelta(t, 1.5/float64(pool()), f.use(), 1e-9)
}
