// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package report

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestMeasured(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		median  float64
	}{
		{[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 2, 9}, 3}, {[]float64{0}, 0},
	} {
		f := Measured("n", "w", "s", c.samples...)
		must.Eq(t, c.median, *f.Median)
		must.Eq(t, c.samples, f.Samples)
		must.Eq(t, "", f.Missing)
	}
	must.Eq(t, "n of: 2 s (1 to 9, 3 times)", Measured("n", "w", "s", 9, 1, 2).For("of").String())
	none := Measured("n", "w", "s")
	must.Nil(t, none.Median)
	must.NotEq(t, "", none.Missing)
}

func TestAppend(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lines")
	none, err := Read(path)
	must.NoError(t, err)
	must.SliceEmpty(t, none)
	f := Measured("context", "w", "MiB", 1, 2).For("first")
	must.NoError(t, Append(path, Line{Card: &Card{Name: "card"}}))
	must.NoError(t, Append(path, Line{Figure: &f}))
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	must.NoError(t, err)
	_, err = file.WriteString(`{"figure": {"na`)
	must.NoError(t, err)
	must.NoError(t, file.Close())
	got, err := Read(path)
	must.NoError(t, err)
	must.Eq(t, []Line{{Card: &Card{Name: "card"}}, {Figure: &f}}, got)
	must.ErrorContains(t, Append(filepath.Join(path, "below"), Line{}), "writing a finding")
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		tests []Verdict
		want  Verdict
	}{
		{nil, Skipped}, {[]Verdict{Skipped}, Skipped}, {[]Verdict{Passed, Skipped}, Passed}, {[]Verdict{Passed, Failed, Skipped}, Failed},
	} {
		var r Report
		for _, v := range c.tests {
			r.Tests = append(r.Tests, Test{Verdict: v})
		}
		r.Judge()
		must.Eq(t, c.want, r.Verdict)
		must.Eq(t, c.want == Passed, r.Reason == "")
	}
}

func TestReport_missing(t *testing.T) {
	f := Missing("blas", "what a handle takes", "MiB", "there is no cuBLAS")
	f.Test = "TestSizes"
	r := Report{Tests: []Test{{Name: "TestSizes", Verdict: Skipped, Reason: "no cuBLAS"}}, Figures: []Figure{f}}
	data, err := json.Marshal(r)
	must.NoError(t, err)
	must.StrNotContains(t, string(data), "median")
	must.StrNotContains(t, string(data), "samples")
	must.StrContains(t, string(data), "there is no cuBLAS")
	var b strings.Builder
	must.NoError(t, r.Text(&b))
	must.StrContains(t, b.String(), "not measured: there is no cuBLAS")
}

func TestText(t *testing.T) {
	park := Measured("park", "the time to park", "s/GiB", 0.25, 0.5, 0.125).For("2 GiB")
	again := Measured("park", "the time to park", "s/GiB", 1234.5).For("4 GiB")
	park.Test, again.Test = "TestPark", "TestPark"
	r := Report{
		Begun: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Seconds: 61, Ebbtide: "1.2.3 (abc)", Fake: true,
		Machine: Machine{Kernel: "6.1", Architecture: "amd64", Processors: 16, MemoryMiB: 1024, Glibc: "2.36", GlibcNeeded: "2.34", Root: true},
		Card:    &Card{Name: "NVIDIA H100", UUID: "GPU-1", Driver: "580.1", CUDA: "13.0", MemoryMiB: 81559, ReservedMiB: 512.5, FreeMiB: 81000, ContextMiB: 400},
		Tests:   []Test{{Name: "TestPark", Verdict: Failed, Reason: "one\ntwo\n", Seconds: 1.25}, {Name: "TestTorch", Verdict: Skipped, Reason: "no python3"}},
		Figures: []Figure{park, again},
	}
	r.Judge()
	var b strings.Builder
	must.NoError(t, r.Text(&b))
	must.Eq(t, `Ebbtide on a card: failed: 1 of 2 tests failed

THIS WAS THE FAKE CARD: its figures say nothing about a real one.

date      2026-01-02T03:04:05Z, 61 s
ebbtide   1.2.3 (abc)
machine   Linux 6.1, amd64, 16 processors, 1024 MiB, glibc 2.36 (2.34 is needed), root: yes
card      NVIDIA H100, GPU-1
driver    580.1, CUDA 13.0
memory    81559 MiB, of which the driver keeps 512.5; 81000 were free; a context takes 400

Tests: 0 passed, 1 failed, 1 skipped

  failed      1.2 s  TestPark
                       one
                       two
  skipped     0.0 s  TestTorch
                       no python3

Figures: the median, and in brackets the least and the most of several

TestPark
  park: the time to park
    2 GiB                                    0.25 s/GiB (0.125 to 0.5, 3 times)
    4 GiB                                    1234 s/GiB
`, b.String())
}
