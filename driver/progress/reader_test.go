// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func read(t testing.TB, text string) ([]string, Stats) {
	r := NewReader(strings.NewReader(text), newParser(t, Config{}))
	out := []string{}
	for _, report := range readAll(t, r) {
		out = append(out, strings.TrimSuffix(render(report), "\n"))
	}
	return out, r.Stats()
}

func TestReader(t *testing.T) {
	const filler = "no line ends here. "
	long := strings.Repeat(filler, maxLine/len(filler)*3)
	for _, c := range []struct {
		name, text string
		want       []string
		lines      int64
		oversized  int64
	}{
		{"nothing", "", nil, 0, 0},
		{"empty lines", "\n\n\r\n\r\r\n", nil, 4, 0},
		{"no end", "loss=0.5", []string{"line 1: step - of -: loss = 0.5"}, 1, 0},
		{"\\r\\n", "loss=0.5\r\nloss=0.25\r\n", []string{"line 1: step - of -: loss = 0.5", "line 2: step - of -: loss = 0.25"}, 2, 0},
		{"a bar that is drawn over", "\rloss=0.5\rloss=0.25\nloss=1.5\n", []string{
			"line 1: step - of -: loss = 0.5", "line 1: step - of -: loss = 0.25", "line 2: step - of -: loss = 1.5"}, 2, 0},
		{"backspaces for \\r", "loss=0.5" + strings.Repeat("\b", 8) + "loss=0.25" + strings.Repeat("\b", 20), []string{
			"line 1: step - of -: loss = 0.5", "line 1: step - of -: loss = 0.25"}, 1, 0},
		{"a few backspaces", "pct 10%\b\b\b20% loss=0.5\b5\n", []string{"line 1: step - of -: loss = 0.5"}, 1, 0},
		{"columns for \\r", "loss=0.5\x1b[1Gloss=0.25\x1b[2K\x1b[Gloss=0.125\n", []string{
			"line 1: step - of -: loss = 0.5", "line 1: step - of -: loss = 0.25", "line 1: step - of -: loss = 0.125"}, 1, 0},
		{"at the beginning of a long line", "loss=0.5 " + long + "\nloss=0.25\n", []string{
			"line 1: step - of -: loss = 0.5", "line 2: step - of -: loss = 0.25"}, 2, 1},
		{"at the end of a long line", long + "loss=0.5\nloss=0.25\n", []string{
			"line 1: step - of -: loss = 0.5", "line 2: step - of -: loss = 0.25"}, 2, 1},
		{"at both ends, once", "loss=0.5 " + long + "loss=0.25\n", []string{"line 1: step - of -: loss = 0.5"}, 1, 1},
		{"in the middle, not", long + "loss=0.5 " + long + "\n", nil, 1, 1},
		{"a long line without an end", long + "loss=0.5", []string{"line 1: step - of -: loss = 0.5"}, 1, 1},
		{"a number that the limit cuts", strings.Repeat("x", maxLine-8) + " loss=0.5123" + strings.Repeat("y", maxLine) + "\n", nil, 1, 1},
		{"as long as a line may be", strings.Repeat(" ", maxLine-8) + "loss=0.5\n", []string{"line 1: step - of -: loss = 0.5"}, 1, 0},
		{"one more", strings.Repeat(" ", maxLine-7) + "loss=0.5\n", []string{"line 1: step - of -: loss = 0.5"}, 1, 1},
		{"a hole of zeros", strings.Repeat("\x00", 1000) + "loss=0.5\n", []string{"line 1: step - of -: loss = 0.5"}, 1, 0},
		{"invalid UTF-8", "\xff\xfe loss=0.5 \xe2\x94\n", []string{"line 1: step - of -: loss = 0.5"}, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, st := read(t, c.text)
			must.SliceEqOp(t, c.want, got)
			must.Eq(t, Stats{Bytes: int64(len(c.text)), Lines: c.lines, Reports: int64(len(c.want)), Oversized: c.oversized}, st)
		})
	}
}

