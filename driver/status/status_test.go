// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package status

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/shoenig/test/must"
)

func TestNumber(t *testing.T) {
	for _, f := range oddNumbers {
		n := Number(f)
		b, err := json.Marshal(n)
		must.NoError(t, err)
		var back Number
		must.NoError(t, json.Unmarshal(b, &back))
		if math.IsNaN(f) || math.IsInf(f, 0) {
			must.Eq(t, "null", string(b))
			must.True(t, math.IsNaN(float64(back)))
			must.False(t, n.Known())
			continue
		}
		must.Eq(t, math.Float64bits(f), math.Float64bits(float64(back)), must.Sprint(string(b)))
		must.True(t, n.Known())
	}
	for _, bad := range []string{`"1"`, `true`, `{}`, `[1]`, `1e999`, `-1e999`, `"` + strings.Repeat("x", 1<<20) + `"`} {
		var n Number
		err := json.Unmarshal([]byte(bad), &n)
		must.ErrorContains(t, err, "not a number or null")
		must.Less(t, 200, len(err.Error()))
	}
}

// unknown returns the optional numbers of a status.
func unknown(s Status) map[string]Number {
	return map[string]Number{"value": s.Value, "step": s.Step, "total": s.Total, "progress_per_s": s.Progress, "growth": s.Growth,
		"use": s.Use, "cpu_s": s.CPUSeconds, "throttled_s": s.Throttled, "limit.fraction": s.Limit.Fraction,
		"node.pool_cores": s.Node.PoolCores, "node.alpha": s.Node.Alpha, "node.interval_s": s.Node.IntervalS}
}

func TestStatus_unknown(t *testing.T) {
	for _, file := range []string{`{}`, `null`, `{"limit":{},"node":{}}`,
		`{"value":null,"step":null,"limit":{"fraction":null},"node":{"alpha":null}}`} {
		s, err := decode("file", []byte(file))
		must.NoError(t, err)
		for name, n := range unknown(s) {
			must.True(t, math.IsNaN(float64(n)), must.Sprint(file, name))
		}
	}
	b, err := blank().Encode()
	must.NoError(t, err)
	var m map[string]any
	must.NoError(t, json.Unmarshal(b, &m))
	for name := range unknown(Status{}) {
		in := m
		if group, field, nested := strings.Cut(name, "."); nested {
			in, name = m[group].(map[string]any), field
		}
		v, ok := in[name]
		must.True(t, ok, must.Sprint(name))
		must.Nil(t, v, must.Sprint(name))
	}
}

func full() Status {
	at := time.Date(2026, 3, 1, 9, 30, 0, 5, time.UTC)
	return Status{
		Schema: Schema, Version: "1.2", Task: "t", Alloc: "a", Job: "j", Namespace: "ns", Engine: "docker", Policy: "flowcon",
		Estimator: "robust", Mode: "weight", Category: "NL", Since: at, Metric: "loss", Goal: "min", Value: 0.5, Step: 3, Total: 9,
		Progress: 1e-3, Growth: 2e-3, Reports: 7, Plateau: true, Diverged: true, Use: 0.25, CPUSeconds: 77, Periods: 8,
		ThrottledPeriods: 2, Throttled: 1.5,
		Limit: Limit{Fraction: 0.5, Kernel: Kernel{Shares: 512, QuotaCores: 2}, InForce: Kernel{Shares: 511, QuotaCores: 2.5}, Error: "no"},
		Rule:  "r", Why: `because "of" <this> & that`, Updated: at.Add(time.Hour),
		Node: Node{PoolCores: 4, Tasks: 3, Counts: map[string]int{"NL": 2, "CL": 1}, GrowthSum: map[string]Number{"NL": 0.25},
			Alpha: -1, IntervalS: 20},
	}
}

func (w *Writer) readStatus() (Status, error) {
	b, path, err := w.read(".json", MaxStatus)
	if err != nil {
		return Status{}, err
	}
	return decode(path, b)
}

func TestStatus_roundTrip(t *testing.T) {
	w, dir := newTestWriter(t, Options{})
	in := full()
	must.NoError(t, w.Status(in))
	for _, read := range []func() (Status, error){w.readStatus, func() (Status, error) { return ReadStatus(filepath.Join(dir, "t.json")) }} {
		out, err := read()
		must.NoError(t, err)
		must.Eq(t, in, out)
	}
	must.StrHasSuffix(t, "}\n", readFileOf(t, filepath.Join(dir, "t.json")))

	in.Schema = 99 // set by the Writer
	must.NoError(t, w.Status(in))
	out, err := w.readStatus()
	must.NoError(t, err)
	must.Eq(t, Schema, out.Schema)
}

