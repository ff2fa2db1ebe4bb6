// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tensorboard

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/progress/tail"
	"github.com/ebbtide/ebbtide/driver/progress/tensorboard/event"
	"github.com/ebbtide/ebbtide/driver/taskfs"
)

const (
	chunk         = 64 << 10
	pollBytes     = 1 << 20 // per Poll
	pollReports   = 8192    // per Poll, in addition to a chunk's
	maxOpen       = 8       // files kept open
	maxCandidates = 4       // runs examined
	maxErrors     = 5       // returned by one Poll
	maxTags       = 8       // named in a note
	growths       = 3       // growths of another run, while the current one is unchanged, before it takes over
	maxTag        = 256     // bytes; longer tags are ignored
	cheapWalk     = 5 * time.Millisecond
	walkShare     = 100 // a slow walk is repeated after this many times its duration
)

// Dir is a progress.Source that reads event files below a directory. It is not safe for
// concurrent use.
type Dir struct {
	root       *taskfs.Dir
	path       string
	cfg        progress.Config
	now        func() time.Time
	maxEntries int // lower in tests
	budget     int // remaining in this Poll

	runs     map[string]*run
	cur      *run
	previous string
	restored *offset // until files are found
	list     listing // of the last walk
	seen     int64   // newest change of any file
	next     time.Time
	line     []byte

	stats     progress.Stats
	time      time.Time // of the current Poll
	errs      []error   // of the current Poll
	hidden    int       // number of errors beyond maxErrors
	walkError string    // of the last walk
	problem   string    // last abandoned file
	closed    bool
	last      json.RawMessage // the offset at Close
}

var _ progress.Source = (*Dir)(nil)

type run struct {
	name      string
	files     map[string]*file
	order     []*file // files in order; nil if outdated
	newest    int64   // time of the newest change
	grew      bool    // in the last walk
	growths   int     // since the current run last grew
	candidate bool    // takes over once it holds a metric
	parser    *progress.Parser
	scalars   int64
	tags      []string // some of its tags
}

// Open returns a source for the event files below dir in root, which the caller keeps open. The
// directory may appear later. Errors are *progress.FieldErrors, joined.
func Open(root *taskfs.Dir, dir string, cfg progress.Config) (*Dir, error) {
	var errs []error
	bad := func(field, value, problem string) {
		if len(value) > 200 {
			value = strings.ToValidUTF8(value[:200], "") + "…"
		}
		errs = append(errs, &progress.FieldError{Field: field, Value: value, Problem: problem})
	}
	if dir == "" {
		bad("tensorboard", dir, "must name a directory")
	} else if err := taskfs.Check(dir); err != nil {
		bad("tensorboard", dir, err.Error())
	}
	if cfg.Pattern != "" {
		bad("pattern", cfg.Pattern, "applies only to log lines: a scalar is chosen by its tag, with metric")
	}
	switch cfg.Preset {
	case "", progress.PresetAuto, progress.PresetJSONL:
	default:
		bad("preset", cfg.Preset, "applies only to log lines: remove it")
	}
	// The rest of cfg only locates the directory.
	cfg = progress.Config{Preset: progress.PresetJSONL, Metric: cfg.Metric, Goal: cfg.Goal}
	if err := cfg.Validate(); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return &Dir{root: root, path: path.Clean(dir), cfg: cfg, now: time.Now, maxEntries: maxEntries, runs: map[string]*run{}}, nil
}

// Poll returns the new reports, from up to 1 MiB; Stats().More is set if more can be read. They
// carry the time of the call and their record's number. A missing directory is reported by Note,
// not as an error. A file's error is returned once.
func (d *Dir) Poll(ctx context.Context) ([]progress.Report, error) {
	if d.closed {
		return nil, fmt.Errorf("read %s: %w", d.path, tail.ErrClosed)
	}
	d.stats.More, d.stats.Behind = false, 0
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.time, d.errs, d.hidden, d.budget = d.now(), nil, 0, pollBytes
	d.walk(ctx)

	var reports []progress.Report
	if d.cur != nil {
		d.follow(ctx, d.cur, &reports)
	}
	for _, r := range d.candidates() {
		var its []progress.Report
		d.follow(ctx, r, &its)
		if len(its) > 0 {
			reports = append(reports, its...)
			d.switchTo(r)
		}
	}
	if ctx.Err() != nil {
		d.stats.More = true
		d.errs = append(d.errs, ctx.Err())
	}
	d.stats.Reports += int64(len(reports))
	if d.hidden > 0 {
		d.errs = append(d.errs, fmt.Errorf("and %d more event files that cannot be read", d.hidden))
	}
	return reports, errors.Join(d.errs...)
}

