// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package file reads a training job's progress from a JSONL or CSV file.
//
// Each JSON line, and each CSV row converted to one, goes to a progress.Parser, which
// chooses the metric: the configured one, in any case and as a path (val.loss) in
// nested objects, or its own choice. Patterns and other presets are errors. A line
// without the metric, but with the field that is configured for the step, is a step
// report.
//
// # JSONL
//
// An unfinished line is parsed after three seconds without growth if it ends with a
// brace. Lines above 64 KiB are read to that length. NaN and Infinity, as Python writes
// them, are values.
//
// # CSV
//
// The first row names the columns. The separator is the header's most frequent one of
// comma, semicolon and tab. Quotes are those of encoding/csv, but a quote within a cell
// is no error, and an unpaired one costs at most 16 lines. Lines beginning with # are
// remarks, unless the header is one (numpy.savetxt). Rows are read when finished.
//
//   - A row without numbers that names columns or measures is a new header.
//   - Empty cells, NA, null, None and dashes are no reports. nan and inf are values: a
//     diverged training.
//   - Rows with another number of cells than the header are skipped.
//   - Decimal commas are errors. Per cent signs are ignored.
//
// # The file
//
// It may appear late, vanish, be truncated or be replaced: see package tail. A new file
// is reported from its beginning and needs a header.
package file

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/progress/tail"
	"github.com/ebbtide/ebbtide/driver/taskfs"
	"github.com/ebbtide/ebbtide/internal/fields"
)

const (
	jsonl = progress.FormatJSONL
	csv   = progress.FormatCSV
)

const (
	chunk       = 64 << 10
	pollBytes   = 1 << 20
	pollReports = 8192            // plus a chunk's
	idleAfter   = 3 * time.Second // before an unfinished line is parsed
)

// File is a progress.Source that reads a file. It is not safe for concurrent use.
type File struct {
	format string
	tail   *tail.File
	parser *progress.Parser
	goal   string
	step   named
	total  named
	of     float64 // last total; 0 = none
	rows   rows
	table  table
	now    func() time.Time

	stats    progress.Stats
	reports  []progress.Report // of the current Poll
	time     time.Time         // of it
	lastGrew time.Time         // when the unfinished row last grew
	done     bool              // it has been reported

	gone          error           // tail.ErrNotYet or tail.ErrGone while the file is missing
	lastError     string          // last read error
	reportedKinds map[string]bool // reported kinds of problems
	problem       string          // the last of them, for Note
	newErrors     []error         // of the current Poll
	closed        bool
	last          json.RawMessage // the offset, once closed
}

var _ progress.Source = (*File)(nil)

// Open returns a source for the file at a path below root, which the caller keeps open.
// The file may appear later. An empty format follows from the name (progress.FormatOf).
// Of cfg only Metric, Goal, Step and Total apply; a Pattern or another Preset is an error. Errors
// are *progress.FieldErrors, joined.
func Open(root *taskfs.Dir, name, format string, cfg progress.Config) (*File, error) {
	var errs []error
	bad := func(field, value, problem string) {
		if len(value) > 200 {
			value = strings.ToValidUTF8(value[:200], "") + "…"
		}
		errs = append(errs, &progress.FieldError{Field: field, Value: value, Problem: problem})
	}
	t, err := tail.Open(root, name)
	if err != nil {
		bad("file", name, err.Error())
	}
	switch {
	case slices.Contains(progress.Formats(), format):
	case format != "":
		bad("format", format, fmt.Sprintf("must be one of %s, or empty to infer it from the file's name", strings.Join(progress.Formats(), ", ")))
	default:
		if format = progress.FormatOf(name); format == "" {
			bad("format", format, fmt.Sprintf("must be one of %s where the file's name does not end in .jsonl, .ndjson, .json, .csv or .tsv", strings.Join(progress.Formats(), ", ")))
		}
	}
	if cfg.Pattern != "" {
		bad("pattern", cfg.Pattern, "applies only to log lines: a field or a column of a file is chosen with metric")
	}
	switch cfg.Preset {
	case "", progress.PresetAuto, progress.PresetJSONL:
	default:
		bad("preset", cfg.Preset, "applies only to log lines: remove it, and set format if need be")
	}
	step, err := newNamed(cfg.Step, format)
	if err != nil {
		bad("step", cfg.Step, err.Error())
	}
	total, err := newNamed(cfg.Total, format)
	if err != nil {
		bad("total", cfg.Total, err.Error())
	}
	// The caller has used the rest of cfg to find the file.
	cfg = progress.Config{Preset: progress.PresetJSONL, Metric: cfg.Metric, Goal: cfg.Goal}
	if format == csv {
		cfg.Metric = key(cfg.Metric)
	}
	parser, err := progress.NewParser(cfg)
	if err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	parser.Explain()

	f := &File{format: format, tail: t, parser: parser, goal: cfg.Goal, step: step, total: total, now: time.Now,
		reportedKinds: map[string]bool{}, gone: tail.ErrNotYet}
	f.table.metric = cfg.Metric
	f.rows = rows{csv: format == csv, emit: f.row}
	return f, nil
}

