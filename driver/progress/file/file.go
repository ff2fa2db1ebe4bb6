// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package file reads the progress of a training job from a file that the job writes:
// a JSON object a line, or a table as CSV.
//
// # Which metric
//
// Each line of JSON, and each row of a table as such a line, is given to a
// progress.Parser, which has the one set of rules for names: the configured metric,
// in any case, as a path (val.loss) where objects are nested; or else its choice, the
// training loss first. It also knows the names of steps, epochs and totals. A
// configuration for logs, a pattern or another preset, is an error.
//
// # JSONL
//
// A line that is not ended is looked at when nothing was added for three seconds and
// it ends with a brace. A line of more than 64 KiB is read as far as its first 64 KiB
// go. NaN and Infinity, which Python writes into JSON, are values.
//
// # CSV
//
// The first row names the columns. Cells are separated by what the header has most
// of: comma, semicolon or tab. Quotes are those of encoding/csv, but a quote within a
// cell is no error, and one without its partner costs at most 16 lines. Space around
// cells is removed; lines that begin with # are remarks, unless the header is one
// (numpy.savetxt). A row is read when its line has ended, since a number may be cut.
//
//   - A row that has no number in it, and names columns or measures, is a header
//     again: the columns may have another order from there on.
//   - An empty cell is no report; so are NA, null, None and a dash. nan, inf and their
//     kin are values: a training that diverges says so.
//   - A row with more or fewer cells than the header is left out, and said once.
//   - Decimal commas are not read; the error says so. Per cent signs are left out.
//
// # The file
//
// It may come late, vanish, be truncated or be replaced: see package tail. What a new
// file holds is reported from its beginning, and a CSV file needs a header again.
package file

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/progress/tail"
	"github.com/ebbtide/ebbtide/driver/taskfs"
)

const (
	jsonl = progress.FormatJSONL
	csv   = progress.FormatCSV
)

// Bounds of one Poll.
const (
	chunk       = 64 << 10
	pollBytes   = 1 << 20
	pollReports = 8192            // and what a chunk holds
	idleAfter   = 3 * time.Second // before a line that has not ended is looked at
)

// File is a progress.Source that reads a file. It is not safe for concurrent use.
type File struct {
	format string
	tail   *tail.File
	parser *progress.Parser
	goal   string // configured
	rows   rows
	table  table
	now    func() time.Time

	stats   progress.Stats
	reports []progress.Report // of the Poll that runs
	time    time.Time         // of it
	touched time.Time         // when the row that has not ended grew last
	done    bool              // it has given its report

	gone    error           // tail.ErrNotYet or tail.ErrGone while the file is not there
	fault   string          // why it could not be read last
	told    map[string]bool // the kinds of what was wrong with the content that were told
	problem string          // the last of them, for Note
	fresh   []error         // of the Poll that runs
	closed  bool
	last    json.RawMessage // the offset, once closed
}

var _ progress.Source = (*File)(nil)

// Open returns a source that reads the file at a path below root, which remains the
// caller's and must stay open. The file may come later. An empty format is told from
// the file's name, as progress.FormatOf does. Of cfg, Metric and Goal are used; a
// Pattern, and a Preset for something else, are errors. The errors are those of the
// configuration, all of them, each a *progress.FieldError: of "file" for the path,
// "format", and the fields of cfg.
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
		bad("format", format, fmt.Sprintf("must be one of %s, or empty to tell it from the file's name", strings.Join(progress.Formats(), ", ")))
	default:
		if format = progress.FormatOf(name); format == "" {
			bad("format", format, fmt.Sprintf("must be one of %s where the file's name does not end in .jsonl, .ndjson, .json, .csv or .tsv", strings.Join(progress.Formats(), ", ")))
		}
	}
	if cfg.Pattern != "" {
		bad("pattern", cfg.Pattern, "is for lines of a log: a field or a column of a file is chosen with metric")
	}
	switch cfg.Preset {
	case "", progress.PresetAuto, progress.PresetJSONL:
	default:
		bad("preset", cfg.Preset, "is for lines of a log: leave it out, and set format if need be")
	}
	// The rest of cfg says where the file is, which the caller knows.
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

	f := &File{format: format, tail: t, parser: parser, goal: cfg.Goal, now: time.Now,
		told: map[string]bool{}, gone: tail.ErrNotYet}
	f.table.metric = cfg.Metric
	f.rows = rows{csv: format == csv, emit: f.row}
	return f, nil
}

// Poll reads what was written since the last call, up to 1 MiB, and returns the
// reports in it; Stats().More tells that there is more. They all carry the time of
// the call, and the number of their line in the file. A file that is not there is no
// error: Note tells. Why a file cannot be read, or not be understood, is told once.
func (f *File) Poll(ctx context.Context) ([]progress.Report, error) {
	if f.closed {
		return nil, fmt.Errorf("read %s: %w", f.tail.Path(), tail.ErrClosed)
	}
	f.stats.More, f.stats.Behind = false, 0
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.reports, f.fresh, f.time = nil, nil, f.now()
	err := f.read(ctx)
	if f.rows.raw > 0 && f.time.Sub(f.touched) >= idleAfter {
		f.idle()
	}
	f.stats.Reports += int64(len(f.reports))
	return f.reports, errors.Join(append(f.fresh, err)...)
}