// walk lists the directory, unless the last walk was slow and recent.
func (d *Dir) walk(ctx context.Context) {
	if d.time.Before(d.next) {
		return
	}
	list, err := walk(ctx, d.root, d.path, d.maxEntries)
	if ctx.Err() != nil {
		return
	}
	end := d.now()
	if cost := end.Sub(d.time); cost > cheapWalk {
		d.next = end.Add(walkShare * cost)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		var p *fs.PathError
		if errors.As(err, &p) {
			err = p.Err // without the root's path
		}
		err = fmt.Errorf("look for event files in %s: %w", d.path, err)
		if d.walkError != err.Error() {
			d.walkError = err.Error()
			d.errs = append(d.errs, err)
		}
	} else {
		d.walkError = ""
	}
	d.list = list
	if len(list.entries) > 0 {
		d.assign()
	}
	d.selectOpen()
}

func (d *Dir) assign() {
	first := d.cur == nil
	for _, r := range d.runs {
		r.grew = false
	}
	there := map[string]bool{}
	var fresh []*run // those with a new file
	for _, e := range d.list.entries {
		there[e.path] = true
		name, data := place(e.path)
		r := d.runs[name]
		if r == nil {
			r = &run{name: name, files: map[string]*file{}}
			d.runs[name] = r
		}
		f := r.files[e.path]
		switch {
		case f == nil:
			f = &file{path: e.path, data: data, fresh: !first}
			r.files[e.path], r.order, r.grew = f, nil, true
			if first && d.restored != nil {
				d.restored.apply(r, f, e.stat)
			}
			if f.fresh && !slices.Contains(fresh, r) {
				fresh = append(fresh, r)
			}
		case e.stat != f.now:
			r.grew = true
			if f.abandoned != nil && (e.stat.inode != f.now.inode || e.stat.size < f.now.size) {
				f.from = tail.Offset{}
				d.restartFile(f)
			}
		}
		f.now = e.stat
		r.newest = max(r.newest, e.stat.time)
		d.seen = max(d.seen, e.stat.time)
	}
	d.forget(there)

	if first {
		d.begin()
	}
	for _, r := range fresh {
		if r == d.cur || r.candidate {
			continue
		}
		d.promote(r)
		for _, f := range r.files {
			if !f.fresh {
				f.read = f.now // read in an earlier attempt
			}
		}
	}
	for _, r := range d.runs {
		switch {
		case r == d.cur:
		case d.cur.grew:
			r.growths = 0
		case r.grew:
			if r.growths++; r.growths >= growths && !r.candidate {
				d.promote(r)
			}
		}
	}
	for _, r := range d.runs {
		for _, f := range r.files {
			f.fresh = false
		}
	}
}

func (d *Dir) begin() {
	if o := d.restored; o != nil {
		if d.cur = d.runs[o.Run]; d.cur == nil {
			d.cur = &run{name: o.Run, files: map[string]*file{}}
			d.runs[o.Run] = d.cur
		}
		d.cur.parser = d.newParser()
		d.cur.parser.SetState(o.Parser)
		d.restored = nil
		return
	}
	for _, r := range d.runs {
		if d.cur == nil || r.newest > d.cur.newest || r.newest == d.cur.newest && r.name > d.cur.name {
			d.cur = r
		}
	}
	d.cur.parser = d.newParser()
}

func (d *Dir) newParser() *progress.Parser {
	p, _ := progress.NewParser(d.cfg) // validated by Open
	return p
}

func (d *Dir) promote(r *run) {
	r.candidate, r.parser, r.scalars, r.tags = true, d.newParser(), 0, nil
}

func (d *Dir) switchTo(r *run) {
	old := d.cur
	for _, f := range old.files {
		f.close()
	}
	old.parser, old.growths = nil, 0
	r.candidate, r.growths = false, 0
	d.cur, d.previous = r, old.name
}

// forget drops removed files once there are many, since files may reappear.
func (d *Dir) forget(there map[string]bool) {
	all := 0
	for _, r := range d.runs {
		all += len(r.files)
	}
	if all-len(there) <= maxFiles {
		return
	}
	for _, r := range d.runs {
		for name, f := range r.files {
			if !there[name] {
				f.close()
				delete(r.files, name)
				r.order = nil
			}
		}
		if len(r.files) == 0 && r != d.cur {
			delete(d.runs, r.name)
		}
	}
}

func (d *Dir) candidates() []*run {
	var out []*run
	for _, r := range d.runs {
		if r.candidate {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *run) int {
		return cmp.Or(cmp.Compare(a.newest, b.newest), cmp.Compare(a.name, b.name))
	})
	return out[max(0, len(out)-maxCandidates):]
}