// Poll returns the new reports, from up to 1 MiB; Stats().More is set if there is more.
// They carry the time of the call and the number of their line. A missing file is no
// error, but in Note. Each problem of the file or its content is returned once.
func (f *File) Poll(ctx context.Context) ([]progress.Report, error) {
	if f.closed {
		return nil, fmt.Errorf("read %s: %w", f.tail.Path(), tail.ErrClosed)
	}
	f.stats.More, f.stats.Behind = false, 0
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.reports, f.newErrors, f.time = nil, nil, f.now()
	err := f.read(ctx)
	if f.rows.raw > 0 && f.time.Sub(f.lastGrew) >= idleAfter {
		f.idle()
	}
	f.stats.Reports += int64(len(f.reports))
	return f.reports, errors.Join(append(f.newErrors, err)...)
}

func (f *File) read(ctx context.Context) error {
	for read := 0; read < pollBytes; {
		data, restarted, err := f.tail.Read(ctx, chunk)
		if restarted {
			f.stats.Truncated++
			f.rows.restart()
			f.table.header, f.table.comma, f.rows.comma = nil, 0, 0
			f.done, f.problem, f.of = false, "", 0
		}
		read += len(data)
		f.stats.Bytes += int64(len(data))
		if len(data) > 0 {
			f.lastGrew = f.time
			before := f.rows.line
			f.rows.feed(data)
			f.stats.Lines += f.rows.line - before
			f.stats.Oversized = f.rows.long
		}
		switch {
		case ctx.Err() != nil:
			f.stats.More = true
			return ctx.Err()
		case errors.Is(err, tail.ErrNotYet):
			f.gone, f.lastError = err, ""
			return nil
		case err != nil:
			f.gone = nil
			if f.lastError == err.Error() {
				return nil
			}
			f.lastError = err.Error()
			return err
		}
		f.gone, f.lastError = nil, ""
		f.stats.Behind = f.tail.Behind()
		if f.stats.Behind == 0 {
			return nil
		}
		if len(f.reports) >= pollReports {
			break
		}
	}
	f.stats.More = true
	return nil
}

func (f *File) row(row []byte, line int64, long bool) {
	done := f.done
	f.done = false
	if line == 1 && (bytes.HasPrefix(row, []byte("\x1f\x8b")) || bytes.HasPrefix(row, []byte("\x28\xb5\x2f\xfd"))) {
		f.report(newProblem("compressed", "the file is compressed: it is read as text only"))
	}
	if f.format == csv {
		if long {
			f.report(newProblem("long", "line %d begins a row of more than %d bytes or %d lines, perhaps with an unpaired quote: it is skipped", line, maxRow, maxLines))
			return
		}
		text, err := f.table.read(row, line)
		f.rows.comma = f.table.comma
		f.report(err)
		if text != nil {
			f.parse(text, line)
		}
		return
	}
	if done {
		return
	}
	if long {
		row = row[:bytes.LastIndexByte(row, ',')+1] // a number may be cut
	}
	f.parse(plain(row), line)
}