// read reads up to the bounds of a Poll.
func (f *File) read(ctx context.Context) error {
	for read := 0; read < pollBytes; {
		data, restarted, err := f.tail.Read(ctx, chunk)
		if restarted {
			f.stats.Truncated++
			f.rows.restart()
			f.table.header, f.table.comma, f.rows.comma = nil, 0, 0
			f.done, f.problem = false, ""
		}
		read += len(data)
		f.stats.Bytes += int64(len(data))
		if len(data) > 0 {
			f.touched = f.time
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
			f.gone, f.fault = err, ""
			return nil
		case err != nil:
			f.gone = nil
			if f.fault == err.Error() {
				return nil
			}
			f.fault = err.Error()
			return err
		}
		f.gone, f.fault = nil, ""
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

// row takes a row that has ended.
func (f *File) row(row []byte, line int64, long bool) {
	done := f.done
	f.done = false
	if line == 1 && (bytes.HasPrefix(row, []byte("\x1f\x8b")) || bytes.HasPrefix(row, []byte("\x28\xb5\x2f\xfd"))) {
		f.tell(wrong("compressed", "the file is compressed: it is read as text only"))
	}
	if f.format == csv {
		if long {
			f.tell(wrong("long", "line %d begins a row of more than %d bytes or %d lines, perhaps with a quote that has no other one: it is left out", line, maxRow, maxLines))
			return
		}
		text, err := f.table.read(row, line)
		f.rows.comma = f.table.comma
		f.tell(err)
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

// plain replaces control characters in a line of JSON, in place.
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
	if ok {
		r.Line, r.Time = number, f.time
		f.reports = append(f.reports, r)
	}
	return ok
}

// idle looks at a line of JSON that has not been ended for long, once it is whole.
func (f *File) idle() {
	if f.format != jsonl || f.done || f.rows.over {
		return
	}
	line := bytes.TrimSpace(f.rows.buf)
	if len(line) > 0 && line[len(line)-1] == '}' {
		f.done = f.parse(plain(bytes.Clone(line)), f.rows.line+1)
	}
}

// tell keeps what is wrong with the content, if it is of a new kind.
func (f *File) tell(err error) {
	var p *problem
	if !errors.As(err, &p) || f.told[p.kind] {
		return
	}
	f.told[p.kind] = true
	f.problem = p.text
	f.fresh = append(f.fresh, fmt.Errorf("read %s: %w", f.tail.Path(), err))
}

// Goal returns the configured goal, or the one that follows from the metric's name;
// nothing while no metric is known.
func (f *File) Goal() string {
	if f.goal == "" && f.parser.Metric() == "" {
		return ""
	}
	return f.parser.Goal()
}

// Note returns a sentence about what is awaited, what hinders the reading, or what is
// assumed; or nothing.
func (f *File) Note() string {
	name := f.tail.Path()
	switch {
	case errors.Is(f.gone, tail.ErrGone):
		return name + " was there and is gone: waits for it to come back"
	case f.gone != nil:
		return "waits for " + name + ", which is not there yet"
	case f.fault != "":
		return "cannot " + f.fault
	case f.problem != "":
		return name + ": " + f.problem
	}
	if f.stats.Reports == 0 {
		if note := f.nothing(); note != "" {
			return note
		}
	}
	return f.parser.Note()
}

const patience = 3 // lines without a report before Note says what is there instead

// nothing says why there is no report yet, as far as can be told.
func (f *File) nothing() string {
	name := f.tail.Path()
	metric := f.table.metric
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
	if st.Lines < patience {
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

// list names some things, for people.
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

// Stats returns what was read so far.
func (f *File) Stats() progress.Stats { return f.stats }

// offset is where a File is, and what it must know to go on.
type offset struct {
	File   tail.Offset    `json:"file"`
	Line   int64          `json:"line,omitempty"` // ends of lines before
	Long   bool           `json:"long,omitempty"` // within a row that is too long
	Done   bool           `json:"done,omitempty"` // that line has given its report
	Header []string       `json:"header,omitempty"`
	Comma  string         `json:"comma,omitempty"`
	Parser progress.State `json:"parser"`
}

// Offset returns the beginning of the row that has not ended, and what a later
// process must know: the choice of the metric and the columns. Where these have more
// than 4 KiB of names, it is the beginning of the file.
func (f *File) Offset() json.RawMessage {
	if f.closed {
		return f.last
	}
	o := offset{Line: f.rows.line, Long: f.rows.over, Done: f.done, Parser: f.parser.State()}
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
		return nil // no field of it can fail
	}
	return data
}

// SetOffset goes on where Offset was, before the first Poll. What makes no sense is
// left aside.
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
		f.table.use(o.Header)
		f.table.rows = 1
	}
	f.tail.SetOffset(o.File)
	f.rows.line, f.rows.over, f.done = o.Line, o.Long, o.Done && f.format == jsonl
}

// Close closes the file. Poll fails from then on; Offset, Note and Stats do not.
func (f *File) Close() error {
	if f.closed {
		return nil
	}
	f.last = f.Offset()
	f.closed = true
	f.rows.buf, f.reports = nil, nil
	return f.tail.Close()
}
