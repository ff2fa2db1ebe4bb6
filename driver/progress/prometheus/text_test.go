// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package prometheus

import (
	"fmt"
	"math"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func all(string) bool { return true }

func TestParse(t *testing.T) {
	const text = `# HELP a b
# TYPE a gauge
a{z="1",b="c \\ \"d\" \n e"} 1.5e-3 1700000000000
# TYPE b histogram
b_bucket{le="+Inf"} NaN
# TYPE c counter
c 1
{"q.r",v="w"} -Inf
`
	p, err := parse([]byte(text), false, func(n string) bool { return n != "c" })
	must.NoError(t, err)
	var got []string
	for i := range p.samples {
		s := &p.samples[i]
		got = append(got, fmt.Sprintf("%s %s %v", s.name, s.key("z"), s.value))
	}
	must.Eq(t, []string{`a {b="c \\ \"d\" \n e"} 0.0015`, `b_bucket {le="+Inf"} NaN`, `q.r {v="w"} -Inf`}, got)
	must.Eq(t, "1", p.samples[0].label("z"))
	must.Eq(t, "", p.samples[0].label("y"))
	must.MapEq(t, map[string]string{"a": "gauge", "b": "histogram"}, p.types)
	must.Eq(t, []string{"c"}, p.others)
	must.Eq(t, 8, p.lines)

	const open = "a 1 # {b=\"c\"} 1\n# EOF\n"
	p, err = parse([]byte(open), true, all)
	must.NoError(t, err)
	must.Len(t, 1, p.samples)
	for _, bad := range []string{open, "<html>", `{"a": 1}`, "{} 1", "a", "a x", "a 1_000", "a{b=\"\xff\"} 1"} {
		_, err := parse([]byte(bad+"\n"), false, all)
		must.Error(t, err, must.Sprint(bad))
	}
	_, err = parse([]byte("{c} 1\n"), false, all)
	must.ErrorContains(t, err, "slice bounds out of range", must.Sprint("a panic of the parser (v0.305.0)"))
	_, err = parse([]byte("a 1\n"), true, all)
	must.Error(t, err, must.Sprint("it was cut off"))
}

func TestHostile(t *testing.T) {
	const size = 1 << 20
	var labels strings.Builder
	for i := 0; labels.Len() < size; i++ {
		fmt.Fprintf(&labels, "l%d=\"\",", i)
	}
	begin := time.Now()
	for _, line := range []string{
		"a{" + labels.String() + "} 1",
		"a{" + strings.Repeat(`b="c",`, size/6) + "} 1",
		"a{" + strings.Repeat(" ", size),
		"a{b=\"" + strings.Repeat("\\\\", size/2) + "\"} 1",
		strings.Repeat("a", size) + " 1",
		strings.Repeat("{", size),
		"a " + strings.Repeat("9", size),
		strings.Repeat("# TYPE ", size/7),
	} {
		for _, open := range []bool{false, true} {
			_, _ = parse([]byte(line), open, all)
			_, _ = parse([]byte(strings.Repeat(line[:100]+"\n", size/101)), open, all)
		}
	}
	t.Log(time.Since(begin))
}

// TestQuantileProperties checks quantiles of random observations: each is in the exact
// one's bucket, and they are monotone.
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
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, text []byte, open bool) {
		p, _ := parse(text, open, all)
		for name := range histograms(p.samples, "a") {
			for _, q := range []float64{0.01, 0.5, 1} {
				if v, ok := histograms(p.samples, "a")[name].quantile(q); ok {
					must.False(t, math.IsNaN(v))
				}
			}
		}
		e := &Endpoint{metric: "a", opts: Options{Quantile: 0.5}, now: time.Now, reportedKinds: map[string]bool{}}
		for range 2 {
			if tr := e.take(text, open); tr != nil && !tr.wait && strings.Contains(tr.text, string(text)) && len(text) > 20 {
				t.Fatal(tr.text)
			}
		}
	})
}