func plain(line []byte) []byte {
	line = bytes.TrimRight(line, "\r")
	for i, c := range line {
		if c < ' ' {
			line[i] = ' '
		}
	}
	return line
}

func (f *File) parse(line []byte, number int64) (ok bool) {
	r, ok := f.parser.Parse(line)
	if step, found := f.step.read(line); found {
		if !ok {
			r, ok = progress.Report{Value: math.NaN(), Total: math.NaN()}, true
		}
		r.Step = step
	}
	if total, found := f.total.read(line); found {
		f.of = total
	}
	if f.of > 0 {
		r.Total = f.of
	}
	if ok {
		r.Line, r.Time = number, f.time
		f.reports = append(f.reports, r)
	}
	return ok
}

// named is a configured field of numbers other than the metric.
type named struct {
	name   string
	parser *progress.Parser // takes it for the metric; nil = not configured
}

func newNamed(name, format string) (named, error) {
	if name == "" {
		return named{}, nil
	}
	if format == csv {
		name = strings.ReplaceAll(key(name), " ", "_") // as in table.setHeader
	}
	p, err := progress.NewParser(progress.Config{Preset: progress.PresetJSONL, Metric: name, Goal: progress.GoalMax})
	return named{name, p}, err
}

func (n named) read(line []byte) (float64, bool) {
	if n.parser == nil {
		return 0, false
	}
	r, ok := n.parser.Parse(line)
	return r.Value, ok && fields.NonNegative(r.Value)
}

// idle parses an unfinished line of JSON once it looks complete.
func (f *File) idle() {
	if f.format != jsonl || f.done || f.rows.over {
		return
	}
	line := bytes.TrimSpace(f.rows.buf)
	if len(line) > 0 && line[len(line)-1] == '}' {
		f.done = f.parse(plain(bytes.Clone(line)), f.rows.line+1)
	}
}

func (f *File) report(err error) {
	var p *problem
	if !errors.As(err, &p) || f.reportedKinds[p.kind] {
		return
	}
	f.reportedKinds[p.kind] = true
	f.problem = p.text
	f.newErrors = append(f.newErrors, fmt.Errorf("read %s: %w", f.tail.Path(), err))
}

func (f *File) Goal() string {
	if f.goal == "" && f.parser.Metric() == "" {
		return ""
	}
	return f.parser.Goal()
}

func (f *File) Note() string {
	name := f.tail.Path()
	switch {
	case errors.Is(f.gone, tail.ErrGone):
		return name + " was removed: waiting for it to reappear"
	case f.gone != nil:
		return "waiting for " + name + ", which does not exist yet"
	case f.lastError != "":
		return "cannot " + f.lastError
	case f.problem != "":
		return name + ": " + f.problem
	}
	if f.stats.Reports == 0 {
		if note := f.whyNoReport(); note != "" {
			return note
		}
	}
	return f.parser.Note()
}

const linesBeforeNote = 3 // lines without a report before Note describes their content

