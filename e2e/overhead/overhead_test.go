// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestParse(t *testing.T) {
	var errs bytes.Buffer
	o, err := parse([]string{"-tasks", "5", "-window", "5s"}, &errs)
	must.NoError(t, err)
	must.Eq(t, "both", o.what)
	must.Eq(t, 5, o.tasks)
	must.Eq(t, 5*time.Second, o.interval)
	must.True(t, filepath.IsAbs(o.out))
	must.Eq(t, "5s", o.given["window"])
	must.Eq(t, "15s", o.given["window-lone"])

	_, err = parse([]string{"-h"}, &errs)
	must.True(t, errors.Is(err, flag.ErrHelp))
	for bad, want := range map[string]string{
		"extra":           `unexpected argument "extra"`,
		"-what=all":       `-what: must be plugin, lone or both, got "all"`,
		"-tasks=0":        "-tasks: must be from 1 to 1000, got 0",
		"-rounds=0":       "-rounds: must be ≥ 1, got 0",
		"-rounds-lone=-1": "-rounds-lone: must be ≥ 1, got -1",
		"-interval=1ms":   "-interval: must be from 1s to 1h, got 1ms",
		"-settle=-1s":     "-settle: must be ≥ 0, got -1s",
		"-window=0s":      "-window: must be ≥ 1s, got 0s",
		"-window-lone=0s": "-window-lone: must be ≥ 1s, got 0s",
	} {
		errs.Reset()
		_, err := parse([]string{bad}, &errs)
		must.Error(t, err)
		must.StrContains(t, errs.String(), want)
	}
}

func TestReadCPU(t *testing.T) {
	cpu, err := processCPU("12 (a) name) S 1 2 3 4 5 6 7 8 9 10 150 50 99 99 20 0 1")
	must.NoError(t, err)
	must.Eq(t, 2, cpu)
	_, err = processCPU("12 (x) S 1 2")
	must.ErrorContains(t, err, "short")

	cpu, err = machineCPU("cpu  100 200 300 9999 8888 10 20 70 0 0\ncpu0 1\n")
	must.NoError(t, err)
	must.Eq(t, 7, cpu)
	_, err = machineCPU("intr 1\n")
	must.Error(t, err)

	before, err := readCPU([][]int{{os.Getpid()}, nil})
	must.NoError(t, err)
	after := before
	for !(after.cores(before)[0] > 0 && after.busy(before) > 0) { // on a busy machine it takes long to get CPU time
		after, err = readCPU([][]int{{os.Getpid()}, nil})
		must.NoError(t, err)
	}
	must.Eq(t, 0, after.cores(before)[1])
	_, err = readCPU([][]int{{-1}})
	must.Error(t, err)

	mib, err := rss(os.Getpid())
	must.NoError(t, err)
	must.Between(t, 1, mib, 4096)
}

func TestPrint(t *testing.T) {
	r := results{Options: map[string]string{"tasks": "100", "window": "1m0s", "window-lone": "15s"}}
	for i, pct := range []float64{3, 2.5, 2.25, 3.5} {
		policy := []string{"flowcon", "none", "none", "flowcon"}[i]
		r.Plugin = append(r.Plugin, pluginRun{Policy: policy, Round: 1 + i/2, Plugin: pct, Categories: map[string]int{"NL": 50, "CL": 50}})
	}
	var out bytes.Buffer
	printPlugin(&out, r)
	must.StrContains(t, out.String(), "| none | 1 | 2.50 |")
	must.StrContains(t, out.String(), "| 50 CL, 50 NL |")
	must.StrContains(t, out.String(), "flowcon 3.25, none 2.38. Overhead, flowcon − none: +0.88 % of a core; in the worst case (highest − lowest) +1.25.")

	r.Lone = []loneRun{
		{Way: "stock", Round: 1, Cores: 2, Left: 2, Steps: 100}, {Way: "weight", Round: 1, Cores: 1.98, Left: 2, Steps: 101}, {Way: "quota", Round: 1, Cores: 1.9, Left: 2, Steps: 95},
		{Way: "quota", Round: 2, Cores: 1, Left: 2, Steps: 50}, {Way: "stock", Round: 2, Cores: 1, Left: 2, Steps: 50}, {Way: "weight", Round: 2, Cores: 1, Left: 2, Steps: 50},
	}
	out.Reset()
	printLone(&out, r)
	must.StrContains(t, out.String(), "| 99.0, 99.0, 101.0 | 95.0, 95.0, 95.0 |")
	must.StrContains(t, out.String(), "| quota | 97.5 (95.0 … 100.0) | 97.5 (95.0 … 100.0) |")

	path := filepath.Join(t.TempDir(), "out", "overhead.json")
	must.NoError(t, r.write(path))
	must.FileExists(t, path)
}
