// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package status

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

var oddNumbers = []float64{0, math.Copysign(0, -1), 1, -1, 1.0 / 3, 1e-9, 123456789.123456789, 1e21, 1e100, -1e100, 1e300, -1e300, 1e308,
	1.7976931348e308, math.MaxFloat64, -math.MaxFloat64, math.SmallestNonzeroFloat64, -math.SmallestNonzeroFloat64,
	2.5e-310, math.Inf(1), math.Inf(-1), math.NaN()}

func TestRow_numbers(t *testing.T) {
	for _, f := range oddNumbers {
		in := Row{Time: testStart, CPUSeconds: f, Step: f, Total: f, Value: f, Growth: f, Progress: f,
			Limit: f, Shares: math.MaxUint64, QuotaCores: f, Use: f, Throttled: f,
			MemoryMiB: f, MemoryG: f, BlockMiBs: f, BlockG: f, NetworkMiBs: f, NetworkG: f, Remaining: f, Ahead: f}
		line := string(in.appendTo(nil))
		must.Less(t, maxLine, len(line))
		must.StrNotContains(t, line, "NaN") // unknown is an empty field
		rows := ParseHistory([]byte(header + line))
		must.Len(t, 1, rows, must.Sprint(line))
		r := rows[0]
		must.True(t, r.Time.Equal(testStart))
		must.Eq(t, in.Shares, r.Shares)
		for _, got := range []float64{r.CPUSeconds, r.Step, r.Total, r.Value, r.Growth, r.Progress, r.Limit, r.QuotaCores, r.Use, r.Throttled,
			r.MemoryMiB, r.MemoryG, r.BlockMiBs, r.BlockG, r.NetworkMiBs, r.NetworkG, r.Remaining, r.Ahead} {
			same := got == f || math.IsNaN(got) && math.IsNaN(f) || math.Abs(got-f) <= 1e-9*math.Abs(f)
			must.True(t, same && math.Signbit(got) == math.Signbit(f) || math.IsNaN(f), must.Sprint(f, got))
		}
		must.Eq(t, line, string(r.appendTo(nil)))
	}
}

func TestRow_unknown(t *testing.T) {
	r := NewRow()
	r.Time = testStart
	must.Eq(t, "2026-03-01T09:30:00Z,,,,,,,,,0,,,,,,,,,,,,,,,\n", string(r.appendTo(nil)))
}

func TestRow_columns(t *testing.T) {
	in := Row{Time: testStart.Add(123456789), CPUSeconds: 1, Step: 2, Total: 3, Value: 4, Growth: 5, Progress: 6, Category: "WL",
		Limit: 7, Shares: 8, QuotaCores: 9, Use: 10, Throttled: 11, Rule: "r", Event: "e", Class: "S", State: "acceptable",
		MemoryMiB: 12, MemoryG: 13, BlockMiBs: 14, BlockG: 15, NetworkMiBs: 16, NetworkG: 17, Remaining: 18, Ahead: -19}
	line := "2026-03-01T09:30:00.123456789Z,1,2,3,4,5,6,WL,7,8,9,10,11,r,e,S,acceptable,12,13,14,15,16,17,18,-19\n"
	must.Eq(t, "time,cpu_s,step,total,value,growth,progress_per_s,category,limit,shares,quota_cores,use,throttled_s,rule,event,class,state,"+
		"memory_mib,memory_growth,block_mib_per_s,block_growth,network_mib_per_s,network_growth,remaining_cpu_s,ahead_cpu_s\n", header)
	must.Eq(t, line, string(in.appendTo(nil)))
	rows := ParseHistory([]byte(header + line))
	must.Eq(t, []Row{in}, rows)

	in.Time = in.Time.In(time.FixedZone("", 3600))
	must.Eq(t, line, string(in.appendTo(nil)))
}

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{
		"":                                 "",
		"converged":                        "converged",
		"a,b":                              "a;b",
		`say "hi"`:                         "say 'hi'",
		"two\nlines\r\n":                   "two lines  ",
		"\x00\t\x1b\x7f":                   "    ",
		"é✓日本":                             "é✓日本",
		"bad \xff\xfe byte":                "bad \ufffd\ufffd byte",
		strings.Repeat("x", maxField):      strings.Repeat("x", maxField),
		strings.Repeat("x", maxField+1):    strings.Repeat("x", maxField-3) + "…",
		strings.Repeat("é", maxField):      strings.Repeat("é", (maxField-3)/2) + "…",
		strings.Repeat("\xff", 1<<20):      strings.Repeat("\ufffd", maxField/3-1) + "…",
		strings.Repeat("\n,\"", 1<<20)[:9]: " ;' ;' ;'",
	} {
		got := plain(in)
		must.Eq(t, want, got)
		must.LessEq(t, maxField, len(got))
		must.True(t, utf8.ValidString(got))
		must.Eq(t, got, plain(got))
	}
}

