// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package status

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Row is one line of the history.
type Row struct {
	Time       time.Time
	CPUSeconds float64 // used since the task started
	Step       float64 // NaN = not reported
	Total      float64 // total steps; NaN = not reported
	Value      float64 // E; NaN = no report yet; may be ±Inf
	Growth     float64 // G, see Status.Growth; NaN = unmeasured
	Progress   float64 // P, per second of wall time; NaN = unmeasured
	Category   string  // NL, WL, CL or ""
	Limit      float64 // fraction of the pool, (0, 1]
	Shares     uint64  // cpu.shares units
	QuotaCores float64 // 0 = none
	Use        float64 // fraction of the pool
	Throttled  float64 // seconds, since the task started
	Rule       string  // the rule applied
	Event      string  // what happened, briefly; marked in the picture

	Class       string  // of a service: G, S, B or ""
	State       string  // of the targets: training, acceptable, objective or ""
	MemoryMiB   float64 // see Resources; NaN = unknown
	MemoryG     float64
	BlockMiBs   float64
	BlockG      float64
	NetworkMiBs float64
	NetworkG    float64
	Remaining   float64 // CPU-seconds until the task ends; NaN = unknown
	Ahead       float64 // CPU-seconds that it used more than its twin; NaN = unknown
}

var columns = []string{"time", "cpu_s", "step", "total", "value", "growth", "progress_per_s", "category",
	"limit", "shares", "quota_cores", "use", "throttled_s", "rule", "event", "class", "state",
	"memory_mib", "memory_growth", "block_mib_per_s", "block_growth", "network_mib_per_s", "network_growth",
	"remaining_cpu_s", "ahead_cpu_s"}

var header = strings.Join(columns, ",") + "\n"

const (
	maxField = 120  // bytes of a text in the history
	maxLine  = 1024 // bytes; a longer line is invalid

	// maxHistory (bytes) and maxLines bound the reading of a history, which the task
	// may have written: many times the size of 5,000 rows.
	maxHistory = 8 << 20
	maxLines   = 4 * defaultMaxRows
)

func (r *Row) number(column string) *float64 {
	switch column {
	case "cpu_s":
		return &r.CPUSeconds
	case "step":
		return &r.Step
	case "total":
		return &r.Total
	case "value":
		return &r.Value
	case "growth":
		return &r.Growth
	case "progress_per_s":
		return &r.Progress
	case "limit":
		return &r.Limit
	case "quota_cores":
		return &r.QuotaCores
	case "use":
		return &r.Use
	case "throttled_s":
		return &r.Throttled
	case "memory_mib":
		return &r.MemoryMiB
	case "memory_growth":
		return &r.MemoryG
	case "block_mib_per_s":
		return &r.BlockMiBs
	case "block_growth":
		return &r.BlockG
	case "network_mib_per_s":
		return &r.NetworkMiBs
	case "network_growth":
		return &r.NetworkG
	case "remaining_cpu_s":
		return &r.Remaining
	case "ahead_cpu_s":
		return &r.Ahead
	}
	return nil
}

func (r *Row) text(column string) *string {
	switch column {
	case "category":
		return &r.Category
	case "rule":
		return &r.Rule
	case "event":
		return &r.Event
	case "class":
		return &r.Class
	case "state":
		return &r.State
	}
	return nil
}

// NewRow returns a row whose numbers are unknown.
func NewRow() (r Row) {
	for _, c := range columns {
		if f := r.number(c); f != nil {
			*f = math.NaN()
		}
	}
	return r
}

// Course returns each row's value or, if no row has one, its step; NaN means none.
func Course(rows []Row) (course []float64, steps bool) {
	course = make([]float64, len(rows))
	steps = true
	for i, r := range rows {
		course[i] = r.Value
		steps = steps && math.IsNaN(r.Value)
	}
	for i := 0; steps && i < len(rows); i++ {
		course[i] = rows[i].Step
	}
	return course, steps
}

// appendTo appends r as a CSV line. Numbers have ten digits; texts lose what would need
// quoting.
func (r Row) appendTo(b []byte) []byte {
	num := func(f float64) {
		digits := 10
		if math.Abs(f) > 1e308 {
			digits = -1 // rounding up could overflow
		}
		if !math.IsNaN(f) {
			b = strconv.AppendFloat(b, f, 'g', digits, 64)
		}
	}
	for i, c := range columns {
		if i > 0 {
			b = append(b, ',')
		}
		if f := r.number(c); f != nil {
			num(*f)
		} else if t := r.text(c); t != nil {
			b = append(b, plain(*t)...)
		} else if c == "time" {
			b = r.Time.UTC().AppendFormat(b, time.RFC3339Nano)
		} else {
			b = strconv.AppendUint(b, r.Shares, 10)
		}
	}
	return append(b, '\n')
}

