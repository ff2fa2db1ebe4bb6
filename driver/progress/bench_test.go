// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/shoenig/test/must"
)

// noise returns n bytes of lines with numbers, pairs and time stamps, but without
// reports.
func noise(n int) []byte {
	rng := rand.New(rand.NewPCG(1, 2))
	words := []string{"worker", "Loaded", "shard", "dataset", "tensor", "cuda:0", "INFO", "lr=0.001", "time=3.5s",
		"loss_scale=65536", "batch", "queue", "0x7f3a", "elapsed", "12.5ms", "/data/train/part-0001.parquet",
		"host:port", "10.0.0.1:8080", "warning:", "deprecated", "tokens/s", "grad_norm", "and", "the", "of", "checkpoint"}
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "2025-01-%02d 10:%02d:%02d,%03d ", i%28+1, i/60%60, i%60, i%1000)
		for range 4 + rng.IntN(12) {
			b.WriteString(words[rng.IntN(len(words))])
			b.WriteByte(' ')
		}
		b.WriteByte('\n')
	}
	return b.Bytes()[:n]
}

func samples(tb testing.TB, pattern string, n int) []byte {
	files, err := filepath.Glob("testdata/" + pattern)
	must.NoError(tb, err)
	var once []byte
	for _, f := range files {
		data, err := os.ReadFile(f)
		must.NoError(tb, err)
		once = append(once, data...)
	}
	return bytes.Repeat(once, n/len(once)+1)[:n]
}

type repeating struct {
	data []byte
	at   int
	left int64
}

func (r *repeating) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(int64(len(p)), r.left)], r.data[r.at:])
	r.at = (r.at + n) % len(r.data)
	r.left -= int64(n)
	return n, nil
}

func drain(tb testing.TB, r *Reader) (n int) {
	for {
		_, err := r.Next()
		if errors.Is(err, io.EOF) {
			return n
		}
		must.NoError(tb, err)
		n++
	}
}

// BenchmarkReader measures reading with automatic settings; the goal is at least 50
// MB/s.
func BenchmarkReader(b *testing.B) {
	const size = 16 << 20
	mixed := func() []byte {
		var out []byte
		n, s := noise(size), samples(b, "*.log", size)
		for i := 0; len(out) < size; i++ { // a kilobyte of reports after nine of noise
			at := i * 9 << 10 % (size - 9<<10)
			out = append(out, n[at:at+9<<10]...)
			out = append(out, '\n')
			out = append(out, s[i<<10%(size-1<<10):][:1<<10]...)
			out = append(out, '\n')
		}
		return out[:size]
	}
	for _, bench := range []struct {
		name   string
		data   []byte
		config Config
	}{
		{"noise", noise(size), Config{}},
		{"noise-metric", noise(size), Config{Metric: "loss"}},
		{"noise-pattern", noise(size), Config{Pattern: `loss[=: ]+(?P<value>[0-9.]+)`}},
		{"mixed", mixed(), Config{}},
		{"huggingface", samples(b, "huggingface-*.log", size), Config{}},
		{"keras", samples(b, "keras-*.log", size), Config{}},
		{"lightning", samples(b, "lightning-*.log", size), Config{}},
		{"plain", samples(b, "plain-*.log", size), Config{}},
		{"jsonl", samples(b, "jsonl-*.log", size), Config{}},
		{"one-line", bytes.Repeat([]byte("no line ends here "), size/18), Config{}},
		{"digits", bytes.Repeat([]byte("1.5 22/33 44:55 [66] a=7 b: 8 c 9\n"), size/34), Config{}},
		{"bars", bytes.Repeat([]byte("\r 10%|█         | 10/100 [00:01<00:09, 9.51it/s]"), size/52), Config{}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.SetBytes(int64(len(bench.data)))
			b.ReportAllocs()
			for b.Loop() {
				p, err := NewParser(bench.config)
				must.NoError(b, err)
				b.ReportMetric(float64(drain(b, NewReader(bytes.NewReader(bench.data), p))), "reports")
			}
		})
	}
}

func BenchmarkMemory(b *testing.B) {
	data := append(noise(8<<20), samples(b, "*.log", 1<<20)...)
	for b.Loop() {
		b.ReportMetric(growth(b, data, 1<<30)/(1<<20), "MiB-growth")
		b.SetBytes(1 << 30)
	}
}

// growth reads n bytes and returns the maximum of the live heap above its size after
// the first sixteenth, in bytes.
func growth(tb testing.TB, data []byte, n int64) float64 {
	live := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	p, err := NewParser(Config{})
	must.NoError(tb, err)
	r := NewReader(&repeating{data: data, left: n}, p)
	var base, most float64
	var read int64
	for i := 1; i <= 16; i++ {
		for read < n/16*int64(i) {
			_, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			must.NoError(tb, err)
			read = r.Stats().Bytes
		}
		if i == 1 {
			base = live()
		} else {
			most = max(most, live()-base)
		}
	}
	runtime.KeepAlive(r)
	return most
}