// damaged are histories as left by a task or a crash, and the readable rows of
// rowsUpTo(4).
func damaged() map[string]struct {
	file string
	want []int
} {
	full := string(FormatHistory(rowsUpTo(4)))
	lines := strings.SplitAfter(full, "\n")[1:5]
	all := []int{0, 1, 2, 3}
	between := func(s string) string { return header + lines[0] + lines[1] + s + lines[2] + lines[3] }
	instead := func(edit func(string) string) string {
		return header + lines[0] + edit(lines[1]) + lines[2] + lines[3]
	}
	reversed := func(line string) string {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), ",")
		slices.Reverse(fields[1:]) // time stays first: it marks a header
		return strings.Join(fields, ",") + "\n"
	}
	type m = struct {
		file string
		want []int
	}
	return map[string]m{
		"whole":            {full, all},
		"empty":            {"", nil},
		"header only":      {header, nil},
		"no header":        {full[len(header):], all},
		"CRLF":             {strings.ReplaceAll(full, "\n", "\r\n"), all},
		"CRLF in a line":   {instead(func(s string) string { return strings.TrimSuffix(s, "\n") + "\r\n" }), all},
		"CR only":          {strings.ReplaceAll(full, "\n", "\r"), nil},
		"no end":           {strings.TrimSuffix(full, "\n"), []int{0, 1, 2}},
		"empty lines":      {between("\n\n\r\n"), all},
		"commas":           {between(",,,,,,,,\n"), all},
		"garbage":          {between("}{ \xff\xfe not a row\n"), all},
		"only garbage":     {"garbage\n\n\x00", nil},
		"NUL line":         {between("\x00\x00\x00\n"), all},
		"NUL before":       {instead(func(s string) string { return "\x00" + s }), []int{0, 2, 3}},
		"NUL in a number":  {instead(func(s string) string { return strings.Replace(s, ",1,", ",1\x00,", 1) }), []int{0, 2, 3}},
		"hole":             {between(strings.Repeat("\x00", 4096)), []int{0, 1, 3}},
		"1 MiB line":       {between(strings.Repeat("x", 1<<20) + "\n"), all},
		"1 MiB row":        {instead(func(s string) string { return strings.TrimSuffix(s, "\n") + strings.Repeat("x", 1<<20) + "\n" }), []int{0, 2, 3}},
		"1 MiB header":     {"time," + strings.Repeat(",", 1<<20) + "\n" + full[len(header):], all},
		"1 MiB at the end": {full + strings.Repeat("9", 1<<20), all},
		"text for number":  {instead(func(s string) string { return strings.Replace(s, ",1,", ",one,", 1) }), []int{0, 2, 3}},
		"too large number": {instead(func(s string) string { return strings.Replace(s, ",1,", ",1e999,", 1) }), []int{0, 2, 3}},
		"negative shares":  {instead(func(s string) string { return strings.Replace(s, ",0,", ",-1,", 1) }), []int{0, 2, 3}},
		"no time":          {instead(func(s string) string { return s[strings.Index(s, ","):] }), []int{0, 2, 3}},
		"bad time":         {instead(func(s string) string { return strings.Replace(s, "03-01", "13-41", 1) }), []int{0, 2, 3}},
		"two lines in one": {instead(func(s string) string { return strings.TrimSuffix(s, "\n") }), []int{0, 3}},
		"torn, then more":  {header + lines[0] + lines[1][:25] + "\n" + lines[2] + lines[3], []int{0, 1, 2, 3}},
		"header twice":     {header + lines[0] + lines[1] + header + lines[2] + lines[3], all},
		"torn header":      {header[:20] + "\n" + full[len(header):], nil},
		"other order":      {reversed(header) + reversed(lines[0]) + reversed(lines[1]) + reversed(lines[2]) + reversed(lines[3]), all},
		"new column":       {"time,new" + header[4:] + strings.ReplaceAll(strings.Join(lines, ""), "Z,", "Z,news,"), all},
		"more fields":      {strings.ReplaceAll(full, "\n", ",more,of,them\n"), all},
		"BOM":              {"\ufeff" + full, all},
	}
}

