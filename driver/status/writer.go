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

// Options of a Writer. The zero value is the default.
type Options struct {
	// Dir is where the files lie beneath the base directory: Dir, the constant, by
	// default. A base without a Dir of its own is given as ".".
	Dir string
	// MaxRows is the greatest number of rows of the history, 5,000 by default
	// (about 0.7 MiB). One more, and a quarter of them is thinned out.
	MaxRows int
}

const (
	defaultMaxRows = 5000
	minMaxRows     = 16

	dirMode  = 0o755
	fileMode = 0o644
)

// Writer writes the files of one task. Its methods may be called from any
// goroutine; each takes effect as a whole, one after the other. Two Writers for
// the same task, in one process or two, do not corrupt a file that is replaced
// (status, picture, a thinned history), but may lose each other's rows.
//
// It holds no file open between calls, so there is nothing to close, and a
// directory that Nomad removes or moves is no obstacle.
type Writer struct {
	base    string
	dir     string // beneath base
	task    string
	maxRows int

	mu   sync.Mutex
	last *Status // the last one written, for the picture's title

	// The history file that we have written last. Any other one, or one of another
	// size, means that somebody meddled: it is read and written anew.
	rows int
	size int64
	made taskfs.Stat
}

// NewWriter returns the writer of one task's files beneath base, a directory that the
// task cannot replace; opts.Dir says where. For people and tools it is the allocation's
// shared directory (…/<alloc id>/alloc, what the task sees as NOMAD_ALLOC_DIR). base must
// exist. What is missing beneath it is created, and what a killed predecessor left
// half-written is removed.
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

// open opens the directory and makes it if need be. Its name is ours: what else a task
// has put in its place is removed.
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

// replace puts data in the place of the file with a suffix.
func (w *Writer) replace(suffix string, data []byte) error {
	d, err := w.open()
	if err != nil {
		return err
	}
	defer d.Close()
	_, err = d.WriteFile(w.task+suffix, data, fileMode)
	return err
}

// read returns the beginning of the file with a suffix, and its path.
func (w *Writer) read(suffix string, limit int64) (b []byte, path string, err error) {
	d, err := taskfs.Open(w.base, w.dir)
	if err != nil {
		return nil, "", err
	}
	defer d.Close()
	b, err = d.ReadFile(w.task+suffix, limit)
	return b, filepath.Join(d.Name(), w.task+suffix), err
}

// Status replaces the status file. After an error the old one is as it was: the disk is
// full, a directory lies in its place (taskfs.ErrKind), or the allocation's directory is
// gone (fs.ErrNotExist).
func (w *Writer) Status(s Status) error {
	b, err := s.Encode()
	if err != nil {
		return err
	}
	return w.Encoded(s, b)
}

// Encoded is Status for one that is encoded already.
func (w *Writer) Encoded(s Status, b []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = &s
	return w.replace(".json", b)
}

// Append adds a row to the history. The file never has more than
// Options.MaxRows rows. Errors as for Status; a row that does not fit on the disk
// is lost, and the file is as it was.
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
	b = formatHistory(rows)
	if w.made, err = d.WriteFile(name, b, fileMode); err != nil {
		w.made = taskfs.Stat{}
		return err
	}
	w.rows, w.size = len(rows), int64(len(b))
	return nil
}

// extend writes a row to the end of the history.
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

// Marker writes what a task may wait for: a small JSON file <task>.<name> beside
// the others. Errors as for Status.
func (w *Writer) Marker(name string, content any) error {
	b, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return fmt.Errorf("encode marker %s of task %s: %w", name, w.task, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.replace("."+name, append(b, '\n'))
}

// history reads the history, as far as it can be read, oldest row first. A
// missing file is no error. The task may have changed the file.
func (w *Writer) history() ([]Row, error) {
	b, _, err := w.read(".csv", maxHistory)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return ParseHistory(b), nil
}

// Picture draws the history to the picture file; see Draw. It takes some tens of
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

// readPath returns at most limit bytes of the regular file at path. The last
// component is not followed when it is a symlink; the ones before it are.
func readPath(path string, limit int64) ([]byte, error) {
	d, err := taskfs.Open(filepath.Dir(path), "")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.ReadFile(filepath.Base(path), limit)
}

// ReadHistory reads the history file at path, oldest row first. It reads what it
// can: a line that is torn, too long or no row is left out. At most 8 MiB are read.
func ReadHistory(path string) ([]Row, error) {
	b, err := readPath(path, maxHistory)
	if err != nil {
		return nil, err
	}
	return ParseHistory(b), nil
}

// ReadStatus reads the status file at path. Fields it does not know are ignored,
// numbers that are missing are unknown (NaN).
func ReadStatus(path string) (Status, error) {
	b, err := readPath(path, MaxStatus)
	if err != nil {
		return Status{}, err
	}
	return decode(path, b)
}

// endsLine tells whether the last of the size bytes of f ends a line: a row
// appended to a torn one would be lost with it.
func endsLine(f *os.File, size int64) bool {
	var b [1]byte
	_, err := f.ReadAt(b[:], size-1)
	return err == nil && b[0] == '\n'
}
