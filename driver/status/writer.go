// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package status

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/ebbtide/ebbtide/driver/taskfs"
)

// Options of a Writer; zero values are the defaults.
type Options struct {
	// Dir is the files' directory beneath the base, the constant Dir by default; "." is
	// the base itself.
	Dir string
	// MaxRows is the maximum number of rows of the history, 5,000 by default (about 0.7
	// MiB). Beyond it, a quarter is thinned out.
	MaxRows int
}

const (
	defaultMaxRows = 5000
	minMaxRows     = 16

	dirMode  = 0o755
	fileMode = 0o644
)

// Writer writes the files of one task. Its methods are atomic and safe for concurrent use. Two
// Writers of the same task do not corrupt each other's files, but may lose rows.
//
// It keeps no file open between calls, so Nomad can remove or move the directory.
type Writer struct {
	base    string
	dir     string // beneath base
	task    string
	maxRows int

	mu   sync.Mutex
	last *Status // last written, for the picture's title

	// The history file written last. Any other one, or another size, means outside
	// changes: it is read and rewritten.
	rows int
	size int64
	made taskfs.Stat
}

// NewWriter returns the writer of a task's files in opts.Dir beneath base, an existing
// directory that the task cannot replace: the allocation's shared directory (…/<alloc
// id>/alloc, the task's NOMAD_ALLOC_DIR). It creates missing directories and removes a
// killed predecessor's temporary files.
func NewWriter(base, task string, opts Options) (*Writer, error) {
	// ".", plus the longest suffix, must stay within the 255 bytes of a file name.
	if task == "" || strings.ContainsAny(task, "/\x00") || len(task) > 240 {
		return nil, fmt.Errorf("task name %.60q: must be 1 to 240 bytes without a slash", task)
	}
	w := &Writer{base: base, dir: cmp.Or(opts.Dir, Dir), task: task, maxRows: opts.MaxRows}
	if w.maxRows <= 0 {
		w.maxRows = defaultMaxRows
	}
	w.maxRows = max(w.maxRows, minMaxRows)
	d, err := w.open()
	if err != nil {
		return nil, err
	}
	defer d.Close()
	for _, ext := range []string{".json", ".csv", ".png"} {
		_ = d.Remove(taskfs.TempName(task + ext))
	}
	return w, nil
}

// open opens or creates the directory, replacing anything else with its name.
func (w *Writer) open() (*taskfs.Dir, error) {
	base, err := taskfs.Open(w.base, "")
	if err != nil {
		return nil, err
	}
	defer base.Close()
	d, err := base.MkdirAll(w.dir, dirMode)
	if errors.Is(err, taskfs.ErrKind) && base.Remove(w.dir) == nil {
		d, err = base.MkdirAll(w.dir, dirMode)
	}
	return d, err
}

func (w *Writer) replace(suffix string, data []byte) error {
	d, err := w.open()
	if err != nil {
		return err
	}
	defer d.Close()
	_, err = d.WriteFile(w.task+suffix, data, fileMode)
	return err
}

func (w *Writer) read(suffix string, limit int64) (b []byte, path string, err error) {
	d, err := taskfs.Open(w.base, w.dir)
	if err != nil {
		return nil, "", err
	}
	defer d.Close()
	b, err = d.ReadFile(w.task+suffix, limit)
	return b, filepath.Join(d.Name(), w.task+suffix), err
}

// Status replaces the status file. After an error the old one is unchanged: the disk is
// full, a directory is in its place (taskfs.ErrKind), or the allocation's directory is
// gone (fs.ErrNotExist).
func (w *Writer) Status(s Status) error {
	b, err := s.Encode()
	if err != nil {
		return err
	}
	return w.Encoded(s, b)
}

// Encoded is like Status, for an encoded status.
func (w *Writer) Encoded(s Status, b []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = &s
	return w.replace(".json", b)
}

// Append adds a row to the history and keeps it within Options.MaxRows. Errors are
// those of Status; a row that does not fit on the disk is lost, and the file unchanged.
func (w *Writer) Append(r Row) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	d, err := w.open()
	if err != nil {
		return err
	}
	defer d.Close()

	name := w.task + ".csv"
	f, st, err := d.Append(name, w.made)
	if err == nil {
		defer func() { _ = f.Close() }()
		if w.rows < w.maxRows && st.Size == w.size && endsLine(f, w.size) {
			return w.extend(f, r)
		}
	}
	b, err := d.ReadFile(name, maxHistory)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, taskfs.ErrKind) {
		return err
	}
	rows := append(ParseHistory(b), r)
	if len(rows) > w.maxRows {
		rows = thin(rows, w.maxRows*3/4)
	}
	b = FormatHistory(rows)
	if w.made, err = d.WriteFile(name, b, fileMode); err != nil {
		w.made = taskfs.Stat{}
		return err
	}
	w.rows, w.size = len(rows), int64(len(b))
	return nil
}

func (w *Writer) extend(f *os.File, r Row) error {
	line := r.appendTo(nil)
	if n, err := f.Write(line); err != nil {
		if n > 0 {
			_ = f.Truncate(w.size) // no torn line
		}
		w.made = taskfs.Stat{} // read it next time
		return fmt.Errorf("append to %s: %w", f.Name(), err)
	}
	w.rows++
	w.size += int64(len(line))
	return nil
}

// Marker writes content as JSON to <task>.<name>, for which a task may wait. Errors are
// those of Status.
func (w *Writer) Marker(name string, content any) error {
	b, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return fmt.Errorf("encode marker %s of task %s: %w", name, w.task, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.replace("."+name, append(b, '\n'))
}

func (w *Writer) history() ([]Row, error) {
	b, _, err := w.read(".csv", maxHistory)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return ParseHistory(b), nil
}

// Picture draws the history to the picture file; see Draw. It takes tens of
// milliseconds of CPU: call it at milestones and at most once a minute.
func (w *Writer) Picture() error {
	rows, err := w.history()
	if err != nil {
		return err
	}
	w.mu.Lock()
	last := w.last
	w.mu.Unlock()
	labels := Labels{Task: w.task}
	if last != nil {
		labels = LabelsOf(*last)
		labels.Task = w.task
	}
	b, err := Draw(rows, labels)
	if err != nil {
		return fmt.Errorf("draw picture of task %s: %w", w.task, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.replace(".png", b)
}

// readPath returns at most limit bytes of the regular file at path. A symlink is not
// followed in the last component.
func readPath(path string, limit int64) ([]byte, error) {
	d, err := taskfs.Open(filepath.Dir(path), "")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.ReadFile(filepath.Base(path), limit)
}

// ReadHistory reads the history file at path, oldest row first, at most 8 MiB. Invalid
// lines are skipped.
func ReadHistory(path string) ([]Row, error) {
	b, err := readPath(path, maxHistory)
	if err != nil {
		return nil, err
	}
	return ParseHistory(b), nil
}

// ReadStatus reads the status file at path. Unknown fields are ignored, missing numbers
// are NaN.
func ReadStatus(path string) (Status, error) {
	b, err := readPath(path, MaxStatus)
	if err != nil {
		return Status{}, err
	}
	return decode(path, b)
}

// endsLine reports whether f, of the given size, ends with a newline: a row appended to
// a torn one would be lost.
func endsLine(f *os.File, size int64) bool {
	var b [1]byte
	_, err := f.ReadAt(b[:], size-1)
	return err == nil && b[0] == '\n'
}