// Readable rows are read, and the next row repairs the file.
func TestHistory_damaged(t *testing.T) {
	for name, c := range damaged() {
		t.Run(name, func(t *testing.T) {
			w, dir := newTestWriter(t, Options{})
			path := filepath.Join(dir, "t.csv")
			must.NoError(t, os.WriteFile(path, []byte(c.file), 0o600))
			var want []Row
			for _, i := range c.want {
				want = append(want, rowAt(i))
			}
			rows, err := w.history()
			must.NoError(t, err)
			switch name {
			case "torn, then more": // a line may be torn where it still parses
				want[1] = rows[1]
				must.True(t, rowAt(1).Time.Equal(rows[1].Time))
			case "torn header":
				want = rows // such a header defines other columns
			}
			eqRows(t, want, rows)

			for i := 4; i < 6; i++ {
				must.NoError(t, w.Append(rowAt(i)))
				want = append(want, rowAt(i))
				rows, err = w.history()
				must.NoError(t, err)
				eqRows(t, want, rows)
			}
			file := readFileOf(t, path)
			eqRows(t, want, ParseHistory([]byte(file)))
			must.Eq(t, string(FormatHistory(ParseHistory([]byte(file)))), file)
		})
	}
}

func TestHistory_torn(t *testing.T) {
	w, dir := newTestWriter(t, Options{})
	path := filepath.Join(dir, "t.csv")
	rows := rowsUpTo(5)
	rows[4].Event, rows[4].Rule = "converged ✓", "flowcon.alg1.nl"
	full := FormatHistory(rows)
	for n := range len(full) + 1 {
		must.NoError(t, os.WriteFile(path, full[:n], 0o600))
		whole := max(0, bytes.Count(full[:n], []byte("\n"))-1)
		got, err := w.history()
		must.NoError(t, err)
		eqRows(t, rows[:whole], got)

		must.NoError(t, w.Append(rowAt(9)))
		must.Eq(t, string(FormatHistory(append(slices.Clone(rows[:whole]), rowAt(9)))), readFileOf(t, path))
	}
}

// The file stays within its bounds, and the curve keeps its shape.
func TestHistory_bounded(t *testing.T) {
	const most, n = 64, 2000
	w, dir := newTestWriter(t, Options{MaxRows: most})
	marked := map[int]bool{3: true, 4: true, 700: true, 1500: true, 1990: true}
	wide := strings.Repeat("✓", 200)
	var turns []int // where the category changes
	for i := range n {
		r := rowAt(i)
		if marked[i] {
			r.Event = wide
		}
		r.Rule, r.Value = wide, -1/float64(3*(i+1))
		if i/450%2 == 1 {
			r.Category = "CL"
		}
		if i > 0 && i%450 == 0 {
			turns = append(turns, i)
		}
		must.NoError(t, w.Append(r))
		rows, err := w.history()
		must.NoError(t, err)
		must.Between(t, min(i+1, most/2), len(rows), most)
		must.Zero(t, rows[0].CPUSeconds)
		must.Eq(t, float64(i), rows[len(rows)-1].CPUSeconds)
	}
	fi, err := os.Stat(filepath.Join(dir, "t.csv"))
	must.NoError(t, err)
	must.Less(t, most*maxLine, fi.Size())

	rows, err := w.history()
	must.NoError(t, err)
	kept := make(map[int]Row)
	early := 0
	for i, r := range rows {
		if i > 0 {
			must.True(t, r.Time.After(rows[i-1].Time))
		}
		kept[int(r.CPUSeconds)] = r
		if r.CPUSeconds < n/2 {
			early++
		}
	}
	for i := range marked {
		must.StrContains(t, kept[i].Event, "✓")
	}
	for _, i := range turns {
		must.MapContainsKey(t, kept, i)
	}
	for i := n - most*3/4/4; i < n; i++ { // the newest quarter of what thinning leaves
		must.MapContainsKey(t, kept, i)
	}
	must.GreaterEq(t, most/6, early)
}

func TestOptions(t *testing.T) {
	for given, want := range map[int]int{0: defaultMaxRows, -5: defaultMaxRows, 1: minMaxRows, 16: 16, 17: 17} {
		w, err := NewWriter(t.TempDir(), "t", Options{MaxRows: given})
		must.NoError(t, err)
		must.Eq(t, want, w.maxRows)
	}
	longest := Row{Time: testStart.Add(123456789), CPUSeconds: -math.MaxFloat64, Step: -math.MaxFloat64, Total: -math.MaxFloat64,
		Value: -math.MaxFloat64, Growth: -math.MaxFloat64, Progress: -math.MaxFloat64, Limit: -math.MaxFloat64, Shares: math.MaxUint64,
		QuotaCores: -math.MaxFloat64, Use: -math.MaxFloat64, Throttled: -math.MaxFloat64}
	longest.Category, longest.Rule, longest.Event = strings.Repeat("x", 999), strings.Repeat("x", 999), strings.Repeat("x", 999)
	line := longest.appendTo(nil)
	must.Less(t, maxLine, len(line))
	must.Less(t, maxHistory, (defaultMaxRows+1)*len(line))
}