func TestStatus_longTexts(t *testing.T) {
	w, _ := newTestWriter(t, Options{})
	for _, unit := range []string{"x", "\x00", "\xff", "✓", "<", "é\x01"} {
		long := strings.Repeat(unit, 1<<20/len(unit))
		s := full()
		texts := []*string{&s.Version, &s.Task, &s.Alloc, &s.Job, &s.Namespace, &s.Engine, &s.Policy, &s.Estimator,
			&s.Mode, &s.Category, &s.Metric, &s.Goal, &s.Rule, &s.Why, &s.Limit.Error}
		for _, p := range texts {
			*p = long
		}
		must.NoError(t, w.Status(s))
		got, err := w.readStatus()
		must.NoError(t, err)
		for _, text := range []string{got.Version, got.Task, got.Alloc, got.Job, got.Namespace, got.Engine, got.Policy, got.Estimator,
			got.Mode, got.Category, got.Metric, got.Goal, got.Rule, got.Why, got.Limit.Error} {
			must.StrHasSuffix(t, "…", text)
			must.True(t, utf8.ValidString(text))
		}
	}
}

func TestCut(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "…"}, {"abcd", 4, "abcd"}, {"abcde", 4, "a…"},
		{"aéé", 4, "a…"}, {"aéé", 5, "aéé"}, {"éééé", 6, "é…"}, {"✓✓✓", 8, "✓…"}, {"✓✓✓", 5, "…"},
		{"\x80\x80\x80\x80\x80\x80", 5, "…"},
	} {
		got := cut(c.in, c.n)
		must.Eq(t, c.want, got)
		must.LessEq(t, c.n, len(got))
	}
}

func hostileStatus() map[string]string {
	return map[string]string{
		"empty":          "",
		"torn":           `{"task":"t","value":1`,
		"NUL":            "{}\x00",
		"two":            `{}{}`,
		"an array":       `[]`,
		"a text":         `"status"`,
		"wrong types":    `{"task":1}`,
		"wrong number":   `{"value":"1"}`,
		"overflow":       `{"value":1e999}`,
		"wrong counter":  `{"cfs_periods":-1}`,
		"wrong time":     `{"since":"yesterday"}`,
		"wrong year":     `{"since":"99999-01-01T00:00:00Z"}`,
		"wrong map":      `{"node":{"counts":[]}}`,
		"wrong sum":      `{"node":{"growth_sum":{"NL":"x"}}}`,
		"deep":           `{"resume":` + strings.Repeat("[", 30000) + strings.Repeat("]", 30000) + `}`,
		"deep, unknown":  `{"new":` + strings.Repeat(`{"a":`, 30000) + `1` + strings.Repeat("}", 30000) + `}`,
		"deep, torn":     strings.Repeat("[", MaxStatus),
		"large":          `{"why":"` + strings.Repeat("x", MaxStatus) + `"}`,
		"large, 100 MiB": `{"resume":"` + strings.Repeat("x", 100<<20) + `"}`,
		"spaces":         strings.Repeat(" ", MaxStatus) + `{}`,
	}
}

func TestReadStatus_hostile(t *testing.T) {
	w, dir := newTestWriter(t, Options{})
	path := filepath.Join(dir, "t.json")
	for name, file := range hostileStatus() {
		must.NoError(t, os.WriteFile(path, []byte(file), 0o600))
		_, err := w.readStatus()
		must.ErrorContains(t, err, path, must.Sprint(name))
		must.Less(t, 1000, len(err.Error()))
	}
	must.NoError(t, w.Picture()) // works without a status
	for name, file := range map[string]string{
		"null":         `null`,
		"repeated":     `{"value":1,"value":2,"VALUE":3}`,
		"many unknown": `{` + strings.Repeat(`"k":0,`, 20000) + `"value":3}`,
		"many counts":  `{"node":{"counts":{` + strings.Repeat(`"k":0,`, 20000) + `"z":0}},"value":3}`,
		"long texts":   `{"metric":"` + strings.Repeat("m", 100<<10) + `","job":"` + strings.Repeat("\u2713", 30<<10) + `","value":3}`,
		"odd numbers":  `{"value":3,"step":-1e308,"node":{"pool_cores":1e308,"alpha":-0}}`,
	} {
		must.NoError(t, os.WriteFile(path, []byte(file), 0o600))
		st, err := w.readStatus()
		must.NoError(t, err, must.Sprint(name))
		must.True(t, st.Value == 3 || !st.Value.Known())
		must.NoError(t, w.Status(st)) // it can be replaced
		if name == "long texts" {
			must.NoError(t, w.Picture())
		}
	}
}

func FuzzDecodeStatus(f *testing.F) {
	for _, file := range hostileStatus() {
		if len(file) < 64<<10 {
			f.Add([]byte(file))
		}
	}
	b, err := full().Encode()
	must.NoError(f, err)
	f.Add(b)
	b, err = blank().Encode()
	must.NoError(f, err)
	f.Add(b)
	f.Add([]byte(`{"VALUE":5e-324,"node":{"growth_sum":{"":null},"counts":null}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decode("file", b)
		if err != nil {
			must.ErrorContains(t, err, "file")
			return
		}
		once, err := s.Encode()
		if err != nil { // indented it may exceed the bound
			must.ErrorContains(t, err, "can be read back")
			return
		}
		back, err := decode("file", once)
		must.NoError(t, err)
		twice, err := back.Encode()
		must.NoError(t, err)
		must.Eq(t, string(once), string(twice))
	})
}