func (d *Dir) selectOpen() {
	var all []*file
	for _, r := range d.runs {
		for _, f := range r.files {
			f.keepOpen = false
			if r == d.cur || r.candidate {
				all = append(all, f)
			}
		}
	}
	slices.SortFunc(all, func(a, b *file) int {
		return cmp.Or(cmp.Compare(b.now.time, a.now.time), cmp.Compare(b.path, a.path))
	})
	for i, f := range all {
		if f.keepOpen = i < maxOpen; !f.keepOpen {
			f.close()
		}
	}
}

// follow reads new data from a run's files, ordered by name.
func (d *Dir) follow(ctx context.Context, r *run, reports *[]progress.Report) {
	if r.order == nil {
		r.order = slices.SortedFunc(maps.Values(r.files), func(a, b *file) int {
			return cmp.Or(cmp.Compare(path.Base(a.path), path.Base(b.path)), cmp.Compare(a.path, b.path))
		})
	}
	for _, f := range r.order {
		if f.abandoned != nil || f.tail == nil && f.now == f.read {
			continue
		}
		if d.budget <= 0 || len(*reports) >= pollReports || ctx.Err() != nil {
			d.stats.More = true
			if f.tail == nil {
				d.stats.Behind += max(0, f.now.size-f.from.Pos)
			}
			continue
		}
		err := d.drain(ctx, r, f, reports)
		if err == nil && f.lastError != "" && !f.reportedMalformed {
			d.clearProblem(f) // it was temporary
		}
		if err != nil && err.Error() != f.lastError {
			f.lastError = err.Error()
			d.problem = fmt.Sprintf("%s: %v", f.path, err)
			if len(d.errs) < maxErrors {
				d.errs = append(d.errs, fmt.Errorf("event file %s: %w", path.Join(d.path, f.path), err))
			} else {
				d.hidden++
			}
		}
	}
}

func (d *Dir) restartFile(f *file) {
	d.clearProblem(f)
	f.reset()
	d.stats.Truncated++
}

func (d *Dir) clearProblem(f *file) {
	f.lastError = ""
	if strings.HasPrefix(d.problem, f.path+": ") {
		d.problem = ""
	}
}

func (d *Dir) drain(ctx context.Context, r *run, f *file, reports *[]progress.Report) error {
	if f.tail == nil {
		d.budget -= 1024 // opening has a cost, too
		t, err := tail.Open(d.root, path.Join(d.path, f.path))
		if err != nil {
			f.abandoned = err
			return err
		}
		t.SetOffset(f.from)
		if f.tail, f.pos = t, f.from.Pos; f.pos == 0 {
			f.records = 0
		}
	}
	now := f.now
	var odd error
	take := func(record []byte, number int64) {
		e, err := event.Decode(record)
		if err != nil && !f.reportedMalformed { // reported once
			f.reportedMalformed = true
			odd = fmt.Errorf("record %d: %w; such records are skipped", number, err)
		}
		d.stats.Lines++
		for _, s := range e.Scalars {
			if report, ok := d.scalar(r, f, s); ok {
				report.Line = number
				*reports = append(*reports, report)
			}
		}
	}
	for {
		data, restarted, err := f.tail.Read(ctx, max(1, min(chunk, d.budget)))
		if restarted {
			d.restartFile(f)
		}
		d.budget -= len(data)
		d.stats.Bytes += int64(len(data))
		large, bad := f.feed(data, take)
		d.stats.Lines += large
		d.stats.Oversized += large
		switch {
		case bad != nil:
			f.read = now
			f.close()
			return bad
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, tail.ErrNotYet):
			f.read = now
			return odd
		case err != nil:
			f.read = now
			f.close()
			return err
		case f.tail.Behind() == 0:
			f.read = now
			if !f.keepOpen {
				f.close()
			}
			return odd
		case d.budget <= 0, len(*reports) >= pollReports:
			d.stats.More = true
			d.stats.Behind += f.tail.Behind()
			return odd
		}
	}
}

func (d *Dir) scalar(r *run, f *file, s event.Scalar) (progress.Report, bool) {
	name := s.Tag
	switch f.data {
	case "":
	case "train":
		if full := f.data + "/" + s.Tag; strings.EqualFold(full, d.cfg.Metric) {
			name = full
		}
	default:
		name = f.data + "/" + s.Tag
	}
	r.scalars++
	if len(name) > maxTag {
		return progress.Report{}, false
	}
	if len(r.tags) <= maxTags && !slices.Contains(r.tags, name) {
		r.tags = append(r.tags, name)
	}
	if (strings.HasPrefix(s.Tag, "hparam/") || strings.HasPrefix(s.Tag, "_hparams_/")) && !strings.EqualFold(name, d.cfg.Metric) {
		return progress.Report{}, false // final results, written in advance
	}
	d.line = appendLine(d.line[:0], name, s)
	report, ok := r.parser.Parse(d.line)
	if !ok {
		// Without a metric the steps alone count. Scalars may count them differently.
		report = progress.Report{Time: d.time, Value: math.NaN(), Step: float64(s.Step), Total: math.NaN(), Bar: name}
		return report, d.cfg.Metric == "" && r == d.cur && r.parser.Metric() == "" && s.Step >= 0
	}
	report.Time = d.time
	// The parser interprets a decreasing step as an epoch's; here it is the event's own.
	if report.Step = float64(s.Step); s.Step < 0 {
		report.Step = math.NaN()
	}
	if !(report.Total >= report.Step) {
		report.Total = math.NaN()
	}
	return report, true
}