func (f *File) whyNoReport() string {
	name := f.tail.Path()
	metric := cmp.Or(f.table.metric, f.step.name)
	if f.format == csv {
		t := &f.table
		if t.header == nil {
			return ""
		}
		var columns []string
		found := false
		for i, h := range t.header {
			if h != "" {
				columns = append(columns, h)
			}
			if metric == "" {
				_, measure := progress.InferGoal(t.keys[i])
				found = found || measure
			} else {
				found = found || strings.EqualFold(t.keys[i], metric)
			}
		}
		switch {
		case !found && metric != "":
			return fmt.Sprintf("%s has no column %q; its columns are %s", name, metric, list(columns))
		case !found:
			return fmt.Sprintf("no column of %s has the name of a known measure: set metric; its columns are %s", name, list(columns))
		case t.text > 0:
			return fmt.Sprintf("%s has no number in the column %q so far", name, metric)
		}
		return ""
	}
	st := f.parser.Stats()
	if st.Lines < linesBeforeNote {
		return ""
	}
	var names []string
	metrics, others := f.parser.Others()
	for _, s := range append(metrics, others...) {
		names = append(names, s.Name)
	}
	what := "the name of a known measure: set metric"
	if metric != "" {
		what = fmt.Sprintf("%q", metric)
	}
	switch {
	case len(names) > 0:
		return fmt.Sprintf("none of %d lines of %s has %s; the numbers there are %s", st.Lines, name, what, list(names))
	case st.NotNumber > 0:
		return fmt.Sprintf("%s has %q without a number so far", name, metric)
	}
	return fmt.Sprintf("none of %d lines of %s is a JSON object with numbers in it", st.Lines, name)
}

func list(names []string) string {
	const most = 8
	var b strings.Builder
	for i, n := range names {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(names)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		if n = key(n); len(n) > 40 {
			n = strings.ToValidUTF8(n[:40], "") + "…"
		}
		b.WriteString(n)
	}
	return b.String()
}

func (f *File) Stats() progress.Stats { return f.stats }

type offset struct {
	File   tail.Offset    `json:"file"`
	Line   int64          `json:"line,omitempty"` // ends of lines before
	Long   bool           `json:"long,omitempty"` // within a row that is too long
	Done   bool           `json:"done,omitempty"` // that line has been reported
	Header []string       `json:"header,omitempty"`
	Comma  string         `json:"comma,omitempty"`
	Total  float64        `json:"total,omitempty"` // of steps, last read
	Parser progress.State `json:"parser"`
}

// Offset returns the start of the unfinished row, the choice of the metric and the
// columns. If the names exceed 4 KiB, it is the start of the file.
func (f *File) Offset() json.RawMessage {
	if f.closed {
		return f.last
	}
	o := offset{Line: f.rows.line, Long: f.rows.over, Done: f.done, Parser: f.parser.State(), Total: f.of}
	if f.rows.over {
		o.File = f.tail.Offset(0)
	} else {
		o.File = f.tail.Offset(f.rows.raw)
	}
	if t := &f.table; t.header != nil {
		o.Header, o.Comma = t.header, string(t.comma)
		size := 0
		for _, h := range t.header {
			size += len(h) + 3
		}
		if size > maxHeader {
			o.File, o.Line, o.Long, o.Header, o.Comma = tail.Offset{Inode: o.File.Inode}, 0, false, nil, ""
		}
	}
	data, err := json.Marshal(o)
	if err != nil {
		return nil // cannot fail
	}
	return data
}

// SetOffset continues at an Offset, before the first Poll. Invalid data is ignored.
func (f *File) SetOffset(data json.RawMessage) {
	var o offset
	if f.closed || f.stats.Bytes > 0 || json.Unmarshal(data, &o) != nil {
		return
	}
	f.parser.SetState(o.Parser)
	if o.Line < 0 || f.format == csv && o.File.Pos > 0 && len(o.Header) == 0 && o.Line > 0 {
		return
	}
	if f.format == csv && len(o.Header) > 0 {
		if len(o.Comma) != 1 || !separates(o.Comma[0], 0) || len(o.Header) > maxColumns || !names(o.Header) {
			return
		}
		f.table.comma, f.rows.comma = o.Comma[0], o.Comma[0]
		f.table.setHeader(o.Header)
		f.table.rows = 1
	}
	f.tail.SetOffset(o.File)
	f.of = max(o.Total, 0)
	f.rows.line, f.rows.over, f.done = o.Line, o.Long, o.Done && f.format == jsonl
}

func (f *File) Close() error {
	if f.closed {
		return nil
	}
	f.last = f.Offset()
	f.closed = true
	f.rows.buf, f.reports = nil, nil
	return f.tail.Close()
}
