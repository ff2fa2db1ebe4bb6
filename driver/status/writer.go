// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Options of a Writer. The zero value is the default.
type Options struct {
	// MaxRows is the greatest number of rows of the history, 5,000 by default
	// (about 0.7 MiB). One more, and a quarter of them is thinned out.
	MaxRows int
}

const (
	defaultMaxRows = 5000
	minMaxRows     = 16
)

// Writer writes the files of one task. Its methods may be called from any
// goroutine; each takes effect as a whole, one after the other. Two Writers for
// the same task, in one process or two, do not corrupt a file that is replaced
// (status, picture, a thinned history), but may lose each other's rows.
//
// It holds no file open between calls, so there is nothing to close, and a
// directory that Nomad removes or moves is no obstacle.
type Writer struct {
	base    string // the allocation's shared directory
	task    string
	maxRows int

	mu   sync.Mutex
	last *Status // the last one written, for the picture's title

	// What the history file looked like after our last write to it; anything else
	// means that somebody meddled and the file has to be read again.
	rows int
	size int64
	ino  uint64
}

// NewWriter returns the writer of one task's files in Dir beneath base, the
// allocation's shared directory (…/<alloc id>/alloc, what the task sees as
// NOMAD_ALLOC_DIR). base must exist. Dir is created, and what a killed
// predecessor left half-written is removed.
func NewWriter(base, task string, opts Options) (*Writer, error) {
	// ".", plus the longest suffix, must stay within the 255 bytes of a file name.
	if task == "" || strings.ContainsAny(task, "/\x00") || len(task) > 240 {
		return nil, fmt.Errorf("task name %.60q: must be 1 to 240 bytes without a slash", task)
	}
	w := &Writer{base: base, task: task, maxRows: opts.MaxRows}
	if w.maxRows <= 0 {
		w.maxRows = defaultMaxRows
	}
	w.maxRows = max(w.maxRows, minMaxRows)
	d, err := openDir(base, true)
	if err != nil {
		return nil, err
	}
	defer d.close()
	for _, ext := range []string{".json", ".csv", ".png"} {
		_ = unix.Unlinkat(d.fd, tmpName(task+ext), 0)
	}
	return w, nil
}

// Status replaces the status file. Errors: ErrNoSpace and ErrBlocked (the old
// file is kept), or that the allocation's directory is gone (fs.ErrNotExist).
func (w *Writer) Status(s Status) error {
	b, err := s.Encode()
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = &s
	d, err := openDir(w.base, true)
	if err != nil {
		return err
	}
	defer d.close()
	return d.replace(w.task+".json", b)
}

// ReadStatus reads the status file back, as an earlier process may have left it.
// The task may have changed it.
func (w *Writer) ReadStatus() (Status, error) {
	d, err := openDir(w.base, false)
	if err != nil {
		return Status{}, err
	}
	defer d.close()
	name := w.task + ".json"
	b, err := d.read(name, maxStatus)
	if err != nil {
		return Status{}, err
	}
	return decode(d.path+"/"+name, b)
}

// Append adds a row to the history. The file never has more than
// Options.MaxRows rows. Errors as for Status; a row that does not fit on the disk
// is lost, and the file is as it was.
func (w *Writer) Append(r Row) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	d, err := openDir(w.base, true)
	if err != nil {
		return err
	}
	defer d.close()

	name := w.task + ".csv"
	f, fi, err := d.open(name, unix.O_RDWR|unix.O_APPEND)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, ErrNotRegular):
		return w.rewrite(d, []Row{r})
	case err != nil:
		return err
	}
	defer func() { _ = f.Close() }()

	if w.rows == 0 || fi.Size() != w.size || inode(fi) != w.ino || !endsLine(f, w.size) {
		b, err := readPart(f, maxHistory)
		if err != nil {
			return err
		}
		rows, dirty := parseHistory(b)
		if dirty || fi.Size() > int64(len(b)) || len(rows) == 0 {
			return w.rewrite(d, append(rows, r))
		}
		w.rows, w.size, w.ino = len(rows), fi.Size(), inode(fi)
	}
	if w.rows >= w.maxRows {
		b, err := readPart(f, maxHistory)
		if err != nil {
			return err
		}
		rows, _ := parseHistory(b)
		return w.rewrite(d, append(rows, r))
	}

	line := r.appendTo(nil)
	if n, err := f.Write(line); err != nil {
		if n > 0 {
			_ = f.Truncate(w.size) // no torn line
		}
		w.rows = 0 // look again next time
		return fmt.Errorf("append to %s/%s: %w", d.path, name, typed(err))
	}
	w.rows++
	w.size += int64(len(line))
	return nil
}

// rewrite replaces the history by rows, thinned if they are too many.
func (w *Writer) rewrite(d *dir, rows []Row) error {
	if len(rows) > w.maxRows {
		rows = thin(rows, w.maxRows*3/4)
	}
	b := formatHistory(rows)
	name := w.task + ".csv"
	w.rows = 0
	if err := d.replace(name, b); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("stat %s/%s: %w", d.path, name, err)
	}
	w.rows, w.size, w.ino = len(rows), int64(len(b)), st.Ino
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
	d, err := openDir(w.base, true)
	if err != nil {
		return err
	}
	defer d.close()
	return d.replace(w.task+"."+name, append(b, '\n'))
}

// History reads the history, as far as it can be read, oldest row first. A
// missing file is no error. The task may have changed the file.
func (w *Writer) History() ([]Row, error) {
	d, err := openDir(w.base, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.close()
	b, err := d.read(w.task+".csv", maxHistory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	rows, _ := parseHistory(b)
	return rows, nil
}

// Picture draws the history to the picture file; see Draw. It takes some tens of
// milliseconds of CPU: call it at milestones and at most once a minute.
func (w *Writer) Picture() error {
	rows, err := w.History()
	if err != nil {
		return err
	}
	w.mu.Lock()
	last := w.last
	w.mu.Unlock()
	labels := Labels{Task: w.task}
	if last == nil {
		if s, err := w.ReadStatus(); err == nil {
			last = &s
		}
	}
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
	d, err := openDir(w.base, true)
	if err != nil {
		return err
	}
	defer d.close()
	return d.replace(w.task+".png", b)
}

// ReadHistory reads the history file at path, oldest row first. It reads what it
// can: a line that is torn, too long or no row is left out. At most 8 MiB are read.
func ReadHistory(path string) ([]Row, error) {
	b, err := readPath(path, maxHistory)
	if err != nil {
		return nil, err
	}
	rows, _ := parseHistory(b)
	return rows, nil
}

// ReadStatus reads the status file at path. Fields it does not know are ignored,
// numbers that are missing are unknown (NaN).
func ReadStatus(path string) (Status, error) {
	b, err := readPath(path, maxStatus)
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

// readPart returns at most limit bytes from the start of f, which stays open.
func readPart(f *os.File, limit int64) ([]byte, error) {
	fi, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	b := make([]byte, min(fi.Size(), limit))
	n, err := f.ReadAt(b, 0)
	if err != nil && n == 0 && len(b) > 0 {
		return nil, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	return b[:n], nil
}