func TestReader_error(t *testing.T) {
	broken := errors.New("broken")
	r := NewReader(io.MultiReader(strings.NewReader("loss=0.5\nloss=0.2"), iotest.ErrReader(broken)), newParser(t, Config{}))
	report, err := r.Next()
	must.NoError(t, err)
	must.Eq(t, 0.5, report.Value)
	for range 2 {
		_, err = r.Next()
		must.ErrorIs(t, err, broken) // an incomplete rest is not parsed
	}
}

func TestReader_anyChunks(t *testing.T) {
	pieces := []string{"\n", "\r", "\r\n", "\b\b\b\b\b\b\b\b\b\b\b\b\b\b\b\b", "\x1b[1m", "\x1b[0m", "noise ", "step=7 loss=0.5", " loss: 1e-3,",
		"{'loss': '0.25', 'epoch': 1.0}", "Epoch 1/2\n", " 10%|█ | 10/100 [00:01<00:09, 9it/s, loss=0.5]", "é━", "1/5 [==>..] - 2s - loss: 0.5",
		strings.Repeat("x", 5000), strings.Repeat("long ", 8000), "\x00"}
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 12).Draw(t, "text"), "")
		whole := chunks(t, text, len(text)+1)
		size := rapid.IntRange(1, 3000).Draw(t, "size")
		if parts := chunks(t, text, size); whole != parts {
			t.Fatalf("cut every %d bytes:\n%s\nwhole:\n%s", size, parts, whole)
		}
	})
}

func chunks(t *rapid.T, text string, size int) string {
	p, err := NewParser(Config{})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	s := splitter{parser: p, emit: func(r Report) { out.WriteString(render(r)) }}
	for len(text) > 0 {
		n := min(size, len(text))
		s.feed([]byte(text[:n]))
		text = text[n:]
		if len(s.partial) > maxLine || cap(s.partial) > 2*maxLine {
			t.Fatalf("%d of %d bytes are held", len(s.partial), cap(s.partial))
		}
	}
	s.end(nil)
	fmt.Fprintf(&out, "%d lines, %d long", s.line, s.long)
	return out.String()
}

// Memory is constant. The benchmark does the same with 1 GB.
func TestReader_memory(t *testing.T) {
	if testing.Short() {
		t.Skip("reads 64 MB")
	}
	data := append(noise(2<<20), samples(t, "*.log", 256<<10)...)
	must.Less(t, 5<<20, growth(t, data, 64<<20))
	must.Less(t, 5<<20, growth(t, []byte("no line ends here "), 64<<20))
	must.Less(t, 5<<20, growth(t, []byte("\r 10%|█         | 10/100 [00:01<00:09, 9.51it/s, loss=0.5]"), 16<<20))
}

func FuzzReader(f *testing.F) {
	f.Add([]byte("step=1 loss=0.5\nstep=2 loss=0.25\r"), uint16(3))
	f.Add([]byte("x\b\b\b\b\b\b\b\b\b\bloss=0.5\x1b[2K\x1b[Gloss=0.25"), uint16(1))
	f.Add(bytes.Repeat([]byte("loss=0.5 "), 20), uint16(7))
	f.Fuzz(func(t *testing.T, data []byte, size uint16) {
		p, err := NewParser(Config{})
		if err != nil {
			t.Fatal(err)
		}
		last := int64(1)
		s := splitter{parser: p, emit: func(r Report) {
			if r.Line < last {
				t.Fatalf("line %d after line %d", r.Line, last)
			}
			last = r.Line
		}}
		for rest := data; len(rest) > 0; {
			n := min(int(size)+1, len(rest))
			s.feed(rest[:n])
			rest = rest[n:]
		}
		s.idle()
		s.end(nil)
		if n := int64(bytes.Count(data, []byte{'\n'})); s.line != n {
			t.Fatalf("%d lines, want %d", s.line, n)
		}
	})
}