func plain(s string) string {
	return cut(strings.ToValidUTF8(strings.Map(func(r rune) rune {
		switch {
		case r == ',':
			return ';'
		case r == '"':
			return '\''
		case r < ' ' || r == 0x7f:
			return ' '
		}
		return r
	}, s), "?"), maxField)
}

// ParseHistory parses a history and skips torn or overlong lines, lines without a time,
// and what follows maxLines. Columns are found by their names in the header, so that
// files of other versions are read as far as known.
func ParseHistory(b []byte) (rows []Row) {
	order := make([]int, len(columns)) // field of the line → column
	for i := range order {
		order[i] = i
	}
	for n := 0; len(b) > 0 && n < maxLines; n++ {
		line, rest, whole := bytes.Cut(b, []byte("\n"))
		b = rest
		switch {
		case len(line) > maxLine: // headers, too, are bounded
		case bytes.HasPrefix(line, []byte("time,")):
			order = headerOrder(string(line))
		case whole: // otherwise a number may be cut
			if r, ok := parseRow(string(line), order); ok {
				rows = append(rows, r)
			}
		}
	}
	return rows
}

// headerOrder maps the fields of a line to columns; −1 is an unknown one.
func headerOrder(line string) []int {
	names := strings.Split(strings.TrimRight(line, "\r"), ",")
	order := make([]int, len(names))
	for i, name := range names {
		order[i] = -1
		for c, known := range columns {
			if name == known {
				order[i] = c
			}
		}
	}
	return order
}

// parseRow parses one line. A missing field is unknown; an invalid one makes the line
// invalid.
func parseRow(line string, order []int) (Row, bool) {
	r := NewRow()
	timed := false
	line = strings.TrimRight(line, "\r")
	for _, c := range order {
		field, rest, more := strings.Cut(line, ",")
		var err error
		if c >= 0 && field != "" {
			switch column := columns[c]; column {
			case "time":
				r.Time, err = time.Parse(time.RFC3339Nano, field)
				r.Time = r.Time.UTC()
				// A zone can lead out of the printable years.
				timed = err == nil && r.Time.Year() >= 0 && r.Time.Year() <= 9999
			case "shares":
				r.Shares, err = strconv.ParseUint(field, 10, 64)
			case "class", "state":
				*r.text(column), err = word(field)
			case "category", "rule", "event":
				*r.text(column) = plain(field)
			default:
				*r.number(column), err = strconv.ParseFloat(field, 64)
			}
		}
		if err != nil {
			return Row{}, false
		}
		if !more {
			break
		}
		line = rest
	}
	return r, timed
}

func word(field string) (string, error) {
	if strings.ContainsFunc(field, func(r rune) bool { return !unicode.IsLetter(r) }) {
		return "", fmt.Errorf("%q is no word", field)
	}
	return plain(field), nil
}

// FormatHistory returns rows as ParseHistory reads them.
func FormatHistory(rows []Row) []byte {
	b := make([]byte, 0, len(header)+len(rows)*160)
	b = append(b, header...)
	for _, r := range rows {
		b = r.appendTo(b)
	}
	return b
}

// thin returns at most want rows and keeps the shape: the newest quarter of want is
// kept, older rows are thinned evenly in time, except the first one, those with an
// event and changes of category. (Dropping every second row repeatedly would erase the
// early, steep part of a curve.) If even these are too many, they are thinned too.
func thin(rows []Row, want int) []Row {
	if len(rows) <= want {
		return rows
	}
	recent := want / 4
	old, tail := rows[:len(rows)-recent], rows[len(rows)-recent:]
	kept := spread(old, want-recent, true)
	if len(kept) > want-recent {
		kept = spread(old, want-recent, false)
	}
	return append(kept, tail...)
}

// spread picks about want rows, evenly spaced in time, by bisection of the spacing. If
// the marked rows alone are more, it stops after one too many.
func spread(rows []Row, want int, marks bool) []Row {
	if want < 1 {
		return nil
	}
	pick := func(gap time.Duration) []Row {
		var out []Row
		var last time.Time
		for i, r := range rows {
			marked := i == 0 || marks && (r.Event != "" || r.Category != rows[i-1].Category || r.Class != rows[i-1].Class)
			// A clock set back must not hide later rows.
			if marked || r.Time.Sub(last).Abs() > gap {
				out = append(out, r)
				last = r.Time
			}
			if len(out) > want {
				break // already too many
			}
		}
		return out
	}
	lo, hi := time.Duration(0), time.Duration(math.MaxInt64) // keeps too many, keeps few enough
	best := pick(hi)
	if len(best) > want {
		return best
	}
	for range 64 {
		mid := lo + (hi-lo)/2
		if mid == lo {
			break
		}
		if p := pick(mid); len(p) <= want {
			hi, best = mid, p
		} else {
			lo = mid
		}
	}
	return best
}