func TestThin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.IntRange(4, 40).Draw(t, "want")
		steps := rapid.SliceOfN(rapid.SampledFrom([]int{0, 1, 1, 1, 2, 50, 100_000, -3}), 1, 200).Draw(t, "steps")
		rows := make([]Row, len(steps))
		at, marks := 0, 0
		for i, s := range steps {
			at += s
			rows[i] = NewRow()
			rows[i].Time = testStart.Add(time.Duration(at) * time.Second)
			rows[i].CPUSeconds = float64(i)
			rows[i].Category = rapid.SampledFrom([]string{"NL", "NL", "NL", "NL", "NL", "NL", "CL"}).Draw(t, "category")
			if rapid.IntRange(0, 20).Draw(t, "event") == 0 {
				rows[i].Event = "e"
			}
		}
		marked := func(i int) bool {
			return i == 0 || rows[i].Event != "" || rows[i].Category != rows[i-1].Category
		}
		recent := want / 4
		for i := range max(0, len(rows)-recent) {
			if marked(i) {
				marks++
			}
		}
		got := thin(slices.Clone(rows), want)
		if len(rows) <= want {
			must.Len(t, len(rows), got)
			return
		}
		must.LessEq(t, want, len(got))
		kept := make(map[int]bool)
		for i, r := range got {
			kept[int(r.CPUSeconds)] = true
			must.True(t, i == 0 || r.CPUSeconds > got[i-1].CPUSeconds) // order is kept
		}
		must.True(t, kept[0])
		for i := range rows {
			switch {
			case i >= len(rows)-recent:
				must.True(t, kept[i])
			case marked(i) && marks <= want-recent:
				must.True(t, kept[i], must.Sprint(i))
			}
		}
	})
}

func TestThin_even(t *testing.T) {
	rows := rowsUpTo(1000)
	got := thin(rows, 100)
	for i := 1; i < len(got); i++ {
		must.LessEq(t, 20, int(got[i].CPUSeconds-got[i-1].CPUSeconds))
	}
	must.GreaterEq(t, 90, len(got))
}

func TestThin_clockSetBack(t *testing.T) {
	rows := rowsUpTo(1000)
	for i := 300; i < len(rows); i++ {
		rows[i].Time = rows[i].Time.Add(-time.Hour)
	}
	got := thin(rows, 100)
	for i := 1; i < len(got); i++ {
		must.LessEq(t, 40, int(got[i].CPUSeconds-got[i-1].CPUSeconds))
	}
}

// The last column is found even with Windows line ends.
func TestHistory_lastColumn(t *testing.T) {
	r := rowAt(0)
	r.Event = "e"
	file := bytes.ReplaceAll(FormatHistory([]Row{r}), []byte("\n"), []byte("\r\n"))
	rows := ParseHistory(file)
	eqRows(t, []Row{r}, rows)
}

func TestHistory_replaced(t *testing.T) {
	w, dir := newTestWriter(t, Options{})
	path := filepath.Join(dir, "t.csv")
	must.NoError(t, w.Append(rowAt(0)))
	must.NoError(t, w.Append(rowAt(1)))
	other := bytes.Repeat([]byte("x"), len(readFileOf(t, path)))
	other[len(other)-1] = '\n'
	must.NoError(t, os.WriteFile(path+".new", other, 0o600))
	must.NoError(t, os.Rename(path+".new", path))
	must.NoError(t, w.Append(rowAt(2)))
	must.Eq(t, string(FormatHistory([]Row{rowAt(2)})), readFileOf(t, path))
}

func FuzzReadHistory(f *testing.F) {
	for _, c := range damaged() {
		if len(c.file) < 64<<10 {
			f.Add([]byte(c.file))
		}
	}
	for _, n := range oddNumbers {
		f.Add(FormatHistory([]Row{{Time: testStart, CPUSeconds: n, Value: n, Growth: n, Event: "a,\"b\n"}}))
	}
	f.Add([]byte("time,time,value,value,shares\n2026-03-01T09:30:00Z,2026-03-01T09:30:00+01:00,0x1p-2,,1\n"))
	f.Add([]byte("time,\n0000-01-01T00:00:00+23:59,x\n9999-12-31T23:59:59-23:59\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "h.csv")
		must.NoError(t, os.WriteFile(path, b, 0o600))
		rows, err := ReadHistory(path)
		must.NoError(t, err)
		must.LessEq(t, bytes.Count(b, []byte("\n")), len(rows))
		again := ParseHistory(FormatHistory(rows))
		eqRows(t, rows, again)
		must.LessEq(t, 5, len(thin(rows, 5)))
	})
}
