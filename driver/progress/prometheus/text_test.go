// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package prometheus

import (
	"bytes"
	"fmt"
	"math"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/shoenig/test/must"
)

func all(string) bool { return true }

func render(s sample) string { return fmt.Sprintf("%s{%s} %v", s.name, s.key(""), s.value) }

func TestParse(t *testing.T) {
	for _, c := range []struct {
		line, want string
	}{
		{"a 1", "a{} 1"},
		{"a\t1", "a{} 1"},
		{"  a  1  ", "a{} 1"},
		{"a:b_C9 1\r", "a:b_C9{} 1"},
		{"a{} 1", "a{} 1"},
		{"a {} 1", "a{} 1"},
		{"a{}1", "a{} 1"},
		{`a{b="c"} 1`, `a{"b"="c",} 1`},
		{`a { b = "c" , d = "e" , } 1`, `a{"b"="c","d"="e",} 1`},
		{`a{z="1",b="2"} 1`, `a{"b"="2","z"="1",} 1`},
		{`a{b="c\\d\"e\nf}"} 1`, `a{"b"="c\\d\"e\nf}",} 1`},
		{`a{b="é, #"} 1`, `a{"b"="é, #",} 1`},
		{`{"a.b c"} 1`, `a.b c{} 1`},
		{`{"a.b",c="d","e f"="g"} 1`, `a.b{"c"="d","e f"="g",} 1`},
		{"a NaN", "a{} NaN"},
		{"a -Inf", "a{} -Inf"},
		{"a +Inf", "a{} +Inf"},
		{"a 1e-5 1700000000000", "a{} 1e-05"},
		{"a 1 -1", "a{} 1"},
		{"a 1 1700000000.5 # {b=\"c\"} 1 1700000000.5", "a{} 1"},
		{"a 1 # {b=\"c\"} 1", "a{} 1"},

		{"a", ""},
		{"a ", ""},
		{"1a 1", ""},
		{"a 1 x", ""},
		{"a 1 1 1", ""},
		{"a 0x1p-2", ""},
		{"a 1_000", ""},
		{"a 1e999", ""},
		{"a " + strings.Repeat("0", 500), ""},
		{"a x", ""},
		{"a{ 1", ""},
		{"a{b} 1", ""},
		{"a{b=} 1", ""},
		{"a{b=c} 1", ""},
		{`a{b="c} 1`, ""},
		{`a{b="\x"} 1`, ""},
		{`a{b="c\`, ""},
		{`a{b="c" d="e"} 1`, ""},
		{`a{b="c",,} 1`, ""},
		{`a{b="c",b="d"} 1`, ""},
		{"a{b=\"\xff\"} 1", ""},
		{`{b="c"} 1`, ""},
		{`{} 1`, ""},
		{`{"a","b"} 1`, ""},
		{`{""} 1`, ""},
		{`"a" 1`, ""},
		{`{"a": 1}`, ""},
		{"<html>", ""},
		{"a{" + strings.Repeat(`b="c",`, 100) + "} 1", ""},
	} {
		p := parse([]byte(c.line+"\n"), all)
		if c.want == "" {
			must.SliceEmpty(t, p.samples, must.Sprint(c.line))
			must.Eq(t, 1, p.bad, must.Sprint(c.line))
			continue
		}
		must.Len(t, 1, p.samples, must.Sprint(c.line))
		must.Eq(t, c.want, render(p.samples[0]))
		must.Eq(t, 1, p.good)
		// What nobody wants is checked, and not kept.
		p = parse([]byte(c.line), func(string) bool { return false })
		must.SliceEmpty(t, p.samples)
		must.Eq(t, 1, p.good)
	}

	p := parse([]byte("# TYPE a gauge\n#TYPE\tb  Histogram \n# TYPE c\n# TYPEd gauge\n#\n# HELP a b\n# TYPE 9\n# TYPE\n\n\n"), func(n string) bool { return n < "c" })
	must.MapEq(t, map[string]string{"a": "gauge", "b": "histogram"}, p.types)
	must.Eq(t, []string{"c"}, p.others)
	must.Eq(t, 10, p.lines)
}

// TestHostile reads texts that are made to be slow.
func TestHostile(t *testing.T) {
	const size = 1 << 20
	begin := time.Now()
	for _, line := range []string{
		"a{" + strings.Repeat(`b="c",`, size/6) + "} 1",
		"a{" + strings.Repeat(" ", size),
		"a{b=\"" + strings.Repeat("\\\\", size/2),
		strings.Repeat("a", size),
		strings.Repeat("{", size),
		strings.Repeat("a{b=\"c\"} 1 # ", size/13),
		"a " + strings.Repeat("9", size),
		strings.Repeat("# TYPE ", size/7),
	} {
		parse([]byte(line), all)
		parse([]byte(strings.Repeat(line[:100]+"\n", size/101)), all)
	}
	var labels strings.Builder
	for i := range maxLabels {
		fmt.Fprintf(&labels, "l%d=\"\",", i)
	}
	text := strings.Repeat("a{"+labels.String()+"} 1\n", 1000)
	must.Len(t, 1000, parse([]byte(text), all).samples)
	t.Log(time.Since(begin))
}

// library reads a text with Prometheus' own package, as the samples it is made of.
func library(text []byte) (out []string, ok bool) {
	defer func() {
		if recover() != nil { // as it does at braces in the first line
			ok = false
		}
	}()
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, false
	}
	add := func(name string, m *dto.Metric, extra string, bound, value float64) {
		s := sample{name: name, value: value}
		for _, l := range m.Label {
			s.labels = append(s.labels, label{l.GetName(), l.GetValue()})
		}
		if extra != "" {
			s.labels = append(s.labels, label{extra, fmt.Sprint(bound)})
		}
		slices.SortFunc(s.labels, func(a, b label) int { return strings.Compare(a.name, b.name) })
		out = append(out, render(s))
	}
	for name, f := range families {
		for _, m := range f.Metric {
			switch {
			case m.Gauge != nil:
				add(name, m, "", 0, m.Gauge.GetValue())
			case m.Counter != nil:
				add(name, m, "", 0, m.Counter.GetValue())
			case m.Untyped != nil:
				add(name, m, "", 0, m.Untyped.GetValue())
			case m.Summary != nil:
				for _, q := range m.Summary.Quantile {
					add(name, m, "quantile", q.GetQuantile(), q.GetValue())
				}
				add(name+"_sum", m, "", 0, m.Summary.GetSampleSum())
				add(name+"_count", m, "", 0, float64(m.Summary.GetSampleCount()))
			case m.Histogram != nil:
				for _, b := range m.Histogram.Bucket {
					add(name+"_bucket", m, "le", b.GetUpperBound(), float64(b.GetCumulativeCount()))
				}
				add(name+"_sum", m, "", 0, m.Histogram.GetSampleSum())
				add(name+"_count", m, "", 0, float64(m.Histogram.GetSampleCount()))
			}
		}
	}
	slices.Sort(out)
	return out, true
}

// TestLibrary compares what is read of well-formed texts with what Prometheus' own
// package reads.
func TestLibrary(t *testing.T) {
	text := histogramText("path=\"/a\",x=\"y z\"", 1, 2, 3, 4) + `# HELP a b \\ \n c
# TYPE a gauge
a{b="c",d="e \" f \\ g \n h"} 1.5e-3 1700000000000
a NaN
# TYPE c_total counter
c_total 12345678901234567890
u{} -Inf

# TYPE s summary
s{quantile="0.5",x="y"} 0.25
s_sum{x="y"} 7
s_count{x="y"} 3
{"q.r",v="w"} 3
`
	want, ok := library([]byte(text))
	must.True(t, ok)
	var got []string
	for _, s := range parse([]byte(text), all).samples {
		got = append(got, render(s))
	}
	slices.Sort(got)
	must.Eq(t, want, got)
}

// TestQuantileProperties checks quantiles of random observations: each lies in the
// bucket that the exact one lies in, and none is smaller than that of a smaller rank.
func TestQuantileProperties(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	for range 500 {
		bounds := []float64{0.1, 0.2, 0.5, 1, 2, 5}[:1+rng.Intn(6)]
		values := make([]float64, 1+rng.Intn(50))
		b := buckets{math.Inf(1): float64(len(values))}
		for _, bound := range bounds {
			b[bound] = 0
		}
		for i := range values {
			values[i] = rng.Float64() * bounds[len(bounds)-1] * 1.1
			for _, bound := range bounds {
				if values[i] <= bound {
					b[bound]++
				}
			}
		}
		slices.Sort(values)
		previous := 0.0
		for q := 0.01; q <= 1; q += 0.01 {
			got, ok := b.quantile(q)
			must.True(t, ok)
			must.GreaterEq(t, previous, got)
			previous = got
			exact := values[int(math.Ceil(q*float64(len(values))))-1]
			at, _ := slices.BinarySearch(bounds, exact)
			low, high := 0.0, bounds[min(at, len(bounds)-1)]
			if at > 0 {
				low = bounds[at-1]
			}
			must.Between(t, low-1e-9, got, high+1e-9)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"a 1\n", "# TYPE a histogram\na_bucket{le=\"0.5\"} 1\na_bucket{le=\"+Inf\"} 2\na_sum 1\na_count 2\n",
		"a{b=\"c\\\\\\\"\\n\",} NaN 17\n", "{\"a.b\",c=\"d\"} 1\n", "# TYPE a summary\na{quantile=\"0.95\"} 1\na_count 3\n", "# HELP a \\\n\na 1 # {x=\"y\"} 2\n# EOF",
		"<html>", "{\"a\": 1}", "{} 1\n", "{a=\"b\"} 1\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var got []string
		p := parse(text, all)
		for _, s := range p.samples {
			got = append(got, render(s))
		}
		slices.Sort(got)
		// Untyped samples are those that both show in the same way.
		if want, ok := library(text); ok && !bytes.Contains(text, []byte("TYPE")) && p.bad == 0 {
			must.Eq(t, len(want), len(got), must.Sprintf("%q", text))
			must.Eq(t, want, got, must.Sprintf("%q", text))
		}
		for name := range histograms(p.samples, "a") {
			for _, q := range []float64{0.01, 0.5, 1} {
				if v, ok := histograms(p.samples, "a")[name].quantile(q); ok {
					must.False(t, math.IsNaN(v))
				}
			}
		}
		e := &Endpoint{metric: "a", opts: Options{Quantile: 0.5}, now: time.Now, told: map[string]bool{}}
		for range 2 {
			if tr := e.take(text); tr != nil && !tr.wait && strings.Contains(tr.text, string(text)) && len(text) > 20 {
				t.Fatal(tr.text)
			}
		}
	})
}