// appendLine formats a scalar as a line of JSON with an unescaped name, as the parser expects it.
func appendLine(b []byte, name string, s event.Scalar) []byte {
	quote := byte('"')
	if strings.IndexByte(name, '"') >= 0 {
		quote = '\''
	}
	b = append(b, '{', quote)
	for i := range len(name) {
		switch c := name[i]; {
		case c == quote || c < ' ':
			b = append(b, ' ')
		case c == '\\' && i == len(name)-1:
			b = append(b, ' ')
		default:
			b = append(b, c)
		}
	}
	b = append(b, quote, ':', ' ')
	switch v := s.Value; {
	case math.IsNaN(v):
		b = append(b, "NaN"...)
	case math.IsInf(v, 1):
		b = append(b, "Infinity"...)
	case math.IsInf(v, -1):
		b = append(b, "-Infinity"...)
	default:
		from, bits := len(b), 64
		if float64(float32(v)) == v {
			bits = 32 // 0.3, not 0.30000001192092896
		}
		b = strconv.AppendFloat(b, v, 'g', -1, bits)
		if !slices.ContainsFunc(b[from:], func(c byte) bool { return c == '.' || c == 'e' }) {
			b = append(b, ".0"...) // a float, not a count
		}
	}
	b = append(b, `, "step": `...)
	b = strconv.AppendInt(b, s.Step, 10)
	return append(b, '}')
}

// Goal returns the configured or inferred goal; "" until a metric is found.
func (d *Dir) Goal() string {
	if d.cfg.Goal != "" {
		return d.cfg.Goal
	}
	if d.cur == nil || d.cur.parser.Metric() == "" {
		return ""
	}
	return d.cur.parser.Goal()
}

// Note describes missing data, the run that is read if there are several, and assumptions; "" if
// there is nothing to report.
func (d *Dir) Note() string {
	var notes []string
	add := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if d.walkError != "" {
		add("cannot %s", d.walkError)
	}
	switch {
	case d.cur == nil && d.walkError == "":
		add("waiting for TensorBoard event files in %s", d.path)
	case d.cur == nil:
	case len(d.list.entries) == 0 && d.walkError == "":
		add("the event files in %s were removed: waiting for them to reappear", d.path)
	case d.cur.scalars > 0 && (d.stats.Reports == 0 || d.cur.parser.Metric() == ""):
		metric := "none that is known for a measure: name one with metric"
		if d.cfg.Metric != "" {
			metric = fmt.Sprintf("but not %q", d.cfg.Metric)
		}
		add("the event files have scalars (%s), %s", d.cur.names(), metric)
	case d.stats.Reports == 0 && d.stats.Lines > 0:
		add("the event files in %s have no scalars yet", d.path)
	}
	if d.cur != nil && d.previous != "" {
		add("follows the run %s since it began, %s before", d.name(d.cur.name), d.name(d.previous))
	} else if len(d.runs) > 1 {
		add("follows the run %s, one of %d", d.name(d.cur.name), len(d.runs))
	}
	if d.problem != "" {
		add("%s", d.problem)
	}
	if note := d.list.note(); note != "" {
		add("%s", note)
	}
	if d.cur != nil {
		if note := d.cur.parser.Note(); note != "" {
			add("%s", note)
		}
	}
	return strings.Join(notes, "; ")
}

func (d *Dir) name(run string) string { return path.Join(d.path, run) }

func (r *run) names() string {
	tags := r.tags
	more := ""
	if len(tags) > maxTags {
		tags, more = tags[:maxTags], ", …"
	}
	clean := func(c rune) rune {
		if unicode.IsControl(c) || c == unicode.ReplacementChar {
			return '?'
		}
		return c
	}
	return strings.Map(clean, strings.Join(tags, ", ")) + more
}

// Stats counts the data read. Lines are records; Oversized ones were skipped.
func (d *Dir) Stats() progress.Stats { return d.stats }

// Close closes the files; Poll fails afterwards.
func (d *Dir) Close() error {
	if d.closed {
		return nil
	}
	d.last = d.Offset()
	d.closed = true
	for _, r := range d.runs {
		for _, f := range r.files {
			f.close()
		}
	}
	return nil
}
